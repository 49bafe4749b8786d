"""HTTP for programs without AMQP: publish, pull with leases, streams, push by webhooks.

It uses the public names of `messagebus` alone. A 2xx
means: every message of the request is confirmed. Gateways share no state; any number may run side by side.
"""
