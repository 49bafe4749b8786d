"""messagebus under load: its asyncio clients, with an outcome and an ack of its own for every message."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import Set

from bench.clients import rabbitmq
from bench.harness.interface import Delivered, End, Where
from bench.harness.outcomes import CONFIRMED, OTHERWISE, UNKNOWN
from bench.load.profile import Load, Profile
from bench.load.schedule import Closed
from messagebus import (
    AsyncConsumer,
    AsyncPublisher,
    Batching,
    BusConfig,
    ConsumerConfig,
    Durability,
    Message,
    Outcome,
    Published,
    PublisherConfig,
    Topic,
)
from messagebus.recording.files import Entry

started = rabbitmq.started

START_S = 60.0
# A publish outlives the restart of a broker, also on a machine where that takes minutes: with 60 s, 180 of
# 63,678 ended unknown beside eight busy processes on two cores. It is the default of Kafka's C client, too.
DEADLINE_S = 300
BATCH_BYTES_MAX = 1 << 20
RECEIVE_MAX = 500
CODES = {Outcome.CONFIRMED: CONFIRMED, Outcome.UNKNOWN: UNKNOWN}
# With durability none, every publish ends unknown as soon as it is written.
CODES_OF_NONE = {Outcome.UNKNOWN: CONFIRMED}


def durability(profile: Profile) -> str:
    return {
        "fsync": "fsynced by one broker before the confirm (quorum queues of one member)",
        "page-cache": "handed to the operating system before the confirm (durable classic queues)",
        "none": "nothing: a message counts when it was written to the socket",
    }[profile.system.durability]


def _topic(profile: Profile, where: Where) -> Topic | str:
    """Return the topic's name alone for durability fsync, to use the client's shorter form."""
    level = Durability(profile.system.durability)
    return where.topic if level is Durability.FSYNC else Topic(where.topic, level)


def bus_of(where: Where) -> BusConfig:
    return dataclasses.replace(BusConfig.from_env(where.env), client_id=where.name)


def publisher_config(load: Load, topic: str) -> PublisherConfig:
    """Return the settings of a publisher. A batch is one AMQP message, so the window counts batches."""
    config = PublisherConfig(window=load.window, deadline_s=DEADLINE_S)
    if load.lifetime_s:
        config = dataclasses.replace(config, connection_lifetime_s=load.lifetime_s)
    if load.batch > 1:
        batching = Batching(count_max=load.batch, bytes_max=BATCH_BYTES_MAX)
        config = dataclasses.replace(
            config, batch={topic: batching}, backlog_messages_max=4 * load.window * load.batch
        )
    return config


def consumer_config(load: Load) -> ConsumerConfig:
    """Return the settings of a consumer. prefetch counts AMQP messages, handed_out_max counts ours."""
    return ConsumerConfig(
        prefetch=max(1, load.prefetch // load.batch),
        handed_out_max=load.prefetch,
        at_most_once=load.ack == "none",
    )


class Sender:
    def __init__(self, profile: Profile, where: Where) -> None:
        self._topic = _topic(profile, where)
        self._codes = CODES_OF_NONE if profile.system.durability == "none" else CODES
        self._rows = where.rows
        self._open: deque[tuple[int, asyncio.Future[Published], Entry | None]] = deque()
        load = profile.load
        # Used in a closed loop alone. Otherwise open publishes wait in the client's own backlog.
        self._is_closed, self._window = isinstance(load.schedule, Closed), load.window * load.batch
        self._in_flight: deque[asyncio.Future[Published]] = deque()
        config = publisher_config(load, where.topic)
        self._publisher = AsyncPublisher(bus_of(where), config)

    async def open(self) -> None:
        await self._publisher.start(require="one", timeout_s=START_S)

    async def room(self) -> None:
        waiting = self._in_flight
        while len(waiting) >= self._window:
            await waiting.popleft()

    async def send(self, sequence: int, body: bytes, key: str) -> None:
        payload = Message(body=body, key=key) if key else body
        entry = self._rows.entry(sequence, body, key) if self._rows else None
        future = await self._publisher.submit(self._topic, payload)
        self._open.append((sequence, future, entry))
        if self._is_closed:
            self._in_flight.append(future)

    def ends(self) -> list[End]:
        found, waiting = [], self._open
        # In the order of sending: when a later publish is done, the earlier ones mostly are as well.
        while waiting and waiting[0][1].done():
            sequence, future, entry = waiting.popleft()
            end = future.result()
            if self._rows and entry:
                self._rows.published(entry, end)
            code = self._codes.get(end.outcome, OTHERWISE)
            found.append(End(sequence, code, end.broker, end.sent_ns, end.settled_ns))
        if self._rows:
            self._rows.tick()
        return found

    async def close(self, timeout_s: float) -> None:
        await self._publisher.flush(timeout_s)
        await self._publisher.stop()


class Receiver:
    def __init__(self, profile: Profile, where: Where) -> None:
        config = consumer_config(profile.load)
        self._rows = where.rows
        self._consumer = AsyncConsumer(
            bus_of(where), _topic(profile, where), subscription=where.subscription, config=config
        )

    async def open(self) -> None:
        await self._consumer.start(require="all", timeout_s=START_S)

    async def take(self, max_wait_s: float) -> list[Delivered]:
        consumer = self._consumer
        deliveries = await consumer.receive_many(RECEIVE_MAX, max_wait_s)
        for delivery in deliveries:
            acked = consumer.ack(delivery)
            if self._rows:
                self._rows.delivered(delivery, acked=acked)
        if self._rows:
            self._rows.tick()
        return [Delivered(each.body, each.broker, each.received_ns) for each in deliveries]

    async def close(self) -> None:
        await self._consumer.stop()

    def links(self) -> Set[str]:
        brokers = self._consumer.stats().brokers
        return {name for name, broker in brokers.items() if broker.state == "open"}
