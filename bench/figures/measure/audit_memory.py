"""The audit with a quarter of the memory: it spills to disk and gives the same answer."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.environment import CHECKOUT
from bench.errors import BenchError
from bench.figures.form import Figure, at_most
from bench.figures.measure.audit import cost_of
from bench.figures.measure.made import RUN_ID, lay
from bench.figures.measure.watched import Cost, watched
from bench.figures.scene import Group, Scene, repeat_command

__all__ = ["GROUP", "memory_figures", "submit"]

NAME = "measure.memory"
# The part of the messages that a task groups at once does not fit into the smaller heap.
MESSAGES = 10_000_000
LEAST = 10_000
HEAPS = ("4g", "1g")
# A JVM needs more than its heap: code, threads, buffers; and there is the Python process.
MEMORY_MAX_MIB = 2048


def memory_figures(scene: Scene) -> Iterator[Figure]:
    messages = scene.part(MESSAGES, LEAST)
    lake = scene.folder / "lake"
    lay(lake, messages)
    found: dict[str, tuple[Cost, Any]] = {}
    for heap in HEAPS:
        scene.say(f"audit of {messages:,} messages with {heap}")
        found[heap] = _audited(lake, heap)
    (_, wanted), (_, got) = (found[heap] for heap in HEAPS)
    if got != wanted:
        raise BenchError(
            f"{NAME}: the audit with {HEAPS[1]} says something else than with {HEAPS[0]}"
        )
    for heap, (cost, _) in found.items():
        what = f"Audit by spark-submit --driver-memory {heap}"
        yield from cost_of(f"{NAME}.{heap}", what, messages, cost, repeat_command(NAME))
    least = found[HEAPS[1]][0].memory_mib
    yield Figure(
        id=f"{NAME}.same",
        what=f"Memory with which the audit answers the same as with {HEAPS[0]}",
        value=least,
        unit="MiB",
        repeat=repeat_command(NAME),
        **at_most(MEMORY_MAX_MIB, least, "MiB"),
    )


def _audited(lake: Path, heap: str) -> tuple[Cost, Any]:
    """Audit with a heap size. Raises BenchError when the JVM has another heap, or there is no answer."""
    out = lake / f"out-{heap}"
    argv = [str(CHECKOUT / "spark" / "jobs" / "audit.py"), "--run", RUN_ID]
    cost = watched([*submit(heap), *argv, "--lake", str(lake), "--out", str(out)], may_fail=True)
    if cost.heap != heap:
        raise BenchError(f"{NAME}: told {heap}, the JVM has {cost.heap or 'what it likes'}")
    try:
        return cost, json.loads((out / "audit.json").read_text())
    except FileNotFoundError as fault:
        raise BenchError(f"{NAME}: no answer with {heap}: {cost.said}") from fault


def submit(heap: str) -> list[str]:
    """Build the command of a job with that much memory; Spark's scripts find this Python by the PATH."""
    folder = Path(sys.executable).parent
    path = f"PATH={folder}:{os.environ['PATH']}"
    return [
        "env",
        path,
        str(folder / "spark-submit"),
        "--master",
        "local[2]",
        "--driver-memory",
        heap,
    ]


GROUP = Group(NAME, 0, "no broker", memory_figures)
