"""A full mesh: 64 brokers, 50 consumer processes, a link from each to each.

The brokers are no RabbitMQ but speak AMQP, all in one process, so the figures measure the needs of the
clients. All consumers attach at the same moment; then they idle, with heartbeats.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.environment import CHECKOUT
from bench.errors import BenchError
from bench.figures.client_memory import MB, rss_bytes_of
from bench.figures.form import Figure, below
from bench.figures.scene import Group, Scene, repeat_command

__all__ = ["GROUP", "figures_of"]

NAME = "client.mesh"
TOPIC, SUBSCRIPTION = "mesh", "sink"
BROKERS, CONSUMERS = 64, 50
IDLE_S = 30.0
# Seconds after the last has attached, when the work of the start is over.
SETTLE_S = 5.0
ANSWER_WITHIN_S = 240.0
STOP_WITHIN_S = 10.0
GOAL_CPU_PERCENT, GOAL_MB = 1.0, 100.0
Answer = Mapping[str, Any]


def mesh_figures(scene: Scene) -> Iterator[Figure]:
    brokers, consumers = scene.part(BROKERS, 8), scene.part(CONSUMERS, 5)
    module = "bench.figures.client"
    with ExitStack() as stack:
        server = _Child(stack, f"{module}.mesh_brokers", str(brokers), f"{TOPIC}/{SUBSCRIPTION}")
        url = server.line()
        before = rss_bytes_of(server.pid)
        clients = [
            _Child(stack, f"{module}.mesh_consumer", url, TOPIC, SUBSCRIPTION)
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


def _asked(clients: Sequence[_Child]) -> list[Answer]:
    """Tell all clients to continue, then read their answers."""
    for client in clients:
        client.go_on()
    return [client.answer() for client in clients]


@dataclass(slots=True, init=False)
class _Child:
    """A process that is controlled by lines and answers in lines; it ends with the stack."""

    process: subprocess.Popen[str]

    def __init__(self, stack: ExitStack, module: str, *arguments: str) -> None:
        env = {key: text for key, text in os.environ.items() if not key.startswith("MESSAGEBUS_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=CHECKOUT,
            env=env,
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
