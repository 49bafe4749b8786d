"""_io.consume.run_on_loop: a loop that does not turn is logged, with the handler that keeps it."""

from __future__ import annotations

import asyncio

import pytest

from messagebus._io.consume.run_on_loop import LoopWatch, _watches, watched


def describe(_task: asyncio.Task[object]) -> str:
    return "handler=bill message=id"


async def test_a_blocked_loop_is_told_once_and_again_at_ten_times_as_long(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = LoopWatch(blocked_s=1)
    watch.describing += [lambda _task: "", describe]
    start_s = watch._beaten_s
    for blocked_s in (0.5, 1.0, 2.0, 9.9, 10.0, 50.0, 100.0):
        watch.look(start_s + blocked_s)
    assert [line.split(" at=")[0] for line in caplog.messages] == [
        f"loop blocked blocked_s={blocked_s} handler=bill message=id"
        for blocked_s in ("1.0", "10.0", "100.0")
    ]
    assert "test_run_on_loop.py" in caplog.text


async def test_each_time_that_it_is_blocked_is_told(caplog: pytest.LogCaptureFixture) -> None:
    watch = LoopWatch(blocked_s=1)
    watch.look(watch._beaten_s + 1)
    watch._beaten_s += 5
    watch.look(watch._beaten_s)
    watch.look(watch._beaten_s + 1)
    assert len(caplog.messages) == 2
    assert "handler=unknown" in caplog.text


async def test_one_watch_serves_all_handlers_of_a_loop() -> None:
    with watched(describe):
        (watch,) = _watches.values()
        with watched(lambda _task: ""):
            assert list(_watches.values()) == [watch]
            assert len(watch.describing) == 2
        assert watch.describing == [describe]
    assert not _watches
