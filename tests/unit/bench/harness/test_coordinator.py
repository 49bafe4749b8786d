from __future__ import annotations

import time

import httpx
import pytest

from bench.errors import BenchError
from bench.faults import Fault
from bench.harness.coordinator import Disturber, steps
from bench.harness.sampling import Probe
from bench.load.profile import Disturbance
from tests.support.eventually import eventually


class Noted:
    """System that notes its disturbances; refuses: to be killed."""

    def __init__(self, *, refuses: Exception | None = None) -> None:
        self.done: list[str] = []
        self._refuses = refuses

    def probes(self) -> list[Probe]:
        return [Probe(f"127.0.0.{11 + n}:5672", 0, dict) for n in range(2)]

    def fault(self, name: str, number: int) -> Fault:
        def begin() -> None:
            if self._refuses:
                raise self._refuses
            self.done.append(f"{name} {number}")

        return Fault(name, f"mb{number}", 0.0, "", begin, lambda: self.done.append(f"end {number}"))


def test_each_begins_and_ends_in_its_time() -> None:
    wanted = [Disturbance(at_s=5, lasts_s=10), Disturbance(at_s=1, lasts_s=5)]
    assert steps(wanted) == [(1, 1, True), (5, 0, True), (6, 1, False), (15, 0, False)]


def test_what_is_done_is_undone_when_the_run_ends_before_and_is_an_incident() -> None:
    system = Noted()
    wanted = [Disturbance(at_s=0, lasts_s=1000, broker=2), Disturbance(at_s=900)]
    disturber = Disturber(wanted, system, time.monotonic_ns())  # type: ignore[arg-type]
    disturber.start()
    eventually(lambda: system.done == ["kill 2"], within_s=10)
    (done,) = disturber.stop()
    assert disturber.missed() == ["kill mb1: not done, the load was over before its second 900"]
    assert system.done == ["kill 2", "end 2"]
    assert done["what"] == "kill 127.0.0.12:5672"
    assert done["ended_s"] >= done["began_s"]
    kill, start = disturber.incidents()
    assert (kill.kind, start.kind) == ("kill", "start")
    assert kill.broker == start.broker == "127.0.0.12:5672"
    assert kill.done_ns == kill.at_ns <= start.at_ns


@pytest.mark.parametrize(
    "why", [BenchError("it does not run"), httpx.ConnectError("it does not run")]
)
def test_what_cannot_be_done_is_a_fault_of_the_run(why: Exception) -> None:
    refuses = Noted(refuses=why)
    disturber = Disturber([Disturbance(at_s=0)], refuses, time.monotonic_ns())  # type: ignore[arg-type]
    disturber.start()
    disturber.stop()
    assert disturber.faults == ["kill mb1: it does not run"]
    assert disturber.missed() == []
