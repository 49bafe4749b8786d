"""Kafka under load, through `confluent-kafka`, with the defaults of Java's producer.

A subscription is a group. Its consumers get their partitions by number, not by Kafka's own balance, so
that no run measures a rebalance. Kafka has no ack for one message: a consumer commits a position, with
`each` after every take, with `many` after a quarter of the prefetch. Unanswered messages have no bound.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections import deque
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)

from bench.clients.jvm.kafka_nodes import MESSAGE_BYTES_MAX, SERVERS, durability, started
from bench.errors import BenchError
from bench.harness.interface import Delivered, End, Where
from bench.harness.outcomes import CONFIRMED, OTHERWISE, UNKNOWN
from bench.load.profile import Profile, places

__all__ = ["Receiver", "Sender", "durability", "partitions_of", "producer_options", "started"]

OPEN_WITHIN_S = 30.0
POLL_S = 0.1
TAKE_MAX = 500
# The same deadline as messagebus' own in these runs.
DEADLINE_MS = 60_000
# How long a message waits for others: Kafka's own default. With 0, a light load makes a request for each
# message: on two busy cores a confirm took 59 ms at 500/s, and 20 ms with 5.
LINGER_MS = 5
QUEUE_LEAST = 100_000
# Errors that leave unknown whether the broker has the message.
UNANSWERED = {KafkaError._MSG_TIMED_OUT, KafkaError._TRANSPORT, KafkaError.REQUEST_TIMED_OUT}


def producer_options(profile: Profile, where: Where) -> dict[str, Any]:
    load = profile.load
    options: dict[str, Any] = {
        "bootstrap.servers": where.env[SERVERS],
        "client.id": where.name,
        "acks": "all",
        # Java's default, not this client's: retries neither duplicate nor reorder.
        "enable.idempotence": True,
        "message.timeout.ms": DEADLINE_MS,
        "message.max.bytes": MESSAGE_BYTES_MAX,
        # The profile's window is the bound; the producer's queue must not be smaller.
        "queue.buffering.max.messages": max(QUEUE_LEAST, load.window * load.batch),
        "linger.ms": LINGER_MS,
    }
    return options | ({"batch.num.messages": load.batch} if load.batch > 1 else {})


def partitions_of(profile: Profile, number: int, count: int) -> list[int]:
    """Return the partitions of consumer `number` of the run, of `count` partitions."""
    every = len(places(profile))
    rivals = len(range(number % every, profile.load.consumers, every))
    return list(range(number // every, count, rivals))


class Sender:
    """A sender whose confirms are handled on a thread of its own, as they arrive."""

    def __init__(self, profile: Profile, where: Where) -> None:
        self._topic = where.topic
        self._window = profile.load.window * profile.load.batch
        self._producer = Producer(producer_options(profile, where))
        # Number -> time of sending. The loop adds entries, the thread removes them.
        self._open: dict[int, int] = {}
        self._ends: deque[End] = deque()
        self._room = asyncio.Event()
        self._is_waited_for = self._is_over = False
        self._thread = threading.Thread(target=self._serve, name="confirms", daemon=True)

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._leaders = await asyncio.to_thread(_leaders, self._producer, self._topic)
        self._thread.start()

    async def room(self) -> None:
        while len(self._open) >= self._window:
            self._room.clear()
            self._is_waited_for = True
            # Checked again after setting the flag for the thread, so as not to miss a confirm in between.
            if len(self._open) >= self._window:
                await self._room.wait()

    async def send(self, sequence: int, body: bytes, key: str) -> None:
        if len(self._open) >= self._window:
            await self.room()
        now_ns = self._open[sequence] = time.monotonic_ns()
        self._producer.produce(
            self._topic,
            body,
            key or None,
            on_delivery=functools.partial(self._on_end, sequence, now_ns),
        )

    def ends(self) -> list[End]:
        return [self._ends.popleft() for _ in range(len(self._ends))]

    async def close(self, timeout_s: float) -> None:
        await asyncio.to_thread(self._producer.flush, timeout_s)
        self._is_over = True
        await asyncio.to_thread(self._thread.join, OPEN_WITHIN_S)
        now_ns = time.monotonic_ns()
        for sequence, sent_ns in self._open.items():
            self._ends.append(End(sequence, UNKNOWN, "", sent_ns, now_ns))

    def _serve(self) -> None:
        while not self._is_over:
            self._producer.poll(POLL_S)

    def _on_end(
        self, sequence: int, sent_ns: int, error: KafkaError | None, message: Message
    ) -> None:
        outcome = CONFIRMED
        if error is not None:
            outcome = UNKNOWN if error.code() in UNANSWERED else OTHERWISE
        broker = self._leaders.get(message.partition() or 0, "")
        self._ends.append(End(sequence, outcome, broker, sent_ns, time.monotonic_ns()))
        del self._open[sequence]
        if self._is_waited_for:
            self._is_waited_for = False
            self._loop.call_soon_threadsafe(self._room.set)


class Receiver:
    def __init__(self, profile: Profile, where: Where) -> None:
        self._profile, self._where, load = profile, where, profile.load
        self._per_commit = max(1, load.prefetch // 4) if load.ack == "many" else 1
        self._uncommitted = 0
        self._consumer = Consumer(
            {
                "bootstrap.servers": where.env[SERVERS],
                "client.id": where.name,
                "group.id": where.subscription,
                "enable.auto.commit": False,
            }
        )

    async def open(self) -> None:
        await asyncio.to_thread(self._open)

    async def take(self, max_wait_s: float) -> list[Delivered]:
        return await asyncio.to_thread(self._take, max_wait_s)

    async def close(self) -> None:
        await asyncio.to_thread(self._close)

    def _open(self) -> None:
        """Begin at the group's position, or at the beginning."""
        topic = self._where.topic
        self._leaders = _leaders(self._consumer, topic)
        own = partitions_of(self._profile, self._where.number, len(self._leaders))
        stored = self._consumer.committed(
            [TopicPartition(topic, each) for each in own], OPEN_WITHIN_S
        )
        for each in stored:
            if each.offset < 0:
                each.offset = OFFSET_BEGINNING
        self._consumer.assign(stored)

    def _take(self, max_wait_s: float) -> list[Delivered]:
        first = self._consumer.poll(max_wait_s)
        if first is None:
            self._commit()
            return []
        messages = [first, *self._consumer.consume(TAKE_MAX - 1, 0)]
        now_ns = time.monotonic_ns()
        found = [self._delivered(message, now_ns) for message in messages]
        self._uncommitted += len(found)
        if self._uncommitted >= self._per_commit:
            self._commit()
        return found

    def _delivered(self, message: Message, now_ns: int) -> Delivered:
        if (fault := message.error()) is not None:
            raise BenchError(f"Kafka's consumer: {fault.str()}")
        return Delivered(message.value() or b"", self._leaders[message.partition() or 0], now_ns)

    def _commit(self) -> None:
        if self._uncommitted:
            self._consumer.commit(asynchronous=True)
            self._uncommitted = 0

    def _close(self) -> None:
        # Closing waits for pending commits.
        self._commit()
        self._consumer.close()


def _leaders(client: Producer | Consumer, topic: str) -> dict[int, str]:
    """Return partition -> broker, read once before the load. Raises BenchError if one has no leader."""
    found = client.list_topics(topic, OPEN_WITHIN_S)
    names = {number: f"{each.host}:{each.port}" for number, each in found.brokers.items()}
    leaders = {
        number: names.get(each.leader, "")
        for number, each in found.topics[topic].partitions.items()
    }
    if not leaders or "" in leaders.values():
        raise BenchError(f"topic {topic}: has no leader for each partition")
    return leaders
