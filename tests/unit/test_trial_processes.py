"""Processes that are killed and frozen; the programs wait for nothing but their end."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.processes import wait_until
from tests.support.trials.once_judge import KILLED, STOOD
from tests.support.trials.once_site import Fleet

WAITS = ("timeit", "-n", "1", "-r", "1", "-s", "import time", "time.sleep(600)")


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path, {"worker": (2, WAITS), "relay": (1, WAITS)}, setting="STARTED")
    made.start(os.environ)
    yield made
    made.end()


def names(fleet: Fleet) -> list[str]:
    return [each.name for some in fleet.all.values() for each in some]


def test_a_killed_process_is_started_again_under_a_name_of_its_own(fleet: Fleet) -> None:
    before = fleet.all["worker"][1].pid
    fleet.kill("worker", 1)
    assert names(fleet) == ["worker-1.1", "worker-2.2", "relay-1.1"]
    assert [(each.kind, each.process) for each in fleet.happened] == [(KILLED, "worker-2.1")]
    after = fleet.all["worker"][1].pid
    assert after != before
    wait_until(lambda: b"STARTED=worker-2.2" in environment(after), within_s=30, what="its name")
    assert fleet.ended_alone == 0


def test_a_process_that_ends_by_itself_is_started_again_and_recorded(fleet: Fleet) -> None:
    os.kill(fleet.all["relay"][0].pid, 15)
    wait_until(lambda: fleet.ended_alone == 1, within_s=30, what="a second start")
    assert "relay-1.2" in names(fleet)
    (happened,) = fleet.happened
    assert (happened.kind, happened.process) == (KILLED, "relay-1.1")
    assert happened.began_ns < happened.ended_ns


def test_a_frozen_process_stands_for_as_long_as_is_recorded(fleet: Fleet) -> None:
    pid = fleet.all["worker"][0].pid
    fleet.freeze("worker", 0, lasts_s=0.05)
    (happened,) = fleet.happened
    assert (happened.kind, happened.process) == (STOOD, "worker-1.1")
    assert happened.ended_ns - happened.began_ns >= 50_000_000
    assert fleet.all["worker"][0].pid == pid


def test_what_is_stopped_is_not_started_again(fleet: Fleet) -> None:
    fleet.stop(["worker"])
    assert names(fleet) == ["relay-1.1"]
    fleet.kill("relay", 0)
    assert names(fleet) == ["relay-1.2"]


def environment(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()
