"""All drivers of one publisher: its own one, and those that redundant and partitioned publishes need.

Most publishers have their own driver alone. The modules of the others are imported by the first publish that
needs them. Runs on the publisher's loop, but for what says otherwise.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from messagebus._io.hooks import HookChain
from messagebus._io.publish.calls import Call, Outgoing
from messagebus._io.publish.door import MakeDoor
from messagebus._io.publish.driver import PublishDriver
from messagebus._io.publish.publishes import Ended, Many, PublishCopy, Waiter
from messagebus._io.publish.targets import Address
from messagebus._io.wire import Wire
from messagebus.clock import in_seconds, monotonic_ms
from messagebus.config import BusConfig, PublisherConfig
from messagebus.core.ends import CONFIRMED, REFUSED, SPOOLED, UNKNOWN, UNROUTABLE, Item
from messagebus.core.redundancy import PARTITIONED, REQUIRED
from messagebus.errors import ConfigError, NotReady
from messagebus.handling import checked_grace
from messagebus.stats import PublisherStats
from messagebus.topology import Options

if TYPE_CHECKING:
    from messagebus._io.publish.partitions import Partitions
    from messagebus._io.publish.redundant import RedundantDrivers


async def refuse_batches(config: PublisherConfig, wire: Wire) -> None:
    """Raise ConfigError where a subscription cannot read what this publisher would pack."""
    if config.batch and (names := await wire.topology().plain_sources(config.batch)):
        raise ConfigError(f"batch: consumers of {', '.join(names)} take no batches (plain)")


class Drivers:
    """The drivers of one publisher."""

    def __init__(
        self,
        bus: BusConfig,
        config: PublisherConfig,
        outgoing: Outgoing,
        on_room: Callable[[], None],
        wire: Wire,
        hooks: HookChain | None,
    ) -> None:
        """Create its own driver. outgoing: gets the names of topics that turn out to have partitions.

        Raises ConfigError for a spool's folder that cannot be used.
        """
        self._bus, self._config, self._outgoing, self._wire = bus, config, outgoing, wire
        self.own = PublishDriver(
            bus, config, on_room, wire, door=self._spool_of(hooks) if config.spool else None
        )
        self.redundant: RedundantDrivers | None = None
        self.partitions: Partitions | None = None
        if config.spool is None:
            self.own.destinations.on_partitioned = self._adopt

    def _spool_of(self, hooks: HookChain | None) -> MakeDoor:
        from messagebus._io.publish.spool.door import DiskDoor

        return lambda driver: DiskDoor(driver, self._bus, self._config, hooks)

    @property
    def all(self) -> tuple[PublishDriver, ...]:
        """All of them, its own first. Any thread may ask."""
        drivers, partitions = self._balanced, self.partitions
        return drivers if partitions is None else (*drivers, *partitions.drivers)

    @property
    def _balanced(self) -> tuple[PublishDriver, ...]:
        """Those that do not stay with one broker, its own first. Any thread may ask."""
        redundant = self.redundant
        return (self.own,) if redundant is None else redundant.drivers

    # Publishes that need more than the publisher's own driver.
    def submit(self, call: Call, timeout_ms: int, waiter: Waiter | Many | None) -> Ended:
        """Accept any publish without a bound: the caller has asked for room. As `Door.submit`."""
        redundancy = call[0].redundancy
        if not redundancy:
            return self.own.door.submit(call, timeout_ms, waiter)
        if self.partitions is not None and redundancy == PARTITIONED:
            return self.partitions.submit(call, timeout_ms, waiter)
        return (self.redundant or self.made_redundant()).submit(call, timeout_ms, waiter)

    def made_redundant(self) -> RedundantDrivers:
        """Return the drivers of redundant publishes, made at the first one."""
        if self.redundant is None:
            from messagebus._io.publish.redundant import RedundantDrivers

            self.redundant = RedundantDrivers(self.own)
        return self.redundant

    def _adopt(self, address: Address, options: Options, items: list[Item]) -> str:
        """Publish a topic to the homes of its partitions. Returns why not, "" when it does."""
        from messagebus._io.publish.partitions import Partitions

        topic = address.name
        if topic in self._config.batch:
            return f"{topic} has partitions: batch is for topics without"
        if self.partitions is None:
            self.partitions = Partitions(self.own, self._wire.topology())
        self._outgoing.partitioned(topic, int(options["partitions"]))
        self.partitions.adopt(topic, options, [i for i in items if not isinstance(i, PublishCopy)])
        if copies := [item for item in items if isinstance(item, PublishCopy)]:
            self.own.refuse(copies, f"{topic} has partitions: redundant is for topics without")
        return ""

    def has_room(self, size: int, count: int = 1) -> bool:
        """Return whether a redundant or partitioned publish of this size in bytes finds room."""
        if self.partitions is not None and self.partitions.crowded is not None:
            return False
        second = None if self.redundant is None else self.redundant.second
        return self.own.pending.backlog.has_room(size, count) and (
            second is None or second.pending.backlog.has_room(size, count)
        )

    def full_limit(self, size: int, count: int = 1, *, is_plain: bool) -> str:
        """Return the limit that leaves no room for messages of this size in bytes. Any thread may ask."""
        backlog = self.own.pending.backlog
        most, bytes_max = backlog.messages_max, backlog.bytes_max
        waiting, waiting_bytes = (backlog.messages, backlog.bytes) if is_plain else self.waiting
        if waiting + count <= most and waiting_bytes + size > bytes_max:
            return f"backlog_bytes_max={bytes_max}"
        return f"backlog_messages_max={most}"

    @property
    def waiting(self) -> tuple[int, int]:
        """Messages that wait in the fullest backlog of those, and bytes. Any thread may ask."""
        messages, size = (0, 0) if self.partitions is None else self.partitions.waiting()
        drivers = self._balanced
        return (
            max(messages, *(each.pending.backlog.messages for each in drivers)),
            max(size, *(each.pending.backlog.bytes for each in drivers)),
        )

    def away_home(self, topic: str, key: str) -> str:
        """Return the home that keeps this key from going out, as `Partitions.away_home`."""
        return "" if self.partitions is None else self.partitions.away_home(topic, key)

    # Life.
    async def fulfil(self, timeout_s: float) -> None:
        """Wait until start(require="one") is fulfilled. Raises NotReady or LoginRefused."""
        dialer, timeout_s = self.own.links.dialer, checked_grace(timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                await dialer.connected.wait()
        except TimeoutError:
            told = f"no link to {self._bus.broker} within {timeout_s:g} s{dialer.last_fault}"
            raise dialer.fatal or NotReady(told) from None
        if dialer.fatal is not None:
            raise dialer.fatal

    def refuse_unnamed(self) -> None:
        """Raise NotReady where no redundant publish of this connected publisher can be confirmed."""
        config = self._config
        if config.redundant and config.redundancy == REQUIRED and not self.own.broker:
            raise NotReady(
                "redundant: the broker does not say its name (cluster_name), so two cannot be told apart"
            )

    async def flush(self, timeout_s: float) -> int:
        """Do as `PublishDriver.flush`, for all; a message with two copies counts once."""
        timeout_s = checked_grace(timeout_s)
        await self.own.door.opened(timeout_s)
        items = [item for driver in self.all for item in driver.begin_flush()]
        if not await self.own.flushes.wait(items, timeout_s):
            return 0
        left = [item for item in items if item.end is None]
        redundant = {item.waiter for item in left if isinstance(item, PublishCopy)}
        others = sum(item.count for item in left if not isinstance(item, PublishCopy))
        return others + len(redundant)

    async def stop(self, timeout_s: float) -> int:
        """Do as `PublishDriver.stop`, for all; a message with two copies counts once."""
        if self._config.spool is not None:
            return await self.own.stop(timeout_s)
        until_s = time.monotonic() + timeout_s
        left, left_s = 0, 0.0
        try:
            left = await self.flush(timeout_s)  # what waits for its topic's homes makes them
            left_s = max(0.0, until_s - time.monotonic())
        finally:  # also when it is cancelled, each publish has its end
            if self.redundant is not None:
                self.redundant.end_timer()
            if self.partitions is not None:
                await self.partitions.close()
            first, *others = await asyncio.gather(*(each.stop(left_s) for each in self.all))
            if self.redundant is not None:
                await self.redundant.close()
        return left if others else first

    def renew(self) -> None:
        """Dial anew through the balancer; homes stay."""
        for driver in self._balanced:
            driver.links.renew()

    def put_forward(self, ms: int) -> None:
        """Advance the time by ms, for a bus in memory."""
        for driver in self.all:
            driver.put_forward(ms)

    # Counts.
    def stats(self, extra_backlog: int = 0) -> PublisherStats:
        """Return a snapshot. Any thread may ask. extra_backlog: messages on their way to the drivers."""
        own, redundant = self.own, self.redundant
        spool, counters, keeper = own.door.counts(), own.counters, own.policy.follower.keeper
        counts: Counter[str] = own.counts()
        counts.subtract(spool.ends)
        for more in (redundant, self.partitions):
            if more is not None:
                counts.update(more.counts())
        last_ns = counters.last_confirm_ns
        return PublisherStats(
            confirmed=counts[CONFIRMED],
            refused=counts[REFUSED],
            unroutable=counts[UNROUTABLE],
            unknown=counts[UNKNOWN] - counters.unconfirmed,
            spooled=counts[SPOOLED],
            unconfirmed=counters.unconfirmed,
            retried=counts["retried"],
            backlog=counts["backlog"] + extra_backlog,
            window=counts["window"],
            settling=counts["settling"],
            broker=own.reached,
            redundant=0 if redundant is None else redundant.redundant,
            downgraded=0 if redundant is None else redundant.downgraded,
            dials=counts["dials"],
            moves=counts["moves"],
            links_lost=counts["links_lost"],
            last_confirm_age_s=(time.monotonic_ns() - last_ns) / 1e9 if last_ns else None,
            list_age_s=in_seconds(keeper.age_ms(monotonic_ms())),
            list_faults=keeper.faults,
            spool_messages=spool.messages,
            spool_bytes=spool.bytes,
            spool_oldest_s=spool.oldest_s,
            replayed=spool.replayed,
            spool_failures=spool.failures,
            spool_damaged=spool.damaged,
            spool_fault=own.door.fault,
        )
