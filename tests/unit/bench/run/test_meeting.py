from __future__ import annotations

from pathlib import Path

import pytest

from bench.errors import BenchError
from bench.run import meeting
from bench.run.meeting import Start


def test_processes_meet_through_the_folder(tmp_path: Path) -> None:
    assert meeting.missing(tmp_path, ["a", "b"]) == ["a", "b"]
    meeting.say_ready(tmp_path, "a")
    assert meeting.missing(tmp_path, ["a", "b"]) == ["b"]
    start = Start.soon(1.0)
    meeting.say_start(tmp_path, start)
    assert meeting.wait_for_start(tmp_path, within_s=1) == start
    assert not meeting.is_over(tmp_path)
    meeting.say_over(tmp_path)
    assert meeting.is_over(tmp_path)


def test_processes_of_one_host_have_one_clock_and_others_their_own() -> None:
    here = Start.soon(1.0)
    assert here.offset_ns() == here.wall_minus_monotonic_ns
    there = Start(at_wall_ns=0, host="elsewhere", wall_minus_monotonic_ns=5)
    assert there.offset_ns() != 5


def test_no_wait_is_without_an_end(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="nobody said start"):
        meeting.wait_for_start(tmp_path, within_s=0)
    meeting.say_over(tmp_path)
    with pytest.raises(BenchError, match="over before"):
        meeting.wait_for_start(tmp_path, within_s=1)
