"""Clients: each system that can be measured, with its brokers and its client under load."""
