"""Order: the CPU time that keyed handlers and partitions add to each message, by turns with plain ones.

Brokers are in memory, and handlers are coroutine functions that end at once. A turn with `order="key"`
follows one without, and their difference is a sample; so does one to a topic with partitions. Moves of
partitions are measured on brokers, one after the other, with a publisher and a consumer at work. The cost of
many queues of partitions at rest is the difference of the same broker with them and without.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple
from zlib import crc32

from bench.errors import BenchError
from bench.figures.client.mesh import MB, rss_bytes_of
from bench.figures.form import Figure, Maker, at_most
from bench.figures.scene import BEHIND_HAPROXY, Group, Scene, repeat_command
from bench.figures.see.page import cpu_percents
from bench.harness.loop import best_loop, event_loop
from messagebus import AsyncConsumer, AsyncPublisher, BusConfig, Delivery, Message, Topic, declare
from messagebus.testing import MemoryBus
from messagebus_tools.partitions import begun, finished, topic_of
from ops.local.cluster import LocalCluster

NAME, PARTITIONED = "order.keyed", "order.partitioned"
PARTITIONS, HOMES, GOAL_RATIO = 32, 3, 1.15
TOPIC, SUBSCRIPTION = "orders", "billing"
MESSAGES, FILL, KEYS, CONCURRENCY = 50_000, 500, 1_000, 10
GOAL_US = 2.0
SEGMENTED_TOPIC = "ledgers"
MOVES, MOVES_TOPIC, MOVED, MOVED_PARTITIONS = "order.move", "moves", 200, 8
SEGMENTS, SEGMENTED, SUBSCRIPTIONS, SETTLED_S, IDLE_S = "order.segments", 250, 4, 15.0, 30.0
PAUSE_S, CALM_S, WITHIN_S = 0.01, 5.0, 60.0
GOAL_MOVE_MS, GOAL_OTHERS, GOAL_SERVED_MS = 250.0, 2.0, 500.0

Order = Literal["none", "key"]


def _figures(scene: Scene) -> Iterator[Figure]:
    make, count = Maker("order", repeat_command(NAME, scene.repeat)), scene.part(MESSAGES)
    handled_us("key", count)  # imports, and a warm allocator
    pairs = [(handled_us("none", count), handled_us("key", count)) for _ in range(scene.repeat)]
    added = [keyed - plain for plain, keyed in pairs]
    what = (
        f'order="key", {KEYS:,} keys: CPU time added to each message that a coroutine handler gets'
    )
    yield make("keyed_us", what, added, "us", (at_most, GOAL_US))
    plain = [plain for plain, _keyed in pairs]
    yield make("plain_us", "The same handler without an order, brokers included", plain, "us")


def handled_us(order: Order, count: int) -> float:
    """Return the CPU time of this process a message that a handler gets, in us."""
    with asyncio.Runner(loop_factory=event_loop(best_loop())) as runner:
        return runner.run(_handled_us(order, count))


async def _handled_us(order: Order, count: int) -> float:
    bus = MemoryBus()
    bus.declare(f"{TOPIC}/{SUBSCRIPTION}")
    messages = [Message(body=b"x" * 200, key=f"customer-{each % KEYS}") for each in range(count)]
    async with bus.async_publisher() as publisher:
        for begun in range(0, count, FILL):
            await publisher.send_many(TOPIC, messages[begun : begun + FILL])
    consumer = bus.async_consumer(TOPIC, subscription=SUBSCRIPTION, order=order)
    left, done = count, asyncio.Event()

    async def handle(_delivery: Delivery) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    began_s = time.process_time()
    async with consumer:
        running = asyncio.create_task(consumer.run(handle, concurrency=CONCURRENCY))
        await done.wait()
        took_s = time.process_time() - began_s
        await consumer.stop()
        await running
    return took_s / count * 1e6


def _partitioned(scene: Scene) -> Iterator[Figure]:
    make, count = Maker("order", repeat_command(PARTITIONED, scene.repeat)), scene.part(MESSAGES)
    published_us(PARTITIONS, count)  # imports, and a warm allocator
    pairs = [(published_us(0, count), published_us(PARTITIONS, count)) for _ in range(scene.repeat)]
    what = f"{PARTITIONS} partitions on {HOMES} homes: CPU time of a publish with a key, to a plain one's"
    ratios = [parted / plain for plain, parted in pairs]
    yield make("partitioned_ratio", what, ratios, "", (at_most, GOAL_RATIO))
    told = "A publish with a key to a plain topic, brokers included"
    yield make("published_us", told, [plain for plain, _parted in pairs], "us")


def published_us(partitions: int, count: int) -> float:
    """Return the CPU time of this process a message that is published and confirmed, in us."""
    with asyncio.Runner(loop_factory=event_loop(best_loop())) as runner:
        return runner.run(_published_us(partitions, count))


async def _published_us(partitions: int, count: int) -> float:
    bus = MemoryBus(brokers=HOMES)
    bus.declare(Topic(TOPIC, partitions=partitions))
    bus.declare(f"{TOPIC}/{SUBSCRIPTION}")
    messages = [Message(body=b"x" * 200, key=f"customer-{each % KEYS}") for each in range(count)]
    async with bus.async_publisher() as publisher:
        await publisher.send_many(TOPIC, messages[:FILL])  # links and destinations
        began_s = time.process_time()
        for begun in range(0, count, FILL):
            await publisher.send_many(TOPIC, messages[begun : begun + FILL])
        return (time.process_time() - began_s) / count * 1e6


@dataclass(slots=True)
class _Seen:
    """Confirmed sends and first deliveries.

    sends: partition -> when it began, and ms. first: partition and broker -> time of the first delivery.
    """

    sends: dict[int, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    first: dict[tuple[int, str], float] = field(default_factory=dict)
    awaited: tuple[int, str] = 0, ""
    came: asyncio.Event = field(default_factory=asyncio.Event)


def _moved(scene: Scene) -> Iterator[Figure]:
    make, count = Maker("order", repeat_command(MOVES)), scene.part(MOVED)
    bus = BusConfig.from_env(scene.cluster.client_env())
    declare(bus, [Topic(MOVES_TOPIC, partitions=MOVED_PARTITIONS), f"{MOVES_TOPIC}/{SUBSCRIPTION}"])
    with asyncio.Runner(loop_factory=event_loop(best_loop())) as runner:
        own, others, calm, served = runner.run(_measured(scene.cluster, bus, count))
    what = f"A partition moves, {count} times: longest time of its keys without a confirm, p99"
    yield make("move_ms", what, _p99(own), "ms", (at_most, GOAL_MOVE_MS))
    what = "Keys of other partitions meanwhile: p99 of confirms, over that of before"
    yield make("move_others", what, _p99(others) / _p99(calm), "times", (at_most, GOAL_OTHERS))
    what = "From the seal of a home to the first delivery of the next, an empty backlog: p99"
    yield make("move_delivery_ms", what, _p99(served), "ms", (at_most, GOAL_SERVED_MS))


def _p99(values: list[float]) -> float:
    return sorted(values)[-1 - len(values) // 100]


async def _measured(
    cluster: LocalCluster, bus: BusConfig, count: int
) -> tuple[list[float], list[float], list[float], list[float]]:
    seen, keys = _Seen(), dict[int, str]()
    for number in itertools.count():
        keys.setdefault(crc32(f"k{number}".encode()) % MOVED_PARTITIONS, f"k{number}")
        if len(keys) == MOVED_PARTITIONS:
            break
    brokers, names = cluster.consumer_list(), cluster.brokers
    own, others, served = list[float](), list[float](), list[float]()

    async def handle(delivery: Delivery) -> None:
        place = delivery.partition, delivery.broker
        seen.first.setdefault(place, time.time())
        if place == seen.awaited:
            seen.came.set()

    async def publish(publisher: AsyncPublisher, partition: int) -> None:
        while True:
            began_s = time.time()
            await publisher.send_safe(MOVES_TOPIC, Message(body=b"x" * 200, key=keys[partition]))
            seen.sends[partition].append((began_s, (time.time() - began_s) * 1e3))
            await asyncio.sleep(PAUSE_S)

    consumer = AsyncConsumer(bus, MOVES_TOPIC, subscription=SUBSCRIPTION, order="key")
    async with AsyncPublisher(bus) as publisher, consumer, asyncio.TaskGroup() as tasks:
        work: list[asyncio.Task[Any]] = [
            tasks.create_task(consumer.run(handle, concurrency=CONCURRENCY))
        ]
        work += [tasks.create_task(publish(publisher, each)) for each in keys]
        await asyncio.sleep(CALM_S)
        calm = [took for each in seen.sends.values() for _, took in each[len(each) // 2 :]]
        for number in range(count):
            partition = number % MOVED_PARTITIONS
            _topic, chains = await topic_of(bus, MOVES_TOPIC)
            home = chains[partition].homes[-1]
            to = names[(names.index(home.broker) + 1) % len(names)]
            seen.awaited = partition, to
            seen.first.pop(seen.awaited, None)
            seen.came.clear()
            began_s = time.time()
            if why := await begun(bus, brokers, MOVES_TOPIC, {partition: to}, token=cluster.token):
                raise BenchError(f"{MOVES}: {why}")
            if left := await finished(bus, MOVES_TOPIC, [partition], WITHIN_S):
                raise BenchError(f"{MOVES}: {left}")
            await asyncio.wait_for(seen.came.wait(), WITHIN_S)
            for each, sends in seen.sends.items():
                took = [took for at_s, took in sends if at_s > began_s - PAUSE_S]
                own += [max(took)] if each == partition else []
                others += took if each != partition else []
                sends.clear()
            sealed_s = _sealed_s(cluster, home.broker, f"{MOVES_TOPIC}/{partition}.{home.epoch}")
            served.append((seen.first[partition, to] - sealed_s) * 1e3)
        for task in work:
            task.cancel()
    return own, others, calm, served


def _sealed_s(cluster: LocalCluster, home: str, segment: str) -> float:
    """Return when an agent says in its log that it has sealed a segment."""
    log = cluster.layout.log_file(f"{cluster.name_of(home)}-agent").read_text().splitlines()
    line = next(each for each in log if each.endswith(f"sealed segment=mb.seg/{segment}"))
    return datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp()


class _Rest(NamedTuple):
    """A broker and its agent at rest, with all their queues started once. percents: of one core."""

    boot_s: float
    broker_mb: float
    agent_mb: float
    broker_percent: float
    agent_percent: float


# Of each field of `_Rest`, what queues add: id, words, unit.
_ADDED = (
    ("boot_s", "time they add to its start", "s"),
    ("broker_mb", "memory they add to it", "MB"),
    ("agent_mb", "memory they add to its agent", "MB"),
    ("broker_percent", "CPU they add to it, of one core", "%"),
    ("audit_percent", "CPU that its agent's audit of them adds, of one core", "%"),
)


def _at_rest(cluster: LocalCluster) -> _Rest:
    """Start the broker anew, and look at it once it has settled."""
    (name,) = cluster.names
    cluster.stop(name)
    began_s = time.monotonic()
    cluster.start(name)
    boot_s = time.monotonic() - began_s
    cluster.wait_ready()
    time.sleep(SETTLED_S)
    found = [cluster.process_of(name), cluster.process_of(name, agent=True)]
    pids = [each.pid for each in found if each]
    broker, agent = cpu_percents(pids, IDLE_S)
    broker_mb, agent_mb = (rss_bytes_of(pid) / MB for pid in pids)
    return _Rest(boot_s, broker_mb, agent_mb, broker, agent)


def _segments(scene: Scene) -> Iterator[Figure]:
    make, cluster = Maker("order", repeat_command(SEGMENTS, scene.repeat)), scene.cluster
    bus, partitions = BusConfig.from_env(cluster.client_env()), scene.part(SEGMENTED)
    without = [_at_rest(cluster) for _ in range(scene.repeat)]
    names = [f"{SEGMENTED_TOPIC}/s{number}" for number in range(SUBSCRIPTIONS)]
    declare(bus, [Topic(SEGMENTED_TOPIC, partitions=partitions), *names], timeout_s=WITHIN_S)
    beside = [_at_rest(cluster) for _ in range(scene.repeat)]
    what = f"{SUBSCRIPTIONS * partitions:,} queues of partitions on a broker, at rest"
    for number, (id, words, unit) in enumerate(_ADDED):
        pairs = zip(beside, without, strict=True)
        added = [there[number] - before[number] for there, before in pairs]
        yield make(f"segments_{id}", f"{what}: {words}", added, unit)


GROUP = Group(NAME, 0, "no broker: in memory", _figures)
PARTITIONED_GROUP = Group(PARTITIONED, 0, "no broker: in memory", _partitioned)
SEGMENTS_GROUP = Group(SEGMENTS, 1, "one broker", _segments)
MOVES_GROUP = Group(MOVES, HOMES, BEHIND_HAPROXY, _moved)
