"""The store of deduplication of a bus in memory, with faults to order."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence

from messagebus.core.claims import STATE_NAMES, Answer, Record, Rule, Turn, apply
from messagebus.errors import StoreAway
from messagebus.handling import checked_most
from messagebus.stores import StoreCounts

__all__ = ["FaultyStore"]


class FaultyStore:
    """Store in memory, by the clock of `MemoryBus.advance`. Any thread may call any method.

    turns: how many it has carried out.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._records: dict[bytes, Record] = {}
        self._lock = threading.Lock()
        self._is_away = False
        self._replies_lost = 0
        self._before: dict[bytes, Record | None] = {}
        self._fences = Counter[bytes]()
        self.turns = 0

    # Faults.
    def lose(self) -> None:
        """Answer nothing from now on."""
        self._is_away = True

    def restore(self) -> None:
        """Answer again, with all records."""
        self._is_away = False

    def reply_lost(self, count: int = 1) -> None:
        """Carry out the next calls, and lose their replies."""
        self._replies_lost += checked_most(count, "count")

    def forget_last(self) -> int:
        """Undo the last call that changed records, as a failover to a replica may. Returns how many."""
        with self._lock:
            before, self._before = self._before, {}
            for key, record in before.items():
                if record is None:
                    self._records.pop(key, None)
                else:
                    self._records[key] = record
            return len(before)

    # What consumers call.
    async def turn(self, turn: Turn, rule: Rule) -> Answer:
        self._check()
        with self._lock:
            touched = [*turn.done, *turn.claim]
            touched += [key for key, _ in (*turn.parked, *turn.release, *turn.extend)]
            before = {key: self._records.get(key) for key in touched}
            answer = apply(self._records, turn, rule, self._clock())
            changed = {
                key: record for key, record in before.items() if self._records.get(key) != record
            }
            self._before = changed or self._before
            self.turns += 1
            is_lost = self._replies_lost > 0
            self._replies_lost -= is_lost
        if is_lost:
            raise StoreAway("the reply was lost")
        return answer

    async def next_fence(self, key: bytes) -> int:
        self._check()
        with self._lock:
            self._fences[key] += 1
            return self._fences[key]

    async def forget(self, keys: Sequence[bytes]) -> int:
        self._check()
        with self._lock:
            return sum(self._records.pop(key, None) is not None for key in set(keys))

    async def show(self, keys: Sequence[bytes]) -> list[Record | None]:
        self._check()
        found = [self._records.get(key) for key in keys]
        now_ms = self._clock()
        return [each if each and each.expires_ms > now_ms else None for each in found]

    async def count(self) -> StoreCounts:
        self._check()
        now_ms = self._clock()
        live = [each.state for each in self._records.values() if each.expires_ms > now_ms]
        return StoreCounts(**Counter(STATE_NAMES[state] for state in live))

    async def close(self) -> None:
        """Keep everything: the records are the bus's."""

    def _check(self) -> None:
        if self._is_away:
            raise StoreAway("the store is lost, as the test says")
