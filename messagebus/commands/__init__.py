"""Groups of the command `messagebus` that have a file of their own."""
