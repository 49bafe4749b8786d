"""The pacer, which gives the intended time of the next message: an open loop that slow answers cannot delay.

Pure: whole nanoseconds come in, whole nanoseconds go out. The schedule is exact integer arithmetic,
so a rate below the number of processes is kept (a share of 0.25/s is one message in 4 s, not "as
fast as you can"), and no rounding adds up. A late sender keeps the intended times, also when the rate
changes meanwhile. Latency counts from them, so a stall shows in every message that it delayed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

__all__ = ["NEVER_NS", "Pacer"]

# Further away than any run: the next time of a paused pacer.
NEVER_NS = 1 << 62
_MILLI = 1_000
_NS_MILLI = 1_000_000_000 * _MILLI


@dataclass(slots=True)
class _Stretch:
    """A time with one rate: messages 0, 1, 2, ... are intended at base_ns + number / rate.

    ended: the number of its messages, None while it lasts.
    """

    base_ns: int
    rate_milli: int
    taken: int = 0
    ended: int | None = None

    def due_ns(self, number: int) -> int:
        return self.base_ns + number * _NS_MILLI // self.rate_milli

    def due_by(self, now_ns: int) -> int:
        """Count the messages that are intended until now, now included."""
        if now_ns < self.base_ns:
            return 0
        # The first number whose floor(number / rate) exceeds the elapsed time.
        return -(-(now_ns - self.base_ns + 1) * self.rate_milli // _NS_MILLI)


class Pacer:
    """Intended times of messages at a rate that may change at any time.

    rate_per_s: kept to a thousandth; 0 pauses.
    """

    def __init__(self, rate_per_s: float, *, start_ns: int) -> None:
        self._rate_milli = _milli(rate_per_s)
        self._stretches: deque[_Stretch] = deque()
        # While paused: the rest of an interval, in nanoseconds times thousandths of a message.
        self._left = 0
        if self._rate_milli:
            self._stretches.append(_Stretch(start_ns, self._rate_milli))

    @property
    def rate_per_s(self) -> float:
        return self._rate_milli / _MILLI

    def next_ns(self) -> int:
        """Return when the next message is intended; in the past when the sender is late."""
        if not self._stretches:
            return NEVER_NS
        first = self._stretches[0]
        return first.due_ns(first.taken)

    def take(self) -> int:
        """Take the next message, to be sent now; return its intended time."""
        intended_ns = self.next_ns()
        assert intended_ns != NEVER_NS, "a paused pacer has no next message"
        first = self._stretches[0]
        first.taken += 1
        if first.taken == first.ended:
            self._stretches.popleft()
        return intended_ns

    def change(self, rate_per_s: float, *, now_ns: int) -> None:
        """Set another rate from now on; the rest of the running interval is stretched or shortened."""
        new_milli = _milli(rate_per_s)
        if new_milli == self._rate_milli:
            return
        if self._rate_milli:
            self._end_last(now_ns)
        self._rate_milli = new_milli
        if new_milli:
            self._stretches.append(_Stretch(now_ns + self._left // new_milli, new_milli))

    def _end_last(self, now_ns: int) -> None:
        last = self._stretches[-1]
        # A sender may be early by one (it took a message that is intended a moment later).
        ended = max(last.due_by(now_ns), last.taken)
        self._left = max(0, last.due_ns(ended) - now_ns) * last.rate_milli
        last.ended = ended
        if last.taken == ended:
            self._stretches.pop()


def _milli(rate_per_s: float) -> int:
    """Return thousandths of messages per second; a rate above 0 never becomes 0."""
    if not 0 <= rate_per_s < float("inf"):
        raise ValueError(f"rate of {rate_per_s} messages/s: a number that is not negative")
    return max(round(rate_per_s * _MILLI), 1 if rate_per_s > 0 else 0)
