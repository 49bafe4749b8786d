"""_io.loop: a thread that reports its end, background work that never fails in silence, blocking calls."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import warnings
from collections.abc import Iterator

import pytest

from messagebus import BusConfig, Stopped, declare
from messagebus._io.loop import LoopThread, Tasks, run_blocking
from messagebus.secret import Secret

WITHIN_S = 60


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    made = LoopThread("test-loop")
    yield made
    made.stop()


async def name_of_thread() -> str:
    return threading.current_thread().name


async def fails() -> None:
    raise ValueError("mine")


def test_work_runs_on_the_loops_own_thread(thread: LoopThread) -> None:
    assert thread.run(name_of_thread()) == "test-loop"
    assert thread.begin(name_of_thread()).result(WITHIN_S) == "test-loop"


def test_errors_of_the_work_come_back(thread: LoopThread) -> None:
    with pytest.raises(ValueError, match="mine"):
        thread.run(fails())


def test_calls_reach_the_loop_from_any_thread_its_own_included(thread: LoopThread) -> None:
    done = threading.Event()
    thread.call_soon(lambda: thread.call_soon(done.set))
    assert done.wait(WITHIN_S)


def test_a_blocking_call_on_the_loops_own_thread_is_a_bug(thread: LoopThread) -> None:
    async def blocks() -> str:
        work = name_of_thread()
        try:
            return thread.run(work)
        finally:
            work.close()

    with pytest.raises(AssertionError, match="I/O thread"):
        thread.run(blocks())


@pytest.mark.filterwarnings("error")
def test_after_the_end_every_use_says_so_and_leaves_nothing_unawaited() -> None:
    thread = LoopThread("test-loop")
    thread.stop()
    thread.stop()
    with pytest.raises(Stopped):
        thread.run(name_of_thread())
    with pytest.raises(Stopped):
        thread.call_soon(lambda: None)


def test_what_still_runs_at_the_end_is_cancelled() -> None:
    thread = LoopThread("test-loop")
    cancelled = threading.Event()

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    thread.begin(waits())
    thread.run(asyncio.sleep(0))
    thread.stop()
    assert cancelled.wait(WITHIN_S)


def test_a_client_started_before_a_fork_says_so(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(Stopped, match="fork"):
        thread.call_soon(lambda: None)


def test_names_are_found_also_when_no_executor_takes_work(thread: LoopThread) -> None:
    async def find() -> set[str | int]:
        loop = asyncio.get_running_loop()
        await loop.shutdown_default_executor()
        found = await loop.getaddrinfo("localhost", 5672, type=socket.SOCK_STREAM)
        return {each[4][0] for each in found}

    assert thread.run(find()) & {"127.0.0.1", "::1"}


async def test_work_that_fails_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> None:
        raise ValueError("mine")

    with caplog.at_level(logging.ERROR, "messagebus"):
        task = Tasks().spawn(fails())
        await asyncio.wait([task])
        await asyncio.sleep(0)
    assert "background work failed" in caplog.text
    assert "mine" in caplog.text


async def test_cancel_ends_all_and_waits_for_them(caplog: pytest.LogCaptureFixture) -> None:
    tasks, ended = Tasks(), list[int]()

    async def waits(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(number)

    spawned = [tasks.spawn(waits(number)) for number in range(3)]
    await asyncio.sleep(0)
    await tasks.cancel()
    assert sorted(ended) == [0, 1, 2]
    assert all(task.cancelled() for task in spawned)
    assert caplog.text == ""


async def seven() -> int:
    await asyncio.sleep(0)
    return 7


def test_a_coroutine_is_run_to_its_end() -> None:
    assert run_blocking(seven()) == 7


async def test_within_a_running_loop_it_says_what_to_do_instead() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a coroutine that is never awaited
        with pytest.raises(RuntimeError, match=r"asyncio\.to_thread"):
            declare(BusConfig(broker="127.0.0.1:1", user="u", password=Secret("p")), ["orders"])
    assert await asyncio.to_thread(run_blocking, seven()) == 7
