"""Runs a command to its end and sees what it uses, with all that it starts."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from bench.environment import CHECKOUT
from bench.errors import BenchError

__all__ = ["Cost", "below", "watched"]

WATCH_S = 0.1
WITHIN_S = 3600.0
HEAP = "-Xmx"


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a process and all that it started. said: its standard output. heap: ``1g``, of a JVM."""

    cpu_s: float
    memory_mib: float
    took_s: float
    said: str
    heap: str = ""


def watched(argv: Sequence[str], *, may_fail: bool = False) -> Cost:
    """Run a command to its end and see what it uses. Raises BenchError when it fails."""
    began_s = time.monotonic()
    with subprocess.Popen(
        argv, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        cpu_s, memory, heap = _watch(psutil.Process(process.pid))
        said, complained = process.communicate(timeout=WITHIN_S)
    if process.returncode and not may_fail:
        last = (complained.strip() or said.strip() or "it said nothing").splitlines()[-1]
        raise BenchError(f"{argv[-1]}: {last}")
    return Cost(cpu_s, memory / (1 << 20), time.monotonic() - began_s, said, heap)


def _watch(root: psutil.Process) -> tuple[float, int, str]:
    """CPU seconds of a tree of processes, the most memory that it had at once, and a JVM's heap."""
    used: dict[int, float] = {}
    most, heap = 0, ""
    while root.is_running() and root.status() != psutil.STATUS_ZOMBIE:
        now = 0
        for each in [root, *below(root)]:
            try:
                times = each.cpu_times()
                used[each.pid] = times.user + times.system
                now += each.memory_info().rss
                heap = _heap(each) or heap
            except psutil.Error:
                continue
        most = max(most, now)
        time.sleep(WATCH_S)
    return sum(used.values()), most, heap


def _heap(process: psutil.Process) -> str:
    """What a JVM was started with, which is what it has: of several, the last one counts."""
    given = [argument for argument in process.cmdline() if argument.startswith(HEAP)]
    return given[-1].removeprefix(HEAP) if given else ""


def below(root: psutil.Process) -> list[psutil.Process]:
    """All that it started and that lives."""
    try:
        found: list[psutil.Process] = root.children(recursive=True)
    except psutil.Error:
        return []
    return found
