"""A running cluster: what it says about itself, and what must hold in it."""
