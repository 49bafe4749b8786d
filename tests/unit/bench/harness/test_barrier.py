from __future__ import annotations

from pathlib import Path

import pytest

from bench.errors import BenchError
from bench.harness import barrier
from bench.harness.barrier import Start


def test_processes_meet_through_the_folder(tmp_path: Path) -> None:
    assert barrier.missing(tmp_path, ["a", "b"]) == ["a", "b"]
    barrier.say_ready(tmp_path, "a")
    assert barrier.missing(tmp_path, ["a", "b"]) == ["b"]
    start = Start.soon(1.0)
    barrier.say_start(tmp_path, start)
    assert barrier.wait_for_start(tmp_path, within_s=1) == start
    assert not barrier.is_over(tmp_path)
    barrier.say_over(tmp_path)
    assert barrier.is_over(tmp_path)


def test_processes_of_one_host_have_one_clock_and_others_their_own() -> None:
    here = Start.soon(1.0)
    assert here.offset_ns() == here.wall_minus_monotonic_ns
    there = Start(at_wall_ns=0, host="elsewhere", wall_minus_monotonic_ns=5)
    assert there.offset_ns() != 5


def test_no_wait_is_without_an_end(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="nobody said start"):
        barrier.wait_for_start(tmp_path, within_s=0)
    barrier.say_over(tmp_path)
    with pytest.raises(BenchError, match="over before"):
        barrier.wait_for_start(tmp_path, within_s=1)
