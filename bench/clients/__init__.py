"""Clients: each system that can be measured, its brokers started and its client under load."""
