"""Operators' kit: a local cluster, and playbooks that change a running one."""

from messagebus.commands.checkout import check_library

check_library("ops", "sh")
