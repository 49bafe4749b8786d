"""Links to several distinct brokers: the first ones that answer.

Decides; dials nothing. Times are whole milliseconds. As many dials run at once as links are still
missing; a dial that fails, or has no answer after `hedge_ms`, is joined by a dial of the next broker.
Each broker is dialled once, so the search ends after at most as many dials as there are brokers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dial:
    """The order to open a link to this broker; then call `opened` or `failed`."""

    broker: str


@dataclass(frozen=True, slots=True)
class HangUp:
    """The order to give up this dial: enough others answered."""

    broker: str


class Distinct:
    """One search. brokers: in the order of preference, no name twice."""

    def __init__(self, brokers: Sequence[str], wanted: int, *, hedge_ms: int) -> None:
        assert wanted > 0
        assert len(set(brokers)) == len(brokers)
        self._untried = list(reversed(brokers))
        self._wanted, self._hedge_ms = wanted, hedge_ms
        self._dialing: dict[str, int] = {}  # broker -> when it counts as late
        self.found: list[str] = []
        self.dials = 0

    @property
    def is_done(self) -> bool:
        """True when nothing more can come: enough are found, or none is left to try or to wait for."""
        return len(self.found) >= self._wanted or not (self._dialing or self._untried)

    def tick(self, now_ms: int) -> list[Dial]:
        """Return the dials to start now. Call it first, and again at `next_due_ms`."""
        missing = self._wanted - len(self.found)
        hopeful = sum(late_ms > now_ms for late_ms in self._dialing.values())
        dials = []
        while missing > hopeful and self._untried:
            broker = self._untried.pop()
            self._dialing[broker] = now_ms + self._hedge_ms
            self.dials += 1
            hopeful += 1
            dials.append(Dial(broker))
        return dials

    def opened(self, broker: str) -> list[HangUp]:
        """Record that a dial succeeded."""
        if self._dialing.pop(broker, None) is None or len(self.found) >= self._wanted:
            return [HangUp(broker)]
        self.found.append(broker)
        if len(self.found) < self._wanted:
            return []
        late, self._dialing = list(self._dialing), {}
        return [HangUp(other) for other in late]

    def failed(self, broker: str) -> None:
        """Record that a dial ended without a link."""
        self._dialing.pop(broker, None)

    def next_due_ms(self, now_ms: int) -> int | None:
        """Return when the next running dial becomes late; None when none will, or nothing would change."""
        coming = [late_ms for late_ms in self._dialing.values() if late_ms > now_ms]
        return min(coming, default=None) if self._untried else None
