"""pika's asynchronous adapter under load: one connection to publish, one to consume."""

from __future__ import annotations

import asyncio
from typing import Any

import pika
from pika.adapters.asyncio_connection import AsyncioConnection

from bench.clients.in_flight import Arrived, Flight
from bench.clients.rabbitmq import OPEN_WITHIN_S, Peer, durability_direct, started_direct
from bench.errors import BenchError
from bench.harness.interface import Delivered, End, Where
from bench.harness.outcomes import CONFIRMED, OTHERWISE
from bench.load.profile import KEY_HEADER, Profile
from messagebus import BusConfig

# After the end of a connection.
AGAIN_S = 0.5

started, durability = started_direct, durability_direct


class Sender:
    def __init__(self, profile: Profile, where: Where) -> None:
        self._peer, self._flight = Peer(where), Flight(profile.load.window)
        self._lowest, self._sent = 1, 0
        # Delivery tags of returned messages: their confirms say nothing.
        self._returned: set[int] = set()

    async def open(self) -> None:
        self._connection, self._channel, self._broker = await _opened(self._peer)
        ready = asyncio.get_running_loop().create_future()
        self._channel.add_on_return_callback(self._on_return)
        self._channel.confirm_delivery(self._on_confirm, callback=ready.set_result)
        await asyncio.wait_for(ready, OPEN_WITHIN_S)

    async def room(self) -> None:
        await self._flight.room()

    async def send(self, sequence: int, body: bytes, key: str) -> None:
        await self._flight.room()
        self._sent += 1
        properties = pika.BasicProperties(
            delivery_mode=2,
            message_id=str(self._sent),
            headers={KEY_HEADER: key} if key else None,
        )
        self._flight.begin(self._sent, sequence)
        self._channel.basic_publish(self._peer.exchange, "", body, properties, mandatory=True)

    def ends(self) -> list[End]:
        return self._flight.ends()

    async def close(self, timeout_s: float) -> None:
        await self._flight.close(timeout_s, self._broker)
        self._connection.close()

    def _on_return(self, _channel: Any, _method: Any, properties: Any, _body: bytes) -> None:
        """Remember a returned message. The return arrives before the confirm of the same message."""
        self._returned.add(int(properties.message_id))

    def _on_confirm(self, frame: Any) -> None:
        tag, multiple = frame.method.delivery_tag, frame.method.multiple
        is_ack = isinstance(frame.method, pika.spec.Basic.Ack)
        for each in range(self._lowest, tag + 1) if multiple else (tag,):
            is_confirmed = is_ack and each not in self._returned
            self._flight.end(each, CONFIRMED if is_confirmed else OTHERWISE, self._broker)
        if multiple:
            self._lowest = tag + 1


class Receiver:
    def __init__(self, profile: Profile, where: Where) -> None:
        load = profile.load
        self._peer, self._prefetch, self._needs_ack = Peer(where), load.prefetch, load.ack != "none"
        # A quarter of the prefetch, so that deliveries never wait for acks.
        self._per_ack = max(1, load.prefetch // 4) if load.ack == "many" else 1
        self._arrived = Arrived()
        self._last = self._acked = 0

    async def open(self) -> None:
        self._connection, self._channel, self._broker = await _opened(self._peer)
        self._channel.basic_qos(prefetch_count=self._prefetch)
        self._channel.basic_consume(
            self._peer.queue, self._on_message, auto_ack=not self._needs_ack
        )

    async def take(self, max_wait_s: float) -> list[Delivered]:
        had = await self._arrived.take(max_wait_s)
        self._ack_from(1)
        return had

    async def close(self) -> None:
        self._connection.close()

    def _on_message(self, _channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        self._arrived.add(body, self._broker)
        self._last = method.delivery_tag
        self._ack_from(self._per_ack)

    def _ack_from(self, least: int) -> None:
        """Ack the open deliveries if there are at least `least`."""
        if self._needs_ack and (open_ := self._last - self._acked) >= least:
            self._channel.basic_ack(self._last, multiple=open_ > 1)
            self._acked = self._last


async def _opened(peer: Peer) -> tuple[Any, Any, str]:
    """Connect; return the connection, its channel and the broker's name. Raises BenchError."""
    ready = asyncio.get_running_loop().create_future()
    connection = AsyncioConnection(
        pika.ConnectionParameters(
            host=peer.host,
            port=peer.port,
            credentials=pika.PlainCredentials(peer.user, peer.password.reveal()),
        ),
        on_open_callback=lambda opened: opened.channel(on_open_callback=ready.set_result),
        on_open_error_callback=lambda _c, why: ready.set_exception(BenchError(repr(why))),
        custom_ioloop=asyncio.get_running_loop(),
    )
    channel = await asyncio.wait_for(ready, OPEN_WITHIN_S)
    return connection, channel, _name_of(connection, peer.broker)


def _name_of(connection: AsyncioConnection, default: str) -> str:
    name = connection.server_properties.get("cluster_name", default)
    return name.decode() if isinstance(name, bytes) else str(name)


class Kept:
    """A connection with a channel and confirms that is opened again, AGAIN_S after its end: a client's floor.

    places: for connections that are opened at the same time.
    """

    def __init__(self, bus: BusConfig, places: asyncio.Semaphore) -> None:
        self._address = bus.address
        self._login = pika.PlainCredentials(bus.current_user(), bus.current_password().reveal())
        self._places = places
        self.broker = ""
        """The broker that it is connected to, "" for none."""

    async def run(self) -> None:
        while True:
            over = asyncio.Event()
            async with self._places:
                ready = asyncio.get_running_loop().create_future()
                connection = self._connect(ready, over)
                opened = await ready
            if opened:
                self.broker = _name_of(connection, self._address.name)
                await over.wait()
                self.broker = ""
            await asyncio.sleep(AGAIN_S)

    def _connect(self, ready: asyncio.Future[bool], over: asyncio.Event) -> AsyncioConnection:
        def ended(_connection: Any, _why: Exception) -> None:
            over.set()
            done(False)

        def done(opened: bool) -> None:
            if not ready.done():
                ready.set_result(opened)

        def with_confirms(channel: Any) -> None:
            channel.confirm_delivery(lambda _frame: None, callback=lambda _frame: done(True))

        return AsyncioConnection(
            pika.ConnectionParameters(
                host=self._address.host, port=self._address.port, credentials=self._login
            ),
            on_open_callback=lambda opened: opened.channel(on_open_callback=with_confirms),
            on_open_error_callback=ended,
            on_close_callback=ended,
            custom_ioloop=asyncio.get_running_loop(),
        )
