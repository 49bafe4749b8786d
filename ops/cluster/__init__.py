"""A running cluster: its state as it reports it, and the conditions that must hold in it."""
