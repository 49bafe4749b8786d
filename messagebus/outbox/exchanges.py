"""Exchanges of an outbox's relay with its table: leases, rows, ends, counts.

`core.shards` and `core.relay` decide what is due; one task carries it out, one thing after the other, and
holds no transaction open meanwhile. A database that does not answer is asked again, ever later.

Owners: `TableExchanges` has the connection, the leases, and the contents of the rows that are held;
`core.relay` has their states.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from messagebus.clock import monotonic_ms
from messagebus.core.relay import Exchange, RelayedRows
from messagebus.core.route import backoff_ms
from messagebus.core.shards import Ask, Lease, Shares
from messagebus.dialects import is_missing_table
from messagebus.dsn import Address
from messagebus.outbox.rows import core_row, shard_of
from messagebus.outbox.session import Session, class_and_reason, no_outbox
from messagebus.outbox.table import CHANNEL, MESSAGE_ID, Statement, Table

log = logging.getLogger("messagebus.outbox")

# For the last words to the database.
LEAVE_TIMEOUT_S = 5.0
# Back-off towards a database that does not answer.
AWAY_FIRST_MS, AWAY_MAX_MS = 100, 5_000
# Interval of the counts in `stats`.
COUNT_EVERY_MS = 5_000
# A count of a large table is followed by a pause so many times as long: a twentieth of its time at most.
COUNT_PAUSES = 20
# Interval in which a listening thread looks whether it is to end.
LISTEN_S = 1.0
# Contents of rows are dropped together, when there are so many times more of them than rows.
CONTENTS_SHARE = 2
# A failure of the database is logged at first, and then every so many times.
LOGGED_EVERY = 100


class DatabaseAway(Exception):
    """Raised when the database failed; the cause is the driver's own error."""


class TableExchanges:
    """The exchanges of one relay with its table, on one loop."""

    def __init__(
        self,
        address: Address,
        table: Table,
        rows: RelayedRows,
        *,
        batch: int,
        lease_ms: int,
        key_waits: bool,
        on_rows: Callable[[], None],
    ) -> None:
        """Create it. batch, key_waits: as of `RelayConfig`. on_rows: called when rows may be sent."""
        self._address, self._table, self._rows = address, table, rows
        self._batch, self._lease_ms, self._key_waits = batch, lease_ms, key_waits
        self._on_rows = on_rows
        self.session = Session(address)
        self.shares = Shares(lease_ms, first=random.randrange(1 << 16))
        self._owner = secrets.token_hex(8)
        self.contents: dict[int, Sequence[Any]] = {}
        """Id -> row as it was read; also of some that are held no more."""
        self.wanted = asyncio.Event()
        """Set when there may be something to do."""
        self.faults = self.faults_in_row = 0
        """Calls of the database that failed: in all, and since one that did not."""
        self.counts: tuple[int, int, int] | None = None
        """Rows that wait, that failed before, that are parked; None while it is not known."""
        self.oldest_ms: int | None = None
        self._count_at_ms = 0
        self._is_stopping = False

    async def run(self) -> None:
        """Talk to the database until the stop is done."""
        ready = False
        while True:
            try:
                if not ready:
                    await self._run(self._table.make_leases())
                    ready = True
                if not await self._exchange_one():
                    if self._is_stopping and self._rows.is_settled:
                        return
                    await self._pause()
                self.faults_in_row = 0
            except DatabaseAway as fault:
                await self._failed(fault)

    def stop(self) -> None:
        """Read no more; `run` ends when the table knows every end."""
        self._is_stopping = True
        self.wanted.set()

    async def leave(self) -> None:
        """Let the shards go, and close the connection."""
        with contextlib.suppress(Exception):  # leases end by themselves
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self.session.run(self._table.release_all(self._owner))
        await self.session.close()

    async def has_due(self) -> bool:
        """Return whether a committed row is to be published now; True while the database is away."""
        try:
            due = self._table.any_due(key_waits=self._key_waits)
            return bool(await self._run([], (due, ())))
        except DatabaseAway:
            return True

    async def _run(
        self, statements: Sequence[Statement], query: Statement | None = None
    ) -> list[Any]:
        try:
            return await self.session.run(statements, query)
        except Exception as fault:  # a driver's own classes
            raise DatabaseAway from fault

    async def _exchange_one(self) -> bool:
        """Do what is due first. Returns whether anything was."""
        now = monotonic_ms()
        if (ask := self.shares.ask(now, self._rows.is_quiet)) is not None:
            await self._renew(ask, now)
            return True
        if (exchange := self._rows.exchange(now)) is not None:
            await self._exchange(exchange)
            return True
        if now >= self._count_at_ms and not self._is_stopping:
            await self._count()
            return True
        return False

    async def _exchange(self, exchange: Exchange) -> None:
        """Tell the table how publishes ended, and take the rows that it gives."""
        query = None
        if exchange.limit:
            query = self._table.read(exchange, key_waits=self._key_waits)
        try:
            found = await self._run(self._writes(exchange), query)
        except BaseException:
            self._rows.exchange_failed()
            raise
        for failure in exchange.failures:
            if failure.parked:
                log.warning("row parked id=%d reason=%r", failure.id, failure.reason)
        rows = {int(values[0]): values for values in found}
        for row_id in self._rows.exchanged([core_row(v) for v in found], monotonic_ms()):
            self.contents[row_id] = rows[row_id]
        if len(self.contents) > CONTENTS_SHARE * max(self._rows.held, self._batch):
            for row_id in self.contents.keys() - self._rows.ids():
                del self.contents[row_id]
        self._on_rows()

    def _writes(self, exchange: Exchange) -> list[Statement]:
        """Return what tells the table how publishes ended, of rows as they were read."""
        ended = (*exchange.delete, *(failure.id for failure in exchange.failures))
        return self._table.writes(exchange, {n: self.contents[n][MESSAGE_ID] for n in ended})

    async def _renew(self, ask: Ask, now: int) -> None:
        statements = self._table.renew(self._owner, self._lease_ms, ask.take, ask.release)
        found = await self._run(statements, (self._table.read_leases(), ()))
        leases = [
            Lease(int(name), owner == self._owner, int(left_ms))
            for name, owner, left_ms in found
            if name.isdecimal()
        ]
        relays = sum(not name.isdecimal() and left_ms > 0 for name, _, left_ms in found)
        self.shares.leased(leases, relays, now)
        self._rows.own(self.shares.until_ms())
        if misplaced := await self._run([], (self._table.misplaced(), ())):
            ids: defaultdict[int, list[int]] = defaultdict(list)
            for row_id, key, message_id in misplaced:  # SQLite keeps any type
                ids[shard_of(str(key), str(message_id))].append(int(row_id))
            message_ids = {int(row_id): message_id for row_id, _, message_id in misplaced}
            await self._run(self._table.place(ids, message_ids))
            self._rows.woken()

    async def _count(self) -> None:
        began_ms = monotonic_ms()
        ((waiting, oldest, retrying, parked),) = await self._run([], (self._table.status(), ()))
        self.counts = (int(waiting), int(retrying), int(parked))
        self.oldest_ms = oldest if isinstance(oldest, int) else None
        took_ms = monotonic_ms() - began_ms
        self._count_at_ms = monotonic_ms() + max(COUNT_EVERY_MS, COUNT_PAUSES * took_ms)

    async def _pause(self) -> None:
        """Wait for an event, or until something is due."""
        due = [self.shares.due_ms, self._count_at_ms]
        if (rows_due := self._rows.next_due_ms()) is not None:
            due.append(rows_due)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0, min(due) - monotonic_ms()) / 1000):
                await self.wanted.wait()
        self.wanted.clear()
        self._on_rows()

    async def _failed(self, fault: DatabaseAway) -> None:
        self.faults += 1
        self.faults_in_row += 1
        self.counts, self.oldest_ms, self._count_at_ms = None, None, 0
        if self.faults_in_row % LOGGED_EVERY == 1:
            cause = fault.__cause__ or fault
            log.warning(
                "outbox away database=%s faults=%d error=%s",
                self._address.shown,
                self.faults_in_row,
                no_outbox(self._table) if is_missing_table(cause) else class_and_reason(cause),
            )
        wait_ms = backoff_ms(
            self.faults_in_row, first_ms=AWAY_FIRST_MS, max_ms=AWAY_MAX_MS, share=random.random()
        )
        # What is held and not sent is read again: the next connection may lead to a database that is older.
        self._rows.own({})
        self._rows.own(
            {s: until for s, until in self.shares.until_ms().items() if until > monotonic_ms()}
        )
        await asyncio.sleep(wait_ms / 1000)


async def listen(address: Address, wake: Callable[[], None]) -> None:
    """Call this at each notification of the database, over a connection of its own, on this loop."""
    loop, faults = asyncio.get_running_loop(), 0
    listener = Session(address)

    def read(connection: Any) -> bool:
        connection.execute(f"LISTEN {CHANNEL}")
        loop.call_soon_threadsafe(wake)  # what was added before
        for _ in connection.notifies(timeout=LISTEN_S):
            loop.call_soon_threadsafe(wake)
        return True

    try:
        while True:
            try:
                await listener.call(read)
                faults = 0
            except Exception as fault:
                faults += 1
                if faults % LOGGED_EVERY == 1:
                    log.warning(
                        "no notifications database=%s error=%s",
                        address.shown,
                        class_and_reason(fault),
                    )
                await asyncio.sleep(
                    backoff_ms(faults, first_ms=AWAY_FIRST_MS, max_ms=AWAY_MAX_MS, share=1) / 1000
                )
    finally:
        await listener.close()
