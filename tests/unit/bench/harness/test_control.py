from __future__ import annotations

from pathlib import Path

import pytest

from bench.errors import BenchError
from bench.harness import control
from bench.harness.control import Progress, Start


def test_processes_meet_through_the_folder(tmp_path: Path) -> None:
    assert control.missing(tmp_path, ["a", "b"]) == ["a", "b"]
    control.say_ready(tmp_path, "a")
    assert control.missing(tmp_path, ["a", "b"]) == ["b"]
    start = Start.soon(1.0)
    control.say_start(tmp_path, start)
    assert control.wait_for_start(tmp_path, within_s=1) == start
    assert not control.is_over(tmp_path)
    control.say_over(tmp_path)
    assert control.is_over(tmp_path)


def test_processes_of_one_host_have_one_clock_and_others_their_own() -> None:
    here = Start.soon(1.0)
    assert here.offset_ns() == here.wall_minus_monotonic_ns
    there = Start(at_wall_ns=0, host="elsewhere", wall_minus_monotonic_ns=5)
    assert there.offset_ns() != 5


def test_no_wait_is_without_an_end(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="nobody said start"):
        control.wait_for_start(tmp_path, within_s=0)
    control.say_over(tmp_path)
    with pytest.raises(BenchError, match="over before"):
        control.wait_for_start(tmp_path, within_s=1)


def test_progress_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert control.read_progress(tmp_path) == {}
    progress = Progress("publisher-0", done=3, brokers={"b1": 2}, attached={"b1": 5})
    control.write_progress(tmp_path, Progress("publisher-0"))
    control.write_progress(tmp_path, progress)
    assert control.read_progress(tmp_path) == {"publisher-0": progress}


def test_a_rate_is_the_last_that_was_set(tmp_path: Path) -> None:
    assert control.rate_per_s(tmp_path) is None
    for rate in (0.25, 400.0, 0.0):
        control.set_rate(tmp_path, rate)
        assert control.rate_per_s(tmp_path) == rate
