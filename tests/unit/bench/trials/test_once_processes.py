"""Processes that are killed and frozen; the programs wait for nothing but their end."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.processes import wait_until
from bench.trials.once_judge import KILLED, STOOD
from bench.trials.once_processes import Fleet

WAITS = ("timeit", "-n", "1", "-r", "1", "-s", "import time", "time.sleep(600)")


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(
        tmp_path, {"worker": WAITS, "hand": WAITS}, {"worker": 2, "hand": 1}, setting="STARTED"
    )
    made.start(os.environ)
    yield made
    made.end()


def test_a_killed_process_is_started_again_under_a_name_of_its_own(fleet: Fleet) -> None:
    before = fleet.pid("worker-2")
    fleet.kill(["worker", "hand"], 1)
    assert fleet.alive == {"worker-1": "worker-1.1", "worker-2": "worker-2.2", "hand-1": "hand-1.2"}
    assert [(each.kind, each.process) for each in fleet.happened] == [
        (KILLED, "worker-2.1"),
        (KILLED, "hand-1.1"),
    ]
    assert fleet.pid("worker-2") != before
    assert environment(fleet.pid("worker-2"))["STARTED"] == "worker-2.2"
    assert fleet.ended_alone == 0


def test_a_process_that_ends_by_itself_is_started_again_and_recorded(fleet: Fleet) -> None:
    os.kill(fleet.pid("hand-1"), 15)
    wait_until(lambda: fleet.alive["hand-1"] == "hand-1.2", within_s=30, what="a second start")
    assert fleet.ended_alone == 1
    (happened,) = fleet.happened
    assert (happened.kind, happened.process) == (KILLED, "hand-1.1")
    assert happened.began_ns < happened.ended_ns


def test_a_frozen_process_stands_for_as_long_as_is_recorded(fleet: Fleet) -> None:
    pid = fleet.pid("worker-1")
    fleet.freeze(["worker"], 0, lasts_s=0.05)
    (happened,) = fleet.happened
    assert (happened.kind, happened.process) == (STOOD, "worker-1.1")
    assert happened.ended_ns - happened.began_ns >= 50_000_000
    assert fleet.pid("worker-1") == pid


def test_what_is_stopped_is_not_started_again(fleet: Fleet) -> None:
    fleet.stop(["worker"])
    assert list(fleet.alive) == ["hand-1"]
    fleet.kill(["hand"], 0)
    assert list(fleet.alive.values()) == ["hand-1.2"]


def environment(pid: int) -> dict[str, str]:
    words = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)
