"""Clients of the peers, measured beside ours with the same tasks."""
