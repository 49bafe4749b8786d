"""The mirrored disk of a broker: its state by DRBD, and the playbooks about it."""
