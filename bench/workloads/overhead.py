"""The costs of the harness itself: its loops against a system that does nothing at all.

The overhead is a message's CPU time with a null system, less that of the null system alone. Every figure of
a real system includes it.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bench.figures.figure import Figure, Maker
from bench.harness.consuming import Consuming
from bench.harness.histograms import Latencies
from bench.harness.interface import Delivered, End
from bench.harness.outcomes import CONFIRMED
from bench.harness.publishing import Publishing
from bench.load.bodies import Drawer, Filler, stamped
from bench.load.profile import Messages
from bench.load.schedule import Constant, intended, striped

BODY_BYTES = 1024
# The number of deliveries that arrive together, as with a busy consumer.
TOGETHER = 100
# Late from the first message on: the loop never sleeps, so CPU time is all of its work.
RATE_PER_S = 10_000_000.0


@dataclass(frozen=True, slots=True)
class Overhead:
    """CPU time in microseconds: of one recorded value; of one message published, and consumed."""

    record_us: float
    publish_us: float
    consume_us: float

    @property
    def message_us(self) -> float:
        """The CPU time of a message from its publisher to its consumer."""
        return self.publish_us + self.consume_us


class NullSender:
    """A sender that confirms every message at once."""

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
    """A receiver that returns the same bodies again and again, `count` in all.

    They stay in the processor's caches, like the bodies that a client has just read from its socket.
    """

    def __init__(self, bodies: list[bytes], count: int) -> None:
        self._bodies = bodies
        self._left = count

    @property
    def is_empty(self) -> bool:
        return self._left <= 0

    async def open(self) -> None: ...

    async def take(self, max_wait_s: float) -> list[Delivered]:
        now_ns = time.monotonic_ns()
        some = self._bodies[: self._left]
        self._left -= len(some)
        return [Delivered(body, "none", now_ns) for body in some]

    async def close(self) -> None: ...


def measure(messages: int, repeat: int = 1) -> list[Overhead]:
    """Measure the overhead over `messages`, `repeat` times, after a warm-up of a tenth."""
    _once(max(1, messages // 10))
    return [_once(messages) for _ in range(repeat)]


def _once(count: int) -> Overhead:
    bare_us = _us(lambda: asyncio.run(_bare_publish(count)), count)
    publish_us = _us(lambda: asyncio.run(_publish(count)), count)
    bare_take_us = _us(lambda: asyncio.run(_bare_take(count)), count)
    consume_us = _us(lambda: asyncio.run(_consume(count)), count)
    record_us = _us(lambda: _record(count), count)
    return Overhead(record_us, publish_us - bare_us, consume_us - bare_take_us)


def figures(overheads: Sequence[Overhead]) -> list[Figure]:
    """Make figures of the medians."""
    make, adds = Maker("measure.overhead", "python -m bench overhead"), "What the harness adds to a"
    wanted = {
        "record_us": "Recording one latency by second and broker",
        "message_us": f"{adds} message of 1 KB in all",
        "publish_us": f"{adds} published message of 1 KB",
        "consume_us": f"{adds} consumed message of 1 KB",
    }
    return [
        make(id, f"{what}, CPU time", [getattr(each, id) for each in overheads], "us")
        for id, what in wanted.items()
    ]


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
    # The same times as in a load process.
    times = striped(intended(Constant(rate_per_s=RATE_PER_S)), number=0, of=1)
    await publishing.run(itertools.islice(times, count), 1 << 62)


async def _bare_publish(count: int) -> None:
    sender, body = NullSender(), bytes(BODY_BYTES)
    for number in range(count):
        await sender.send(number, body, "")
    sender.ends()


async def _consume(count: int) -> None:
    start_ns = time.monotonic_ns()
    receiver = NullReceiver(_bodies(start_ns), count)
    consuming = Consuming(receiver, start_ns=start_ns, offset_ns=0)
    had = await consuming.run(lambda: receiver.is_empty, lambda _count: None)
    assert len(had.sequences) == count, "what is of an earlier run, or altered, costs less"


async def _bare_take(count: int) -> None:
    receiver = NullReceiver(_bodies(time.monotonic_ns()), count)
    while not receiver.is_empty:
        await receiver.take(0)


def _record(count: int) -> None:
    """Record values as a load does: appended one by one, sorted into bins by the thousand."""
    latencies, waiting = Latencies(0), []
    for number in range(count):
        waiting.append((number, number))
        if len(waiting) == 1000:
            rows = np.array(waiting, dtype=np.int64)
            latencies.add("", rows[:, 0], rows[:, 1])
            waiting = []


def _bodies(intended_ns: int) -> list[bytes]:
    """Return the bodies that arrive together."""
    filler = Filler.of(bytes(BODY_BYTES))
    return [stamped(filler, 0, number, intended_ns) for number in range(TOGETHER)]
