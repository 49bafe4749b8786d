"""aio-pika under load: robust connections, and as many concurrent publishes as the window allows."""

from __future__ import annotations

import asyncio
import itertools

import aio_pika
from aio_pika.abc import AbstractIncomingMessage
from aio_pika.exceptions import AMQPError, DeliveryError, PublishError

from bench.clients.in_flight import Arrived, Flight
from bench.clients.rabbitmq import Peer, durability_direct, started_direct
from bench.harness.interface import Delivered, End, Where
from bench.harness.outcomes import CONFIRMED, OTHERWISE, UNKNOWN
from bench.load.profile import KEY_HEADER, Profile

started, durability = started_direct, durability_direct


class Sender:
    def __init__(self, profile: Profile, where: Where) -> None:
        self._peer, self._window = Peer(where), profile.load.window
        self._flight = Flight(self._window)
        self._tasks: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count()

    async def open(self) -> None:
        self._connection = await _connected(self._peer)
        channel = await self._connection.channel(on_return_raises=True)
        self._exchange = await channel.get_exchange(self._peer.exchange, ensure=False)

    async def publish(self, body: bytes, count: int) -> None:
        """Publish from a fixed set of workers, which is cheaper than a task per message."""
        numbers = itertools.islice(self._numbers, count)

        async def work() -> None:
            for number in numbers:
                # Raises when the message is refused or unroutable.
                await self._exchange.publish(_message(body, f"{number:024x}"), "", mandatory=True)

        await asyncio.gather(*(work() for _ in range(self._window)))

    async def room(self) -> None:
        await self._flight.room()

    async def send(self, sequence: int, body: bytes, key: str) -> None:
        await self._flight.room()
        self._flight.begin(sequence, sequence)
        task = asyncio.create_task(self._publish(sequence, body, key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _publish(self, sequence: int, body: bytes, key: str) -> None:
        outcome = UNKNOWN
        try:
            await self._exchange.publish(_message(body, key=key), "", mandatory=True)
            outcome = CONFIRMED
        except (DeliveryError, PublishError):
            outcome = OTHERWISE
        except (AMQPError, ConnectionError):
            pass
        finally:
            self._flight.end(sequence, outcome, self._peer.broker)

    def ends(self) -> list[End]:
        return self._flight.ends()

    async def close(self, timeout_s: float) -> None:
        await self._flight.close(timeout_s, self._peer.broker)
        await self._connection.close()


class Receiver:
    def __init__(self, profile: Profile, where: Where) -> None:
        self._peer, self._prefetch = Peer(where), profile.load.prefetch
        self._needs_ack = profile.load.ack != "none"
        self._arrived = Arrived()

    async def open(self) -> None:
        self._connection = await _connected(self._peer)
        channel = await self._connection.channel()
        await channel.set_qos(prefetch_count=self._prefetch)
        queue = await channel.get_queue(self._peer.queue, ensure=False)
        await queue.consume(self._on_message, no_ack=not self._needs_ack)

    async def _on_message(self, message: AbstractIncomingMessage) -> None:
        self._arrived.add(message.body, self._peer.broker)
        if self._needs_ack:
            await message.ack()

    async def take(self, max_wait_s: float) -> list[Delivered]:
        return await self._arrived.take(max_wait_s)

    async def close(self) -> None:
        await self._connection.close()


def _message(body: bytes, message_id: str | None = None, key: str = "") -> aio_pika.Message:
    return aio_pika.Message(
        body,
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        message_id=message_id,
        headers={KEY_HEADER: key} if key else None,
    )


async def _connected(peer: Peer) -> aio_pika.abc.AbstractRobustConnection:
    return await aio_pika.connect_robust(
        host=peer.host, port=peer.port, login=peer.user, password=peer.password.reveal()
    )
