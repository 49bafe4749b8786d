"""Measures of a run: transforms from its tables to a few rows. They show nothing."""
