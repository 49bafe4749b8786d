"""Patience: how long a wait for a start lasts. A slow machine is not taken for a dead one.

A wait goes on as long as something moves (a log grows, a process computes, a count changes) and ends when
nothing has moved for a while, or after a bound that no start should reach. That the process is gone is for
the caller to see, at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable

# Brokers boot in 9 s on two idle cores. Beside 16 busy loops one was without a line of its log for a minute.
STALLED_S = 180.0
"""Time without any progress after which a start is given up."""
START_AT_MOST_S = 1800.0
"""Time after which a start is given up although something moves: a program may compute for ever."""


class Patience:
    """The time that one wait has left. Not thread-safe.

    moves: returns a value that changes with any progress, such as the size of a log.
    """

    def __init__(
        self,
        moves: Callable[[], object],
        *,
        stalled_s: float = STALLED_S,
        at_most_s: float = START_AT_MOST_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._moves, self._clock = moves, clock
        self._stalled_s, self._at_most_s = stalled_s, at_most_s
        self._began_s = self._moved_s = clock()
        self._before = moves()

    def spent(self) -> str:
        """Look for progress. Returns "" while there is time left, else why there is none."""
        now_s = self._clock()
        if (after := self._moves()) != self._before:
            self._before, self._moved_s = after, now_s
        took_s, rested_s = now_s - self._began_s, now_s - self._moved_s
        if took_s > self._at_most_s:
            return f"after {took_s:.0f} s"
        if rested_s > self._stalled_s:
            return f"after {took_s:.0f} s, {rested_s:.0f} of them without progress"
        return ""
