"""A thousand publishers of sixteen brokers, in ten processes, whose balancer dies and comes back.

By turns with as many bare connections of pika, in as many processes: what the brokers need for so many logins
on this machine. Both kinds open some at a time. pika's go to the first broker that HAProxy finds, so they are
not spread evenly afterwards; a publisher also asks for the consumer list.

``python -m bench.figures.reach.storm KIND COUNT`` is a process with `COUNT` clients of a kind, messagebus or
pika. It prints one JSON object after each line of its standard input.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import psutil

from bench.clients.pika import Kept
from bench.figures.figure import Figure, Maker, at_most
from bench.figures.groups import BEHIND_HAPROXY, Group, Setup, repeat_command
from bench.figures.reach.used import MB
from bench.processes import Answering, wait_until
from messagebus import AsyncPublisher, BusConfig
from ops.local.cluster import LocalCluster

NAME = "reach.storm"
BROKERS, PUBLISHERS, PROCESSES = 16, 1_000, 10
ANSWER_WITHIN_S, OPEN_WITHIN_S, AWAY_S, POLL_S = 60.0, 300.0, 2.0, 0.05
HAPROXY = "haproxy"
# Of pika's connections, in a process at the same time.
DIALS_AT_ONCE = 4
GOAL_STORM_S, GOAL_SPREAD, GOAL_MB = 10.0, 1.1, 1.0
KINDS = ("pika", "messagebus")


@dataclass(frozen=True, slots=True)
class Found:
    """Times and counts of one kind of client.

    start_s: until all were connected. back_s: until the last was connected again, from the time at which the
    balancer led to a broker. refused: logins. fullest: clients of the fullest broker, to the mean.
    """

    start_s: float
    back_s: float
    refused: int
    fullest: float
    client_mb: float


def storm_figures(setup: Setup) -> Iterator[Figure]:
    make, count = Maker(NAME, repeat_command(NAME)), setup.part(PUBLISHERS, PROCESSES)
    found = {kind: _storm(setup, kind, count) for kind in KINDS}
    ours, floor = found["messagebus"], found["pika"]
    name = f"{count} publishers in {PROCESSES} processes, {BROKERS} brokers"
    again = f"{name}: from when HAProxy leads to a broker again until the last is connected"
    yield make(
        "start_s", f"{name}, starting at once: until the last is connected", ours.start_s, "s"
    )
    for id, what, mine, theirs in (
        ("start", "until all are connected", ours.start_s, floor.start_s),
        ("back", "until all are connected again", ours.back_s, floor.back_s),
    ):
        text = f"{name}, {what}, times as many bare connections of pika"
        yield make(f"{id}_pika", text, mine / theirs, "times")
    yield make("back_s", again, ours.back_s, "s", (at_most, GOAL_STORM_S))
    yield make("refused", f"{name}: refused logins", ours.refused, "logins", (at_most, 0))
    what = f"{name}: publishers of the fullest broker, to the mean"
    yield make("fullest", what, ours.fullest, "times", (at_most, GOAL_SPREAD))
    what = f"{name}: memory of an idle publisher beyond its process"
    yield make("client_mb", what, ours.client_mb, "MB", (at_most, GOAL_MB))


def _storm(setup: Setup, kind: str, count: int) -> Found:
    cluster = setup.cluster
    with ExitStack() as stack:
        clients = [_client(stack, cluster, kind, count // PROCESSES) for _ in range(PROCESSES)]
        rss = sum(each.answer()["rss_bytes"] for each in clients)
        start_s = _until_open(clients, count)
        used = sum(each["rss_bytes"] for each in _answers(clients)) - rss
        cluster.kill(HAPROXY)
        wait_until(lambda: not _open(clients), within_s=OPEN_WITHIN_S, what="the end of all links")
        time.sleep(AWAY_S)
        cluster.start(HAPROXY, wait=False)
        wait_until(lambda: _open(clients), within_s=OPEN_WITHIN_S, what="a link")
        back_s = _until_open(clients, count)
        at, refused = Counter[str](), 0
        for each in _answers(clients):
            at.update(each["brokers"])
            refused += each["refused"]
    setup.say(
        f"{kind}: {start_s:.1f} s until all were connected, {back_s:.1f} s again, {sorted(at.values())}"
    )
    fullest = max(at.values()) * BROKERS / at.total()
    return Found(start_s, back_s, refused, fullest, used / count / MB)


def _client(stack: ExitStack, cluster: LocalCluster, kind: str, count: int) -> Answering:
    plain = {key: text for key, text in os.environ.items() if not key.startswith("MESSAGEBUS_")}
    argv = [sys.executable, "-m", "bench.figures.reach.storm", kind, str(count)]
    return stack.enter_context(Answering(argv, plain | cluster.client_env(), ANSWER_WITHIN_S))


def _answers(clients: Sequence[Answering]) -> list[dict[str, Any]]:
    for client in clients:
        client.tell()
    return [client.answer() for client in clients]


def _open(clients: Sequence[Answering]) -> int:
    return sum(sum(each["brokers"].values()) for each in _answers(clients))


def _until_open(clients: Sequence[Answering], count: int) -> float:
    """Wait until so many are connected; return the time it took, in s."""
    began_s = time.monotonic()
    wait_until(lambda: _open(clients) == count, within_s=OPEN_WITHIN_S, what="every link")
    return time.monotonic() - began_s


GROUP = Group(NAME, BROKERS, BEHIND_HAPROXY, storm_figures)


# The process.


class _Refused(logging.Handler):
    """Counts refused logins, of which the library logs one a second at most."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += record.msg.startswith("login refused")


async def _publishers(bus: BusConfig, count: int) -> Callable[[], list[str]]:
    publishers = [AsyncPublisher(bus) for _ in range(count)]
    for each in publishers:
        await each.start()
    return lambda: [each.stats().broker for each in publishers]


async def _connections(bus: BusConfig, count: int) -> Callable[[], list[str]]:
    places = asyncio.Semaphore(DIALS_AT_ONCE)
    kept = [Kept(bus, places) for _ in range(count)]
    tasks = [asyncio.create_task(each.run()) for each in kept]
    return lambda: [each.broker for each in kept if tasks]


async def main(kind: str, count: int) -> None:
    refused, loop = _Refused(), asyncio.get_running_loop()
    logging.getLogger("messagebus.publisher").addHandler(refused)
    bus, begin = (
        BusConfig.from_env(os.environ),
        _publishers if kind == "messagebus" else _connections,
    )
    say(brokers={}, refused=0)
    await loop.run_in_executor(None, sys.stdin.readline)
    brokers = await begin(bus, count)
    while True:
        say(brokers=Counter(filter(None, brokers())), refused=refused.count)
        if not await loop.run_in_executor(None, sys.stdin.readline):
            os._exit(0)  # it ends the links: nothing is in flight


def say(**values: object) -> None:
    print(json.dumps({"rss_bytes": psutil.Process().memory_info().rss, **values}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
