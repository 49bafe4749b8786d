"""Plans as values, and their execution: commands, checks, journal, lock."""
