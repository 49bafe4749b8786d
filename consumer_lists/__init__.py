"""The consumer lists, and the tool that edits, checks and distributes them."""
