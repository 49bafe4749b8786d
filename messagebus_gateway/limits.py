"""Limits of one principal: a token bucket for messages, and requests under way. Pure.

Times are whole milliseconds of a monotonic clock, passed in.
"""

from __future__ import annotations

import math

__all__ = ["Bucket", "Places"]


class Bucket:
    """Token bucket. rate_per_s: tokens that come in; 0: no limit. It holds one second's tokens at most."""

    __slots__ = ("_at_ms", "_left", "rate_per_s")

    def __init__(self, rate_per_s: float) -> None:
        self.rate_per_s = rate_per_s
        self._left = rate_per_s
        self._at_ms: int | None = None

    def take(self, count: int, now_ms: int) -> float:
        """Take tokens. Returns 0, or after how many seconds to come again; then nothing was taken.

        More tokens than it ever holds are granted when it is full, and owed afterwards.
        """
        if not self.rate_per_s:
            return 0.0
        self._fill(now_ms)
        wanted = min(float(count), max(1.0, self.rate_per_s))
        if self._left < wanted:
            return (wanted - self._left) / self.rate_per_s
        self._left -= count
        return 0.0

    def left(self, now_ms: int) -> int:
        """Return how many whole tokens there are."""
        self._fill(now_ms)
        return max(0, math.floor(self._left))

    def _fill(self, now_ms: int) -> None:
        if self._at_ms is not None:
            more = (now_ms - self._at_ms) * self.rate_per_s / 1000
            self._left = min(max(1.0, self.rate_per_s), self._left + more)
        self._at_ms = now_ms


class Places:
    """Places for a number of things at once: requests under way, or sockets."""

    __slots__ = ("most", "taken")

    def __init__(self, most: int) -> None:
        self.most, self.taken = most, 0

    def enter(self) -> bool:
        """Take a place. False: there is none."""
        if self.taken >= self.most:
            return False
        self.taken += 1
        return True

    def leave(self) -> None:
        """Give the place back."""
        assert self.taken > 0
        self.taken -= 1
