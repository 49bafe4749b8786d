"""Our asyncio clients: every publish with its own id and outcome, every delivery with its own ack."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections.abc import Iterable
from functools import partial

from bench.errors import BenchError
from bench.systems.turn import Latencies, Stopwatch, Task, Turn, paced, run_on
from messagebus import (
    AsyncConsumer,
    AsyncPublisher,
    Batching,
    ConsumerConfig,
    Outcome,
    Published,
    PublisherConfig,
)

__all__ = ["RECEIVE_MANY_MAX", "check", "consumer_config", "publisher_config", "run", "slices"]

START_S = 30.0
# The number of futures, or of results of one call, that a turn holds at once.
SUBMIT_SLICE = 10_000
SEND_MANY_SLICE = 50_000
# The upper bound of deliveries for one call; mostly fewer have arrived.
RECEIVE_MANY_MAX = 500


def run(task: Task) -> Turn:
    turns = {"publish": _publish, "consume": _consume, "latency": _latency}
    return run_on(task.loop, lambda: turns[task.verb](task))


def publisher_config(task: Task) -> PublisherConfig:
    """Return the settings of the publisher. A batch is one AMQP message, so the window counts batches."""
    if task.batch == 1:
        return PublisherConfig(window=task.window)
    batching = Batching(count_max=task.batch, bytes_max=1 << 20)
    return PublisherConfig(
        window=task.window,
        backlog_messages_max=4 * task.window * task.batch,
        batch={task.topic: batching},
    )


def consumer_config(task: Task) -> ConsumerConfig:
    """Return the settings of the consumer. prefetch counts AMQP messages, handed_out_max counts ours."""
    prefetch = max(1, task.window // task.batch)
    return ConsumerConfig(prefetch=min(prefetch, 2000), handed_out_max=task.window)


def slices(count: int, size: int) -> list[int]:
    """Return whole slices, and the rest."""
    rest = [count % size] if count % size else []
    return [size] * (count // size) + rest


def check(ends: Iterable[Published]) -> None:
    """Check the outcomes. Raises BenchError unless all are confirmed."""
    bad = sum(end.outcome is not Outcome.CONFIRMED for end in ends)
    if bad:
        raise BenchError(f"{bad} publishes were not confirmed")


async def _publish(task: Task) -> Turn:
    ways = {"submit": _submit, "send_many": _send_many}
    publish = ways[task.way or "submit"]
    body = os.urandom(task.body_bytes)
    publisher = AsyncPublisher(task.bus, publisher_config(task))
    await publisher.start(require="one", timeout_s=START_S)
    await publish(publisher, task.topic, body, task.warm_up)
    watch = Stopwatch()
    await publish(publisher, task.topic, body, task.messages)
    turn = watch.turn(task.messages)
    await publisher.stop()
    return turn


async def _submit(publisher: AsyncPublisher, topic: str, body: bytes, count: int) -> None:
    """Submit the messages; outcomes of one slice are checked while the next one is under way."""
    earlier: list[asyncio.Future[Published]] = []
    for size in slices(count, SUBMIT_SLICE):
        futures = [await publisher.submit(topic, body) for _ in range(size)]
        check([await future for future in earlier])
        earlier = futures
    check([await future for future in earlier])


async def _send_many(publisher: AsyncPublisher, topic: str, body: bytes, count: int) -> None:
    for size in slices(count, SEND_MANY_SLICE):
        check(await publisher.send_many(topic, [body] * size))


async def _consume(task: Task) -> Turn:
    async with AsyncConsumer(
        task.bus, task.topic, subscription=task.subscription, config=consumer_config(task)
    ) as consumer:
        seen: set[str] = set()

        async def take(goal: int) -> None:
            async for delivery in consumer:
                seen.add(delivery.message_id)
                consumer.ack(delivery)
                if len(seen) == goal:
                    return

        async def take_many(goal: int) -> None:
            while (left := goal - len(seen)) > 0:
                for delivery in await consumer.receive_many(min(left, RECEIVE_MANY_MAX)):
                    seen.add(delivery.message_id)
                    consumer.ack(delivery)

        work = take_many if task.way == "receive_many" else take
        await work(task.warm_up)
        watch = Stopwatch()
        await work(task.warm_up + task.messages)
        return watch.turn(task.messages)


async def _latency(task: Task) -> Turn:
    found = Latencies(expected=task.warm_up + task.messages)
    body = os.urandom(task.body_bytes)
    publisher = AsyncPublisher(task.bus, publisher_config(task))
    await publisher.start(require="one", timeout_s=START_S)
    async with AsyncConsumer(
        task.bus, task.topic, subscription=task.subscription, config=consumer_config(task)
    ) as consumer:

        async def receive() -> None:
            async for delivery in consumer:
                found.received(delivery.body)
                consumer.ack(delivery)

        async def send(stamped: bytes, intended_ns: int) -> None:
            future = await publisher.submit(task.topic, stamped)
            future.add_done_callback(partial(ended, intended_ns))

        def ended(intended_ns: int, future: asyncio.Future[Published]) -> None:
            if future.result().outcome is Outcome.CONFIRMED:
                found.confirmed(intended_ns)

        receiving = asyncio.create_task(receive())
        await paced(task.rate_per_s, task.warm_up, body, send)
        watch, found.from_ns = Stopwatch(), time.monotonic_ns()
        await paced(task.rate_per_s, task.messages, body, send)
        await publisher.stop()
        turn = watch.turn(task.messages)
        await found.all_delivered.wait()
        receiving.cancel()
    return dataclasses.replace(turn, histograms=found.encoded(task.messages))
