"""Destinations that are full: a broker refused a publish, and its publishers wait instead of failing.

Decides; sends nothing. Times are whole milliseconds of a monotonic clock.

A queue with a bound refuses what does not fit (`x-overflow=reject-publish`). The publishes come back, and
their destination *rests*: it is closed, so that what waits for it holds up no other destination. Then all of
it is tried again:

    refused ──▶ resting ──its time is over──▶ tried ──a confirm──▶ forgotten
                   ▲                            │
                   └──refused: rests twice as long, at most REST_MS_MAX

What waits counts in the backlog, so callers wait for room: back-pressure, until the deadline of each publish.
A message that was refused may be stored behind a later one: the order of a full destination is not kept.
"""

from __future__ import annotations

from dataclasses import dataclass

# A consumer makes room within some milliseconds; each try sends up to a window of messages for nothing.
REST_MS, REST_MS_MAX = 100, 2_000


@dataclass(slots=True)
class _Rest:
    """The rest of a destination. until_ms: None while it is tried, 0 before the first look at the clock."""

    lasts_ms: int = REST_MS
    until_ms: int | None = 0


class FullDestinations:
    """The destinations of one publisher that were refused and have not been confirmed since."""

    def __init__(self) -> None:
        self._rests: dict[str, _Rest] = {}
        self._begun: list[str] = []
        self._over: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._rests)

    def __contains__(self, destination: str) -> bool:
        return destination in self._rests

    def refused(self, destination: str) -> None:
        """Have a destination rest, unless it does; longer than the last time."""
        rest = self._rests.get(destination)
        if rest is None:
            self._rests[destination] = _Rest()
            self._begun.append(destination)
        elif rest.until_ms is None:
            rest.lasts_ms, rest.until_ms = min(2 * rest.lasts_ms, REST_MS_MAX), 0

    def confirmed(self, destination: str) -> None:
        """Note that a broker took a publish: there is room. What still rests is tried soon."""
        rest = self._rests.get(destination)
        if rest is None:
            return
        if rest.until_ms is not None:
            rest.lasts_ms = REST_MS
            return
        del self._rests[destination]
        self._over.append(destination)

    def due(self, now_ms: int) -> list[str]:
        """Return the destinations that are tried now. A rest begins when it is first looked at."""
        tried = []
        for destination, rest in self._rests.items():
            if rest.until_ms == 0:
                rest.until_ms = now_ms + rest.lasts_ms
            if rest.until_ms is not None and rest.until_ms <= now_ms:
                rest.until_ms = None
                tried.append(destination)
        return tried

    def forget(self, destination: str) -> None:
        """Forget one that is closed for another reason, and opened by who closed it."""
        self._rests.pop(destination, None)

    @property
    def is_long(self) -> bool:
        """True when one was refused at each of several tries.

        RabbitMQ goes on refusing on a channel when the quota is gone, until the queue gets shorter: a new
        link shows whether there is room.
        """
        return any(rest.lasts_ms == REST_MS_MAX for rest in self._rests.values())

    def is_resting(self, destination: str) -> bool:
        """Return whether it is closed until its time is over."""
        rest = self._rests.get(destination)
        return rest is not None and rest.until_ms is not None

    def changes(self) -> tuple[list[str], list[str]]:
        """Return the destinations that became full and those that did not stay so, since the last call."""
        found = self._begun, self._over
        self._begun, self._over = [], []
        return found

    def put_forward(self, ms: int) -> None:
        """Bring the ends of the rests nearer by ms."""
        for rest in self._rests.values():
            if rest.until_ms:
                rest.until_ms = max(1, rest.until_ms - ms)
