"""The bus in memory, as tests of applications use it.

async: every message published, received and acked in one process. start: the time of a test with both
blocking clients, from the bus to the last stop, with one message handled; the first of its process.
"""

from __future__ import annotations

import asyncio
import os

from bench.errors import BenchError
from bench.systems.ours_async import check, slices
from bench.systems.turn import Stopwatch, Task, Turn, run_on
from messagebus import ConsumerConfig, PublisherConfig
from messagebus.testing import MemoryBus

__all__ = ["run"]

SLICE = 10_000
RECEIVE_WITHIN_S = 10.0


def run(task: Task) -> Turn:
    if task.way == "start":
        return _start(task)
    return run_on(task.loop, lambda: _async(task))


async def _async(task: Task) -> Turn:
    bus, body = MemoryBus(), os.urandom(task.body_bytes)
    config = ConsumerConfig(prefetch=task.window, handed_out_max=task.window)
    async with (
        bus.async_consumer(task.topic, subscription=task.subscription, config=config) as consumer,
        bus.async_publisher(PublisherConfig(window=task.window)) as publisher,
    ):

        async def take(count: int) -> None:
            left = count
            async for delivery in consumer:
                consumer.ack(delivery)
                left -= 1
                if not left:
                    return

        async def pass_through(count: int) -> None:
            taking = asyncio.create_task(take(count))
            for size in slices(count, SLICE):
                check(await publisher.send_many(task.topic, [body] * size))
            await taking

        await pass_through(task.warm_up)
        watch = Stopwatch()
        await pass_through(task.messages)
        return watch.turn(task.messages)


def _start(task: Task) -> Turn:
    watch = Stopwatch()
    bus = MemoryBus()
    with (
        bus.consumer(task.topic, subscription=task.subscription) as consumer,
        bus.publisher() as publisher,
    ):
        publisher.send_safe(task.topic, b"x")
        delivery = consumer.receive(RECEIVE_WITHIN_S)
        if delivery is None:
            raise BenchError("nothing was received")
        consumer.ack(delivery)
    bus.close()
    return watch.turn(1)
