"""Pages and texts that show measures, with charts, bars and tables."""
