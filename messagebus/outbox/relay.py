"""The relay of an outbox: publishes its committed rows, and deletes each after its confirm.

`AsyncRelay` runs two tasks over the decisions of `core.relay`: `exchanges` talks to the database, `sending`
publishes. Neither holds a transaction open while it waits for the other side.
"""

# INITIALIZED ─ start ─▶ RUNNING ─ stop ─▶ STOPPED. Two tasks, which wake each other:
#
#   _exchange_all ─ leases of shards, ends of rows, new rows, in one transaction at a time ─▶ the database
#        ▲ ends          │ rows
#        │               ▼
#   RelayedRows ─ take ─▶ _send_all ─ publish ─▶ the broker ─ its end ─▶ RelayedRows.ended
#
# Owners: `Shares` knows the shards of this relay, and until when; `RelayedRows` the state of each row;
# `Session` the connection. `AsyncRelay` has the values of the rows (`_values`), the counts, and both
# tasks.

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from messagebus._io.loop import LoopThread, OneStop, Tasks, warn_dropped
from messagebus.aio import AsyncPublisher
from messagebus.checks import flag_faults, raise_faults, range_faults
from messagebus.clock import whole_ms
from messagebus.config import BusConfig, PublisherConfig, settings_of
from messagebus.core.relay import RelayedRows, RelayLimits
from messagebus.dsn import Address
from messagebus.errors import ConfigError, Stopped
from messagebus.handling import checked_grace
from messagebus.hooks import Hooks
from messagebus.outbox.exchanges import TableExchanges, listen
from messagebus.outbox.sending import RowSender
from messagebus.outbox.session import check_tables
from messagebus.outbox.table import DEFAULT_TABLE, Table
from messagebus.publisher import START_TIMEOUT_S
from messagebus.secret import Secret
from messagebus.stats import RelayStats, Status, why_not_running

__all__ = ["AsyncRelay", "Relay", "RelayConfig"]

log = logging.getLogger("messagebus.outbox")

# For publishes that are on their way at a stop; the rows of the others stay, and go out again.
STOP_TIMEOUT_S = 10.0
# Interval in which `drained` asks.
DRAIN_STEP_S = 0.02


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
            flag_faults(self, "key_waits", "notify")
            + range_faults(
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


def _limits_of(config: RelayConfig) -> RelayLimits:
    return RelayLimits(
        batch=config.batch,
        held_max=config.held_max,
        held_bytes_max=config.held_bytes_max,
        in_flight_max=config.in_flight_max,
        poll_ms=whole_ms(config.poll_s),
        attempts_max=config.attempts_max,
        key_waits=config.key_waits,
    )


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
        bus: BusConfig | AsyncPublisher | _Publishers | None,
        config: RelayConfig | None = None,
        *,
        table: str = DEFAULT_TABLE,
        publisher: PublisherConfig | None = None,
        hooks: Sequence[Hooks] = (),
    ) -> None:
        """database: ``postgresql://``, ``mysql://`` or ``sqlite:///path``.

        bus: settings of the bus, a `MemoryBus`, or a publisher that the caller starts and stops; None for
        the settings of the environment, also of the publisher where none are given.
        publisher, hooks: settings and hooks of the publisher that the relay creates.
        Raises ConfigError, also for a publisher with a spool.
        """
        self._config = config or RelayConfig()
        self._address = Address.parse(database)
        self._table = Table(self._address.database.name, table)
        if self._config.notify and self._address.database.name != "postgresql":
            raise ConfigError(f"notify: {self._address.database.name} has no notifications")
        self._is_shared = isinstance(bus, AsyncPublisher)
        if bus is None:
            bus, publisher = settings_of(None, publisher, PublisherConfig)
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
        self._status = Status.INITIALIZED
        self._tasks = Tasks()
        self._rows = RelayedRows(_limits_of(self._config))
        wake_sender = asyncio.Event()
        self._exchanges = TableExchanges(
            self._address,
            self._table,
            self._rows,
            batch=self._config.batch,
            lease_ms=whole_ms(self._config.lease_s),
            key_waits=self._config.key_waits,
            on_rows=wake_sender.set,
        )
        self._sender = RowSender(
            self._publisher,
            self._rows,
            self._exchanges.contents,
            wanted=wake_sender,
            timeout_s=self._config.publish_timeout_s,
            on_end=self._exchanges.wanted.set,
        )
        self._ending = OneStop()
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
            await self._exchanges.session.close()
            raise
        self._status = Status.RUNNING
        self._work = asyncio.create_task(self._exchanges.run())
        for task in (self._work, self._tasks.spawn(self._sender.run())):
            task.add_done_callback(self._on_end)
        if self._config.notify:
            self._tasks.spawn(listen(self._address, self.wake))

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
        await check_tables(self._exchanges.session, self._table)

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
            self._rows.stop()
            self._exchanges.stop()
            self._ending.begin(self._stop(timeout_s))
        return await self._ending.wait()

    async def _stop(self, timeout_s: float) -> int:
        await asyncio.wait([self._work], timeout=timeout_s)  # it may have failed: that is logged
        left = self._rows.in_flight
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)
        await self._tasks.cancel()
        await self._exchanges.leave()
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
        Published does not mean handled. Raises Stopped for a relay that is not started, or stopped.
        """
        if self._status is not Status.RUNNING:
            raise Stopped(f"the relay is {self._status.value}: nothing would be published")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while await self._exchanges.has_due():
                    self.wake()
                    await asyncio.sleep(DRAIN_STEP_S)
                return True
        return False

    def faults(self) -> list[str]:
        """Return the reasons why no rows are published; empty if there are none. Any thread may call it."""
        faults = []
        if self._status is not Status.RUNNING:
            faults.append(f"the relay is {self._status.value}")
        elif not self._publisher.stats().broker:
            faults.append("no link to a broker")
        if self._exchanges.faults_in_row:
            faults.append(f"{self._address.shown} does not answer")
        if self._failed is not None:
            faults.append("the relay failed")
        return faults

    def wake(self) -> None:
        """Look for rows now; on the loop of `start`."""
        self._rows.woken()
        self._exchanges.wanted.set()

    def stats(self) -> RelayStats:
        """Return a snapshot. Counts of the table are some seconds old."""
        if self._status is Status.INITIALIZED:
            raise Stopped(why_not_running(Status.INITIALIZED, "relay", "with"))
        exchanges = self._exchanges
        waiting, retrying, parked_rows = exchanges.counts or (None, None, None)
        oldest = exchanges.oldest_ms
        return RelayStats(
            published=self._rows.published,
            failed=self._rows.failed,
            parked=self._rows.parked,
            held=self._rows.held,
            in_flight=self._rows.in_flight,
            shards=exchanges.shares.owned,
            database_faults=exchanges.faults,
            rows_waiting=waiting,
            rows_retrying=retrying,
            rows_parked=parked_rows,
            oldest_s=None if oldest is None else max(0.0, time.time() - oldest / 1000),
        )


class Relay:
    """`AsyncRelay` on a thread of its own, with the same methods. Thread: any thread may call them.

    with Relay("sqlite:///shop.db", BusConfig.from_env(os.environ)):
        ...
    """

    def __init__(
        self,
        database: str | Secret,
        bus: BusConfig | _Publishers | None,
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
