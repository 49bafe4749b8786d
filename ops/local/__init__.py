"""A whole cluster on loopback addresses: brokers, agents, HAProxy, under the current user."""
