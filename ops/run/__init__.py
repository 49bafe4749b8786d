"""Plans as values, and how they are carried out: commands, checks, journal, lock."""
