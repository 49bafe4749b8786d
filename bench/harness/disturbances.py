"""Disturbances of the brokers during a run: each begins at its second and ends after its time."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from bench.faults import Fault
from bench.harness.interface import Running
from bench.load.profile import Disturbance
from messagebus.telemetry.manifest import Incident

__all__ = ["Disturber", "steps"]

STOP_WITHIN_S = 120.0


def steps(disturbances: Sequence[Disturbance]) -> list[tuple[float, int, bool]]:
    """Return (second of the load, number of the disturbance, whether it begins), in order. Pure."""
    found = []
    for number, each in enumerate(disturbances):
        found += [(each.at_s, number, True), (each.at_s + each.lasts_s, number, False)]
    return sorted(found, key=lambda step: step[0])


class Disturber:
    """A thread that causes and ends the disturbances.

    start_ns: start of the load, on this process's monotonic clock.
    """

    def __init__(
        self, disturbances: Sequence[Disturbance], running: Running, start_ns: int
    ) -> None:
        self.faults: list[str] = []
        self._wanted = disturbances
        self._start_ns = start_ns
        self._made: list[Fault] = [running.fault(each.what, each.broker) for each in disturbances]
        self._brokers = [probe.broker for probe in running.probes()]
        self._done: dict[int, dict[str, Any]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="disturber", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_under_way(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> list[dict[str, Any]]:
        """Return the disturbances with their times; end those that still last."""
        self._over.set()
        self._thread.join(STOP_WITHIN_S)
        return [self._done[number] for number in sorted(self._done)]

    def missed(self) -> list[str]:
        """Name the disturbances that never began, once it is stopped."""
        return [
            f"{self._made[number]}: not done, the load was over before its second {each.at_s:g}"
            for number, each in enumerate(self._wanted)
            if number not in self._done and not self.faults
        ]

    def incidents(self) -> list[Incident]:
        """Return the disturbances as incidents of a manifest; for a killed broker also its start."""
        found = []
        for number, done in sorted(self._done.items()):
            fault, broker = self._made[number], self._broker(number)
            began = self._ns(done["began_s"])
            ended = None if done["ended_s"] is None else self._ns(done["ended_s"])
            # A kill takes no time; the broker's absence ends with its start.
            is_kill = fault.name == "kill"
            done_ns = began if is_kill else ended
            found.append(Incident(kind=fault.name, broker=broker, at_ns=began, done_ns=done_ns))
            if is_kill and ended is not None:
                found.append(Incident(kind="start", broker=broker, at_ns=ended))
        return sorted(found, key=lambda one: one.at_ns)

    def _broker(self, number: int) -> str:
        """Return the broker's name as in events and charts; "" for a disturbance without one."""
        return self._brokers[self._wanted[number].broker - 1] if self._made[number].target else ""

    def _ns(self, at_s: float) -> int:
        return self._start_ns + int(at_s * 1e9)

    def _run(self) -> None:
        for at_s, number, begins in steps(self._wanted):
            self._over.wait(max(0.0, at_s - self._now_s()))
            if self._over.is_set() and number not in self._done:
                continue
            try:
                self._step(number, begins=begins)
            except Exception as fault:  # the thread's top: of commands, HTTP, the balancer's kit
                self.faults.append(f"{self._made[number]}: {fault or type(fault).__name__}")
                return

    def _step(self, number: int, *, begins: bool) -> None:
        fault = self._made[number]
        if begins:
            what = f"{fault.name} {self._broker(number)}".rstrip()
            self._done[number] = {"what": what, "began_s": self._now_s(), "ended_s": None}
            fault.begin()
        else:
            fault.end()
            self._done[number]["ended_s"] = self._now_s()

    def _now_s(self) -> float:
        return (time.monotonic_ns() - self._start_ns) / 1e9
