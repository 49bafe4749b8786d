"""Shares of the shards of an outbox among its relays: which shards one relay takes, keeps and lets go.

Decides; asks no database. The owner of a shard is written in a table of leases, by comparison, in the
database's own clock; a relay believes in a lease no longer than it was sure of at the moment when it asked.
So no session has to live for a lock to hold (poolers of connections may be in between), and a relay that
stood still for longer than its leases sends nothing more by them.

Leases keep relays out of each other's way; the order of a key does not rest on them alone: see `core.relay`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

# Never changed: rows have the number of their shard.
SHARDS = 16
# A relay renews its leases three times in their length.
RENEWALS = 3
# Part of a lease that is not used: for a statement that was on its way.
MARGIN_PARTS = 5


class Lease(NamedTuple):
    """A shard as the table has it. ours: we own it. left_ms: until its lease ends; 0 and less: it is free."""

    shard: int
    ours: bool
    left_ms: int


class Ask(NamedTuple):
    """The order to renew our leases but those of `release`, to take those of `take` that are still free, and
    to read the table; then call `leased` or `unseen`.
    """

    take: tuple[int, ...]
    release: tuple[int, ...]


class Shares:
    """The shards of one relay. Not thread-safe."""

    def __init__(self, lease_ms: int, *, first: int = 0) -> None:
        """first: the shard that it tries first; a random one keeps relays from trying the same."""
        self._lease_ms, self._first = lease_ms, first % SHARDS
        self._until_ms: dict[int, int] = {}
        self._leaving: set[int] = set()
        self._free: set[int] = set(range(SHARDS))
        self._fair = 0
        self._due_ms = 0
        self._stopping = False

    @property
    def owned(self) -> int:
        """The number of shards that are ours."""
        return len(self._until_ms)

    @property
    def due_ms(self) -> int:
        """The time of the next question, if nothing else happens."""
        return self._due_ms

    def until_ms(self) -> dict[int, int]:
        """Return shard -> the time until which its rows may be sent; without those that are let go."""
        return {s: until for s, until in self._until_ms.items() if s not in self._leaving}

    def stop(self) -> None:
        """Let all go."""
        self._stopping = True
        self._leaving = set(self._until_ms)

    def ask(self, now_ms: int, is_quiet: Callable[[int], bool]) -> Ask | None:
        """Return the question that is due; None: none is."""
        release = tuple(sorted(shard for shard in self._leaving if is_quiet(shard)))
        if now_ms < self._due_ms and not release:
            return None
        return Ask(() if self._stopping else self._wanted(), release)

    def _wanted(self) -> tuple[int, ...]:
        room = max(0, self._fair - len(self._until_ms))
        order = [(self._first + number) % SHARDS for number in range(SHARDS)]
        return tuple(shard for shard in order if shard in self._free)[:room]

    def leased(self, leases: Sequence[Lease], relays: int, sent_ms: int) -> None:
        """Take the answer. relays: how many there are, with us. sent_ms: before the question was sent."""
        known = {lease.shard: lease for lease in leases}
        margin_ms = self._lease_ms // MARGIN_PARTS
        self._until_ms = {
            lease.shard: sent_ms + lease.left_ms - margin_ms
            for lease in leases
            if lease.ours and lease.left_ms > 0
        }
        self._free = {s for s in range(SHARDS) if s in known and known[s].left_ms <= 0}
        self._fair = -(-SHARDS // max(1, relays))
        self._leaving &= self._until_ms.keys()
        if self._stopping:
            self._leaving = set(self._until_ms)
        elif not self._leaving:
            self._leaving = set(sorted(self._until_ms)[self._fair :])
        at_once = not self._stopping and bool(self._wanted())
        self._due_ms = sent_ms if at_once else sent_ms + self._lease_ms // RENEWALS

    def unseen(self, now_ms: int, wait_ms: int) -> None:
        """Record that there was no answer; ask again after wait_ms. Leases end by themselves."""
        self._due_ms = now_ms + wait_ms
