"""The app that `python manage.py worker` runs: the relay of the outbox, and the handlers."""

from __future__ import annotations

from collections.abc import Callable

from django.conf import settings
from django.db import close_old_connections, connection, transaction
from django.db.models import F

from bookings.models import Booked, Guest
from messagebus import App, Delivery, Once, Outbox

__all__ = ["POINTS", "app", "give_points"]

POINTS = 10


def as_request(call_next: Callable[[Delivery], object], delivery: Delivery) -> object:
    """Close connections of a handler's thread that are broken or too old, as Django does around a request."""
    close_old_connections()
    try:
        return call_next(delivery)
    finally:
        close_old_connections()


app = App(
    outbox=Outbox(database=settings.OUTBOX_DATABASE),
    relay=True,
    middleware=[as_request],
)


@app.subscriber("bookings", subscription="points", concurrency=4)
def give_points(booked: Booked, once: Once) -> None:
    """Give the guest of a booking points, once: the note that it is done is in the same transaction."""
    with transaction.atomic():
        if once.begin(connection):
            guest, _ = Guest.objects.get_or_create(name=booked.guest)
            guest.points = F("points") + POINTS
            guest.save(update_fields=["points"])
