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

from bench.errors import BenchError
from bench.harness.interface import Delivered, End, Where
from bench.harness.outcomes import CONFIRMED, UNKNOWN
from bench.load.profile import Profile

C = TypeVar("C")

OPEN_WITHIN_S = 30.0
TAKE_S = 0.1
POLL_S = 0.005


class BlockingSender(Protocol):
    broker: str

    def publish(self, body: bytes, sequence: int, key: str) -> int:
        """Publish a message and return its outcome, one of `outcomes`."""

    def close(self) -> None: ...


class BlockingReceiver(Protocol):
    broker: str

    def take(self, max_wait_s: float) -> list[bytes]:
        """Take the deliveries that arrive within that time, and answer them."""

    def close(self) -> None: ...


class ThreadedSender:
    """A sender over a blocking client. connect: makes the client, in its thread."""

    def __init__(self, connect: Callable[[], BlockingSender], window: int) -> None:
        self._connect = connect
        self._work: queue.SimpleQueue[tuple[int, bytes, str] | None] = queue.SimpleQueue()
        self._room = asyncio.Semaphore(window)
        self._done: queue.SimpleQueue[End] = queue.SimpleQueue()
        self._open: dict[int, int] = {}
        self._broker = ""
        self._numbers = itertools.count()

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread, self._client = await _working(self._connect, self._run)
        self._broker = self._client.broker

    async def publish(self, body: bytes, count: int) -> None:
        """Publish one by one in this thread. Raises BenchError unless all are confirmed."""
        for sequence in itertools.islice(self._numbers, count):
            if self._client.publish(body, sequence, "") != CONFIRMED:
                raise BenchError(f"publish {sequence} was not confirmed")

    async def room(self) -> None:
        async with self._room:
            pass

    async def send(self, sequence: int, body: bytes, key: str) -> None:
        await self._room.acquire()
        self._open[sequence] = time.monotonic_ns()
        self._work.put((sequence, body, key))

    def ends(self) -> list[End]:
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                end = self._done.get_nowait()
                self._open.pop(end.sequence, None)
                found.append(end)
        return found

    async def close(self, timeout_s: float) -> None:
        self._work.put(None)
        await asyncio.to_thread(self._thread.join, timeout_s)
        now_ns = time.monotonic_ns()
        ended = self.ends()
        unknown = [End(each, UNKNOWN, self._broker, at, now_ns) for each, at in self._open.items()]
        for end in ended + unknown:
            self._done.put(end)

    def _run(self, client: BlockingSender) -> None:
        while (work := self._work.get()) is not None:
            sequence, body, key = work
            sent_ns = time.monotonic_ns()
            outcome = client.publish(body, sequence, key)
            self._done.put(End(sequence, outcome, client.broker, sent_ns, time.monotonic_ns()))
            with contextlib.suppress(RuntimeError):  # closed: nobody waits for room any more
                self._loop.call_soon_threadsafe(self._room.release)
        client.close()


class ThreadedReceiver:
    """A receiver over a blocking client. connect: makes the client, in its thread."""

    def __init__(self, connect: Callable[[], BlockingReceiver]) -> None:
        self._connect = connect
        self._had: queue.SimpleQueue[Delivered] = queue.SimpleQueue()
        self._is_over = threading.Event()

    async def open(self) -> None:
        self._thread, _client = await _working(self._connect, self._run)

    async def take(self, max_wait_s: float) -> list[Delivered]:
        if self._had.empty():
            await asyncio.sleep(POLL_S)
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._had.get_nowait())
        return found

    async def close(self) -> None:
        self._is_over.set()
        await asyncio.to_thread(self._thread.join, OPEN_WITHIN_S)

    def _run(self, client: BlockingReceiver) -> None:
        while not self._is_over.is_set():
            for body in client.take(TAKE_S):
                self._had.put(Delivered(body, client.broker, time.monotonic_ns()))
        client.close()


def sender_of(connect: Callable[[Where], BlockingSender]) -> Callable[..., ThreadedSender]:
    """Return what makes the sender of a system, as `bench.harness.interface` asks for it."""
    return lambda profile, where: ThreadedSender(lambda: connect(where), profile.load.window)


def receiver_of(
    connect: Callable[[Profile, Where], BlockingReceiver],
) -> Callable[..., ThreadedReceiver]:
    """Return what makes the receiver of a system."""
    return lambda profile, where: ThreadedReceiver(lambda: connect(profile, where))


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
