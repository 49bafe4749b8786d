"""The highest rate that a system takes with its latencies still in bounds, found by halving.

Pure: says which rate to try next and is told how it went. Rates grow twofold until one fails, then the
gap between the best that held and the least that failed is halved until it is a tenth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

__all__ = ["Knee"]

GROWTH = 2.0
# Of the answer: what lies between is within what one machine varies by itself.
PRECISION = 0.1


@dataclass(slots=True)
class Knee:
    """first: messages a second, of the first try. top: the most that is tried."""

    first: float
    top: float
    held: float = 0.0
    failed: float = field(default=float("inf"))

    def next_rate(self) -> float | None:
        """What to try next; None when the answer is known."""
        if self.held >= self.top or (self.held == 0 and self.failed <= self.first / 64):
            return None
        if self.failed == float("inf"):
            return min(self.top, self.held * GROWTH) if self.held else self.first
        if self.held == 0:
            return self.failed / GROWTH
        if self.failed / self.held <= 1 + PRECISION:
            return None
        return math.sqrt(self.held * self.failed)

    def note(self, rate: float, *, holds: bool) -> None:
        """One try is over. A rate that held below one that failed counts as the lower of both."""
        if holds:
            self.held = max(self.held, rate)
        else:
            self.failed = min(self.failed, rate)
