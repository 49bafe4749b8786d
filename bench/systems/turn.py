"""One turn of one client: what it is to do, how it is timed, what it says at its end.

Every turn runs in a process of its own, started by the same interpreter, so that no client inherits
the memory, the garbage or the imports of another:

    python -m bench.systems NAME TASK

TASK is a `Task` as JSON; the process prints one `Turn` as JSON. It connects, warms up, collects its
garbage, and then measures.
"""

from __future__ import annotations

import asyncio
import cProfile
import dataclasses
import gc
import json
import resource
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from bench.errors import BenchError
from bench.harness.loop import event_loop
from messagebus import BusConfig, Subscription, Topic
from messagebus.broker import Broker

__all__ = [
    "Stopwatch",
    "Task",
    "Turn",
    "message_id",
    "run_on",
]

# A turn that hangs is ended, with an error that says so.
TURN_WITHIN_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one process is to do, at one broker, without a balancer in between.

    verb: publish, consume, or latency: both at rate_per_s, in one process. way: how, where a client
    has several ways. broker: ``host:port``. list_url: where our own client learns of brokers; peers
    do not use it. window: publishes without a confirm, or deliveries without an ack. messages: in
    the measured part; warm_up: before it. batch: our messages in one AMQP message, 1 for none.
    threads: that publish. loop: asyncio or uvloop. seconds: instead of messages, for a client that
    is given a time. profile: a file for what cProfile says of the measured part, "" for none.
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
        """Our own client's settings: this broker and no other, its agent for the list."""
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
    """What it took: user and system CPU are those of the whole client process.

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
        """CPU time per message."""
        return (self.user_s + self.system_s) / self.messages * 1e6

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))


class Stopwatch:
    """Started when it is made, with the garbage collected before.

    profiler: runs while the measured part does, in the thread that made the stopwatch.
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
        """What so many messages took since then."""
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
    """An id as a hand-written client makes it: a counter, 24 digits as ours are."""
    return f"{number:024x}"
