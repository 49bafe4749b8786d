"""The bus in memory for tests of applications: its speed, and the time until a test begins."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial

from bench.environment import CHECKOUT
from bench.errors import BenchError
from bench.figures.form import Figure, at_least, below, median_of
from bench.figures.scene import (
    Case,
    Group,
    Scene,
    Turns,
    interleaved,
    rate_and_cpu,
    repeat_command,
    sized,
)
from bench.systems.turn import Task

__all__ = ["GROUP", "cases_of", "figures_of", "import_ms"]

NAME = "comfort.memory"
SYSTEM = "ours_memory"
WINDOW = 1000
MESSAGES = 300_000
GOAL_RATE, GOAL_START_MS = 100_000.0, 50.0
IMPORT_WITHIN_S = 60.0
# Run in a fresh interpreter with nothing loaded: asyncio, ssl and pika take most of the time.
IMPORT = """
import time
began = time.perf_counter()
import messagebus.testing.bus
print((time.perf_counter() - began) * 1000)
"""


def memory_bus_figures(scene: Scene) -> Iterator[Figure]:
    turns = interleaved(scene, cases_of(scene), lambda _case: None)
    imports = [import_ms() for _ in range(scene.repeat)]
    yield from figures_of(turns, imports, repeat_command(NAME, scene.repeat))


def cases_of(scene: Scene) -> list[Case]:
    nowhere = Task(
        verb="publish",
        broker="memory-1:5672",
        list_url="",
        user="",
        password_file="",
        topic="orders",
        subscription="billing",
        window=WINDOW,
    )
    return [
        Case("async", SYSTEM, sized(nowhere, scene, MESSAGES)),
        Case("start", SYSTEM, sized(nowhere, scene, 1)),
    ]


def import_ms() -> float:
    """Measure the import of the bus in memory. Raises BenchError."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORT],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=IMPORT_WITHIN_S,
        check=False,
    )
    if done.returncode:
        raise BenchError(f"importing messagebus.testing: {done.stderr.strip()[-200:]}")
    return float(done.stdout)


def figures_of(turns: Turns, imports: Sequence[float], repeat: str) -> Iterator[Figure]:
    yield from rate_and_cpu(
        turns,
        "async",
        id=f"{NAME}.",
        what="In memory: published, received and acked, 1 KB, both asyncio clients in one process",
        repeat=repeat,
        rate_goal=partial(at_least, GOAL_RATE, unit="messages/s"),
    )
    yield median_of(
        [turn.took_s * 1000 for turn in turns["start"]],
        id=f"{NAME}.start_ms",
        what="In memory: a whole test with both blocking clients and one message, without imports",
        unit="ms",
        repeat=repeat,
        goal=partial(below, GOAL_START_MS, unit="ms"),
    )
    yield median_of(
        imports,
        id=f"{NAME}.import_ms",
        what="Importing messagebus.testing with all behind it, once in a process",
        unit="ms",
        repeat=repeat,
    )


GROUP = Group(NAME, 0, "no broker: in memory", memory_bus_figures)
