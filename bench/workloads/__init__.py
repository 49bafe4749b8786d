"""Workloads: profiles and systems in the combinations that the project states figures of."""
