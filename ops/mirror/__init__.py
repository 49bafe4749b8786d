"""The mirrored disk of a broker: what DRBD says of it, and the playbooks about it."""
