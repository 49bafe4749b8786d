"""The processes of a trial, which are killed and frozen, and are started again as a supervisor would.

Every process is one start of a program: worker-1.3 is the third start of worker-1.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

from bench.environment import CHECKOUT
from bench.processes import Children, wait_until
from bench.trials.once_judge import KILLED, STOOD, Happening

STOP_WITHIN_S = 30.0
LOOK_S = 0.1


class Fleet:
    """Programs of several kinds, of each some processes. Faults come from one thread at a time.

    programs: kind -> arguments of ``python -m``. numbers: kind -> processes. setting: environment variable
    that gets the name of the start. happened: what befell processes, for a judge.
    """

    def __init__(
        self,
        logs: Path,
        programs: Mapping[str, tuple[str, ...]],
        numbers: Mapping[str, int],
        *,
        setting: str,
    ) -> None:
        self._children = Children(logs)
        self._programs, self._numbers, self._setting = programs, numbers, setting
        self._env: Mapping[str, str] = {}
        self._starts: Counter[str] = Counter()
        self._alive: dict[str, str] = {}
        self._frozen: set[str] = set()
        self._is_ending = threading.Event()
        self._lock = threading.RLock()
        self.happened: list[Happening] = []
        self.ended_alone = 0
        """Processes that ended without a fault, and were started again."""

    def start(self, env: Mapping[str, str]) -> None:
        """Start all. env: whole environment of each."""
        self._env = env
        for kind, count in self._numbers.items():
            for number in range(count):
                self._start(f"{kind}-{number + 1}")
        threading.Thread(target=self._keep_alive, daemon=True).start()

    @property
    def alive(self) -> dict[str, str]:
        """Name -> name of its present start."""
        with self._lock:
            return dict(self._alive)

    def pid(self, name: str) -> int:
        with self._lock:
            return self._children.pid(self._alive[name])

    def kill(self, kinds: Collection[str], number: int) -> None:
        """Kill a process of each kind, and start it again. number: chooses it."""
        for kind in kinds:
            name = self._chosen(kind, number)
            with self._lock:
                started, began_ns = self._alive[name], time.monotonic_ns()
                self._signal(started, signal.SIGKILL)
                self._wait_ended(started)
                self.happened.append(Happening(KILLED, started, began_ns, time.monotonic_ns()))
                self._start(name)

    def freeze(self, kinds: Collection[str], number: int, *, lasts_s: float) -> None:
        """Let a process of each kind stand for so long."""
        with self._lock:
            frozen = {self._alive[self._chosen(kind, number)] for kind in kinds}
            self._frozen |= frozen
            began_ns = time.monotonic_ns()
            for started in frozen:
                self._signal(started, signal.SIGSTOP)
        self._is_ending.wait(lasts_s)
        with self._lock:
            for started in frozen:
                self._signal(started, signal.SIGCONT)
                self.happened.append(Happening(STOOD, started, began_ns, time.monotonic_ns()))
            self._frozen -= frozen

    def stop(self, kinds: Collection[str]) -> None:
        """End all processes of these kinds for good. Raises BenchError when one does not end."""
        with self._lock:
            names = [name for name in self._alive if name.rpartition("-")[0] in kinds]
            ending = [self._alive.pop(name) for name in names]
            self._children.terminate(ending)
            for started in ending:
                self._wait_ended(started)

    def end(self) -> None:
        """End everything, whatever its state; the last call."""
        self._is_ending.set()
        with self._lock:
            for started in self._frozen:
                self._signal(started, signal.SIGCONT)
            self._children.stop_all()

    def _chosen(self, kind: str, number: int) -> str:
        return f"{kind}-{1 + number % self._numbers[kind]}"

    def _start(self, name: str) -> None:
        self._starts[name] += 1
        started = f"{name}.{self._starts[name]}"
        argv = [sys.executable, "-m", *self._programs[name.rpartition("-")[0]]]
        env = {**self._env, self._setting: started}
        self._children.start(started, argv, env, CHECKOUT)
        self._alive[name] = started

    def _keep_alive(self) -> None:
        """Start again what ends by itself, such as a relay that finds no database at its start."""
        before_ns = time.monotonic_ns()
        while not self._is_ending.wait(LOOK_S):
            with self._lock:
                now_ns = time.monotonic_ns()
                for name, started in list(self._alive.items()):
                    if not self._is_ending.is_set() and not self._children.running([started]):
                        self.happened.append(Happening(KILLED, started, before_ns, now_ns))
                        self.ended_alone += 1
                        self._start(name)
                before_ns = now_ns

    def _signal(self, started: str, number: signal.Signals) -> None:
        # A child that nobody has waited for keeps its pid.
        if self._children.running([started]):
            os.kill(self._children.pid(started), number)

    def _wait_ended(self, started: str) -> None:
        wait_until(
            lambda: not self._children.running([started]),
            within_s=STOP_WITHIN_S,
            what=f"{started} ends",
        )
