"""The lake: recorded event files, read, checked and kept as tables by date and run."""
