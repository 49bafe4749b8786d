"""A blocking client under the same load: it works in a thread of its own, one message at a time.

While a publish waits for its confirm, further messages queue in front of it, at most the profile's window.
Their latency counts from the intended time, so it includes this wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from bench.clients.in_flight import Arrived, Flight
from bench.clients.rabbitmq import OPEN_WITHIN_S, Peer
from bench.errors import BenchError
from bench.harness.interface import Delivered, End, Where
from bench.harness.outcomes import CONFIRMED
from bench.load.profile import Profile

C = TypeVar("C")
TAKE_S = 0.1


class Publishing(Protocol):
    def publish(self, body: bytes, sequence: int, key: str) -> int:
        """Publish a message and return its outcome, one of `outcomes`."""

    def close(self) -> None: ...


class Consuming(Protocol):
    def take(self, max_wait_s: float) -> list[bytes]:
        """Take the deliveries that arrive within that time, and answer them."""

    def close(self) -> None: ...


class ThreadedSender:
    """A sender over a blocking client. connect: makes the client, in its thread."""

    def __init__(self, connect: Callable[[], Publishing], window: int, broker: str = "") -> None:
        self._connect, self._broker = connect, broker
        self._work: queue.SimpleQueue[tuple[int, bytes, str] | None] = queue.SimpleQueue()
        self._flight = Flight(window)
        self._numbers = itertools.count()

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread, self._client = await _working(self._connect, self._run)

    async def publish(self, body: bytes, count: int) -> None:
        """Publish one by one in this thread. Raises BenchError unless all are confirmed."""
        for sequence in itertools.islice(self._numbers, count):
            if self._client.publish(body, sequence, "") != CONFIRMED:
                raise BenchError(f"publish {sequence} was not confirmed")

    async def room(self) -> None:
        await self._flight.room()

    async def send(self, sequence: int, body: bytes, key: str) -> None:
        await self._flight.room()
        self._flight.begin(sequence, sequence)
        self._work.put((sequence, body, key))

    def ends(self) -> list[End]:
        return self._flight.ends()

    async def close(self, timeout_s: float) -> None:
        await self._flight.close(timeout_s, self._broker)
        self._work.put(None)

    def _run(self, client: Publishing) -> None:
        while (work := self._work.get()) is not None:
            sent_ns, outcome = time.monotonic_ns(), client.publish(work[1], work[0], work[2])
            with contextlib.suppress(RuntimeError):  # closed: nobody asks for ends any more
                self._loop.call_soon_threadsafe(
                    self._flight.end, work[0], outcome, self._broker, sent_ns
                )
        client.close()


class ThreadedReceiver:
    """A receiver over a blocking client. connect: makes the client, in its thread."""

    def __init__(self, connect: Callable[[], Consuming], broker: str = "") -> None:
        self._connect, self._broker = connect, broker
        self._arrived, self._is_over = Arrived(), threading.Event()

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread, _client = await _working(self._connect, self._run)

    async def take(self, max_wait_s: float) -> list[Delivered]:
        return await self._arrived.take(max_wait_s)

    async def close(self) -> None:
        self._is_over.set()
        await asyncio.to_thread(self._thread.join, OPEN_WITHIN_S)

    def _run(self, client: Consuming) -> None:
        while not self._is_over.is_set():
            bodies = client.take(TAKE_S)
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._add, bodies)
        client.close()

    def _add(self, bodies: list[bytes]) -> None:
        for body in bodies:
            self._arrived.add(body, self._broker)


def sender_of(connect: Callable[[Peer], Publishing]) -> Callable[..., ThreadedSender]:
    """Return what makes the sender of a system, as `bench.harness.interface` asks for it."""

    def open_sender(profile: Profile, where: Where) -> ThreadedSender:
        peer = Peer(where)
        return ThreadedSender(lambda: connect(peer), profile.load.window, peer.broker)

    return open_sender


def receiver_of(
    connect: Callable[[Peer, int, bool], Consuming],
) -> Callable[..., ThreadedReceiver]:
    """Return what makes the receiver of a system. connect: gets the prefetch, and whether acks are wanted."""

    def open_receiver(profile: Profile, where: Where) -> ThreadedReceiver:
        peer, load = Peer(where), profile.load
        return ThreadedReceiver(
            lambda: connect(peer, load.prefetch, load.ack != "none"), peer.broker
        )

    return open_receiver


async def _working(
    connect: Callable[[], C], work: Callable[[C], None]
) -> tuple[threading.Thread, C]:
    """Start a thread that connects and then works with its client; return both once it is connected.

    Raises BenchError when it cannot connect, and TimeoutError.
    """
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[C] = loop.create_future()

    def run() -> None:
        try:
            client = connect()
        except Exception as fault:  # any error of that library: the run reports it in one line
            error = BenchError(f"cannot connect: {fault!r}")
            loop.call_soon_threadsafe(ready.set_exception, error)
            return
        loop.call_soon_threadsafe(ready.set_result, client)
        work(client)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, await asyncio.wait_for(ready, OPEN_WITHIN_S)
