"""Backup and restore: everything of a cluster but its messages, in one file."""
