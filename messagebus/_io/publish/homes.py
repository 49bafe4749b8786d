"""Publishes to partitioned topics: each goes to the home of its partition, over a link of its own to it.

Runs on the publisher's loop. What waits for a home, and what was sent there and is not answered, goes out
again first and in order when its link was lost, also when its caller has been told *unknown*: it may be
stored, so nothing of its partition may pass it. A home that is away stops its own partitions only: what waits
for it ends by its deadline, and more than a share of the backlog is refused at once, by the home's name.
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
from messagebus._io.loop import now_ms
from messagebus._io.publish.driver import PublishDriver
from messagebus._io.publish.publishes import Address, Many, Publish, Target, Waiter, tell
from messagebus._io.wire import Wire
from messagebus.broker import Broker, BrokerList
from messagebus.config import BusConfig, PublisherConfig
from messagebus.core.homes import partition_of, read_homes, segment_of
from messagebus.core.pending import DEADLINE_PASSED, Item
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
        self._beside = None  # it follows that one's list, and avoids nobody
        self.home = home
        self.route.lifetime_ms, self.route.stays = NEVER_MS, True
        self.exchanges: set[str] = set()
        self.away_since_ms: int | None = now_ms()

    def is_away(self, now: int) -> bool:
        """Return whether it has had no link for AWAY_MS, or does not answer."""
        if self.route.current is not None:
            self.away_since_ms = None
            return self.pending.unanswered_ms(now) >= self._config.confirm_slow_ms
        if self.away_since_ms is None:
            self.away_since_ms = now
        return now - self.away_since_ms >= AWAY_MS

    def _choose(self, number: int) -> Broker | None:
        return Broker.parse(self.home)

    async def _verify(self, link: Link) -> None:
        """Look for the exchanges: publishing to a missing one would end the link."""
        for exchange in self.exchanges:
            await link.try_call("exchange_declare", exchange=exchange, passive=True)
        await super()._verify(link)

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
    """A partitioned topic. drivers: of the homes; targets: content type -> target, both by partition."""

    __slots__ = ("count", "drivers", "name", "segments", "targets")

    def __init__(self, name: str, segments: list[str], drivers: list[HomeDriver]) -> None:
        self.name, self.segments, self.drivers = name, segments, drivers
        self.count = len(segments)
        self.targets: list[dict[str, Target]] = [{} for _ in segments]


class Homes:
    """The homes of the partitioned topics of one publisher."""

    def __init__(
        self,
        first: PublishDriver,
        bus: BusConfig,
        config: PublisherConfig,
        on_room: Callable[[], None],
        wire: Wire,
    ) -> None:
        self._make: Callable[[str], HomeDriver] = lambda home: HomeDriver(
            home, first, bus, config, self._room, wire
        )
        self._on_room, self._share = on_room, max(1, config.backlog_messages_max // AWAY_SHARE)
        self.drivers: dict[str, HomeDriver] = {}
        self._topics: dict[str, _Topic] = {}
        self._turn = itertools.count()
        self.crowded: HomeDriver | None = None
        """A home that answers and whose backlog is full: callers wait for it."""
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def adopt(self, topic: str, options: Options, items: Iterable[Item]) -> None:
        """Publish a topic to its homes from now on, these first. options: as the agents have them."""
        homes = read_homes(str(options["homes"]), int(options["partitions"]))
        log.info("partitioned topic=%s partitions=%d", topic, len(homes))
        drivers = []
        for home in homes:
            driver = self.drivers.get(home.broker)
            if driver is None:
                driver = self.drivers[home.broker] = self._make(home.broker)
                driver.start()
            driver.exchanges.add(f"{PARTS}{topic}")
            drivers.append(driver)
        segments = [segment_of(partition, home) for partition, home in enumerate(homes)]
        self._topics[topic] = _Topic(topic, segments, drivers)
        if self._timer is None:
            self._tick()
        self.take_over(topic, items)

    def take_over(self, topic: str, items: Iterable[Item]) -> None:
        """Publish these, which another driver has accepted, in their order."""
        for item in cast(Iterable[Publish], items):
            key = "" if item.properties is None else _key_of(item.properties)
            driver, own = self._place(self._topics[topic], key, item.target.content_type)
            item.target, item.destination = own, own.destination
            driver.take_over_one(item)

    def _place(self, topic: _Topic, key: str, content_type: str) -> tuple[HomeDriver, Target]:
        partition = partition_of(key, topic.count) if key else next(self._turn) % topic.count
        own = topic.targets[partition].get(content_type)
        return topic.drivers[partition], own or self._target(topic, partition, content_type)

    def _target(self, topic: _Topic, partition: int, content_type: str) -> Target:
        exchange = f"{PARTS}{topic.name}"
        address = Address(topic.name, exchange, topic.segments[partition], Durability.FSYNC)
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
        for driver in self.drivers.values():
            driver.is_away(now)
        if self.crowded is not None:
            self._room()
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def waiting(self) -> tuple[int, int]:
        """Return the messages that wait for the busiest home that answers, and bytes."""
        now = now_ms()
        near = [each.pending for each in self.drivers.values() if not each.is_away(now)]
        return (
            max((each.waiting for each in near), default=0),
            max((each.waiting_bytes for each in near), default=0),
        )

    def stop(self) -> None:
        """End the timer; the drivers are stopped by their fleet."""
        if self._timer is not None:
            self._timer.cancel()


def _key_of(properties: bytes) -> str:
    key = read_key(properties)
    return str(read_headers(properties).get(KEY_HEADER, "")) if key is None else key
