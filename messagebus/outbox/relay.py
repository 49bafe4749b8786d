"""The relay of an outbox: publishes its committed rows, and deletes each after its confirm.

`AsyncRelay` carries out the decisions of `core.relay` and `core.shards`: one task talks to the database,
one publishes; neither holds a transaction open while it waits for the other side.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from messagebus._io.loop import LoopThread, OneStop, Tasks, warn_dropped
from messagebus.aio import AsyncPublisher
from messagebus.checks import raise_faults, range_faults
from messagebus.clock import monotonic_ms, whole_ms
from messagebus.config import BusConfig, PublisherConfig
from messagebus.core.ends import DEADLINE_PASSED, PUBLISHER_STOPPED
from messagebus.core.redundancy import REQUIRED
from messagebus.core.relay import SECOND_MS, End, Exchange, RelayedRows
from messagebus.core.route import backoff_ms
from messagebus.core.shards import Ask, Lease, Shares
from messagebus.dialects import is_missing_table
from messagebus.dsn import Address
from messagebus.errors import BacklogFull, ConfigError, MessageInvalid, NameInvalid, Stopped
from messagebus.handling import checked_grace
from messagebus.hooks import Hooks
from messagebus.outbox.rows import ToPublish, core_row, shard_of, to_publish
from messagebus.outbox.session import Session, check_tables, class_and_reason, no_outbox
from messagebus.outbox.table import (
    CHANNEL,
    DEFAULT_TABLE,
    DESTINATION,
    KEY,
    MESSAGE_ID,
    Statement,
    Table,
)
from messagebus.publisher import START_TIMEOUT_S
from messagebus.secret import Secret
from messagebus.stats import Outcome, Published, RelayStats, Status

__all__ = ["AsyncRelay", "Relay", "RelayConfig"]

log = logging.getLogger("messagebus.outbox")

# For publishes that are on their way at a stop; the rows of the others stay, and go out again.
STOP_TIMEOUT_S = 10.0
# For the last words to the database.
LEAVE_TIMEOUT_S = 5.0
# Back-off towards a database that does not answer.
AWAY_FIRST_MS, AWAY_MAX_MS = 100, 5_000
# Interval of the counts in `stats`.
COUNT_EVERY_MS = 5_000
# A count of a large table is followed by a pause so many times as long: a twentieth of its time at most.
COUNT_PAUSES = 20
# Interval in which `drained` asks, and in which a listening thread looks whether it is to end.
DRAIN_STEP_S, LISTEN_S = 0.02, 1.0
UNSENT = (DEADLINE_PASSED, PUBLISHER_STOPPED)
# Contents of rows are dropped together, when there are so many times more of them than rows.
VALUES_SHARE = 2
# A failure of the database is logged at first, and then every so many times.
LOGGED_EVERY = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayConfig:
    """Settings of a relay.

    batch: rows of one read, 1 to 10,000. held_max, held_bytes_max: the largest number of rows in memory,
        and the size of their bodies; one body may exceed it. in_flight_max: publishes at the same time; at
        most one of each key.
    poll_s: seconds between two reads while no row waits. lease_s: seconds after which another relay replaces
        one that crashed. attempts_max: failures of a row before it is parked.
    publish_timeout_s: limit of one publish, in seconds; after it the row is published again.
    key_waits: True: the rows of a key wait behind a failed one; False: they pass it, so the key has no order.
    notify: True: also wait for notifications of the database, which shortens the delay; PostgreSQL only, with
        a direct connection.
    """

    batch: int = 500
    held_max: int = 2_000
    held_bytes_max: int = 64 * 1024 * 1024
    in_flight_max: int = 500
    poll_s: float = 0.2
    lease_s: float = 10.0
    attempts_max: int = 20
    publish_timeout_s: int = 30
    key_waits: bool = True
    notify: bool = False

    def __post_init__(self) -> None:
        raise_faults(
            range_faults(
                self,
                batch=(1, 10_000),
                held_max=(1, 100_000),
                held_bytes_max=(1, 1 << 40),
                in_flight_max=(1, 5_000),
                poll_s=(0.001, 60.0),
                lease_s=(1.0, 600.0),
                attempts_max=(1, 1_000_000),
                publish_timeout_s=(1, 3_600),
            )
        )


class _Away(Exception):
    """Raised when the database failed; the cause is the driver's own error."""


class _Publishers(Protocol):
    """Source of a publisher, such as `messagebus.testing.MemoryBus`."""

    def async_publisher(
        self, config: PublisherConfig | None = None, *, hooks: Sequence[Hooks] = ()
    ) -> AsyncPublisher: ...


class AsyncRelay:
    """Relay of the outbox in a database.

        async with AsyncRelay("postgresql://shop@db/shop", BusConfig.from_env(os.environ)):
            ...

    Any number of relays of one outbox may run; they divide its keys among them. Thread: call it on the event
    loop of `start`.
    """

    def __init__(
        self,
        database: str | Secret,
        bus: BusConfig | AsyncPublisher | _Publishers,
        config: RelayConfig | None = None,
        *,
        table: str = DEFAULT_TABLE,
        publisher: PublisherConfig | None = None,
        hooks: Sequence[Hooks] = (),
    ) -> None:
        """database: ``postgresql://``, ``mysql://`` or ``sqlite:///path``.

        bus: settings of the bus, a `MemoryBus`, or a publisher that the caller starts and stops.
        publisher, hooks: settings and hooks of the publisher that the relay creates.
        Raises ConfigError, also for a publisher with a spool.
        """
        self._config = config or RelayConfig()
        self._address = Address.parse(database)
        self._table = Table(self._address.database.name, table)
        if self._config.notify and self._address.database.name != "postgresql":
            raise ConfigError(f"notify: {self._address.database.name} has no notifications")
        self._is_shared = isinstance(bus, AsyncPublisher)
        given = bus.config if isinstance(bus, AsyncPublisher) else publisher
        if given is not None and given.spool is not None:
            raise ConfigError(
                "relay: a publisher without a spool is wanted; rows wait in the database"
            )
        if isinstance(bus, AsyncPublisher):
            self._publisher = bus
        elif isinstance(bus, BusConfig):
            self._publisher = AsyncPublisher(bus, publisher, hooks=hooks)
        else:
            self._publisher = bus.async_publisher(publisher, hooks=hooks)
        self._session = Session(self._address)
        self._owner = secrets.token_hex(8)
        self._status = Status.INITIALIZED
        self._tasks = Tasks()
        self._shares = Shares(whole_ms(self._config.lease_s), first=random.randrange(1 << 16))
        self._rows = RelayedRows(
            batch=self._config.batch,
            held_max=self._config.held_max,
            held_bytes_max=self._config.held_bytes_max,
            in_flight_max=self._config.in_flight_max,
            poll_ms=whole_ms(self._config.poll_s),
            attempts_max=self._config.attempts_max,
            key_waits=self._config.key_waits,
        )
        self._values: dict[int, Sequence[Any]] = {}
        # The time to try one row that wants two brokers, where there was one; 0 while there are two.
        self._second_at_ms = 0
        self._faults = self._faults_in_row = 0
        # Of the table; None while it is not known.
        self._counts: tuple[int, int, int] | None = None
        self._oldest_ms: int | None = None
        self._count_at_ms = 0
        self._stopping, self._ending = False, OneStop()
        self._failed: BaseException | None = None
        self._ended = asyncio.Event()

    # Life.
    @property
    def status(self) -> Status:
        """The current `Status`."""
        return self._status

    async def start(
        self, *, require: str | None = None, timeout_s: float = START_TIMEOUT_S
    ) -> None:
        """Begin to relay. Without `require`, the relay waits for a database and brokers that do not answer.

        require: "one": the tables must exist and one broker must answer. Raises NotReady or ConfigError.
        """
        if self._status is not Status.INITIALIZED:
            raise Stopped(f"a relay starts once; this one is {self._status.value}")
        self._wake_database, self._wake_sender = asyncio.Event(), asyncio.Event()
        try:
            if require is not None:
                await self.check()
            if not self._is_shared:
                await self._publisher.start(require=require, timeout_s=timeout_s)
            if self.status is Status.STOPPED:
                if not self._is_shared:
                    await self._publisher.stop(0)
                raise Stopped("the relay was stopped while it started")
        except BaseException:
            await self._session.close()
            raise
        self._status = Status.RUNNING
        self._work = asyncio.create_task(self._exchange_all())
        self._sending = self._tasks.spawn(self._send_all())
        for task in (self._work, self._sending):
            task.add_done_callback(self._on_end)
        if self._config.notify:
            self._tasks.spawn(self._listen())

    def _on_end(self, task: asyncio.Task[None]) -> None:
        """Send nothing more when a part of it failed, which is a fault of the library."""
        if task.cancelled() or (fault := task.exception()) is None:
            return
        self._failed = fault
        self._rows.stop()
        self._ended.set()
        log.error("relay failed database=%s", self._address.shown, exc_info=fault)

    async def ended(self) -> BaseException:
        """Wait until the relay ends without a stop, and return the error."""
        await self._ended.wait()
        assert self._failed is not None
        return self._failed

    async def check(self) -> None:
        """Check that the database answers and has the tables. Raises ConfigError or NotReady."""
        await check_tables(self._session, self._table)

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Read no more rows, wait for the publishes in progress, record them in the database, disconnect.

        timeout_s: the longest wait, in seconds. Returns the number of rows sent and without an outcome:
        they are published again, with the same ids. If the caller is cancelled, the stop continues; a further
        call waits for it. Raises ConfigError if timeout_s is not a number of seconds.
        """
        timeout_s = checked_grace(timeout_s)
        if not self._ending.has_begun:
            was, self._status = self._status, Status.STOPPED
            if was is not Status.RUNNING:
                return 0
            self._stopping = True
            self._rows.stop()
            self._wake_database.set()
            self._ending.begin(self._stop(timeout_s))
        return await self._ending.wait()

    async def _stop(self, timeout_s: float) -> int:
        await asyncio.wait([self._work], timeout=timeout_s)  # it may have failed: that is logged
        left = self._rows.in_flight
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)
        await self._tasks.cancel()
        with contextlib.suppress(Exception):  # leases end by themselves
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self._session.run(self._table.release_all(self._owner))
        await self._session.close()
        if not self._is_shared:
            await self._publisher.stop(0 if left else timeout_s)
        return left

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def drained(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """Wait until every committed row is published, waits after a failure, or is parked.

        Returns False if that takes longer than timeout_s. If the database does not answer, it is asked again.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while await self._has_due():
                    self.wake()
                    await asyncio.sleep(DRAIN_STEP_S)
                return True
        return False

    async def _has_due(self) -> bool:
        try:
            due = self._table.any_due(key_waits=self._config.key_waits)
            return bool(await self._run([], (due, ())))
        except _Away:
            return True

    def faults(self) -> list[str]:
        """Return the reasons why no rows are published; empty if there are none. Any thread may call it."""
        faults = []
        if self._status is not Status.RUNNING:
            faults.append(f"the relay is {self._status.value}")
        elif not self._publisher.stats().broker:
            faults.append("no link to a broker")
        if self._faults_in_row:
            faults.append(f"{self._address.shown} does not answer")
        if self._failed is not None:
            faults.append("the relay failed")
        return faults

    def wake(self) -> None:
        """Look for rows now; on the loop of `start`."""
        self._rows.woken()
        self._wake_database.set()

    def stats(self) -> RelayStats:
        """Return a snapshot. Counts of the table are some seconds old."""
        if self._status is Status.INITIALIZED:
            raise Stopped("not started")
        waiting, retrying, parked_rows = self._counts or (None, None, None)
        oldest = self._oldest_ms
        return RelayStats(
            published=self._rows.published,
            failed=self._rows.failed,
            parked=self._rows.parked,
            held=self._rows.held,
            in_flight=self._rows.in_flight,
            shards=self._shares.owned,
            database_faults=self._faults,
            rows_waiting=waiting,
            rows_retrying=retrying,
            rows_parked=parked_rows,
            oldest_s=None if oldest is None else max(0.0, time.time() - oldest / 1000),
        )

    # The database.
    async def _exchange_all(self) -> None:
        """Talk to the database until the stop is done."""
        ready = False
        while True:
            try:
                if not ready:
                    await self._run(self._table.make_leases())
                    ready = True
                if not await self._exchange_one():
                    if self._stopping and self._rows.is_settled:
                        return
                    await self._pause()
                self._faults_in_row = 0
            except _Away as fault:
                await self._database_failed(fault)

    async def _run(
        self, statements: Sequence[Statement], query: Statement | None = None
    ) -> list[Any]:
        try:
            return await self._session.run(statements, query)
        except Exception as fault:  # a driver's own classes
            raise _Away from fault

    async def _exchange_one(self) -> bool:
        """Do what is due first. Returns whether anything was."""
        now = monotonic_ms()
        if (ask := self._shares.ask(now, self._rows.is_quiet)) is not None:
            await self._renew(ask, now)
            return True
        if (exchange := self._rows.exchange(now)) is not None:
            query = None
            if exchange.limit:
                query = self._table.read(exchange, key_waits=self._config.key_waits)
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
                self._values[row_id] = rows[row_id]
            if len(self._values) > VALUES_SHARE * max(self._rows.held, self._config.batch):
                known = self._rows.ids()
                self._values = {n: values for n, values in self._values.items() if n in known}
            self._wake_sender.set()
            return True
        if now >= self._count_at_ms and not self._stopping:
            await self._count()
            return True
        return False

    def _writes(self, exchange: Exchange) -> list[Statement]:
        """Return what tells the table how publishes ended, of rows as they were read."""
        ended = (*exchange.delete, *(failure.id for failure in exchange.failures))
        return self._table.writes(exchange, {n: self._values[n][MESSAGE_ID] for n in ended})

    async def _renew(self, ask: Ask, now: int) -> None:
        statements = self._table.renew(
            self._owner, whole_ms(self._config.lease_s), ask.take, ask.release
        )
        found = await self._run(statements, (self._table.read_leases(), ()))
        leases = [
            Lease(int(name), owner == self._owner, int(left_ms))
            for name, owner, left_ms in found
            if name.isdecimal()
        ]
        relays = sum(not name.isdecimal() and left_ms > 0 for name, _, left_ms in found)
        self._shares.seen(leases, relays, now)
        self._rows.own(self._shares.until_ms())
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
        self._counts = (int(waiting), int(retrying), int(parked))
        self._oldest_ms = oldest if isinstance(oldest, int) else None
        took_ms = monotonic_ms() - began_ms
        self._count_at_ms = monotonic_ms() + max(COUNT_EVERY_MS, COUNT_PAUSES * took_ms)

    async def _pause(self) -> None:
        """Wait for an event, or until something is due."""
        due = [self._shares.due_ms, self._count_at_ms]
        if (rows_due := self._rows.next_due_ms()) is not None:
            due.append(rows_due)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0, min(due) - monotonic_ms()) / 1000):
                await self._wake_database.wait()
        self._wake_database.clear()
        self._wake_sender.set()

    async def _database_failed(self, fault: _Away) -> None:
        self._faults += 1
        self._faults_in_row += 1
        self._counts, self._oldest_ms, self._count_at_ms = None, None, 0
        if self._faults_in_row % LOGGED_EVERY == 1:
            cause = fault.__cause__ or fault
            log.warning(
                "outbox away database=%s faults=%d error=%s",
                self._address.shown,
                self._faults_in_row,
                no_outbox(self._table) if is_missing_table(cause) else class_and_reason(cause),
            )
        wait_ms = backoff_ms(
            self._faults_in_row, first_ms=AWAY_FIRST_MS, max_ms=AWAY_MAX_MS, share=random.random()
        )
        # What is held and not sent is read again: the next connection may lead to a database that is older.
        self._rows.own({})
        self._rows.own(
            {s: until for s, until in self._shares.until_ms().items() if until > monotonic_ms()}
        )
        await asyncio.sleep(wait_ms / 1000)

    async def _listen(self) -> None:
        """Wake at each notification, over a connection of its own."""
        loop, faults = asyncio.get_running_loop(), 0
        listener = Session(self._address)

        def listen(connection: Any) -> bool:
            connection.execute(f"LISTEN {CHANNEL}")
            loop.call_soon_threadsafe(self.wake)  # what was added before
            for _ in connection.notifies(timeout=LISTEN_S):
                loop.call_soon_threadsafe(self.wake)
            return True

        try:
            while True:
                try:
                    await listener.call(listen)
                    faults = 0
                except Exception as fault:
                    faults += 1
                    if faults % LOGGED_EVERY == 1:
                        log.warning(
                            "no notifications database=%s error=%s",
                            self._address.shown,
                            class_and_reason(fault),
                        )
                    await asyncio.sleep(
                        backoff_ms(faults, first_ms=AWAY_FIRST_MS, max_ms=AWAY_MAX_MS, share=1)
                        / 1000
                    )
        finally:
            await listener.close()

    # Publishing.
    async def _send_all(self) -> None:
        """Publish what may go, for ever."""
        while True:
            await self._wake_sender.wait()
            self._wake_sender.clear()
            for row_id in self._rows.take(monotonic_ms(), stuck=self._stuck()):
                await self._send(row_id)

    def _stuck(self) -> int:
        """Return how many of the rows that were sent wait for a home that is away, when it matters."""
        sent = self._rows.sent() if self._rows.is_full else ()
        return sum(bool(self._away_home(row_id)) for row_id in sent)

    def _away_home(self, row_id: int) -> str:
        """Return the broker that is the home of a row's partition, and away; "" where there is none."""
        values = self._values[row_id]
        destination = values[DESTINATION]
        return self._publisher._away_home(destination, values[KEY])

    async def _send(self, row_id: int) -> None:
        try:
            publish = to_publish(self._values[row_id])
        except Exception as fault:  # other hands write anything: nested too deep, times too large
            self._end(row_id, End.INVALID, f"the row is no message: {fault}")
            return
        if self._second_at_ms and self._wants_two(publish):
            if monotonic_ms() < self._second_at_ms:
                self._end(row_id, End.NO_SECOND, "there was no second broker")
                return
            self._second_at_ms = monotonic_ms() + SECOND_MS  # this one tries for all
        if home := self._away_home(row_id):
            self._end(row_id, End.HOME_AWAY, f"home {home} of its partition is away")
            return
        try:
            future = await self._submit(publish)
        except (MessageInvalid, NameInvalid, ConfigError) as fault:
            self._end(row_id, End.INVALID, str(fault))
        except (BacklogFull, Stopped) as fault:
            self._end(row_id, End.NOT_SENT, str(fault))
        else:
            future.add_done_callback(lambda done: self._published(row_id, done))

    def _wants_two(self, publish: ToPublish) -> bool:
        """Return whether one broker is not enough for a publish."""
        config = self._publisher.config
        told = publish.options.get("redundant", str(publish.destination) in config.redundant)
        return (config.redundancy if told is True else told) == REQUIRED

    async def _submit(self, publish: ToPublish) -> asyncio.Future[Published]:
        return await self._publisher.submit(
            publish.destination,
            publish.message,
            timeout_s=self._config.publish_timeout_s,
            **publish.options,
        )

    def _published(self, row_id: int, done: asyncio.Future[Published]) -> None:
        if done.cancelled():
            self._end(row_id, End.NOT_SENT, "cancelled")
            return
        published = done.result()
        if published.outcome is Outcome.CONFIRMED:
            if len(published.brokers) > 1:
                self._second_at_ms = 0
            self._end(row_id, End.CONFIRMED, "")
        elif published.outcome is Outcome.UNKNOWN and published.brokers:
            self._second_at_ms = monotonic_ms() + SECOND_MS
            self._end(row_id, End.NO_SECOND, published.reason)
        elif published.outcome is not Outcome.UNROUTABLE and self._away_home(row_id):
            self._end(row_id, End.HOME_AWAY, published.reason)
        elif _is_unsent(published):
            self._end(row_id, End.NOT_SENT, published.reason)
        else:
            self._end(row_id, End.FAILED, f"{published.outcome.value}: {published.reason}")

    def _end(self, row_id: int, end: End, reason: str) -> None:
        self._rows.ended(row_id, end, reason, monotonic_ms(), random.random())
        self._wake_database.set()
        self._wake_sender.set()


def _is_unsent(published: Published) -> bool:
    """Return whether nothing is known against the message: no broker was there, or did not answer."""
    if published.outcome is Outcome.UNKNOWN:
        return True
    return published.outcome is Outcome.REFUSED and published.reason.startswith(UNSENT)


class Relay:
    """`AsyncRelay` on a thread of its own, with the same methods. Thread: any thread may call them.

    with Relay("sqlite:///shop.db", BusConfig.from_env(os.environ)):
        ...
    """

    def __init__(
        self,
        database: str | Secret,
        bus: BusConfig | _Publishers,
        config: RelayConfig | None = None,
        *,
        table: str = DEFAULT_TABLE,
        publisher: PublisherConfig | None = None,
        hooks: Sequence[Hooks] = (),
    ) -> None:
        """Take what `AsyncRelay` takes."""
        self._relay = AsyncRelay(
            database, bus, config, table=table, publisher=publisher, hooks=hooks
        )
        self._thread: LoopThread | None = None

    @property
    def status(self) -> Status:
        """The current `Status`."""
        return self._relay.status

    def start(self, *, require: str | None = None, timeout_s: float = START_TIMEOUT_S) -> None:
        """Begin to relay, as `AsyncRelay.start` does."""
        if self._thread is not None:
            raise Stopped(f"a relay starts once; this one is {self.status.value}")
        self._thread = LoopThread("messagebus-relay")
        try:
            self._thread.run(self._relay.start(require=require, timeout_s=timeout_s))
        except BaseException:
            self._thread.stop()
            raise

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Stop, as `AsyncRelay.stop` does."""
        if self._thread is None:
            return 0
        try:
            left = self._thread.run(self._relay.stop(timeout_s))
        except Stopped:  # by another call
            return 0
        self._thread.stop()
        return left

    def drained(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """Wait until every committed row is published, as `AsyncRelay.drained` does."""
        if self._thread is None:
            raise Stopped("the relay was not started")
        return self._thread.run(self._relay.drained(timeout_s))

    def stats(self) -> RelayStats:
        """Return a snapshot."""
        return self._relay.stats()

    def __del__(self) -> None:
        thread: LoopThread | None = getattr(self, "_thread", None)
        if thread is not None and thread.is_here and self.status is Status.RUNNING:
            warn_dropped(self, "with")
            thread.begin_stop(self._relay.stop(), waits=False)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
