"""The CPU time of a forwarder between two sites, per message, by turns with a loop of pika.

The brokers are no RabbitMQ but speak AMQP, one process for each site: the figures are of the forwarder, which
is a process, too. ``python -m bench.figures.reach.forward forward MESSAGES`` is that process, and ``loop
MESSAGES`` the one of pika's asynchronous client. The loop has less to do: it gives each message a new id, and
acks it before its confirm.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from bench.clients.pika import Receiver, Sender
from bench.errors import BenchError
from bench.figures.client.mesh import DIAL
from bench.figures.figure import Figure, Maker, at_most
from bench.figures.groups import Group, Setup, repeat_command
from bench.figures.reach.client import SUBSCRIPTION, WARM_UP, child, names
from bench.harness.interface import Where
from bench.harness.loop import best_loop, event_loop
from bench.harness.outcomes import CONFIRMED
from bench.harness.timed_turn import Turn, to_json
from bench.load.profile import Profile
from messagebus import AsyncConsumer, AsyncPublisher, BusConfig
from messagebus.tools.forward import (
    HANDED_OUT_MAX,
    PREFETCH,
    Forwarder,
    NextSite,
    consumer_config,
)

NAME = "reach.forward"
MESSAGES = 40_000
GOAL_RATE = 20_000
GOAL_CPU_US = 1e6 / GOAL_RATE
# Of a loop that does less.
GOAL_CPU_RATIO = 1.1
LOOK_S, WITHIN_S = 0.005, 120.0
# The loop of pika: as many messages under way as a forwarder has, acks of many together.
LOOP = {
    "name": "loop",
    "system": {"name": "pika", "brokers": 1},
    "load": {
        "schedule": {"kind": "closed", "count": MESSAGES},
        "window": HANDED_OUT_MAX,
        "prefetch": PREFETCH,
        "ack": "many",
    },
    "time": {"warm_up_s": 0},
}
HERE, THERE = "BENCH_HERE", "BENCH_THERE"


def forward_figures(setup: Setup) -> Iterator[Figure]:
    make, count = Maker(NAME, repeat_command(NAME, setup.repeat)), setup.part(MESSAGES, 4_000)
    turns: dict[str, list[Turn]] = {"forward": [], "loop": []}
    for number in range(setup.repeat):
        for what in sorted(turns, reverse=number % 2 == 1):
            turns[what].append(turn := _turn(what, count))
            setup.say(
                f"{what}: {turn.cpu_us:.1f} us of CPU a message, {turn.rate_per_s:,.0f} messages/s"
            )
    name = "One forwarder between two sites, messages of 1 KB"
    ours, pikas = turns["forward"], turns["loop"]
    cpu, rate = [each.cpu_us for each in ours], [each.rate_per_s for each in ours]
    ratios = [our.cpu_us / pika.cpu_us for our, pika in zip(ours, pikas, strict=True)]
    yield make("cpu_us", f"{name}: its CPU time a message", cpu, "us", (at_most, GOAL_CPU_US))
    yield make("rate", f"{name}, with both sites on this machine", rate, "messages/s")
    what = f"{name}: its CPU time a message, against a loop of pika"
    yield make("cpu_ratio", what, ratios, "times", (at_most, GOAL_CPU_RATIO))


def _turn(what: str, messages: int) -> Turn:
    with ExitStack() as stack:
        _, here = child(stack, "client", "serve", 1, 1, messages + WARM_UP).answer()
        _, there = child(stack, "client", "serve", 1, 1, 0).answer()
        settings = {HERE: here, THERE: there, **DIAL}
        return Turn(**child(stack, "forward", what, messages, **settings).answer())


GROUP = Group(NAME, 0, "brokers that speak AMQP and are not RabbitMQ; no HAProxy", forward_figures)


async def forward(messages: int) -> Turn:
    """Forward all messages of a site, and measure this process after WARM_UP of them."""
    topic, stopped = names(1)[0], asyncio.Event()
    here, there = (BusConfig(broker=os.environ[name]) for name in (HERE, THERE))

    def consumer() -> AsyncConsumer:
        return AsyncConsumer(
            here, topic, subscription=SUBSCRIPTION, config=consumer_config(is_ordered=False)
        )

    forwarder = Forwarder(
        consumer, lambda: AsyncPublisher(there), topic, NextSite("here", "there"), name="bench"
    )
    running = asyncio.create_task(forwarder.run(stopped))
    try:
        return await _measured(lambda: forwarder.forwarded, messages)
    finally:
        stopped.set()
        await running


async def loop_of_pika(messages: int) -> Turn:
    """Consume and publish as `forward` does, with pika's asynchronous client."""
    profile = Profile.from_values(LOOP, NAME)
    here, there = ({"MESSAGEBUS_BROKER": os.environ[name]} for name in (HERE, THERE))
    receiver = Receiver(profile, Where("loop", names(1)[0], SUBSCRIPTION, here))
    sender = Sender(profile, Where("loop", names(1)[0], "", there))
    await sender.open()
    await receiver.open()
    confirmed = sent = 0

    async def go_on() -> None:
        nonlocal confirmed, sent
        while True:
            for delivered in await receiver.take(LOOK_S):
                await sender.send(sent, delivered.body, "")
                sent += 1
            confirmed += sum(end.outcome == CONFIRMED for end in sender.ends())

    running = asyncio.create_task(go_on())
    try:
        return await _measured(lambda: confirmed, messages)
    finally:
        running.cancel()
        await receiver.close()
        await sender.close(0)


async def _measured(done: Callable[[], int], messages: int) -> Turn:
    """Measure this process from WARM_UP messages on that are done."""
    began_at = await _until(done, WARM_UP)
    before, began_s = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    count = await _until(done, messages + WARM_UP) - began_at
    took_s, after = time.perf_counter() - began_s, resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return Turn(messages=count, took_s=took_s, cpu_s=cpu_s)


async def _until(done: Callable[[], int], count: int) -> int:
    """Wait until so many messages are done. Raises BenchError after WITHIN_S."""
    until_s = time.monotonic() + WITHIN_S
    while done() < count:
        if time.monotonic() > until_s:
            raise BenchError(f"{done()} of {count} forwarded in {WITHIN_S:.0f} s")
        await asyncio.sleep(LOOK_S)
    return done()


if __name__ == "__main__":
    way = {"forward": forward, "loop": loop_of_pika}[sys.argv[1]]
    with asyncio.Runner(loop_factory=event_loop(best_loop())) as runner:
        print(to_json(runner.run(way(int(sys.argv[2])))), flush=True)
