"""The CPU time of a forwarder between two sites, per message.

The brokers are no RabbitMQ but speak AMQP, one process for each site: the figures are of the forwarder, which
is a process, too. ``python -m bench.figures.reach.forward MESSAGES`` is that process.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

from bench.errors import BenchError
from bench.figures.client.mesh import DIAL
from bench.figures.figure import Figure, Maker, at_most
from bench.figures.groups import Group, Setup, repeat_command
from bench.figures.reach.client import SUBSCRIPTION, WARM_UP, child, names
from bench.harness.loop import best_loop, event_loop
from bench.harness.timed_turn import Turn, to_json
from messagebus import AsyncConsumer, AsyncPublisher, BusConfig
from messagebus.tools.forward import Forwarder, NextSite, consumer_config

NAME = "reach.forward"
MESSAGES = 40_000
GOAL_RATE = 20_000
GOAL_CPU_US = 1e6 / GOAL_RATE
LOOK_S, WITHIN_S = 0.005, 120.0
HERE, THERE = "BENCH_HERE", "BENCH_THERE"


def forward_figures(setup: Setup) -> Iterator[Figure]:
    make, count = Maker(NAME, repeat_command(NAME, setup.repeat)), setup.part(MESSAGES, 4_000)
    turns = []
    for _ in range(setup.repeat):
        turns.append(_turn(count))
        setup.say(
            f"{turns[-1].cpu_us:.1f} us of CPU a message, {turns[-1].rate_per_s:,.0f} messages/s"
        )
    name = "One forwarder between two sites, messages of 1 KB"
    cpu, rate = [each.cpu_us for each in turns], [each.rate_per_s for each in turns]
    yield make("cpu_us", f"{name}: its CPU time a message", cpu, "us", (at_most, GOAL_CPU_US))
    yield make("rate", f"{name}, with both sites on this machine", rate, "messages/s")


def _turn(messages: int) -> Turn:
    with ExitStack() as stack:
        _, here = child(stack, "client", "serve", 1, 1, messages + WARM_UP).answer()
        _, there = child(stack, "client", "serve", 1, 1, 0).answer()
        settings = {HERE: here, THERE: there, **DIAL}
        return Turn(**child(stack, "forward", messages, **settings).answer())


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
        began_at = await _until(forwarder, WARM_UP)
        before, began_s = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        count = await _until(forwarder, messages + WARM_UP) - began_at
        took_s, after = time.perf_counter() - began_s, resource.getrusage(resource.RUSAGE_SELF)
    finally:
        stopped.set()
        await running
    cpu_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return Turn(messages=count, took_s=took_s, cpu_s=cpu_s)


async def _until(forwarder: Forwarder, count: int) -> int:
    """Wait until so many messages are forwarded. Raises BenchError after WITHIN_S."""
    until_s = time.monotonic() + WITHIN_S
    while forwarder.forwarded < count:
        if time.monotonic() > until_s:
            raise BenchError(f"{forwarder.forwarded} of {count} forwarded in {WITHIN_S:.0f} s")
        await asyncio.sleep(LOOK_S)
    return forwarder.forwarded


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=event_loop(best_loop())) as runner:
        print(to_json(runner.run(forward(int(sys.argv[1])))), flush=True)
