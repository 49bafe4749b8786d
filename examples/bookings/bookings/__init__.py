"""Rooms are booked, and guests get points for it."""
