"""Two clocks in whole ms: one that nobody sets, by which all is decided, and the wall's, for people.

`LogLimit` bounds log lines by the first one.
"""

from __future__ import annotations

import time

__all__ = [
    "MS_PER_S",
    "NS_PER_MS",
    "NS_PER_S",
    "LogLimit",
    "in_seconds",
    "monotonic_ms",
    "wall_ms",
    "whole_ms",
]

MS_PER_S, NS_PER_MS, NS_PER_S = 1_000, 1_000_000, 1_000_000_000


def monotonic_ms() -> int:
    """Return ms since some moment: for durations and deadlines within this process."""
    return time.monotonic_ns() // NS_PER_MS


def wall_ms() -> int:
    """Return ms since 1970, as the host's clock is set: for people, and for times of other processes."""
    return time.time_ns() // NS_PER_MS


def whole_ms(seconds: float) -> int:
    """Return a duration in whole ms, as the core and the wire have them."""
    return round(seconds * MS_PER_S)


def in_seconds(ms: int | None) -> float | None:
    """Return an age in seconds, as people read it; None stays None."""
    return None if ms is None else ms / MS_PER_S


class LogLimit:
    """At most one log line within interval_ms, of all that share this object."""

    def __init__(self, interval_ms: int) -> None:
        self._interval_ms = interval_ms
        self._last_ms: int | None = None

    def allows(self) -> bool:
        """Return whether a line may be logged now, and count it as logged if so."""
        now = monotonic_ms()
        if self._last_ms is not None and now - self._last_ms < self._interval_ms:
            return False
        self._last_ms = now
        return True
