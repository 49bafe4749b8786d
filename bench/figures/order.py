"""Order: the CPU time that keyed handlers and partitions add to each message, by turns with plain ones.

Brokers are in memory, and handlers are coroutine functions that end at once. A turn with `order="key"`
follows one without, and their difference is a sample; so does one to a topic with partitions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Literal

from bench.figures.form import Figure, Maker, at_most
from bench.figures.scene import Group, Scene, repeat_command
from bench.harness.loop import best_loop, event_loop
from messagebus import Delivery, Message, Topic
from messagebus.testing import MemoryBus

NAME, PARTITIONED = "order.keyed", "order.partitioned"
PARTITIONS, HOMES, GOAL_RATIO = 32, 3, 1.15
TOPIC, SUBSCRIPTION = "orders", "billing"
MESSAGES, FILL, KEYS, CONCURRENCY = 50_000, 500, 1_000, 10
GOAL_US = 2.0

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


GROUP = Group(NAME, 0, "no broker: in memory", _figures)
PARTITIONED_GROUP = Group(PARTITIONED, 0, "no broker: in memory", _partitioned)
