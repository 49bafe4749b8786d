"""Operators' kit: a local cluster, and playbooks that change a running one."""
