"""A process that is asked one question after another, and what each answer costs it.

What is measured is thus its work, and not its start.
"""

from __future__ import annotations

import json
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil

from bench.environment import CHECKOUT
from bench.errors import BenchError
from bench.figures.measure.watched import below

__all__ = ["Asked", "Told", "asking"]

WITHIN_S = 600.0


@dataclass(frozen=True, slots=True)
class Told:
    """cpu_s: of the process and all that it started."""

    found: Any
    cpu_s: float
    took_s: float


class Asked:
    """Of `asking`. process: it takes a question a line, and gives a line of JSON for each."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._tree = psutil.Process(process.pid)

    def ask(self, question: str) -> Told:
        """Raises BenchError when it ends, or takes longer than `WITHIN_S`."""
        before_s, began_s = self._cpu_s(), time.monotonic()
        assert self._process.stdin
        assert self._process.stdout
        try:
            print(question, file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise BenchError(f"it ended before it was asked for {question}") from None
        readable, _, _ = select.select([self._process.stdout], [], [], WITHIN_S)
        line = self._process.stdout.readline() if readable else ""
        if not line.endswith("\n"):
            raise BenchError(f"no answer to {question}")
        return Told(json.loads(line), self._cpu_s() - before_s, time.monotonic() - began_s)

    def _cpu_s(self) -> float:
        used = 0.0
        for each in [self._tree, *below(self._tree)]:
            try:
                times = each.cpu_times()
            except psutil.Error:
                continue
            used += times.user + times.system
        return used


@contextmanager
def asking(argv: Sequence[str]) -> Iterator[Asked]:
    """Start a process, and end it on the way out. Raises BenchError with its last words if it failed."""
    with (
        tempfile.TemporaryFile("w+") as complaints,
        subprocess.Popen(
            argv,
            cwd=CHECKOUT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
        ) as process,
    ):
        try:
            yield Asked(process)
        except BenchError as fault:
            process.kill()
            complaints.seek(0)
            last = ([str(fault), *complaints.read().splitlines()])[-1]
            raise BenchError(f"{' '.join(argv[1:3])}: {fault}: {last}") from fault
        finally:
            # The end of its questions is its own.
            assert process.stdin
            process.stdin.close()
