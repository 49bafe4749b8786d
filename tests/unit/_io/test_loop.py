"""The loop in its thread, and the libraries below it."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path

import pytest

from messagebus import BusConfig, Stopped, declare
from messagebus._io import amqp_wire as module
from messagebus._io.amqp.link import Credentials
from messagebus._io.amqp_wire import OURS, AmqpWire, namesake
from messagebus._io.loop import LoopThread, Tasks, run_blocking
from messagebus.broker import Broker
from messagebus.secret import Secret
from tests.support.eventually import eventually_async

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


def test_a_blocking_call_on_the_loops_own_thread_is_refused(thread: LoopThread) -> None:
    async def blocks() -> str:
        return thread.run(name_of_thread())

    with pytest.raises(RuntimeError, match="own thread"):
        thread.run(blocks())


def test_after_the_end_a_thread_with_the_same_number_is_not_its_own() -> None:
    """The system gives the number of a thread that has ended to the next one."""
    ended = LoopThread("test-loop")
    ended.stop()
    said: list[tuple[bool, bool]] = []

    def look() -> None:
        said.append((threading.get_ident() == ended._thread.ident, ended.is_own))

    for _ in range(100):
        other = threading.Thread(target=look)
        other.start()
        other.join()
    assert {is_own for _, is_own in said} == {False}
    assert any(is_same for is_same, _ in said), "no number came again: nothing was tried"


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


@pytest.mark.filterwarnings("error")
def test_what_comes_with_the_end_is_called_or_cancelled() -> None:
    thread = LoopThread("test-loop")
    go_on, called = threading.Event(), threading.Event()

    def holds() -> None:
        go_on.wait(WITHIN_S)

    thread.call_soon(holds)
    thread.end()
    waiting = thread.begin(asyncio.sleep(WITHIN_S))
    assert thread.try_call_soon(called.set)
    go_on.set()
    with pytest.raises(CancelledError):
        waiting.result(WITHIN_S)
    thread.stop()
    assert called.is_set()
    assert not thread.try_call_soon(called.set)


def test_a_call_that_waits_at_the_end_says_so() -> None:
    thread = LoopThread("test-loop")
    began = threading.Event()

    async def waits() -> None:
        began.set()
        await asyncio.sleep(WITHIN_S)

    with ThreadPoolExecutor(1) as caller:
        waiting = caller.submit(lambda: thread.run(waits()))
        assert began.wait(WITHIN_S)
        thread.stop()
        with pytest.raises(Stopped):
            waiting.result(WITHIN_S)


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


def test_a_second_stop_that_comes_while_the_first_cancels_what_is_left_does_not_cut_that_off(
    thread: LoopThread,
) -> None:
    ended = threading.Event()

    async def left() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            thread._end()  # asked for by another thread, a moment before the first one took effect
            for _ in range(3):
                await asyncio.sleep(0)
            ended.set()

    work = thread.begin(left())
    thread.call_soon(lambda: None)
    thread.stop()
    assert ended.is_set()
    assert work.cancelled()


async def test_work_that_fails_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> None:
        raise ValueError("mine")

    with caplog.at_level(logging.ERROR, "messagebus"):
        task = Tasks().spawn(fails())
        await asyncio.wait([task])
        await asyncio.sleep(0)
    assert "background work failed" in caplog.text
    assert "mine" in caplog.text


async def test_work_that_has_begun_elsewhere_is_kept_and_its_fault_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks, begun = Tasks(), asyncio.get_running_loop().create_future()
    with caplog.at_level(logging.ERROR, "messagebus"):
        tasks.keep(begun)
        begun.set_exception(ValueError("mine"))
        await tasks.wait(WITHIN_S)
        await asyncio.sleep(0)
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


@pytest.mark.parametrize("pause_s", [0.0, 0.001])
async def test_work_whose_task_is_cancelled_begins_again_after_its_pause_until_its_owner_ends(
    pause_s: float,
) -> None:
    tasks, begun = Tasks(), list[asyncio.Task[None]]()

    def begin() -> None:
        begun.append(tasks.spawn(asyncio.sleep(WITHIN_S), cancelled=begin, pause_s=pause_s))

    begin()
    for count in (2, 3):
        begun[-1].cancel()
        await eventually_async(lambda n=count: len(begun) == n, within_s=WITHIN_S)  # type: ignore[misc]
    begun[-1].cancel()
    await tasks.cancel()
    await asyncio.sleep(2 * pause_s)
    assert len(begun) == 3
    assert begun[-1].done()


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


async def said_by(wire: AmqpWire, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the client's id, the same for a broker and for the agents."""
    told: list[str] = []

    async def dial(_address: Broker, credentials: Credentials, *, timeout_ms: int) -> None:
        told.append(credentials.client_id)

    monkeypatch.setattr(module, "dial", dial)
    await wire.dial(None, timeout_ms=1)
    follower = wire.follow(subscription="a/b", interval_s=1, on_list=lambda _: None)
    assert follower._bus.client_id == told[0]
    return told[0]


async def test_each_client_object_and_process_has_an_id_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "büro 1.example")
    bus = BusConfig(list_urls=("http://a:8081/consumer-list",))
    first, second = AmqpWire(bus), AmqpWire(bus)
    ids = [await said_by(wire, monkeypatch) for wire in (first, first, second)]
    assert ids[0] == ids[1] != ids[2]
    assert re.fullmatch(rf"b-ro-1\.example:{os.getpid()}:[0-9a-f]{{8}}", ids[0])
    monkeypatch.setattr(os, "getpid", lambda: 7)  # as in a child that was forked
    forked = await said_by(first, monkeypatch)
    assert forked.startswith("b-ro-1.example:7:")
    assert forked[-8:] != ids[0][-8:]


async def test_an_id_that_was_given_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await said_by(AmqpWire(BusConfig(client_id="billing")), monkeypatch) == "billing"


ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def asked_anew() -> None:
    namesake.cache_clear()


def test_another_projects_distribution_of_our_packages_name_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "messagebus-0.16.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: messagebus\nVersion: 0.16.1\n")
    monkeypatch.syspath_prepend(tmp_path)
    told = namesake()
    assert "distribution 'messagebus' 0.16.1 is installed here" in told
    assert f"pip install {OURS}" in told
    assert "\n" not in told


def test_without_it_nothing_is_told() -> None:
    assert namesake() == ""
