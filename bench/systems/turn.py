"""One turn of one client: its task, its timing, its pace, its result.

Every turn runs in a process of its own, started by the same interpreter, so that no client inherits
the memory, the garbage or the imports of another:

    python -m bench.systems NAME TASK

TASK is a `Task` as JSON; the process prints one `Turn` as JSON. It connects, warms up, collects its
garbage, and then measures.

At a steady rate, latency counts from a message's intended time: a client that is held back sends late,
its latency grows, and nothing is left out. There are two histograms: until the confirm, and until the
delivery to a consumer in the same process.
"""

from __future__ import annotations

import asyncio
import cProfile
import dataclasses
import gc
import json
import resource
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from hdrh.histogram import HdrHistogram

from bench.errors import BenchError
from bench.harness.loop import Alarm, event_loop
from messagebus import BusConfig, Subscription, Topic
from messagebus.broker import Broker

__all__ = [
    "DIGITS",
    "HIGHEST_US",
    "Latencies",
    "Stopwatch",
    "Task",
    "Turn",
    "intended_in",
    "message_id",
    "paced",
    "run_on",
    "stamped",
]

HIGHEST_US = 60_000_000
DIGITS = 3
STAMP_BYTES = 8
US = 1_000


def _histogram() -> HdrHistogram:
    return HdrHistogram(1, HIGHEST_US, DIGITS)


@dataclass(slots=True)
class Latencies:
    """Latencies in whole microseconds. from_ns: messages intended earlier belong to the warm-up.

    all_delivered: set with the delivery of number `expected`.
    """

    expected: int
    from_ns: int = 0
    confirm: HdrHistogram = field(default_factory=_histogram)
    delivery: HdrHistogram = field(default_factory=_histogram)
    delivered: int = 0
    all_delivered: asyncio.Event = field(default_factory=asyncio.Event)

    def confirmed(self, intended_ns: int) -> None:
        if intended_ns >= self.from_ns:
            self.confirm.record_value(_since_us(intended_ns))

    def received(self, body: bytes) -> None:
        self.delivered += 1
        if self.delivered == self.expected:
            self.all_delivered.set()
        if (intended_ns := intended_in(body)) >= self.from_ns:
            self.delivery.record_value(_since_us(intended_ns))

    def encoded(self, messages: int) -> dict[str, str]:
        """Return name -> histogram, in HdrHistogram's encoding. Raises BenchError if messages are missing."""
        for name, found in (("confirmed", self.confirm), ("delivered", self.delivery)):
            if (count := found.get_total_count()) < messages:
                raise BenchError(f"{messages - count} of {messages} messages were not {name}")
        return {
            "confirm": self.confirm.encode().decode(),
            "delivery": self.delivery.encode().decode(),
        }


def _since_us(intended_ns: int) -> int:
    return min(HIGHEST_US, max(1, (time.monotonic_ns() - intended_ns) // US))


def stamped(body: bytes, intended_ns: int) -> bytes:
    """Return the body with its first bytes replaced by the intended time."""
    return intended_ns.to_bytes(STAMP_BYTES, "big") + body[STAMP_BYTES:]


def intended_in(body: bytes) -> int:
    return int.from_bytes(body[:STAMP_BYTES], "big")


async def paced(
    rate_per_s: float, count: int, body: bytes, send: Callable[[bytes, int], Awaitable[None]]
) -> None:
    """Send `count` bodies at a rate; those that are due together are sent one after the other."""
    with Alarm() as alarm:
        start_ns = time.monotonic_ns()
        for number in range(count):
            intended_ns = start_ns + int(number / rate_per_s * 1e9)
            if (early_ns := intended_ns - time.monotonic_ns()) > 0:
                await alarm.sleep(early_ns / 1e9)
            await send(stamped(body, intended_ns), intended_ns)


# A turn that takes longer is ended with an error.
TURN_WITHIN_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The task of one process, at one broker, without a balancer in between.

    verb: publish, consume, or latency, which does both at rate_per_s in one process. way: the variant, if a
    client has several. broker: ``host:port``. list_url: the list of brokers for our own client; peers do not
    use it. window: publishes without a confirm, or deliveries without an ack. messages: in the measured part.
    warm_up: messages before it. batch: our messages in one AMQP message, 1 for none. threads: number of
    publishing threads. loop: asyncio or uvloop. seconds: instead of messages, for a client that runs for a
    time. profile: a file for cProfile's result of the measured part, "" for none.
    """

    verb: str
    broker: str
    list_url: str
    user: str
    password_file: str
    topic: str
    subscription: str
    way: str = ""
    window: int = 1
    messages: int = 1000
    warm_up: int = 100
    body_bytes: int = 1024
    batch: int = 1
    threads: int = 1
    loop: str = "asyncio"
    seconds: float = 0
    rate_per_s: float = 0
    profile: str = ""

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))

    @property
    def bus(self) -> BusConfig:
        """The settings of our own client: this broker and no other, its agent for the list."""
        return BusConfig(
            broker=self.broker,
            list_urls=(self.list_url,),
            user=self.user,
            password_file=self.password_file,
        )

    @property
    def address(self) -> Broker:
        return Broker.parse(self.broker)

    @property
    def password(self) -> str:
        return Path(self.password_file).read_text().strip()

    @property
    def exchange(self) -> str:
        return self.source.topic.exchange

    @property
    def queue(self) -> str:
        return self.source.amqp_queue

    @property
    def source(self) -> Subscription:
        return Subscription(Topic(self.topic), self.subscription)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The costs of a turn: user and system CPU are those of the whole client process.

    histograms: confirm and delivery -> an encoded HDR histogram of microseconds.
    """

    messages: int
    took_s: float
    user_s: float
    system_s: float
    histograms: Mapping[str, str] = field(default_factory=dict)

    @property
    def rate_per_s(self) -> float:
        return self.messages / self.took_s

    @property
    def cpu_us(self) -> float:
        """The CPU time per message."""
        return (self.user_s + self.system_s) / self.messages * 1e6

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))


class Stopwatch:
    """A stopwatch that starts when it is made, after a collection of the garbage.

    profiler: runs during the measured part, in the thread that made the stopwatch.
    """

    profiler: ClassVar[cProfile.Profile | None] = None

    def __init__(self) -> None:
        gc.collect()
        if self.profiler:
            self.profiler.enable()
        used = resource.getrusage(resource.RUSAGE_SELF)
        self._user_s, self._system_s = used.ru_utime, used.ru_stime
        self._began_s = time.perf_counter()

    def turn(self, messages: int) -> Turn:
        """Return the costs of that many messages since the start."""
        took_s = time.perf_counter() - self._began_s
        if self.profiler:
            self.profiler.disable()
        used = resource.getrusage(resource.RUSAGE_SELF)
        return Turn(
            messages=messages,
            took_s=took_s,
            user_s=used.ru_utime - self._user_s,
            system_s=used.ru_stime - self._system_s,
        )


def run_on(loop: str, turn: Callable[[], Coroutine[Any, Any, Turn]]) -> Turn:
    """Run one turn on a new loop. Raises BenchError when it does not end."""
    with asyncio.Runner(loop_factory=event_loop(loop)) as runner:
        try:
            return runner.run(asyncio.wait_for(turn(), TURN_WITHIN_S))
        except TimeoutError:
            raise BenchError(f"a turn did not end within {TURN_WITHIN_S:.0f} s") from None


def message_id(number: int) -> str:
    """Return an id as a hand-written client makes it: a counter, 24 digits as ours are."""
    return f"{number:024x}"
