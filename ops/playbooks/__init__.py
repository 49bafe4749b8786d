"""The playbooks: each is a plan, made from the inventory by a function."""
