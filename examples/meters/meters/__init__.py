"""Readings of power meters, from a topic into a lake, and a report by Spark."""
