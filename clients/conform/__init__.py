"""A conformance kit for clients of the bus: 22 cases that judge any program by ids.

The client under test is a program that speaks JSON lines (`docs/reference/conformance.md`). The kit stands
between it and the brokers, as proxies and as the agent that serves the consumer list, and makes the trouble
there.
Brokers are real, and a plain AMQP client is the witness of what they hold.
"""
