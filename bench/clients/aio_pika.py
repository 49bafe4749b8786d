"""aio-pika under load: robust connections, and as many concurrent publishes as the window allows."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time

import aio_pika
from aio_pika.abc import AbstractIncomingMessage, HeadersType
from aio_pika.exceptions import DeliveryError, PublishError

from bench.clients.rabbitmq import durability_direct, started_direct
from bench.harness.interface import Delivered, End, Where
from bench.harness.outcomes import CONFIRMED, OTHERWISE, UNKNOWN
from bench.load.profile import KEY_HEADER, Profile
from messagebus import BusConfig, Subscription, Topic

started, durability = started_direct, durability_direct


class Sender:
    def __init__(self, profile: Profile, where: Where) -> None:
        self._where = where
        self._broker = BusConfig.from_env(where.env).broker
        self._window = profile.load.window
        self._room = asyncio.Semaphore(self._window)
        self._tasks: set[asyncio.Task[None]] = set()
        self._ends: list[End] = []
        self._numbers = itertools.count()

    async def open(self) -> None:
        self._connection = await _connected(self._where)
        channel = await self._connection.channel(on_return_raises=True)
        name = Topic(self._where.topic).exchange
        self._exchange = await channel.get_exchange(name, ensure=False)

    async def publish(self, body: bytes, count: int) -> None:
        """Publish from a fixed set of workers, which is cheaper than a task per message."""
        numbers = itertools.islice(self._numbers, count)

        async def work() -> None:
            for number in numbers:
                message = aio_pika.Message(
                    body,
                    delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
                    message_id=f"{number:024x}",
                )
                # Raises when the message is refused or unroutable.
                await self._exchange.publish(message, "", mandatory=True)

        await asyncio.gather(*(work() for _ in range(self._window)))

    async def room(self) -> None:
        async with self._room:
            pass

    async def send(self, sequence: int, body: bytes, key: str) -> None:
        await self._room.acquire()
        task = asyncio.create_task(self._publish(sequence, body, key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _publish(self, sequence: int, body: bytes, key: str) -> None:
        sent_ns, outcome = time.monotonic_ns(), CONFIRMED
        headers: HeadersType | None = {KEY_HEADER: key} if key else None
        message = aio_pika.Message(
            body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT, headers=headers
        )
        try:
            await self._exchange.publish(message, "", mandatory=True)
        except (DeliveryError, PublishError):
            outcome = OTHERWISE
        except (aio_pika.exceptions.AMQPError, ConnectionError):
            outcome = UNKNOWN
        finally:
            self._room.release()
        self._ends.append(End(sequence, outcome, self._broker, sent_ns, time.monotonic_ns()))

    def ends(self) -> list[End]:
        ends, self._ends = self._ends, []
        return ends

    async def close(self, timeout_s: float) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        await self._connection.close()


class Receiver:
    def __init__(self, profile: Profile, where: Where) -> None:
        self._where, self._prefetch = where, profile.load.prefetch
        self._needs_ack = profile.load.ack != "none"
        self._broker = BusConfig.from_env(where.env).broker
        self._had: list[Delivered] = []
        self._some = asyncio.Event()

    async def open(self) -> None:
        self._connection = await _connected(self._where)
        channel = await self._connection.channel()
        await channel.set_qos(prefetch_count=self._prefetch)
        name = Subscription(Topic(self._where.topic), self._where.subscription).amqp_queue
        queue = await channel.get_queue(name, ensure=False)
        await queue.consume(self._on_message, no_ack=not self._needs_ack)

    async def _on_message(self, message: AbstractIncomingMessage) -> None:
        self._had.append(Delivered(message.body, self._broker, time.monotonic_ns()))
        if self._needs_ack:
            await message.ack()
        self._some.set()

    async def take(self, max_wait_s: float) -> list[Delivered]:
        if not self._had:
            self._some.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._some.wait(), max_wait_s)
        had, self._had = self._had, []
        return had

    async def close(self) -> None:
        await self._connection.close()


async def _connected(where: Where) -> aio_pika.abc.AbstractRobustConnection:
    bus = BusConfig.from_env(where.env)
    return await aio_pika.connect_robust(
        host=bus.address.host,
        port=bus.address.port,
        login=bus.current_user(),
        password=bus.current_password().reveal(),
    )
