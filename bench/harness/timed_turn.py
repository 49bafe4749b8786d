"""One turn of one client in a process of its own, at full speed, without the records of a run.

Every turn has a fresh process, so that no client inherits the memory, the garbage or the imports of another.
Its argument is a `Task` as JSON, and it prints one `Turn` as JSON. It connects, warms up, collects its
garbage, and then measures: with the client's `Sender` and `Receiver`, or with ``turn(task)`` of the module
that `bench.load.systems` names for the client's own ways.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import importlib
import itertools
import json
import os
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from bench.errors import BenchError
from bench.harness.interface import FullSpeed, Sender, Where, receiver, sender
from bench.harness.loop import event_loop
from bench.harness.outcomes import CONFIRMED
from bench.load.profile import Load, Messages, Profile, System, Time
from bench.load.schedule import Closed
from bench.load.systems import SYSTEMS

T = TypeVar("T")
COMMAND = (sys.executable, "-c", "from bench.harness.timed_turn import main; main()")
# A turn that takes longer is ended with an error.
TURN_WITHIN_S = 600.0
CLOSE_S, TAKE_WAIT_S, POLL_S = 60.0, 0.1, 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The task of one process.

    verb: publish or consume. system: one of `bench.load.systems`. way: the variant, if the client has
    several. env: the settings of the client. window: publishes without a confirm, or deliveries without an
    ack. messages: in the measured part. warm_up: messages before it. batch: messages in one AMQP message, 1
    for none. threads: publishing ones.
    loop: asyncio or uvloop. seconds: instead of messages, for a client that runs for a time. traced: the part
    of the messages that OpenTelemetry traces. typed: whether the messages say that they are JSON. redundant:
    whether two brokers confirm each message.
    """

    verb: str
    env: Mapping[str, str]
    topic: str
    subscription: str
    system: str = "messagebus"
    way: str = ""
    window: int = 1
    messages: int = 1000
    warm_up: int = 100
    body_bytes: int = 1024
    batch: int = 1
    threads: int = 1
    loop: str = "asyncio"
    seconds: float = 0
    traced: float = 0
    typed: bool = False
    redundant: bool = False

    @property
    def profile(self) -> Profile:
        """The same load as a profile."""
        load = Load(
            schedule=Closed(count=max(1, self.messages)),
            window=self.window,
            batch=self.batch,
            prefetch=self.window,
            # Together where the client's interface allows it, as somebody who wants speed would.
            ack="many" if "many" in SYSTEMS[self.system].acks else "each",
        )
        messages = Messages(size=self.body_bytes)
        system = System(name=self.system, brokers=1)
        return Profile(
            name="turn", load=load, system=system, messages=messages, time=Time(warm_up_s=0)
        )

    @property
    def where(self) -> Where:
        name = f"{self.verb}-{os.getpid()}"
        return Where(name, self.topic, self.subscription, self.env)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The costs of a turn. cpu_s: of the whole client process."""

    messages: int
    took_s: float
    cpu_s: float

    @property
    def rate_per_s(self) -> float:
        return self.messages / self.took_s

    @property
    def cpu_us(self) -> float:
        """The CPU time per message."""
        return self.cpu_s / self.messages * 1e6


def to_json(what: Task | Turn) -> str:
    return json.dumps(dataclasses.asdict(what))


def main() -> None:
    """Take the turn of the task in the first argument, and print its result."""
    task = Task(**json.loads(sys.argv[1]))
    if task.system not in SYSTEMS:
        raise SystemExit(f"no client {task.system!r}; there are {', '.join(SYSTEMS)}")
    take: Callable[[Task], Awaitable[Turn]] = turn
    if own := SYSTEMS[task.system].ways:
        take = importlib.import_module(own).turn
    with asyncio.Runner(loop_factory=event_loop(task.loop)) as runner:
        print(to_json(runner.run(within(take(task)))))


async def within(taken: Awaitable[T]) -> T:
    """Wait for a turn. Raises BenchError when it does not end."""
    try:
        return await asyncio.wait_for(taken, TURN_WITHIN_S)
    except TimeoutError:
        raise BenchError(f"a turn did not end within {TURN_WITHIN_S:.0f} s") from None


def body(size: int) -> bytes:
    """Return a body of that size: JSON, most of it in one text, unless it is too small for that."""
    order = {"number": 17, "customer": "ann", "tags": ["new", "large"], "note": ""}
    short = len(json.dumps(order))
    return (
        json.dumps(order | {"note": "x" * (size - short)}).encode()
        if size >= short
        else bytes(size)
    )


def slices(count: int, size: int) -> list[int]:
    """Return whole slices, and the rest."""
    rest = [count % size] if count % size else []
    return [size] * (count // size) + rest


async def timed(task: Task, work: Callable[[int], Awaitable[object]]) -> Turn:
    """Measure `work`, which gets the number of messages to do, after its warm-up."""
    if task.warm_up:
        await work(task.warm_up)
    gc.collect()
    # A collection during the turn need not walk the modules of the harness, which no application has.
    gc.freeze()
    before, began_s = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    await work(task.messages)
    took_s = time.perf_counter() - began_s
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return Turn(messages=task.messages, took_s=took_s, cpu_s=cpu_s)


async def turn(task: Task) -> Turn:
    """Take a turn with the client's `Sender` and `Receiver`."""
    return await (_publish if task.verb == "publish" else _consume)(task)


async def _publish(task: Task) -> Turn:
    client, content = sender(task.profile, task.where), body(task.body_bytes)
    await client.open()
    publish = (
        client.publish
        if isinstance(client, FullSpeed)
        else partial(_send, client, itertools.count())
    )
    found = await timed(task, lambda count: publish(content, count))
    await client.close(CLOSE_S)
    return found


async def _send(client: Sender, numbers: Iterator[int], content: bytes, count: int) -> None:
    """Publish a body `count` times. Raises BenchError unless all are confirmed."""
    for sequence in itertools.islice(numbers, count):
        await client.room()
        await client.send(sequence, content, "")
    ends = client.ends()
    while len(ends) < count:
        await asyncio.sleep(POLL_S)
        ends += client.ends()
    check(end.outcome == CONFIRMED for end in ends)


def check(confirmed: Iterable[bool]) -> None:
    """Check outcomes: whether each is confirmed. Raises BenchError unless all are."""
    if bad := sum(not each for each in confirmed):
        raise BenchError(f"{bad} publishes were not confirmed")


async def _consume(task: Task) -> Turn:
    client, more = receiver(task.profile, task.where), 0

    async def take(count: int) -> None:
        nonlocal more  # deliveries beyond the count of the last call
        while more < count:
            more += len(await client.take(TAKE_WAIT_S))
        more -= count

    await client.open()
    found = await timed(task, take)
    await client.close()
    return found
