"""A publisher that the threads of a process share, started when it is first asked for.

Servers such as gunicorn and uwsgi load an application and fork: a child gets a publisher of its own.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable

from messagebus import Publisher

__all__ = ["SharedPublisher"]

STOP_S = 10.0


class SharedPublisher:
    """Holder of one publisher for each process. make: creates the publisher; it must not start it."""

    def __init__(self, make: Callable[[], Publisher]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._publisher: Publisher | None = None
        # A lock that another thread holds at the fork is never released in the child.
        os.register_at_fork(after_in_child=self._forget)

    def get(self) -> Publisher:
        """Return the publisher, started. Thread: any. Raises ConfigError and Stopped."""
        found = self._publisher
        if found is not None:
            return found
        with self._lock:
            if self._publisher is None:
                made = self._make()
                made.start()
                self._publisher = made
                atexit.register(self.stop)
            return self._publisher

    def stop(self) -> int:
        """Stop the publisher; the next `get` creates another. Returns how many publishes have no outcome."""
        with self._lock:
            found, self._publisher = self._publisher, None
        atexit.unregister(self.stop)
        return 0 if found is None else found.stop(STOP_S)

    def _forget(self) -> None:
        self._lock, self._publisher = threading.Lock(), None
