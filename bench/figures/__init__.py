"""The figures that the project states about itself, each with a command that repeats its measurement."""
