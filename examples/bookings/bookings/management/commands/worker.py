"""`python manage.py worker`."""

from __future__ import annotations

from django.core.management.base import BaseCommand, CommandError

from bookings.handlers import app
from messagebus import MessageBusError

__all__ = ["Command"]


class Command(BaseCommand):
    """Run the app, any number of times side by side."""

    help = "Publish what is in the outbox, and run the handlers, until SIGTERM."

    def handle(self, *args: object, **options: object) -> None:
        """Run until SIGTERM. Raises CommandError where it cannot run, or leaves messages unfinished."""
        try:
            left = app.run_blocking()
        except MessageBusError as fault:
            raise CommandError(str(fault)) from fault
        if left:
            raise CommandError(f"{left} messages were not finished: they come again")
