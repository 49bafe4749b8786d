"""A full mesh: 64 brokers, 50 consumer processes, a link from each to each.

The brokers are no RabbitMQ but speak AMQP, all in one process, so the figures measure the needs of the
clients. All consumers attach at the same moment; then they idle, with heartbeats. The same processes show
what one publisher or consumer costs at rest.

``python -m bench.figures.client.mesh COUNT SUBSCRIPTION`` is the process of the brokers: it prints the
address of their list and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil

from bench.environment import CHECKOUT
from bench.errors import BenchError
from bench.figures.form import Figure, below
from bench.figures.scene import Group, Scene, repeat_command
from ops.local.cluster import LocalCluster

__all__ = ["GROUP", "MB", "figures_of", "mesh_figures", "rest_figures", "rss_bytes_of"]

NAME = "client.mesh"
TOPIC, SUBSCRIPTION = "mesh", "sink"
BROKERS, CONSUMERS = 64, 50
IDLE_S = 30.0
# Seconds after the last has attached, when the work of the start is over.
SETTLE_S = 5.0
ANSWER_WITHIN_S = 240.0
STOP_WITHIN_S = 10.0
GOAL_CPU_PERCENT, GOAL_MB = 1.0, 100.0
# The default of half a second is meant for brokers with a machine of their own. Here one process serves
# all of them. 3,200 handshakes at once take it longer than that, and an abandoned dial is lost work.
DIAL_MS = "60000"
DIAL = dict.fromkeys(("MESSAGEBUS_DIAL_TIMEOUT_MS", "MESSAGEBUS_DIAL_TIMEOUT_MAX_MS"), DIAL_MS)
REST_SETTLE_S, REST_S = 2.0, 10.0
GOAL_REST_MB = 60.0
REST_REPEAT = "python -m bench figures way.memory"
MB = 1e6
Answer = Mapping[str, Any]


def mesh_figures(scene: Scene) -> Iterator[Figure]:
    brokers, consumers = scene.part(BROKERS, 8), scene.part(CONSUMERS, 5)
    with ExitStack() as stack:
        server = _Child(stack, "mesh", str(brokers), f"{TOPIC}/{SUBSCRIPTION}")
        env = {"MESSAGEBUS_LIST_URL": server.line(), **DIAL}
        before = rss_bytes_of(server.pid)
        clients = [
            _Child(stack, "idle", "consumer", TOPIC, SUBSCRIPTION, env=env)
            for _ in range(consumers)
        ]
        for client in clients:
            client.answer()
        scene.say(f"{consumers} consumers are about to attach to {brokers} brokers")
        attached = _asked(clients)
        scene.say(f"the last has attached after {max(a['attach_s'] for a in attached):.1f} s")
        time.sleep(SETTLE_S + (IDLE_S if not scene.quick else 5.0))
        server_link_bytes = (rss_bytes_of(server.pid) - before) / (brokers * consumers)
        idle = _asked(clients)
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
    figure = partial(Figure, repeat=repeat)
    yield figure(
        id=f"{NAME}.attach_s",
        what=f"{mesh}, all starting at once on this machine: until the last is attached to all",
        value=max(answer["attach_s"] for answer in attached),
        unit="s",
    )
    cpu = max(answer["cpu_percent"] for answer in idle)
    yield figure(
        id=f"{NAME}.idle_cpu_percent",
        what=f"{mesh}: CPU of the busiest consumer at rest, of one core",
        value=cpu,
        unit="%",
        **below(GOAL_CPU_PERCENT, cpu, "%"),
    )
    memory = max(answer["rss_bytes"] for answer in idle) / MB
    yield figure(
        id=f"{NAME}.consumer_mb",
        what=f"{mesh}: memory of the largest consumer process",
        value=memory,
        unit="MB",
        **below(GOAL_MB, memory, "MB"),
    )
    yield figure(
        id=f"{NAME}.link_kb",
        what=f"{mesh}: memory of one link in the consumer",
        value=sum(answer["link_bytes"] for answer in idle) / len(idle) / 1e3,
        unit="KB",
    )
    yield figure(
        id=f"{NAME}.server_link_kb",
        what=f"{mesh}: memory of one link in the process of the brokers, which are not RabbitMQ",
        value=server_link_bytes / 1e3,
        unit="KB",
    )


def rest_figures(
    cluster: LocalCluster, kind: str, topic: str, subscription: str, rest_s: float = REST_S
) -> Iterator[Figure]:
    """Measure one publisher or consumer of a cluster at rest."""
    with ExitStack() as stack:
        client = _Child(stack, "idle", kind, topic, subscription, env=cluster.client_env())
        client.answer()
        _asked([client])
        time.sleep(REST_SETTLE_S)
        _asked([client])
        time.sleep(rest_s)
        (found,) = _asked([client])
    memory_mb, cpu_percent = found["rss_bytes"] / MB, found["cpu_percent"]
    yield Figure(
        id=f"way.rest.{kind}_mb",
        what=f"Memory of a {kind} at rest, the interpreter included",
        value=memory_mb,
        unit="MB",
        repeat=REST_REPEAT,
        **below(GOAL_REST_MB, memory_mb, "MB"),
    )
    yield Figure(
        id=f"way.rest.{kind}_cpu_percent",
        what=f"CPU of a {kind} at rest, of one core",
        value=cpu_percent,
        unit="%",
        repeat=REST_REPEAT,
        **below(GOAL_CPU_PERCENT, cpu_percent, "%"),
    )


def rss_bytes_of(pid: int) -> int:
    """Return the resident memory of another process."""
    return int(psutil.Process(pid).memory_info().rss)


def _asked(clients: Sequence[_Child]) -> list[Answer]:
    """Tell all clients to continue, then read their answers."""
    for client in clients:
        client.go_on()
    return [client.answer() for client in clients]


@dataclass(slots=True, init=False)
class _Child:
    """A process of a module beside this one. It is controlled by lines and answers in lines.

    env: the settings of its client. It ends with the stack.
    """

    process: subprocess.Popen[str]

    def __init__(
        self, stack: ExitStack, module: str, *arguments: str, env: Mapping[str, str] | None = None
    ) -> None:
        plain = {key: text for key, text in os.environ.items() if not key.startswith("MESSAGEBUS_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"bench.figures.client.{module}", *arguments],
            cwd=CHECKOUT,
            env=plain | dict(env or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(self._stop)

    @property
    def pid(self) -> int:
        return self.process.pid

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def line(self) -> str:
        """Read the next line. Raises BenchError when none comes."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], ANSWER_WITHIN_S)[0]:
            raise BenchError(f"no answer within {ANSWER_WITHIN_S:.0f} s")
        if not (line := self.process.stdout.readline().strip()):
            raise BenchError(f"a process of the mesh ended: {self.process.wait(STOP_WITHIN_S)}")
        return line

    def answer(self) -> Answer:
        found: Answer = json.loads(self.line())
        return found

    def _stop(self) -> None:
        """Close the pipes, which ends the process; kill it if it does not end."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self.process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(STOP_WITHIN_S)


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
