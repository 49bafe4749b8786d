"""The figures that the project states about itself, each measured by a command that anyone can repeat."""
