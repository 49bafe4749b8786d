"""The consumer lists, and the tool that edits, checks and distributes them."""

from messagebus.commands.checkout import check_library

check_library("consumer_lists", "rich")
