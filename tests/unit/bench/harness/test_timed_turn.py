from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from functools import partial

import pytest

from bench.clients import messagebus_calls
from bench.errors import BenchError
from bench.harness import timed_turn as module
from bench.harness.interface import Delivered, End
from bench.harness.loop import Alarm, best_loop, event_loop
from bench.harness.outcomes import CONFIRMED, OTHERWISE
from bench.harness.timed_turn import Task, Turn, body, main, slices, timed, to_json, turn, within
from bench.load.profile import Profile
from bench.load.schedule import Closed
from tests.support.bench_task import bench_task


class Loopback:
    """A sender and receiver in one. Messages arrive and are confirmed when they are sent."""

    def __init__(self, *, outcome: int = CONFIRMED, lost: int = 0) -> None:
        self.sent: list[bytes] = []
        self.sequences: list[int] = []
        self.had: list[Delivered] = []
        self.opened = self.closed = 0
        self._ends: list[End] = []
        self._outcome, self._lost = outcome, lost

    async def open(self) -> None:
        self.opened += 1

    async def room(self) -> None: ...

    async def send(self, sequence: int, body: bytes, key: str) -> None:
        self.sent.append(body)
        self.sequences.append(sequence)
        now_ns = time.monotonic_ns()
        self.had.append(Delivered(body, "b", now_ns))
        if self._lost:
            self._lost -= 1
        else:
            self._ends.append(End(sequence, self._outcome, "b", now_ns, now_ns))

    def ends(self) -> list[End]:
        ends, self._ends = self._ends, []
        return ends

    async def take(self, max_wait_s: float) -> list[Delivered]:
        await asyncio.sleep(0)
        some, self.had = self.had[:7], self.had[7:]
        return some

    async def close(self, timeout_s: float = 0) -> None:
        self.closed += 1


class Fast(Loopback):
    """A sender with a way of its own at full speed."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int] = []

    async def publish(self, body: bytes, count: int) -> None:
        self.counts.append(count)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Callable[[Loopback], Loopback]:
    """Return a function that makes an object the client of every system."""

    def use(client: Loopback) -> Loopback:
        def made(_profile: Profile, _where: object) -> Loopback:
            return client

        monkeypatch.setattr(module, "sender", made)
        monkeypatch.setattr(module, "receiver", made)
        return client

    return use


Use = Callable[[Loopback], Loopback]


def test_a_task_is_the_same_load_as_a_profile() -> None:
    profile = bench_task(window=50, messages=10, batch=4, body_bytes=200).profile
    load = profile.load
    assert (load.window, load.prefetch, load.batch, load.schedule) == (50, 50, 4, Closed(count=10))
    assert (profile.messages.size, profile.system.brokers) == (200, 1)
    assert profile.faults() == []


@pytest.mark.parametrize(
    ("system", "ack"), [("messagebus", "each"), ("aio-pika", "each"), ("pika", "many")]
)
def test_a_client_answers_together_if_its_interface_allows_it(system: str, ack: str) -> None:
    assert bench_task(system=system).profile.load.ack == ack


async def test_only_the_part_after_the_warm_up_is_timed() -> None:
    counts: list[int] = []

    async def work(count: int) -> None:
        counts.append(count)
        until_s = time.process_time() + 0.02
        while time.process_time() < until_s:
            pass

    took = await timed(bench_task(messages=10, warm_up=3), work)
    assert counts == [3, 10]
    assert (took.messages, took.cpu_s >= 0.015) == (10, True)
    assert 0.015 <= took.took_s < 10
    await timed(bench_task(messages=1, warm_up=0), work)
    assert counts == [3, 10, 1]


async def test_a_turn_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never() -> Turn:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(module, "TURN_WITHIN_S", 0.01)
    with pytest.raises(BenchError, match="did not end"):
        await within(never())


def test_slices_are_whole_and_the_last_is_what_is_left() -> None:
    assert slices(25, 10) == [10, 10, 5]
    assert slices(20, 10) == [10, 10]
    assert slices(3, 10) == [3]
    assert slices(0, 10) == []


async def test_a_client_publishes_the_warm_up_and_the_rest(client: Use) -> None:
    used = client(Loopback())
    took = await turn(bench_task(messages=20, warm_up=5, body_bytes=100))
    assert took.messages == 20
    assert used.sent == [body(100)] * 25
    # A consumer knows a message by its id.
    assert used.sequences == list(range(25))
    assert (used.opened, used.closed) == (1, 1)


async def test_a_client_with_a_faster_way_publishes_in_it(client: Use) -> None:
    used = client(Fast())
    await turn(bench_task(messages=20, warm_up=5))
    assert isinstance(used, Fast)
    assert (used.counts, used.sent) == ([5, 20], [])


async def test_one_publish_that_is_not_confirmed_spoils_the_turn(client: Use) -> None:
    client(Loopback(outcome=OTHERWISE))
    with pytest.raises(BenchError, match="5 publishes were not confirmed"):
        await turn(bench_task(messages=20, warm_up=5))


async def test_a_consumer_takes_as_many_as_there_are_in_the_turn(client: Use) -> None:
    used = client(Loopback())
    used.had = [Delivered(b"x", "b", 1)] * 30
    assert (await turn(bench_task(verb="consume", messages=20, warm_up=5))).messages == 20
    # Seven at a time: the last three of 28 are beyond the turn.
    assert (len(used.had), used.closed) == (2, 1)


def test_a_process_takes_its_turn_in_the_clients_own_way(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def own(task: Task) -> Turn:
        return Turn(messages=task.messages, took_s=1, cpu_s=1)

    argv = partial(monkeypatch.setattr, sys, "argv")
    monkeypatch.setattr(messagebus_calls, "turn", own)
    argv(["turn", to_json(bench_task(messages=7))])
    main()
    assert Turn(**json.loads(capsys.readouterr().out)).messages == 7
    argv(["turn", to_json(bench_task(system="nothing"))])
    with pytest.raises(SystemExit, match="no client 'nothing'; there are messagebus, pika"):
        main()


NS = 1_000_000_000


async def waits(seconds: float, count: int) -> list[float]:
    """Return how late each wait ended, in seconds."""
    late = []
    with Alarm() as alarm:
        for _ in range(count):
            due_s = time.monotonic() + seconds
            await alarm.sleep(seconds)
            late.append(time.monotonic() - due_s)
    return late


def test_no_wait_ends_early_on_any_loop() -> None:
    assert min(asyncio.run(waits(0.0015, 20))) >= 0
    with asyncio.Runner(loop_factory=event_loop(best_loop())) as runner:
        assert min(runner.run(waits(0.0015, 20))) >= 0
