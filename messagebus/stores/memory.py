"""A store in the memory of one process."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Self
from urllib.parse import parse_qsl

from messagebus.core.claims import DONE, STATE_NAMES, Answer, Record, Rule, Turn, apply
from messagebus.errors import ConfigError
from messagebus.secret import split_address
from messagebus.stores import StoreCounts

__all__ = ["MemoryStore"]

# A clock that is set ends no claim, and makes nothing forgotten: it is read once.
_BEGAN_NS = time.time_ns() - time.monotonic_ns()


def _now_ms() -> int:
    return (_BEGAN_NS + time.monotonic_ns()) // 1_000_000


class MemoryStore:
    """Records in a dict, gone with the process: for tests, and for one consumer process.

    max: number of records; above it the oldest go before their time, finished ones first, and are counted.
    """

    def __init__(self, max: int = 1_000_000) -> None:
        if type(max) is not int or max < 1:
            raise ConfigError(f"max {max!r}: 1 or more")
        self._max = max
        self._records: dict[bytes, Record] = {}
        self._fences = Counter[bytes]()
        self._forgotten = 0
        self._lock = threading.Lock()

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Read ``memory:`` or ``memory:?max=1000``."""
        parts = split_address(url)
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        text = given.pop("max", "1000000")
        if parts.netloc or parts.path.strip("/") or given or len(text) > 18 or not text.isdecimal():
            raise ConfigError("memory: takes ?max=RECORDS alone")
        return cls(int(text))

    async def turn(self, turn: Turn, rule: Rule) -> Answer:
        with self._lock:
            now_ms = _now_ms()
            answer = apply(self._records, turn, rule, now_ms)
            if len(self._records) > self._max:
                self._make_room(now_ms)
            return answer

    def _make_room(self, now_ms: int) -> None:
        """Drop what is over, then the oldest: an eighth at once, so that it is rarely done."""
        for key in [key for key, record in self._records.items() if record.expires_ms <= now_ms]:
            del self._records[key]
        over = len(self._records) - self._max
        if over <= 0:
            return
        count = max(over, self._max // 8)
        oldest = sorted(
            self._records, key=lambda key: (self._records[key].state < DONE, self._records[key][4])
        )
        for key in oldest[:count]:
            del self._records[key]
        self._forgotten += count

    async def next_fence(self, key: bytes) -> int:
        with self._lock:
            self._fences[key] += 1
            return self._fences[key]

    async def forget(self, keys: Sequence[bytes]) -> int:
        with self._lock:
            return sum(self._records.pop(key, None) is not None for key in set(keys))

    async def show(self, keys: Sequence[bytes]) -> list[Record | None]:
        now_ms = _now_ms()
        found = [self._records.get(key) for key in keys]
        return [record if record and record.expires_ms > now_ms else None for record in found]

    async def count(self) -> StoreCounts:
        now_ms = _now_ms()
        with self._lock:
            live = [each.state for each in self._records.values() if each.expires_ms > now_ms]
        return StoreCounts(
            **Counter(STATE_NAMES[state] for state in live), forgotten=self._forgotten
        )

    async def close(self) -> None:
        """Keep everything: the records are of the process."""

    def __repr__(self) -> str:
        return f"MemoryStore(max={self._max})"
