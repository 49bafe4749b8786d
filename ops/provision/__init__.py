"""Hosts as they should be: what that is, what they are, and the steps from one to the other."""
