"""The balancer: HAProxy's configuration from the inventory, and its state at run time."""
