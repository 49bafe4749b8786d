"""Load, latency and audits of the bus: what is published, what is delivered, and whether the two agree."""

from messagebus.commands.checkout import check_library

check_library("bench", "sh")
