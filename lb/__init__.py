"""The balancer: HAProxy's configuration from the inventory, and its state at run time."""

from messagebus.commands.checkout import check_library

check_library("lb", "rich")
