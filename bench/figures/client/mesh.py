"""A full mesh: 64 brokers, 50 consumer processes, a link from each to each.

The brokers are no RabbitMQ but speak AMQP, all in one process, so the figures measure the needs of the
clients. All consumers attach at the same moment; then they idle, with heartbeats.

``python -m bench.figures.client.mesh COUNT SUBSCRIPTION`` is the process of the brokers: it prints the
address of their list and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import psutil

from bench.errors import BenchError
from bench.figures.figure import Figure, Maker, below
from bench.figures.groups import Group, Setup, repeat_command
from bench.processes import Answering

NAME = "client.mesh"
TOPIC, SUBSCRIPTION = "mesh", "sink"
BROKERS, CONSUMERS = 64, 50
IDLE_S = 30.0
# Seconds after the last has attached, when the work of the start is over.
SETTLE_S = 5.0
ANSWER_WITHIN_S = 240.0
GOAL_CPU_PERCENT, GOAL_MB = 1.0, 100.0
# The default of half a second is meant for brokers with a machine of their own. Here one process serves
# all of them. 3,200 handshakes at once take it longer than that, and an abandoned dial is lost work.
DIAL_S = "60"
DIAL = dict.fromkeys(("MESSAGEBUS_DIAL_TIMEOUT_S", "MESSAGEBUS_DIAL_TIMEOUT_MAX_S"), DIAL_S)
MB = 1e6
Answer = Mapping[str, Any]


def mesh_figures(setup: Setup) -> Iterator[Figure]:
    brokers, consumers = setup.part(BROKERS, 8), setup.part(CONSUMERS, 5)
    with ExitStack() as stack:
        server = _child(stack, "mesh", str(brokers), f"{TOPIC}/{SUBSCRIPTION}")
        env = {"MESSAGEBUS_LIST_URL": server.line(), **DIAL}
        before = rss_bytes_of(server.pid)
        clients = [
            _child(stack, "idle_client", TOPIC, SUBSCRIPTION, **env) for _ in range(consumers)
        ]
        for client in clients:
            client.answer()
        setup.say(f"{consumers} consumers are about to attach to {brokers} brokers")
        attached = _answers(clients)
        setup.say(f"the last has attached after {max(a['attach_s'] for a in attached):.1f} s")
        time.sleep(SETTLE_S + (IDLE_S if not setup.quick else 5.0))
        server_link_bytes = (rss_bytes_of(server.pid) - before) / (brokers * consumers)
        idle = _answers(clients)
    if any(answer["links"] != brokers for answer in [*attached, *idle]):
        raise BenchError("not every consumer was attached to every broker all the time")
    yield from figures_of(
        attached, idle, server_link_bytes, brokers=brokers, repeat=repeat_command(NAME)
    )


def figures_of(
    attached: Sequence[Answer],
    idle: Sequence[Answer],
    server_link_bytes: float,
    *,
    brokers: int,
    repeat: str,
) -> Iterator[Figure]:
    """Make the figures: the worst of all consumers; memory per link is the mean."""
    mesh = f"{brokers} brokers and {len(idle)} consumers"
    make = Maker(NAME, repeat)
    what = f"{mesh}, all starting at once on this machine: until the last is attached to all"
    yield make("attach_s", what, max(answer["attach_s"] for answer in attached), "s")
    cpu = max(answer["cpu_percent"] for answer in idle)
    what = f"{mesh}: CPU of the busiest consumer at rest, of one core"
    yield make("idle_cpu_percent", what, cpu, "%", (below, GOAL_CPU_PERCENT))
    memory = max(answer["rss_bytes"] for answer in idle) / MB
    what = f"{mesh}: memory of the largest consumer process"
    yield make("consumer_mb", what, memory, "MB", (below, GOAL_MB))
    of_link = sum(answer["link_bytes"] for answer in idle) / len(idle)
    yield make("link_kb", f"{mesh}: memory of one link in the consumer", of_link / 1e3, "KB")
    what = f"{mesh}: memory of one link in the process of the brokers, which are not RabbitMQ"
    yield make("server_link_kb", what, server_link_bytes / 1e3, "KB")


def rss_bytes_of(pid: int) -> int:
    """Return the resident memory of another process."""
    return int(psutil.Process(pid).memory_info().rss)


def _answers(clients: Sequence[Answering]) -> list[Answer]:
    """Tell all clients to continue, then read their answers."""
    for client in clients:
        client.tell()
    return [client.answer() for client in clients]


def _child(stack: ExitStack, module: str, *arguments: str, **settings: str) -> Answering:
    """Start a process of a module beside this one. settings: of its client. It ends with the stack."""
    plain = {key: text for key, text in os.environ.items() if not key.startswith("MESSAGEBUS_")}
    argv = [sys.executable, "-m", f"bench.figures.client.{module}", *arguments]
    return stack.enter_context(Answering(argv, plain | settings, ANSWER_WITHIN_S))


GROUP = Group(NAME, 0, "brokers that speak AMQP and are not RabbitMQ; no HAProxy", mesh_figures)


async def _serve(count: int, subscription: str) -> None:
    from tests.support.fake_amqp import FakeRabbit, serve
    from tests.support.fake_list import FakeList, serve_list

    rabbits = [FakeRabbit() for _ in range(count)]
    async with serve(*rabbits):
        for rabbit in rabbits:
            rabbit.hold(subscription)
        async with serve_list(FakeList(rabbit.name for rabbit in rabbits)) as listing:
            print(listing.url, flush=True)
            await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
    asyncio.run(_serve(int(sys.argv[1]), sys.argv[2]))
