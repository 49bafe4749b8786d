"""How long the oldest message of each queue has waited, from counts alone: quorum queues do not tell it.

What has arrived is what is there and what has left. A queue is first in, first out, so its oldest message
arrived when the count of arrivals first passed today's count of departures. Pure; time comes in as whole
milliseconds.

A broker does not count departures other than by acks: rejected into the parking queue, expired. So a queue
that has them and is never empty looks older than it is, until it is empty once. What was published to it
is no way out: a queue at its bound refuses, and that is counted as published too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

__all__ = ["SAMPLES_MAX", "Ages"]

# Of one queue. A backlog is known by so many moments; beyond that every second one is forgotten.
SAMPLES_MAX = 500


class Ages:
    """The queues of one broker."""

    def __init__(self) -> None:
        # queue -> (when, arrived by then) for each moment that the oldest message may be from
        self._arrivals: dict[str, deque[tuple[int, int]]] = {}
        self._departed: dict[str, int] = {}

    def sample(self, queue: str, now_ms: int, *, waiting: int, departed: int) -> int:
        """How old the oldest message is at least, in milliseconds; 0 for an empty queue.

        waiting: ready or unacknowledged. departed: acknowledged since the broker's start; what was there
        before the first sample counts from that.
        """
        if departed < self._departed.get(queue, 0) or not waiting:
            self._arrivals.pop(queue, None)
        self._departed[queue] = departed
        if not waiting:
            return 0
        arrivals = self._arrivals.setdefault(queue, deque())
        arrivals.append((now_ms, waiting + departed))
        while arrivals[0][1] <= departed:
            arrivals.popleft()
        if len(arrivals) > SAMPLES_MAX:
            self._arrivals[queue] = arrivals = deque(list(arrivals)[::2])
        return now_ms - arrivals[0][0]

    def keep_only(self, queues: Iterable[str]) -> None:
        """Forget queues that are gone."""
        gone = self._departed.keys() - set(queues)
        for queue in gone:
            self._arrivals.pop(queue, None)
            del self._departed[queue]
