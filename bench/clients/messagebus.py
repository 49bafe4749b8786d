"""messagebus under load: its asyncio clients, with an outcome and an ack of its own for every message."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from collections import deque
from pathlib import Path

from bench.clients.rabbitmq import started
from bench.harness.interface import EVENTS, Delivered, End, Where
from bench.harness.outcomes import CONFIRMED, OTHERWISE, UNKNOWN
from bench.harness.worker import RUN
from bench.load.profile import Profile
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
from messagebus.recording.recorder import Recorder

__all__ = ["Receiver", "Sender", "durability", "started"]

START_S = 60.0
# A publish may outlive the restart of a broker.
DEADLINE_MS = 60_000
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


def _bus(where: Where) -> BusConfig:
    return dataclasses.replace(BusConfig.from_env(where.env), client_id=where.name)


def _recorder(profile: Profile, where: Where) -> Recorder | None:
    if not profile.events:
        return None
    folder = Path(where.folder)
    at = json.loads((folder / RUN).read_text())["environment"]["at"]
    # The start time distinguishes runs of one profile.
    run_id = f"{profile.name}-{re.sub('[-:]', '', at)}"
    return Recorder(folder / EVENTS, run_id=run_id, name=where.name)


class Sender:
    def __init__(self, profile: Profile, where: Where) -> None:
        self._topic = _topic(profile, where)
        self._codes = CODES_OF_NONE if profile.system.durability == "none" else CODES
        self._recorder = _recorder(profile, where)
        self._open: deque[tuple[int, asyncio.Future[Published]]] = deque()
        load = profile.load
        # Used in a closed loop alone. Otherwise open publishes wait in the client's own backlog.
        self._is_closed, self._window = isinstance(load.schedule, Closed), load.window * load.batch
        self._in_flight: deque[asyncio.Future[Published]] = deque()
        config = PublisherConfig(window=load.window, deadline_ms=DEADLINE_MS)
        if load.lifetime_s:
            config = dataclasses.replace(config, connection_lifetime_s=load.lifetime_s)
        if load.batch > 1:
            batching = Batching(count_max=load.batch, bytes_max=BATCH_BYTES_MAX)
            config = dataclasses.replace(
                config,
                batch={where.topic: batching},
                backlog_messages_max=4 * load.window * load.batch,
            )
        hooks = [self._recorder] if self._recorder else []
        self._publisher = AsyncPublisher(_bus(where), config, hooks=hooks)

    async def open(self) -> None:
        if self._recorder:
            self._recorder.start()
        await self._publisher.start(require="one", timeout_s=START_S)

    async def room(self) -> None:
        waiting = self._in_flight
        while len(waiting) >= self._window:
            await waiting.popleft()

    async def send(self, sequence: int, body: bytes, key: str) -> None:
        payload = Message(body=body, key=key) if key else body
        future = await self._publisher.submit(self._topic, payload)
        self._open.append((sequence, future))
        if self._is_closed:
            self._in_flight.append(future)

    def ends(self) -> list[End]:
        found, waiting = [], self._open
        # In the order of sending: when a later publish is done, the earlier ones mostly are as well.
        while waiting and waiting[0][1].done():
            sequence, future = waiting.popleft()
            end = future.result()
            code = self._codes.get(end.outcome, OTHERWISE)
            found.append(End(sequence, code, end.broker, end.sent_ns, end.settled_ns))
        return found

    async def close(self, timeout_s: float) -> None:
        await self._publisher.flush(timeout_s)
        await self._publisher.stop()
        if self._recorder:
            await asyncio.to_thread(self._recorder.stop)


class Receiver:
    def __init__(self, profile: Profile, where: Where) -> None:
        load = profile.load
        config = ConsumerConfig(
            prefetch=max(1, load.prefetch // load.batch),
            handed_out_max=load.prefetch,
            at_most_once=load.ack == "none",
        )
        self._recorder = _recorder(profile, where)
        self._consumer = AsyncConsumer(
            _bus(where), _topic(profile, where), subscription=where.subscription, config=config
        )

    async def open(self) -> None:
        if self._recorder:
            self._recorder.start()
        await self._consumer.start(require="all", timeout_s=START_S)

    async def take(self, max_wait_s: float) -> list[Delivered]:
        consumer = self._consumer
        deliveries = await consumer.receive_many(RECEIVE_MAX, max_wait_s)
        for delivery in deliveries:
            consumer.ack(delivery)
            if self._recorder:
                self._recorder.handled(delivery, "ack", None)
        return [Delivered(each.body, each.broker, each.received_ns) for each in deliveries]

    async def close(self) -> None:
        await self._consumer.stop()
        if self._recorder:
            await asyncio.to_thread(self._recorder.stop)
