"""Everything of a cluster but its messages, kept in one file."""
