"""The harness: coordinator and load processes of one measured run, and what they record."""
