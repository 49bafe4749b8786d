"""Allowances: a token bucket, one for each client, and places for things at once. Pure.

Times are whole milliseconds of a monotonic clock, passed in.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict

__all__ = ["Allowances", "Bucket", "Places", "SharedPlaces"]


class Bucket:
    """Token bucket. rate_per_s: tokens that come in; 0: no limit. burst: at most so many; 0: one second's."""

    __slots__ = ("_at_ms", "_left", "_most", "rate_per_s")

    def __init__(self, rate_per_s: float, burst: float = 0) -> None:
        self.rate_per_s = rate_per_s
        self._most = burst or max(1.0, rate_per_s)
        self._left = burst or rate_per_s
        self._at_ms: int | None = None

    def take(self, count: int, now_ms: int) -> float:
        """Take tokens. Returns 0, or after how many seconds to come again; then nothing was taken.

        More tokens than it ever holds are granted when it is full, and owed afterwards.
        """
        if not self.rate_per_s:
            return 0.0
        self._fill(now_ms)
        wanted = min(float(count), self._most)
        if self._left < wanted:
            return (wanted - self._left) / self.rate_per_s
        self._left -= count
        return 0.0

    def give_back(self, count: int) -> None:
        """Return tokens that were taken."""
        self._left = min(self._most, self._left + count)

    def left(self, now_ms: int) -> int:
        """Return how many whole tokens there are."""
        self._fill(now_ms)
        return max(0, math.floor(self._left))

    def _fill(self, now_ms: int) -> None:
        if self._at_ms is not None:
            more = (now_ms - self._at_ms) * self.rate_per_s / 1000
            self._left = min(self._most, self._left + more)
        self._at_ms = now_ms


class Allowances:
    """A bucket for each name, of the names_max latest: give them addresses, which nobody takes from others.

    A bucket by the name that somebody says would let strangers empty it.
    """

    def __init__(self, *, burst: float, rate_per_s: float, names_max: int = 10_000) -> None:
        self._burst, self._rate_per_s, self._names_max = burst, rate_per_s, names_max
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, name: str, now_ms: int, count: int = 1) -> bool:
        """Take some of this name's. False: it has not so many left, and nothing is taken."""
        bucket = self._buckets.pop(name, None) or Bucket(self._rate_per_s, self._burst)
        self._buckets[name] = bucket
        if len(self._buckets) > self._names_max:
            self._buckets.popitem(last=False)
        return not bucket.take(count, now_ms)

    def give_back(self, name: str) -> None:
        """Return one that was taken."""
        if bucket := self._buckets.get(name):
            bucket.give_back(1)


class Places:
    """Places for a number of things at once: requests under way, sockets, or bytes of bodies."""

    __slots__ = ("most", "taken")

    def __init__(self, most: int) -> None:
        self.most, self.taken = most, 0

    def enter(self, count: int = 1) -> bool:
        """Take places. False: there are not so many, and none is taken."""
        if self.taken + count > self.most:
            return False
        self.taken += count
        return True

    def leave(self, count: int = 1) -> None:
        """Give places back."""
        assert self.taken >= count
        self.taken -= count


class SharedPlaces:
    """Places that many sources share. Each source has half of them at most, and one at least."""

    __slots__ = ("_counts", "_taken", "most", "most_of_source")

    def __init__(self, most: int) -> None:
        self.most, self.most_of_source = most, max(1, most // 2)
        self._counts = Counter[str]()
        self._taken = 0

    def __len__(self) -> int:
        return self._taken

    def has(self, source: str, count: int = 1) -> bool:
        """Return whether a source has so many places left of its own, however many there are in all."""
        return self._counts[source] + count <= self.most_of_source

    def enter(self, source: str, count: int = 1) -> bool:
        """Take places. False: there are not so many for this source, and none is taken."""
        if not self.has(source, count) or self._taken + count > self.most:
            return False
        self._counts[source] += count
        self._taken += count
        return True

    def leave(self, source: str, count: int = 1) -> None:
        """Give places back."""
        assert self._counts[source] >= count
        self._taken -= count
        self._counts[source] -= count
        if not self._counts[source]:
            del self._counts[source]
