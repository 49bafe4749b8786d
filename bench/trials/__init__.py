"""Trials: faults under load, and handlers that end in every way; nothing may be lost."""
