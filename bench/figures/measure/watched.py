"""Processes under observation: a command with its children, or a process that answers questions.

The cost of an answer is the work of a running process, without its start.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psutil

from bench.environment import CHECKOUT
from bench.errors import BenchError
from bench.processes import Answering

WATCH_S = 0.1
WITHIN_S, ANSWER_WITHIN_S = 3600.0, 600.0
HEAP = "-Xmx"


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a process and its children. said: its standard output. heap: ``1g``, of a JVM."""

    cpu_s: float
    memory_mib: float
    said: str
    heap: str = ""


def watched(argv: Sequence[str], *, asked: str = "", may_fail: bool = False) -> Cost:
    """Run a command to its end and measure its cost. Raises BenchError when it fails.

    asked: its standard input.
    """
    with (
        tempfile.TemporaryFile("w+") as given,
        tempfile.TemporaryFile("w+") as said,
        tempfile.TemporaryFile("w+") as complained,
    ):
        given.write(asked)
        given.seek(0)
        with subprocess.Popen(
            argv, cwd=CHECKOUT, stdin=given, stdout=said, stderr=complained, text=True
        ) as process:
            cpu_s, memory, heap = _watch(psutil.Process(process.pid))
            status = process.wait(WITHIN_S)
        for file in (said, complained):
            file.seek(0)
        told, complaint = said.read(), complained.read()
    if status and not may_fail:
        last = (complaint.strip() or told.strip() or "it said nothing").splitlines()[-1]
        raise BenchError(f"{argv[-1]}: {last}")
    return Cost(cpu_s, memory / (1 << 20), told, heap)


def _watch(root: psutil.Process) -> tuple[float, int, str]:
    """Return a process tree's CPU seconds, the most memory that it had at once, and a JVM's heap."""
    used: dict[int, float] = {}
    most, heap = 0, ""
    while root.is_running() and root.status() != psutil.STATUS_ZOMBIE:
        now = 0
        for each in _tree(root):
            try:
                times = each.cpu_times()
                used[each.pid] = times.user + times.system
                now += each.memory_info().rss
                # Of several options of a JVM the last one counts.
                given = [part for part in each.cmdline() if part.startswith(HEAP)]
                heap = given[-1].removeprefix(HEAP) if given else heap
            except psutil.Error:
                continue
        most = max(most, now)
        time.sleep(WATCH_S)
    return sum(used.values()), most, heap


def _tree(root: psutil.Process) -> list[psutil.Process]:
    """Return a process and all its living descendants."""
    try:
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return [root]


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer. cpu_s: CPU time of the process and its children."""

    found: Any
    cpu_s: float


class Asked:
    """A process made by `asking`; it reads a question a line, and answers each with a line of JSON."""

    def __init__(self, process: Answering) -> None:
        self._process = process
        self._root = psutil.Process(process.pid)

    def ask(self, question: str) -> Answered:
        """Ask a question. Raises BenchError when the process ends, or takes longer than `ANSWER_WITHIN_S`."""
        before_s = self._cpu_s()
        self._process.tell(question)
        found = self._process.answer()
        return Answered(found, self._cpu_s() - before_s)

    def _cpu_s(self) -> float:
        used = 0.0
        for each in _tree(self._root):
            with suppress(psutil.Error):
                times = each.cpu_times()
                used += times.user + times.system
        return used


@contextmanager
def asking(argv: Sequence[str]) -> Iterator[Asked]:
    """Start a process; end it on exit."""
    with Answering(argv, os.environ, ANSWER_WITHIN_S) as process:
        yield Asked(process)
