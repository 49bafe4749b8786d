"""Publishes to partitioned topics: each goes to the home of its partition, over a link of its own to it.

Runs on the publisher's loop. Messages that wait for a home, and those sent there without an answer, go out
again first and in order when its link was lost, also when their caller has been told *unknown*: it may be
stored, so nothing of its partition may pass it. A home that is away stops its own partitions only: what waits
for it ends by its deadline, and more than a share of the backlog is refused at once, by the home's name.

A partition that moves is *sealed* first: what is sent comes back, and waits with what follows. It goes to the
next home, in order, when that is open and the old one owes no answer.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterable
from typing import cast
from zlib import crc32

from messagebus._io.amqp.link import Link
from messagebus._io.amqp.properties import KEY_HEADER, read_headers, read_key
from messagebus._io.loop import Tasks, now_ms
from messagebus._io.publish.driver import PublishDriver
from messagebus._io.publish.publishes import (
    Address,
    Many,
    Publish,
    Target,
    Waiter,
    place_name,
    tell,
)
from messagebus._io.wire import NEWS_WAIT_S, Wire, follow_homes
from messagebus.broker import Broker, BrokerList
from messagebus.config import BusConfig, PublisherConfig
from messagebus.core.homes import (
    Chain,
    Home,
    joined,
    may_publish,
    partition_of,
    read_chains,
    segment_of,
)
from messagebus.core.pending import DEADLINE_PASSED, NO_READER, UNROUTABLE, Item
from messagebus.destination import PARTS
from messagebus.message import Message
from messagebus.stats import Durability
from messagebus.topology import Options

log = logging.getLogger("messagebus.publisher")

# A home without a link for so long is away.
AWAY_MS = 1_000
# What may wait for a home that is away, as a share of the backlog.
AWAY_SHARE = 8
TICK_S = 0.25
NEVER_MS = 1 << 60
# What comes back has no reader when an agent still knows of no move after this.
SEALED_MS = 1_000
# Interval of looks at the answers of the old home, while one is awaited.
MOVING_S = 0.005
STOP_TIMEOUT_S = 1.0


class HomeDriver(PublishDriver):
    """The links of one publisher to one home, one after the other. It never leaves for another broker."""

    ordered = True

    def __init__(
        self,
        home: str,
        first: PublishDriver,
        bus: BusConfig,
        config: PublisherConfig,
        on_room: Callable[[], None],
        wire: Wire,
    ) -> None:
        super().__init__(bus, config, on_room, wire, beside=first)
        self._first = first
        self._beside = None  # it follows that one's list, and avoids nobody
        self.home = home
        self.pending.seals = True
        self.route.lifetime_ms, self.route.stays = NEVER_MS, True
        self.exchanges: set[str] = set()
        self.away_since_ms: int | None = now_ms()

    def is_away(self, now: int) -> bool:
        """Return whether it has had no link for AWAY_MS, or does not answer."""
        if self.route.current is not None:
            self.away_since_ms = None
            return self.pending.unanswered_ms(now) >= self._slow_ms
        if self.away_since_ms is None:
            self.away_since_ms = now
        return now - self.away_since_ms >= AWAY_MS

    def _choose(self, number: int) -> Broker | None:
        return Broker.parse(self.home)

    async def _verify(self, link: Link) -> list[Address]:
        """Look for the exchanges: publishing to a missing one would end the link."""
        for refused in (await link.refusals(list(self.exchanges))).values():
            raise refused
        return await super()._verify(link)

    def _tell(self, settled: list[Item]) -> None:
        super()._tell(settled)
        self._first.tell_flushes()  # a flush of that one may wait for what was handed on

    def end_unroutable(self, destination: str) -> None:
        """Settle what came back, since nobody reads there, and send what follows."""
        items = self.pending.move_out(destination, only_sent=True)
        self._settle(self.pending.end(items, UNROUTABLE, NO_READER))
        self.pending.unseal(destination)
        self._wake()

    def take_over_one(self, publish: Publish) -> None:
        """Accept a publish that another driver has accepted before, behind all others."""
        self._open_destination(publish.target)
        self.pending.accept(publish, alone=True)
        self._wake()

    def _on_list(self, brokers: BrokerList) -> None:
        """Stay: a home moves by the agents' map alone."""

    def leave(self) -> None:
        """Stay, as the partitions do."""

    def _leave_if_slow(self, now: int) -> None:
        """Stay: a broker with a slow disk answers later, and heartbeats end a dead link."""

    def _why_late(self) -> str:
        away = "is away" if self.is_away(now_ms()) else "did not answer"
        return f"{DEADLINE_PASSED}: home {self.home} of its partition {away}{self._last_fault}"


class _Topic:
    """A partitioned topic. drivers: of the homes; targets: content type -> target, both by partition.

    told: its homes as text, as in the answer to a question of heard_ms. moving: partition -> its next home,
    open. sealed_ms: partition of which something came back, while no move is known -> since when.
    """

    __slots__ = (
        "asking",
        "count",
        "drivers",
        "heard_ms",
        "homes",
        "moving",
        "name",
        "sealed_ms",
        "targets",
        "told",
    )

    def __init__(self, name: str, told: str, homes: list[Home], drivers: list[HomeDriver]) -> None:
        self.name, self.told, self.homes, self.drivers = name, told, homes, drivers
        self.count = len(homes)
        self.targets: list[dict[str, Target]] = [{} for _ in homes]
        self.moving: dict[int, Home] = {}
        self.sealed_ms: dict[int, int] = {}
        self.heard_ms = 0
        self.asking: asyncio.Task[None] | None = None

    def linked(self, partition: int) -> int:
        """Return this partition or the next one whose home has a link; this one where none has."""
        turns = ((partition + number) % self.count for number in range(self.count))
        return next((n for n in turns if self.drivers[n].route.current is not None), partition)

    def destination(self, partition: int) -> str:
        segment = segment_of(partition, self.homes[partition])
        return place_name(f"{PARTS}{self.name}", segment)


class Homes:
    """The homes of the partitioned topics of one publisher."""

    def __init__(
        self,
        first: PublishDriver,
        bus: BusConfig,
        config: PublisherConfig,
        on_room: Callable[[], None],
        wire: Wire,
        on_retired: Callable[[HomeDriver], None],
    ) -> None:
        """on_retired: called with each driver of a broker that is no home any more."""
        self._first, self._on_retired = first, on_retired
        self._make: Callable[[str], HomeDriver] = lambda home: HomeDriver(
            home, first, bus, config, self._room, wire
        )
        self._on_room, self._share = on_room, max(1, config.backlog_messages_max // AWAY_SHARE)
        self._topology, self._tasks, self._ending = wire.topology(), Tasks(), Tasks()
        self.drivers: dict[str, HomeDriver] = {}
        self._topics: dict[str, _Topic] = {}
        self._turn = itertools.count()
        self.crowded: HomeDriver | None = None
        """A home that answers and whose backlog is full: callers wait for it."""
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def adopt(self, topic: str, options: Options, items: Iterable[Item]) -> None:
        """Publish a topic to its homes from now on, these first. options: as the agents have them."""
        if topic not in self._topics:
            told = str(options["homes"])
            chains = read_chains(told, int(options["partitions"]))
            log.info("partitioned topic=%s partitions=%d", topic, len(chains))
            homes = [chain.taking or chain.homes[0] for chain in chains]
            drivers = [self._driver(home, topic) for home in homes]
            self._topics[topic] = _Topic(topic, told, homes, drivers)
            self._ask(self._topics[topic])
        if self._timer is None:
            self._tick()
        self.take_over(topic, items)

    def _driver(self, home: Home, topic: str) -> HomeDriver:
        driver = self.drivers.get(home.broker)
        if driver is None:
            driver = self.drivers[home.broker] = self._make(home.broker)
            driver.start()
        driver.exchanges.add(f"{PARTS}{topic}")
        return driver

    def _ask(self, topic: _Topic) -> None:
        """Ask the agents for moves from now on; again, past one that does not answer."""
        if topic.asking is not None:
            topic.asking.cancel()
        following = follow_homes(
            self._topology,
            topic.name,
            lambda: topic.told,
            lambda told, asked_ms: self._learn(topic, told, asked_ms),
            wait_s=lambda: 0 if topic.sealed_ms else NEWS_WAIT_S,
            log=log,
        )
        topic.asking = self._tasks.spawn(following)

    def _learn(self, topic: _Topic, told: str, asked_ms: int) -> bool:
        known, topic.told = topic.told, joined(topic.told, told or topic.told, topic.count)
        chains: tuple[Chain, ...] = read_chains(topic.told, topic.count)
        for partition, (chain, home) in enumerate(zip(chains, topic.homes, strict=True)):
            if chain.taking != home:
                topic.sealed_ms.pop(partition, None)
            if chain.taking not in (None, home):
                topic.moving[partition] = chain.homes[-1]
                topic.drivers[partition].pending.seal(topic.destination(partition))
        self._move(topic)
        topic.heard_ms = asked_ms
        return topic.told != known

    def _move(self, topic: _Topic) -> None:
        """Send partitions to their next homes, when nothing is unanswered at the old ones."""
        for partition, home in list(topic.moving.items()):
            old, left = topic.drivers[partition], topic.destination(partition)
            unanswered = [topic.homes[partition].epoch] * old.pending.is_unanswered(left)
            if not may_publish(home, unanswered):
                continue
            log.info("partition moved topic=%s partition=%d to=%s", topic.name, partition, home)
            topic.homes[partition], topic.targets[partition] = home, {}
            topic.drivers[partition] = new = self._driver(home, topic.name)
            for item in cast(list[Publish], old.pending.move_out(left)):
                item.target = self._target(topic, partition, item.target.content_type)
                item.destination = item.target.destination
                new.take_over_one(item)
            old.pending.unseal(left)
            del topic.moving[partition]
        if topic.moving:
            self._loop.call_later(MOVING_S, self._move, topic)

    def _look_at_sealed(self, topic: _Topic, now: int) -> None:
        """End what came back from a home that no agent has seen moving, neither at once nor later."""
        if not any(driver.pending.sealed for driver in self.drivers.values()):
            return
        taking = [chain.taking for chain in read_chains(topic.told, topic.count)]
        for partition, driver in enumerate(topic.drivers):
            sealed = topic.destination(partition)
            if taking[partition] != topic.homes[partition] or sealed not in driver.pending.sealed:
                continue
            if not topic.sealed_ms:
                topic.sealed_ms[partition] = now
                self._ask(topic)
            since_ms = topic.sealed_ms.setdefault(partition, now)
            if topic.heard_ms - since_ms >= SEALED_MS:
                del topic.sealed_ms[partition]
                driver.end_unroutable(sealed)

    def take_over(self, topic: str, items: Iterable[Item]) -> None:
        """Publish these, which another driver has accepted, in their order."""
        for item in cast(Iterable[Publish], items):
            key = "" if item.properties is None else _key_of(item.properties)
            driver, own = self._place(self._topics[topic], key, item.target.content_type)
            item.target, item.destination = own, own.destination
            driver.take_over_one(item)

    def _place(self, topic: _Topic, key: str, content_type: str) -> tuple[HomeDriver, Target]:
        turn = 0 if key else next(self._turn) % topic.count
        partition = partition_of(key, topic.count) if key else topic.linked(turn)
        own = topic.targets[partition].get(content_type)
        return topic.drivers[partition], own or self._target(topic, partition, content_type)

    def _target(self, topic: _Topic, partition: int, content_type: str) -> Target:
        exchange, segment = f"{PARTS}{topic.name}", segment_of(partition, topic.homes[partition])
        address = Address(topic.name, exchange, segment, Durability.FSYNC)
        made = topic.targets[partition][content_type] = Target(address, content_type)
        return made

    def submit(
        self,
        target: Target,
        body: bytes,
        message: Message | None,
        timeout_ms: int,
        waiter: Waiter | Many | None,
    ) -> Publish:
        """Accept a publish without a bound: the caller has asked for room. As `PublishDriver.submit`."""
        topic, key = self._topics[target.address.name], "" if message is None else message.key
        number = crc32(key.encode()) if key else next(self._turn)  # `_place` inlined
        partition = number % topic.count
        if not key and topic.drivers[partition].route.current is None:
            partition = topic.linked(partition)
        driver, own = topic.drivers[partition], topic.targets[partition].get(target.content_type)
        if own is None:
            own = self._target(topic, partition, target.content_type)
        if driver.pending.waiting >= self._share:
            now = now_ms()
            if driver.is_away(now):
                message_id = message.message_id if message is not None else ""
                publish = Publish(message_id, own, body, None, 0, waiter)
                away = f"home {driver.home} of partition {partition} is away"
                driver.pending.refuse(publish, f"{away}, and {self._share} wait")
                self._loop.call_soon(tell, [publish], time.monotonic_ns())
                return publish
            if not driver.pending.has_room(len(body) + 1, 2):
                self.crowded = driver
        return driver.submit(own, body, message, timeout_ms, waiter)

    def away_home(self, topic: str, key: str) -> str:
        """Return the home that keeps this key from going out, because it is away; "" for none.

        key: "" for a message without one, which goes to any home. "" too while no broker at all is there, and
        for a topic that is not published to its homes.
        """
        found = self._topics.get(topic)
        if found is None or self._first.route.current is None:
            return ""
        now = now_ms()
        drivers = [found.drivers[partition_of(key, found.count)]] if key else found.drivers
        return drivers[0].home if all(each.is_away(now) for each in drivers) else ""

    def _room(self) -> None:
        self._look()
        self._on_room()

    def _look(self) -> None:
        now = now_ms()
        crowded = self.crowded
        if crowded is not None and (crowded.pending.has_room(0) or crowded.is_away(now)):
            self.crowded = None

    def _tick(self) -> None:
        now = now_ms()
        for driver in list(self.drivers.values()):
            driver.is_away(now)
            driver.tell_flushes()  # what it waits for may have moved
        for topic in self._topics.values():
            self._look_at_sealed(topic, now)
        self._retire()
        if self.crowded is not None:
            self._room()
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def _retire(self) -> None:
        """Hang up on brokers that are no homes any more, so that they can be stopped."""
        used = {driver for topic in self._topics.values() for driver in topic.drivers}
        for broker, driver in list(self.drivers.items()):
            if driver not in used and not driver.unsettled():
                log.info("no home any more broker=%s", broker)
                del self.drivers[broker]
                self._on_retired(driver)
                self._ending.spawn(driver.stop(0))

    def waiting(self) -> tuple[int, int]:
        """Return the messages that wait for the busiest home that answers, and bytes."""
        now = now_ms()
        near = [each.pending for each in self.drivers.values() if not each.is_away(now)]
        return (
            max((each.waiting for each in near), default=0),
            max((each.waiting_bytes for each in near), default=0),
        )

    async def stop(self) -> None:
        """End the timer and the questions; the drivers are stopped by their fleet."""
        await self._tasks.cancel()
        for topic in self._topics.values():
            topic.moving.clear()
        await self._ending.finish(STOP_TIMEOUT_S)
        if self._timer is not None:
            self._timer.cancel()


def _key_of(properties: bytes) -> str:
    key = read_key(properties)
    return str(read_headers(properties).get(KEY_HEADER, "")) if key is None else key
