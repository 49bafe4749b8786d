"""What the harness itself costs: its loops against a system that does nothing at all.

A message's CPU time with a null system, less that of the null system called bare, is what every
figure of a real system carries on top.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bench.run.bodies import Drawer
from bench.run.consuming import Consuming
from bench.run.drivers import Delivered, End
from bench.run.fates import CONFIRMED
from bench.run.latencies import Latencies
from bench.run.profile import Messages
from bench.run.publishing import Publishing
from bench.run.schedule import Constant, intended
from bench.run.stamp import Filler, stamped

__all__ = ["Overhead", "measure"]

BODY_BYTES = 1024
# Deliveries that arrive together, as with a busy consumer.
TOGETHER = 100
SECOND_NS = 1_000_000_000
# Late from the first message on: the loop never sleeps, so CPU time is all of its work.
RATE_PER_S = 10_000_000.0


@dataclass(frozen=True, slots=True)
class Overhead:
    """Microseconds of CPU: of one value recorded; of one message published and consumed."""

    record_us: float
    publish_us: float
    consume_us: float


class NullSender:
    """Every message is confirmed at once."""

    def __init__(self) -> None:
        self._ends: list[End] = []

    async def open(self) -> None: ...

    async def room(self) -> None: ...

    async def send(self, sequence: int, body: bytes, key: str) -> None:
        now_ns = time.monotonic_ns()
        self._ends.append(End(sequence, CONFIRMED, "none", now_ns, now_ns))

    def ends(self) -> list[End]:
        ends, self._ends = self._ends, []
        return ends

    async def close(self, timeout_s: float) -> None: ...


class NullReceiver:
    """Gives what it was given, once."""

    def __init__(self, bodies: list[bytes]) -> None:
        self._bodies = bodies
        self._given = 0

    @property
    def is_empty(self) -> bool:
        return self._given >= len(self._bodies)

    async def open(self) -> None: ...

    async def take(self, max_wait_s: float) -> list[Delivered]:
        now_ns = time.monotonic_ns()
        some = self._bodies[self._given : self._given + TOGETHER]
        self._given += TOGETHER
        return [Delivered(body, "none", now_ns) for body in some]

    async def close(self) -> None: ...


def measure(messages: int) -> Overhead:
    """Each of `messages`, after a warm-up of a tenth."""
    results = []
    for count in (max(1, messages // 10), messages):
        bare_us = _us(lambda count=count: asyncio.run(_bare_publish(count)), count)  # type: ignore[misc]
        publish_us = _us(lambda count=count: asyncio.run(_publish(count)), count)  # type: ignore[misc]
        bodies = _bodies(count)
        bare_take_us = _us(lambda bodies=bodies: asyncio.run(_bare_take(bodies)), count)  # type: ignore[misc]
        consume_us = _us(lambda bodies=bodies: asyncio.run(_consume(bodies)), count)  # type: ignore[misc]
        record_us = _us(lambda count=count: _record(count), count)  # type: ignore[misc]
        results.append(Overhead(record_us, publish_us - bare_us, consume_us - bare_take_us))
    return results[-1]


def _us(work: Callable[[], None], count: int) -> float:
    before = time.process_time()
    work()
    return (time.process_time() - before) / count * 1e6


async def _publish(count: int) -> None:
    drawer = Drawer(Messages(size=BODY_BYTES), seed=1)
    publishing = Publishing(
        NullSender(),
        publisher=0,
        start_ns=time.monotonic_ns(),
        offset_ns=0,
        fillers=drawer.fillers(),
        keys=drawer.keys(),
    )
    times = (
        at for at, _ in zip(intended(Constant(rate_per_s=RATE_PER_S)), range(count), strict=False)
    )
    await publishing.run(times, 1 << 62)


async def _bare_publish(count: int) -> None:
    sender, body = NullSender(), bytes(BODY_BYTES)
    for number in range(count):
        await sender.send(number, body, "")
    sender.ends()


async def _consume(bodies: list[bytes]) -> None:
    receiver = NullReceiver(bodies)
    consuming = Consuming(receiver, start_ns=time.monotonic_ns(), offset_ns=0)
    await consuming.run(lambda: receiver.is_empty, lambda _count: None)


async def _bare_take(bodies: list[bytes]) -> None:
    receiver = NullReceiver(bodies)
    while not receiver.is_empty:
        await receiver.take(0)


def _record(count: int) -> None:
    """As a load does it: appended one by one, sorted into bins by the thousand."""
    latencies, waiting = Latencies(0), []
    for number in range(count):
        waiting.append((number, number))
        if len(waiting) == 1000:
            rows = np.array(waiting, dtype=np.int64)
            latencies.add("", rows[:, 0], rows[:, 1])
            waiting = []


def _bodies(count: int) -> list[bytes]:
    filler, now_ns = Filler.of(bytes(BODY_BYTES)), time.monotonic_ns()
    return [stamped(filler, 0, number, now_ns) for number in range(count)]
