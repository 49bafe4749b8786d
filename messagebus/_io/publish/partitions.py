"""Publishes to partitioned topics: each goes to the home of its partition, over a link of its own to it.

Runs on the publisher's loop. Messages that wait for a home, and those sent there without an answer, go out
again first and in order when its link was lost, also when their caller has been told *unknown*: it may be
stored, so nothing of its partition may pass it. A home that is away stops its own partitions only: what waits
for it ends by its deadline, and more than a share of the backlog is refused at once, by the home's name.

A partition that moves is *sealed* first: what is sent comes back, and waits with what follows. It goes to the
next home, in order, when that is open and the old one owes no answer.
"""

# States of a partition, as its publisher sees them:
#
#   at home ─ something comes back ─▶ sealed ─ the next home is open, the old one owes nothing ─▶ there
#      ▲                                └─ no agent knows of a move for SEALED_MS ─┐
#      └────────────────── what came back ends as unroutable, the rest is sent ◀───┘
#
# Owners: a `_Topic` has the homes of its partitions, and the next ones; a `HomeBroker` the driver of one
# broker; `Partitions` asks the agents, moves partitions, and retires brokers. It runs while there is a
# topic.

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import cast
from zlib import crc32

from messagebus._io.amqp.link import Link
from messagebus._io.amqp.properties import KEY_HEADER, read_headers, read_key
from messagebus._io.loop import Tasks
from messagebus._io.publish.calls import Call
from messagebus._io.publish.driver import PublishDriver
from messagebus._io.publish.publishes import Many, Publish, Waiter
from messagebus._io.publish.targets import Address, Target, place_name
from messagebus._io.wire import ASK_AGAIN_S, NEWS_WAIT_S, Topology, Wire, follow_homes
from messagebus.broker import Broker, BrokerList
from messagebus.clock import monotonic_ms
from messagebus.core.ends import DEADLINE_PASSED, END_UNROUTABLE, Item
from messagebus.core.homes import (
    Chain,
    Home,
    joined,
    may_publish,
    partition_of,
    read_chains,
    segment_of,
)
from messagebus.destination import PARTS
from messagebus.stats import Durability
from messagebus.topology import Options

log = logging.getLogger("messagebus.publisher")

# A home without a link for so long is away.
AWAY_MS = 1_000
# What may wait for a home that is away, as a share of the backlog.
AWAY_SHARE = 8
TICK_S = 0.25
# What comes back has no reader when an agent still knows of no move after this.
SEALED_MS = 1_000
# Interval of looks at the answers of the old home, while one is awaited.
MOVING_S = 0.005
STOP_TIMEOUT_S = 1.0


class HomeBroker:
    """The broker of some partitions: a route policy that stays, and the driver that publishes there."""

    stays = ordered = sends_anywhere = True

    def __init__(self, name: str, first: PublishDriver, on_room: Callable[[], None]) -> None:
        """Make its driver. first: the publisher's own, whose consumer list it shares."""
        self.name = name
        self.follower = first.policy.follower
        self.exchanges: set[str] = set()
        self._away_since_ms: int | None = monotonic_ms()
        self.driver = first.another(self, on_room)

    # The route.
    def bind(self, wire: Wire, on_list: Callable[[BrokerList], None]) -> None: ...

    def start(self) -> None: ...

    async def stop(self) -> None: ...

    def avoids(self) -> str | None:
        return None

    def may_send(self, broker: str) -> bool:
        return True

    def choose(self, number: int) -> Broker | None:
        return Broker.parse(self.name)

    async def verify(self, link: Link) -> None:
        """Look for the exchanges: publishing to a missing one would end the link."""
        for refused in (await link.refusals(list(self.exchanges))).values():
            raise refused

    def why_late(self, last_fault: str) -> str:
        away = "is away" if self.is_away(monotonic_ms()) else "did not answer"
        return f"{DEADLINE_PASSED}: home {self.name} of its partition {away}{last_fault}"

    # Its publishes.
    @property
    def is_linked(self) -> bool:
        """True when there is a link to it."""
        return self.driver.links.is_linked

    def is_away(self, now: int) -> bool:
        """Return whether it has had no link for AWAY_MS, or does not answer."""
        if self.is_linked:
            self._away_since_ms = None
            return self.driver.links.is_slow(now)
        if self._away_since_ms is None:
            self._away_since_ms = now
        return now - self._away_since_ms >= AWAY_MS

    def end_unroutable(self, destination: str) -> None:
        """Settle what came back, since nobody reads there, and send what follows."""
        pending = self.driver.pending
        items = pending.backlog.move_out(destination, only_sent=True)
        self.driver.settle(pending.ends.settle(items, END_UNROUTABLE))
        pending.backlog.unseal(destination)
        self.driver.wake()


class _Topic:
    """A partitioned topic. brokers: of the homes; targets: content type -> target, both by partition.

    text: its homes as text, as in the answer to a question of heard_ms. moving: partition -> its next home,
    open. sealed_ms: partition of which something came back, while no move is known -> since when.
    """

    __slots__ = (
        "asking",
        "brokers",
        "count",
        "heard_ms",
        "homes",
        "moving",
        "name",
        "sealed_ms",
        "targets",
        "text",
    )

    def __init__(self, name: str, text: str, homes: list[Home], brokers: list[HomeBroker]) -> None:
        self.name, self.text, self.homes, self.brokers = name, text, homes, brokers
        self.count = len(homes)
        self.targets: list[dict[str, Target]] = [{} for _ in homes]
        self.moving: dict[int, Home] = {}
        self.sealed_ms: dict[int, int] = {}
        self.heard_ms = 0
        self.asking: asyncio.Task[None] | None = None

    def linked(self, partition: int) -> int:
        """Return this partition or the next one whose home has a link; this one where none has."""
        turns = ((partition + number) % self.count for number in range(self.count))
        return next((n for n in turns if self.brokers[n].is_linked), partition)

    def destination(self, partition: int) -> str:
        segment = segment_of(partition, self.homes[partition])
        return place_name(f"{PARTS}{self.name}", segment)


class Partitions:
    """The partitioned topics of one publisher, and the brokers of their homes."""

    def __init__(self, first: PublishDriver, topology: Topology) -> None:
        """Create it without a topic. first: the publisher's own driver."""
        self._first, self._topology = first, topology
        self._share = max(1, first.pending.backlog.messages_max // AWAY_SHARE)
        self._tasks, self._ending = Tasks(), Tasks()
        self.brokers: dict[str, HomeBroker] = {}
        self._topics: dict[str, _Topic] = {}
        self._turn = itertools.count()
        self.crowded: HomeBroker | None = None
        """A home that answers and whose backlog is full: callers wait for it."""
        self._retired: Counter[str] = (
            Counter()
        )  # what drivers counted of brokers that are homes no more
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def drivers(self) -> tuple[PublishDriver, ...]:
        """The drivers of the homes."""
        return tuple(each.driver for each in list(self.brokers.values()))

    # Topics and their homes.
    def adopt(self, topic: str, options: Options, items: Iterable[Item]) -> None:
        """Publish a topic to its homes from now on, these first. options: as the agents have them."""
        if topic not in self._topics:
            text = str(options["homes"])
            chains = read_chains(text, int(options["partitions"]))
            log.info("partitioned topic=%s partitions=%d", topic, len(chains))
            homes = [chain.taking or chain.homes[0] for chain in chains]
            brokers = [self._broker(home, topic) for home in homes]
            self._topics[topic] = _Topic(topic, text, homes, brokers)
            self._ask(self._topics[topic])
        if self._timer is None:
            self._tick()
        self._take_over(topic, items)

    def _broker(self, home: Home, topic: str) -> HomeBroker:
        broker = self.brokers.get(home.broker)
        if broker is None:
            broker = self.brokers[home.broker] = HomeBroker(home.broker, self._first, self._room)
            broker.driver.start()
        broker.exchanges.add(f"{PARTS}{topic}")
        return broker

    def _ask(self, topic: _Topic) -> None:
        """Ask the agents for moves from now on; again, past one that does not answer."""
        if topic.asking is not None:
            topic.asking.cancel()
        following = follow_homes(
            self._topology,
            topic.name,
            lambda: topic.text,
            lambda text, asked_ms: self._learn(topic, text, asked_ms),
            wait_s=lambda: 0 if topic.sealed_ms else NEWS_WAIT_S,
            log=log,
        )
        topic.asking = asking = self._tasks.spawn(
            following,
            cancelled=lambda: self._ask_again(topic, asking),
            pause_s=ASK_AGAIN_S,
        )

    def _ask_again(self, topic: _Topic, cancelled: asyncio.Task[None]) -> None:
        """Ask on where it is the application that has cancelled all tasks of its loop."""
        if topic.asking is cancelled:
            self._ask(topic)

    def _learn(self, topic: _Topic, text: str, sent_ms: int) -> bool:
        known, topic.text = topic.text, joined(topic.text, text or topic.text, topic.count)
        chains: tuple[Chain, ...] = read_chains(topic.text, topic.count)
        for partition, (chain, home) in enumerate(zip(chains, topic.homes, strict=True)):
            if chain.taking != home:
                topic.sealed_ms.pop(partition, None)
            if chain.taking not in (None, home):
                topic.moving[partition] = chain.homes[-1]
                topic.brokers[partition].driver.pending.seal(topic.destination(partition))
        self._move(topic)
        topic.heard_ms = sent_ms
        return topic.text != known

    def _move(self, topic: _Topic) -> None:
        """Send partitions to their next homes, when nothing is unanswered at the old ones."""
        for partition, home in list(topic.moving.items()):
            old, left = topic.brokers[partition].driver.pending, topic.destination(partition)
            unanswered = [topic.homes[partition].epoch] * old.in_flight.has(left)
            if not may_publish(home, unanswered):
                continue
            log.info("partition moved topic=%s partition=%d to=%s", topic.name, partition, home)
            topic.homes[partition], topic.targets[partition] = home, {}
            topic.brokers[partition] = new = self._broker(home, topic.name)
            for item in cast(list[Publish], old.backlog.move_out(left)):
                item.target = self._target(topic, partition, item.target.content_type)
                item.destination = item.target.destination
                new.driver.memory.accept_alone(item)
            old.backlog.unseal(left)
            del topic.moving[partition]
        if topic.moving:
            self._loop.call_later(MOVING_S, self._move, topic)

    def _look_at_sealed(self, topic: _Topic, now: int) -> None:
        """End what came back from a home that no agent has seen moving, neither at once nor later."""
        if not any(each.driver.pending.backlog.sealed for each in self.brokers.values()):
            return
        taking = [chain.taking for chain in read_chains(topic.text, topic.count)]
        for partition, broker in enumerate(topic.brokers):
            sealed = topic.destination(partition)
            if taking[partition] != topic.homes[partition]:
                continue
            if sealed not in broker.driver.pending.backlog.sealed:
                continue
            if not topic.sealed_ms:
                topic.sealed_ms[partition] = now
                self._ask(topic)
            since_ms = topic.sealed_ms.setdefault(partition, now)
            if topic.heard_ms - since_ms >= SEALED_MS:
                del topic.sealed_ms[partition]
                broker.end_unroutable(sealed)

    # Publishes.
    def _take_over(self, topic: str, items: Iterable[Item]) -> None:
        """Publish these, which another driver has accepted, in their order."""
        for item in cast(Iterable[Publish], items):
            key = "" if item.properties is None else _key_of(item.properties)
            broker, own = self._place(self._topics[topic], key, item.target.content_type)
            item.target, item.destination = own, own.destination
            broker.driver.memory.accept_alone(item)

    def _place(self, topic: _Topic, key: str, content_type: str) -> tuple[HomeBroker, Target]:
        turn = 0 if key else next(self._turn) % topic.count
        partition = partition_of(key, topic.count) if key else topic.linked(turn)
        own = topic.targets[partition].get(content_type)
        return topic.brokers[partition], own or self._target(topic, partition, content_type)

    def _target(self, topic: _Topic, partition: int, content_type: str) -> Target:
        exchange, segment = f"{PARTS}{topic.name}", segment_of(partition, topic.homes[partition])
        address = Address(topic.name, exchange, segment, Durability.FSYNC)
        own = topic.targets[partition][content_type] = Target(address, content_type)
        return own

    def submit(self, call: Call, timeout_ms: int, waiter: Waiter | Many | None) -> Publish:
        """Accept a publish without a bound: the caller has asked for room. As `Door.submit`."""
        target, body, message = call
        topic, key = self._topics[target.address.name], "" if message is None else message.key
        number = crc32(key.encode()) if key else next(self._turn)  # `_place` inlined
        partition = number % topic.count
        if not key and topic.brokers[partition].driver.links.current is None:
            partition = topic.linked(partition)
        broker, own = topic.brokers[partition], topic.targets[partition].get(target.content_type)
        if own is None:
            own = self._target(topic, partition, target.content_type)
        memory, backlog = broker.driver.memory, broker.driver.pending.backlog
        if backlog.messages >= self._share:
            if broker.is_away(monotonic_ms()):
                message_id = message.message_id if message is not None else ""
                publish = Publish(message_id, own, body, None, 0, waiter)
                away = f"home {broker.name} of partition {partition} is away"
                return memory.refuse(publish, f"{away}, and {self._share} wait")
            if not backlog.has_room(len(body) + 1, 2):
                self.crowded = broker
        return memory.submit((own, body, message), timeout_ms, waiter)

    def away_home(self, topic: str, key: str) -> str:
        """Return the home that keeps this key from going out, because it is away; "" for none.

        key: "" for a message without one, which goes to any home. "" too while no broker at all is there, and
        for a topic that is not published to its homes.
        """
        found = self._topics.get(topic)
        if found is None or not self._first.links.is_linked:
            return ""
        now = monotonic_ms()
        brokers = [found.brokers[partition_of(key, found.count)]] if key else found.brokers
        return brokers[0].name if all(each.is_away(now) for each in brokers) else ""

    # Room and time.
    def _room(self) -> None:
        self._look()
        if self._first.on_room is not None:
            self._first.on_room()

    def _look(self) -> None:
        now = monotonic_ms()
        crowded = self.crowded
        if crowded is not None and (
            crowded.driver.pending.backlog.has_room(0) or crowded.is_away(now)
        ):
            self.crowded = None

    def _tick(self) -> None:
        now = monotonic_ms()
        for broker in self.brokers.values():
            broker.is_away(now)
        for topic in self._topics.values():
            self._look_at_sealed(topic, now)
        self._retire()
        if self.crowded is not None:
            self._room()
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def _retire(self) -> None:
        """Hang up on brokers that are no homes any more, so that they can be stopped."""
        used = {broker for topic in self._topics.values() for broker in topic.brokers}
        for name, broker in list(self.brokers.items()):
            if broker not in used and not broker.driver.door.unsettled():
                log.info("no longer a home broker=%s", name)
                del self.brokers[name]
                self._retired.update(broker.driver.counts())
                self._ending.spawn(broker.driver.stop(0))

    def waiting(self) -> tuple[int, int]:
        """Return the messages that wait for the busiest home that answers, and bytes."""
        now = monotonic_ms()
        near = [
            each.driver.pending.backlog
            for each in list(self.brokers.values())
            if not each.is_away(now)
        ]
        return (
            max((each.messages for each in near), default=0),
            max((each.bytes for each in near), default=0),
        )

    def counts(self) -> Counter[str]:
        """Return what the drivers of homes counted, by the names of `PublisherStats` and of outcomes."""
        counts = Counter(dict(self._retired))  # a copy: other threads read it
        for driver in self.drivers:
            counts.update(driver.counts())
        return counts

    async def close(self) -> None:
        """End the timer and the questions; the publisher stops the drivers."""
        await self._tasks.cancel()
        for topic in self._topics.values():
            topic.moving.clear()
        await self._ending.finish(STOP_TIMEOUT_S)
        if self._timer is not None:
            self._timer.cancel()


def _key_of(properties: bytes) -> str:
    key = read_key(properties)
    return str(read_headers(properties).get(KEY_HEADER, "")) if key is None else key
