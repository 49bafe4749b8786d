"""The consumer lists themselves, and the tool that edits, checks and distributes them."""
