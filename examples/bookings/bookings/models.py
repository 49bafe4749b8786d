"""Tables, and the message of a booking."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from django.db import models

__all__ = ["Booked", "Booking", "Guest"]


class Booking(models.Model):
    """A room that a guest has for a night."""

    room = models.CharField(max_length=16)
    night = models.DateField()
    guest = models.CharField(max_length=64)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["room", "night"],
                name="one_guest_a_night",
                violation_error_message="the room is taken that night",
            )
        ]


class Guest(models.Model):
    """A guest and the points of all bookings."""

    name = models.CharField(max_length=64, primary_key=True)
    points = models.PositiveIntegerField(default=0)


@dataclass(frozen=True, slots=True)
class Booked:
    """The message of a booking."""

    number: int
    room: str
    night: date
    guest: str
