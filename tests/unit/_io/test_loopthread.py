"""_io.loopthread: a loop in a thread of its own, that says so when it has ended."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from messagebus import Stopped
from messagebus._io.loopthread import LoopThread

WITHIN_S = 5


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
