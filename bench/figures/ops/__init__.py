"""Figures of operating: playbooks on the local cluster, and power-offs of virtual hosts."""
