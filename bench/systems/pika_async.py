"""pika's asynchronous adapter, written by hand: callbacks, a window of confirms, ids and outcomes.

It is written as an experienced user of pika would do it. Every message has an id and ends in an outcome; a
confirm for many messages settles all of them; a returned message is unroutable. It does nothing else: no
reconnecting, no retries, no deadlines.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from typing import Any

import pika
from pika.adapters.asyncio_connection import AsyncioConnection

from bench.errors import BenchError
from bench.systems.turn import Latencies, Stopwatch, Task, Turn, message_id, paced, run_on

__all__ = ["Confirms", "run"]

# Deliveries that one ack answers.
ACK_EVERY = 100


def run(task: Task) -> Turn:
    turns = {"publish": _publish, "consume": _consume, "latency": _latency}
    return run_on(task.loop, lambda: turns[task.verb](task))


class Confirms:
    """Ids by delivery tag until their outcome is known; tags are given in order, from 1."""

    def __init__(self) -> None:
        self.open: dict[int, str] = {}
        self.outcomes: dict[str, str] = {}
        self._returned: set[str] = set()
        self._lowest = 1

    def sent(self, tag: int, name: str) -> None:
        self.open[tag] = name

    def returned(self, name: str) -> None:
        """Remember a returned message. The return arrives before the confirm of the same message."""
        self._returned.add(name)

    def settle(self, tag: int, multiple: bool, outcome: str) -> None:
        if multiple:
            for each in range(self._lowest, tag + 1):
                if (name := self.open.pop(each, None)) is not None:
                    self._end(name, outcome)
            self._lowest = tag + 1
        else:
            self._end(self.open.pop(tag), outcome)

    def _end(self, name: str, outcome: str) -> None:
        self.outcomes[name] = "unroutable" if name in self._returned else outcome


class _Publishing:
    """A publisher that keeps the window full until `goal` messages have their outcome."""

    def __init__(self, channel: Any, task: Task) -> None:
        self._channel = channel
        self._task = task
        self._body = os.urandom(task.body_bytes)
        self._confirms = Confirms()
        self._sent = 0
        self._goal = 0
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        channel.add_on_return_callback(self._on_return)

    async def select(self) -> None:
        ready = asyncio.get_running_loop().create_future()
        self._channel.confirm_delivery(self._on_confirm, callback=ready.set_result)
        await ready

    async def publish(self, count: int) -> None:
        self._done = asyncio.get_running_loop().create_future()
        self._goal += count
        self._fill()
        await self._done

    def check(self) -> None:
        """Check the outcomes. Raises BenchError unless all are confirmed."""
        bad = sum(each != "confirmed" for each in self._confirms.outcomes.values())
        if bad or len(self._confirms.outcomes) != self._goal:
            raise BenchError(f"{bad} of {self._goal} publishes were not confirmed")

    def _fill(self) -> None:
        confirms, task = self._confirms, self._task
        while self._sent < self._goal and len(confirms.open) < task.window:
            self._sent += 1
            name = message_id(self._sent)
            self._channel.basic_publish(
                task.exchange,
                "",
                self._body,
                pika.BasicProperties(delivery_mode=2, message_id=name),
                mandatory=True,
            )
            confirms.sent(self._sent, name)

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        outcome = "confirmed" if isinstance(method, pika.spec.Basic.Ack) else "refused"
        self._confirms.settle(method.delivery_tag, method.multiple, outcome)
        if self._sent == self._goal and not self._confirms.open:
            self._done.set_result(None)
        else:
            self._fill()

    def _on_return(self, _channel: Any, _method: Any, properties: Any, _body: bytes) -> None:
        self._confirms.returned(properties.message_id)


async def _publish(task: Task) -> Turn:
    connection, channel = await _opened(task)
    publishing = _Publishing(channel, task)
    await publishing.select()
    await publishing.publish(task.warm_up)
    watch = Stopwatch()
    await publishing.publish(task.messages)
    turn = watch.turn(task.messages)
    publishing.check()
    connection.close()
    return turn


async def _consume(task: Task) -> Turn:
    connection, channel = await _opened(task)
    channel.basic_qos(prefetch_count=task.window)
    done = asyncio.get_running_loop().create_future()
    goal = task.warm_up + task.messages
    ack_every = min(ACK_EVERY, task.window)
    seen: set[str] = set()
    watch: list[Stopwatch] = []

    def on_message(_channel: Any, method: Any, properties: Any, _body: bytes) -> None:
        seen.add(properties.message_id)
        if method.delivery_tag % ack_every == 0:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if len(seen) == task.warm_up:
            watch.append(Stopwatch())
        elif len(seen) == goal:
            done.set_result(watch[0].turn(task.messages))

    channel.basic_consume(task.queue, on_message)
    turn: Turn = await done
    connection.close()
    return turn


async def _latency(task: Task) -> Turn:
    """Measure latencies with two connections: one publishes, one consumes."""
    found = Latencies(expected=task.warm_up + task.messages)
    body = os.urandom(task.body_bytes)
    publishing, channel = await _opened(task)
    consuming, receiving = await _opened(task)
    open_since: dict[int, int] = {}
    lowest, sent = 1, 0

    def on_message(_channel: Any, method: Any, _properties: Any, message: bytes) -> None:
        found.received(message)
        receiving.basic_ack(method.delivery_tag)

    def on_confirm(frame: Any) -> None:
        nonlocal lowest
        tag = frame.method.delivery_tag
        for each in range(lowest, tag + 1) if frame.method.multiple else (tag,):
            if (intended_ns := open_since.pop(each, None)) is not None:
                found.confirmed(intended_ns)
        if frame.method.multiple:
            lowest = tag + 1

    async def send(stamped: bytes, intended_ns: int) -> None:
        nonlocal sent
        sent += 1
        open_since[sent] = intended_ns
        properties = pika.BasicProperties(delivery_mode=2, message_id=message_id(sent))
        channel.basic_publish(task.exchange, "", stamped, properties, mandatory=True)

    ready = asyncio.get_running_loop().create_future()
    channel.confirm_delivery(on_confirm, callback=ready.set_result)
    await ready
    receiving.basic_qos(prefetch_count=task.window)
    receiving.basic_consume(task.queue, on_message)
    await paced(task.rate_per_s, task.warm_up, body, send)
    watch, found.from_ns = Stopwatch(), time.monotonic_ns()
    await paced(task.rate_per_s, task.messages, body, send)
    await found.all_delivered.wait()
    turn = watch.turn(task.messages)
    publishing.close()
    consuming.close()
    return dataclasses.replace(turn, histograms=found.encoded(task.messages))


async def _opened(task: Task) -> tuple[Any, Any]:
    """Connect; return the connection and its channel. Raises BenchError."""
    ready = asyncio.get_running_loop().create_future()
    parameters = pika.ConnectionParameters(
        host=task.address.host,
        port=task.address.port,
        credentials=pika.PlainCredentials(task.user, task.password),
    )
    connection = AsyncioConnection(
        parameters,
        on_open_callback=lambda opened: opened.channel(on_open_callback=ready.set_result),
        on_open_error_callback=lambda _c, why: ready.set_exception(BenchError(repr(why))),
        custom_ioloop=asyncio.get_running_loop(),
    )
    return connection, await ready
