"""Figures of the measuring itself: its costs, and whether it finds planted faults."""
