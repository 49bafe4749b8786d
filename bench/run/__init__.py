"""One measured run: its profile, its load processes, what they record, what is made of it."""
