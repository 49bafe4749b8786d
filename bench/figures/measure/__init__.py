"""Figures of measuring itself: its costs, and whether it finds what was hidden from it."""
