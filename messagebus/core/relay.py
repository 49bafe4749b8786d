"""A relay of an outbox: which rows go out, and what follows from how each publish ends.

Decides; reads no table, publishes nothing. Times are whole milliseconds of a monotonic clock, passed in.

A row that was read is *waiting*, *sent* (published, without an end yet), *done* (confirmed) or *failed*. It
is known until the table knows its end, too:

    rows_read ── waiting ──take──▶ sent ──ended──▶ done ────────▶ deleted from the table, then forgotten
                    ▲               │  └─────────▶ failed ─▶ written to the table, then forgotten
                    └── not sent ───┘

Three rules keep the order of a key, beside any other relay of the same table: a row is sent when the row
before it of its key is confirmed, never earlier; it is deleted after its confirm; and each read begins at the
oldest row. There is no "last id": ids are given before a transaction commits, so that a lower one may appear
later.

A failed row waits in the table with back-off, and with it its key, unless `key_waits` is off; after
`attempts_max` it is parked. That no broker is there is no failure of the row: all rows pause. Nor is it one
that there is no second broker for a row that wants two, or that the home of its partition is away: such a row
waits in the table, and others go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from messagebus.core.route import backoff_ms

# Back-off of a failed row, and of all rows while nothing can be published.
FAILED_FIRST_MS, FAILED_MAX_MS = 500, 300_000
PAUSE_FIRST_MS, PAUSE_MAX_MS = 50, 5_000
# Wait of a row that wants two brokers while there is one, and of one whose home is away.
SECOND_MS, HOME_MS = 30_000, 10_000
# Rows of one key that are held at most, of which one is sent at a time: the others of its shard go on.
KEY_ROWS_MAX = 50


class Row(NamedTuple):
    """The part of a row that decides.

    key: "" for none; attempts: failures before; size: bytes of its body.
    """

    id: int
    shard: int
    key: str
    attempts: int
    size: int


class End(Enum):
    """End of the publish of a row."""

    CONFIRMED = "confirmed"
    FAILED = "failed"
    """A broker refused this row, or no queue took it."""
    INVALID = "invalid"
    """It can never be published: it is parked at once."""
    NOT_SENT = "not sent"
    """Nothing is known against the row: no broker was there, or its answer never came."""
    NO_SECOND = "no second broker"
    """Nothing is known against the row, which wants two brokers, nor against other rows: one is there."""
    HOME_AWAY = "its home is away"
    """Nothing is known against the row, whose partition has no broker just now, nor against other rows."""


# End -> wait of a row that nothing is known against, while others go on.
_WAITS_MS = {End.NO_SECOND: SECOND_MS, End.HOME_AWAY: HOME_MS}


class Failure(NamedTuple):
    """Note for the table about a failed row. wait_ms: before another try; parked: there is none."""

    id: int
    attempts: int
    wait_ms: int
    reason: str
    parked: bool


class Exchange(NamedTuple):
    """The order to write to the table, then to read from it; then call `exchanged` or `exchange_failed`.

    bytes_max: of their bodies; one row may be larger. limit: rows to read at most, the oldest first, none of
    the ids in `held` and none of the keys in `full`; 0: read nothing.
    """

    delete: tuple[int, ...]
    failures: tuple[Failure, ...]
    shards: tuple[int, ...]
    held: tuple[int, ...]
    full: tuple[str, ...]
    limit: int
    bytes_max: int


class _State(Enum):
    WAITING = 0
    SENT = 1
    DONE = 2
    FAILED = 3


@dataclass(slots=True)
class _Held:
    row: Row
    state: _State = _State.WAITING


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayLimits:
    """Limits of a relay, as of `messagebus.outbox.RelayConfig`."""

    batch: int
    held_max: int
    held_bytes_max: int
    in_flight_max: int
    poll_ms: int
    attempts_max: int
    key_waits: bool


class Pause:
    """The pause of all rows while nothing can be published: ever longer, until a row is confirmed."""

    def __init__(self) -> None:
        self.until_ms = 0
        """0 without a pause since the last confirm."""
        self._count = 0

    def begin(self, now_ms: int, share: float) -> None:
        """Send nothing for a while: one pause for all rows that were on their way together."""
        if now_ms >= self.until_ms:
            self._count += 1
            self.until_ms = now_ms + backoff_ms(
                self._count, first_ms=PAUSE_FIRST_MS, max_ms=PAUSE_MAX_MS, share=share
            )

    def end(self) -> None:
        self._count = self.until_ms = 0


class RelayedRows:
    """The rows that one relay holds. Not thread-safe."""

    def __init__(self, limits: RelayLimits) -> None:
        self._limits = limits
        self._held: dict[int, _Held] = {}
        self._held_bytes = 0
        self._keys: dict[str, deque[int]] = {}
        """Key -> its held rows, in order; the first one may be sent."""
        self._ready: deque[int] = deque()
        """Rows that may be sent; also some that were forgotten meanwhile."""
        self._in_shard: dict[int, int] = {}
        """Shard -> rows that are sent, done or failed."""
        self._done: list[int] = []
        self._failures: list[Failure] = []
        self._gaps: set[str] = set()
        """Keys of rows that were forgotten and that the read on its way leaves out: it skips them."""
        self._until_ms: Mapping[int, int] = {}
        self._exchange: Exchange | None = None
        self._read_at_ms = 0
        self._pause = Pause()
        self._stopping = False
        self.in_flight = 0
        """Rows that are sent and have no end."""
        self.published = self.failed = self.parked = 0

    # Questions.
    @property
    def held(self) -> int:
        """The number of rows in memory."""
        return len(self._held)

    def ids(self) -> Set[int]:
        """Return the ids of the rows in memory."""
        return self._held.keys()

    @property
    def is_settled(self) -> bool:
        """True when nothing is sent without an end, and the table knows every end."""
        return (
            not self.in_flight and not self._done and not self._failures and self._exchange is None
        )

    def is_quiet(self, shard: int) -> bool:
        """Return whether the shard may be let go: the table knows all that was sent of it."""
        return not self._in_shard.get(shard)

    def next_due_ms(self) -> int | None:
        """Return when `take` or `exchange` has something to do by itself; None: after an event only."""
        due = []
        # While as many as may be are on their way, the end of one is the next event.
        if self._ready and self._pause.until_ms and not self.is_full:
            due.append(self._pause.until_ms)
        if self._may_read():
            due.append(self._read_at_ms)
        return min(due, default=None)

    # Shards.
    def own(self, until_ms: Mapping[int, int]) -> None:
        """Relay these shards, each until its time and no longer; rows of others that wait are forgotten."""
        lost = self._until_ms.keys() - until_ms.keys()
        if until_ms.keys() - self._until_ms.keys():
            self._read_at_ms = 0
        self._until_ms = dict(until_ms)
        if lost:
            self._lose(lost)

    def stop(self) -> None:
        """Send and read nothing more; what was sent ends, and is written to the table."""
        self._stopping = True

    # The table.
    def woken(self) -> None:
        """Read at once: somebody said that there are rows."""
        self._read_at_ms = 0

    def exchange(self, now_ms: int) -> Exchange | None:
        """Return what to do with the table now; None: nothing, or an answer is awaited."""
        reads = self._may_read() and now_ms >= self._read_at_ms
        if self._exchange is not None or not (self._done or self._failures or reads):
            return None
        held = tuple(self._held) if reads else ()
        full = tuple(k for k, ids in self._keys.items() if len(ids) >= KEY_ROWS_MAX)
        self._exchange = Exchange(
            tuple(self._done),
            tuple(self._failures),
            tuple(sorted(self._until_ms)) if reads else (),
            held,
            full if reads else (),
            min(self._limits.batch, self._limits.held_max - len(self._held)) if reads else 0,
            self._limits.held_bytes_max - self._held_bytes if reads else 0,
        )
        self._done, self._failures = [], []
        return self._exchange

    def exchanged(self, rows: Sequence[Row], now_ms: int) -> list[int]:
        """Record that the table knows what it was told; take the rows that it gave.

        Returns the ids of those that are new here.
        """
        size = sum(row.size for row in rows)
        asked, self._exchange = self._exchange, None
        assert asked is not None
        for done in asked.delete:
            self._forget(done)
        for failure in asked.failures:
            self._written(failure)
        if asked.limit:
            # A full answer says that there may be more.
            is_full = len(rows) >= asked.limit or size >= asked.bytes_max
            self._read_at_ms = 0 if is_full else now_ms + self._limits.poll_ms
        gaps, self._gaps = self._gaps, set()
        return [row.id for row in rows if row.key not in gaps and self._add(row)]

    def exchange_failed(self) -> None:
        """Keep what the table may not know: it is told again."""
        asked, self._exchange = self._exchange, None
        assert asked is not None
        self._gaps = set()
        self._done[:0] = asked.delete
        self._failures[:0] = asked.failures

    def _may_read(self) -> bool:
        if self._stopping or not self._until_ms or self._exchange is not None:
            return False
        # Half of what fits, or nothing: a read that returns a few rows costs as much as a full one.
        return (
            len(self._held) - len(self._done) <= self._limits.held_max // 2
            and self._held_bytes <= self._limits.held_bytes_max // 2
        )

    def _add(self, row: Row) -> bool:
        if self._stopping or row.shard not in self._until_ms or row.id in self._held:
            return False
        self._held[row.id] = _Held(row)
        self._held_bytes += row.size
        if not row.key or not self._limits.key_waits:
            self._ready.append(row.id)
            return True
        ids = self._keys.setdefault(row.key, deque())
        ids.append(row.id)
        if len(ids) == 1:
            self._ready.append(row.id)
        return True

    # Publishing.
    @property
    def is_full(self) -> bool:
        """True while as many rows as may be have been sent and have no end."""
        return self.in_flight >= self._limits.in_flight_max

    def sent(self) -> list[int]:
        """Return the rows that are sent and have no end."""
        return [row_id for row_id, held in self._held.items() if held.state is _State.SENT]

    def take(self, now_ms: int, *, stuck: int = 0) -> list[int]:
        """Return the rows to publish now. Each gets one `ended`.

        stuck: those of `sent` that wait for a home that is away; they take up no room.
        """
        if self._stopping or now_ms < self._pause.until_ms:
            return []
        taken: list[int] = []
        ready, in_flight_max = self._ready, self._limits.in_flight_max
        while ready and self.in_flight - stuck < in_flight_max:
            held = self._held.get(row_id := ready.popleft())
            if held is None or held.state is not _State.WAITING or not self._is_first(held.row):
                continue
            shard = held.row.shard
            if now_ms >= self._until_ms.get(shard, 0):
                self._lose({shard})
                continue
            held.state = _State.SENT
            self.in_flight += 1
            self._in_shard[shard] = self._in_shard.get(shard, 0) + 1
            taken.append(row_id)
        return taken

    def ended(self, row_id: int, end: End, reason: str, now_ms: int, share: float) -> None:
        """Record the end of the publish of a row. share: a random number from 0 to 1."""
        held = self._held[row_id]
        assert held.state is _State.SENT, "a publish ends once"
        self.in_flight -= 1
        row = held.row
        match end:
            case End.CONFIRMED:
                held.state = _State.DONE
                self._done.append(row_id)
                self.published += 1
                self._pause.end()
                self._next_of(row)
            case End.NOT_SENT:
                held.state = _State.WAITING
                self._leave_shard(row.shard)
                self._ready.appendleft(row_id)
                self._pause.begin(now_ms, share)
            case End.NO_SECOND | End.HOME_AWAY:
                held.state = _State.FAILED
                self._failures.append(
                    Failure(row_id, row.attempts, _WAITS_MS[end], reason, parked=False)
                )
            case End.FAILED | End.INVALID:
                held.state = _State.FAILED
                attempts = row.attempts + 1
                parked = end is End.INVALID or attempts >= self._limits.attempts_max
                wait_ms = backoff_ms(
                    attempts, first_ms=FAILED_FIRST_MS, max_ms=FAILED_MAX_MS, share=share
                )
                self._failures.append(Failure(row_id, attempts, wait_ms, reason, parked))
                self.failed += 1
                self.parked += parked

    def _is_first(self, row: Row) -> bool:
        ids = self._keys.get(row.key)
        return ids is None or ids[0] == row.id

    def _next_of(self, row: Row) -> None:
        """Let the next row of the key go."""
        ids = self._keys.get(row.key)
        if ids is None:
            return
        assert ids[0] == row.id, "one row of a key at a time"
        ids.popleft()
        if ids:
            self._ready.append(ids[0])
        else:
            del self._keys[row.key]

    def _written(self, failure: Failure) -> None:
        """Forget a failed row, which the table knows now.

        The rows behind it of its key are forgotten too when they wait: the table gives them again in their
        turn.
        """
        row = self._held[failure.id].row
        ids = self._keys.get(row.key)
        if failure.parked or ids is None:
            self._next_of(row)
        else:
            del self._keys[row.key]
            self._gaps.add(row.key)
            for behind in list(ids)[1:]:
                self._drop(behind)
        self._forget(failure.id)

    # Forgetting.
    def _forget(self, row_id: int) -> None:
        """Forget a row that has ended."""
        self._leave_shard(self._drop(row_id).shard)

    def _drop(self, row_id: int) -> Row:
        row = self._held.pop(row_id).row
        self._held_bytes -= row.size
        return row

    def _leave_shard(self, shard: int) -> None:
        self._in_shard[shard] -= 1

    def _lose(self, shards: Set[int]) -> None:
        """Forget the rows of these shards that wait; the row before them of their key may be on its way."""
        lost = [e.row for e in self._held.values() if e.row.shard in shards]
        for row in lost:
            if self._held[row.id].state is not _State.WAITING:
                continue
            self._drop(row.id)
            if (ids := self._keys.get(row.key)) is not None:
                self._gaps.add(row.key)
                ids.remove(row.id)
                if not ids:
                    del self._keys[row.key]
        if self._exchange is None:
            self._gaps = set()
