"""pika's asynchronous adapter under load: one connection to publish, one to consume."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pika
from pika.adapters.asyncio_connection import AsyncioConnection

from bench.clients.rabbitmq import durability_direct, started_direct
from bench.errors import BenchError
from bench.harness.interface import Delivered, End, Where
from bench.harness.outcomes import CONFIRMED, OTHERWISE, UNKNOWN
from bench.load.profile import KEY_HEADER, Profile
from messagebus import BusConfig, Subscription, Topic

OPEN_WITHIN_S = 30.0
started, durability = started_direct, durability_direct


class Sender:
    def __init__(self, profile: Profile, where: Where) -> None:
        self._where, self._window = where, profile.load.window
        self._exchange = Topic(where.topic).exchange
        self._open: dict[int, tuple[int, int]] = {}
        self._ends: list[End] = []
        self._room = asyncio.Event()
        self._lowest, self._sent = 1, 0
        self._returned: set[str] = set()

    async def open(self) -> None:
        self._connection, self._channel, self._broker = await _opened(self._where)
        ready = asyncio.get_running_loop().create_future()
        self._channel.add_on_return_callback(self._on_return)
        self._channel.confirm_delivery(self._on_confirm, callback=ready.set_result)
        await asyncio.wait_for(ready, OPEN_WITHIN_S)

    async def room(self) -> None:
        await self._fewer_than(self._window)

    async def send(self, sequence: int, body: bytes, key: str) -> None:
        await self._fewer_than(self._window)
        self._sent += 1
        headers = {KEY_HEADER: key} if key else None
        properties = pika.BasicProperties(
            delivery_mode=2, message_id=str(sequence), headers=headers
        )
        self._open[self._sent] = (sequence, time.monotonic_ns())
        self._channel.basic_publish(self._exchange, "", body, properties, mandatory=True)

    def ends(self) -> list[End]:
        ends, self._ends = self._ends, []
        return ends

    async def close(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._fewer_than(1), timeout_s)
        now_ns = time.monotonic_ns()
        for sequence, sent_ns in self._open.values():
            self._ends.append(End(sequence, UNKNOWN, self._broker, sent_ns, now_ns))
        self._connection.close()

    async def _fewer_than(self, open_: int) -> None:
        while len(self._open) >= open_:
            self._room.clear()
            await self._room.wait()

    def _on_return(self, _channel: Any, _method: Any, properties: Any, _body: bytes) -> None:
        """Remember a returned message. The return arrives before the confirm of the same message."""
        self._returned.add(properties.message_id)

    def _on_confirm(self, frame: Any) -> None:
        tag, now_ns = frame.method.delivery_tag, time.monotonic_ns()
        good = isinstance(frame.method, pika.spec.Basic.Ack)
        for each in range(self._lowest, tag + 1) if frame.method.multiple else (tag,):
            if (open_ := self._open.pop(each, None)) is not None:
                sequence, sent_ns = open_
                confirmed = good and str(sequence) not in self._returned
                outcome = CONFIRMED if confirmed else OTHERWISE
                self._ends.append(End(sequence, outcome, self._broker, sent_ns, now_ns))
        if frame.method.multiple:
            self._lowest = tag + 1
        self._room.set()


class Receiver:
    def __init__(self, profile: Profile, where: Where) -> None:
        load = profile.load
        self._where, self._prefetch, self._needs_ack = where, load.prefetch, load.ack != "none"
        # A quarter of the prefetch, so that deliveries never wait for acks.
        self._per_ack = max(1, load.prefetch // 4) if load.ack == "many" else 1
        self._queue = Subscription(Topic(where.topic), where.subscription).amqp_queue
        self._had: list[Delivered] = []
        self._last = self._acked = 0
        self._some = asyncio.Event()

    async def open(self) -> None:
        self._connection, self._channel, self._broker = await _opened(self._where)
        self._channel.basic_qos(prefetch_count=self._prefetch)
        self._channel.basic_consume(self._queue, self._on_message, auto_ack=not self._needs_ack)

    async def take(self, max_wait_s: float) -> list[Delivered]:
        if not self._had:
            self._some.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._some.wait(), max_wait_s)
        self._ack_from(1)
        had, self._had = self._had, []
        return had

    async def close(self) -> None:
        self._connection.close()

    def _on_message(self, _channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        self._had.append(Delivered(body, self._broker, time.monotonic_ns()))
        self._last = method.delivery_tag
        self._ack_from(self._per_ack)
        self._some.set()

    def _ack_from(self, least: int) -> None:
        """Ack the open deliveries if there are at least `least`."""
        if self._needs_ack and (open_ := self._last - self._acked) >= least:
            self._channel.basic_ack(self._last, multiple=open_ > 1)
            self._acked = self._last


async def _opened(where: Where) -> tuple[Any, Any, str]:
    """Connect; return the connection, its channel and the broker's name. Raises BenchError."""
    bus = BusConfig.from_env(where.env)
    ready = asyncio.get_running_loop().create_future()
    parameters = pika.ConnectionParameters(
        host=bus.address.host,
        port=bus.address.port,
        credentials=pika.PlainCredentials(bus.current_user(), bus.current_password().reveal()),
    )
    connection = AsyncioConnection(
        parameters,
        on_open_callback=lambda opened: opened.channel(on_open_callback=ready.set_result),
        on_open_error_callback=lambda _c, why: ready.set_exception(BenchError(repr(why))),
        custom_ioloop=asyncio.get_running_loop(),
    )
    channel = await asyncio.wait_for(ready, OPEN_WITHIN_S)
    name = connection.server_properties.get("cluster_name", bus.broker)
    return connection, channel, name.decode() if isinstance(name, bytes) else str(name)
