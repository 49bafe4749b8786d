"""Demand of one subscription: how much a gateway fetches ahead, and when it gives that back. Pure.

Brokers send ahead of the callers, as far as the prefetch goes. Deliveries that nobody asks for are given back
after `hold_ms`, so that callers of other gateways get them; so is what lies here because callers take less
than before. The prefetch follows the callers: what they wait for now, what they took within the last second,
and what they hold. A caller that answers nothing uses up a broker's prefetch; where callers wait it is
granted anew, so that they never wait for somebody else's answers. Times are whole milliseconds of a monotonic
clock, passed in.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

HOLD_MS = 1_000
"""Longest stay of a delivery that nobody asks for."""
SPENT_MS = 500
"""Time for which a broker's prefetch is used up by leases without any answer, until it is granted anew."""
AHEAD_BYTES = 64 << 20
"""Most bytes that are fetched ahead, by the size of what was taken before."""
LINGER_MS = 10_000
"""Time after the last caller until the links are let go."""
# A check comes every TICK_MS, and may be late by as much: it gives back that much earlier.
TICK_MS = 100
# Growing doubles what is wanted, so that a rising rate costs few changes.
HEADROOM = 2
# A prefetch that is as many times too large is made smaller.
SURPLUS = 4
RATE_SLOT_MS = 100
RATE_WINDOW_MS = 1_000


@dataclass(frozen=True, slots=True)
class Rest:
    """The order to give back what is buffered; consume with this credit, in all, when callers wait."""

    credit: int


@dataclass(frozen=True, slots=True)
class LetGo:
    """The order to end the links: nobody has asked for long."""


class Demand:
    """Callers of one subscription. ahead_max: deliveries that may be fetched in all."""

    def __init__(self, now_ms: int, *, ahead_max: int, hold_ms: int = HOLD_MS) -> None:
        assert ahead_max > 0
        self._ahead_max, self._hold_ms = ahead_max, hold_ms
        self.waiting = 0
        """Deliveries that callers wait for."""
        self.callers = 0
        self.credit = 1
        """Deliveries that brokers may send now."""
        self._free_ms = now_ms  # since when nobody waits
        self._empty_ms = now_ms  # when nothing was buffered for the last time
        self._unspent_ms = now_ms  # when every broker could send for the last time
        self._size = 0.0  # of a delivery; 0: nothing was taken yet
        self._taken: deque[tuple[int, int]] = deque()

    def asks(self, count: int) -> None:
        """Note a caller that waits for this many."""
        self.callers += 1
        self.waiting += count

    def goes(self, count: int, taken: int, now_ms: int, size: int = 0) -> None:
        """Note its end: it waited for `count`, and took this many with this many bytes."""
        self.callers -= 1
        self.waiting -= count
        if not self.callers:
            self._free_ms = now_ms
        if taken:
            mean = max(1.0, size / taken)
            self._size = (self._size + mean) / 2 if self._size else mean
            slot = now_ms // RATE_SLOT_MS
            if self._taken and self._taken[-1][0] == slot:
                taken += self._taken.pop()[1]
            self._taken.append((slot, taken))

    def wanted(self, now_ms: int, held: int) -> int:
        """Return the credit for the callers of now. held: deliveries in callers' hands."""
        oldest = (now_ms - RATE_WINDOW_MS) // RATE_SLOT_MS
        while self._taken and self._taken[0][0] < oldest:
            self._taken.popleft()
        recent = sum(count for _, count in self._taken)
        return max(1, min(self._most, held + self.waiting + recent))

    @property
    def _most(self) -> int:
        # A size that nobody knows may be a large one.
        return min(self._ahead_max, int(AHEAD_BYTES / self._size) if self._size else self.credit)

    def look(
        self, now_ms: int, *, buffered: int, held: int, spent: bool = False, fixed: bool = False
    ) -> Rest | LetGo | None:
        """Return what is to be done now. Called every TICK_MS, and when a caller comes.

        spent: of some broker callers hold as much as it may send. fixed: a prefetch cannot be granted now.
        """
        wanted = self.wanted(now_ms, held)
        if not buffered:
            self._empty_ms = now_ms
        if not spent:
            self._unspent_ms = now_ms
        if self.callers:
            is_spent = now_ms - self._unspent_ms >= SPENT_MS
            if (wanted > self.credit or is_spent) and not fixed:
                return self._rest(max(1, min(self._most, wanted * HEADROOM)), now_ms)
        elif not held and now_ms - self._free_ms >= LINGER_MS:
            return LetGo()
        if not buffered:
            return None
        patience_ms = self._hold_ms - 2 * TICK_MS
        stays_ms = now_ms - self._empty_ms
        if not self.callers and min(stays_ms, now_ms - self._free_ms) >= patience_ms:
            return self._rest(wanted, now_ms)
        if stays_ms >= patience_ms and self.credit >= SURPLUS * wanted:
            return self._rest(wanted, now_ms)
        return None

    def _rest(self, credit: int, now_ms: int) -> Rest:
        self.credit, self._empty_ms, self._unspent_ms = credit, now_ms, now_ms
        return Rest(credit)
