"""Places of concurrent runs on a loop, with a source that the test controls."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from messagebus._io.consume import run_on_loop
from messagebus._io.consume.run_on_loop import HandlerTasks
from messagebus._io.consume.runs import Handling
from messagebus.core.attempts import Runs
from tests.support.examples import examples


class Source:
    """Jobs that wait, and one receiver of them."""

    def __init__(self) -> None:
        self.waiting: deque[int] = deque()
        self._arrived = asyncio.Event()

    def bring(self, *jobs: int) -> None:
        self.waiting.extend(jobs)
        self._arrived.set()

    def take(self) -> Any:
        return self.waiting.popleft() if self.waiting else None

    async def receive(self) -> Any:
        while not self.waiting:
            self._arrived.clear()
            await self._arrived.wait()
        return self.waiting.popleft()


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def running(
    source: Source, handle: Callable[[int], Awaitable[object]], runs: Runs[Any], *, count: int
) -> HandlerTasks:
    """Start the runs of this handler."""
    handling = SimpleNamespace(name="handle", around=None, limit_ns=None, runs=runs)
    handling.returned = lambda *_: None
    handling.left = lambda _what: 0
    tasks = HandlerTasks(
        cast(Handling, handling),
        handle,
        take=source.take,
        receive=source.receive,
        give_back=cast(Any, source.bring),
        context=contextvars.Context(),
    )
    tasks.start(count)
    return tasks


async def test_places_that_are_given_away_before_the_feeder_wakes_cost_no_delivery() -> None:
    """Two runs end in one turn of the loop; between them arrive deliveries that take both places."""
    source, runs, begun = Source(), Runs[Any](None), dict[int, int]()
    ends = {job: asyncio.Event() for job in range(1, 7)}

    async def handle(job: int) -> None:
        begun[job] = len(runs.underway())
        await ends[job].wait()

    tasks = running(source, handle, runs, count=2)
    source.bring(1, 2)
    await turns()
    ends[1].set()
    asyncio.get_running_loop().call_soon(source.bring, 3, 4)
    ends[2].set()
    await turns()
    assert list(begun) == [1, 2, 3, 4]
    source.bring(5, 6)
    await turns()
    for job in (3, 4, 5, 6):
        ends[job].set()
    await turns()
    assert list(begun) == [1, 2, 3, 4, 5, 6]
    assert max(begun.values()) == 2
    await tasks.end(0)


async def test_runs_that_never_wait_let_the_loop_turn_between_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_on_loop, "TURN_NS", 0)
    source, begun, turn = Source(), Counter[int](), 0
    loop = asyncio.get_running_loop()

    def turned() -> None:
        nonlocal turn
        turn += 1
        if turn < 1_000:
            loop.call_soon(turned)

    async def handle(_job: int) -> None:
        begun[turn] += 1

    turned()
    tasks = running(source, handle, Runs[Any](None), count=2)
    source.bring(*range(1, 101))
    await turns(200)
    await tasks.end(0)
    assert begun.total() == 100
    assert max(begun.values()) <= 4, "of one turn"


@pytest.mark.parametrize("begun_by", ["the feeder", "another run"])
def test_an_interrupt_in_the_first_step_of_a_run_reaches_the_loop_and_nobody_else(
    begun_by: str,
) -> None:
    begun: list[int] = []

    async def handle(job: int) -> None:
        begun.append(job)
        if job == 1 and begun_by == "another run":
            await asyncio.sleep(0)  # its end begins the next one
        if job == 2 and begun.count(2) == 1:
            raise KeyboardInterrupt

    async def start() -> HandlerTasks:
        source = Source()
        tasks = running(source, handle, Runs[Any](None), count=1)
        if begun_by == "the feeder":
            source.bring(2, 3)
        else:
            source.bring(1, 2, 3)
        return tasks

    with contextlib.closing(asyncio.new_event_loop()) as loop:
        tasks = loop.run_until_complete(start())
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(turns())
        loop.run_until_complete(turns())
        assert sorted(set(begun)) == ([2, 3] if begun_by == "the feeder" else [1, 2, 3])
        assert begun.count(2) == 2, "it was given back"
        loop.run_until_complete(tasks.end(0))


class Job(int):
    message_id = "m"


class RandomRuns:
    """Runs of handlers that end, fail, wait, swallow a cancel, cancel themselves or all tasks, at random."""

    KINDS = ("now", "now", "fail", "turn", "self", "all", "wait", "wait", "swallow")

    def __init__(self, seed: int) -> None:
        self.draw, self.source, self.runs = random.Random(seed), Source(), Runs[Any](1)
        self.count, self.most = self.draw.randint(1, 3), 0
        self.kinds = ["none: a job is true"]
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.under_way: dict[int, asyncio.Task[Any]] = {}
        self.goes_on: dict[int, asyncio.Event] = {}
        self.tests_own = asyncio.all_tasks()
        self.tasks = running(self.source, self.handle, self.runs, count=self.count)
        handling = cast(Any, self.tasks._handling)
        handling.limit_ns, handling.may_replace = 1, True
        handling.returned = handling.failed = lambda job, _end: self.ended.append(job)
        handling.ended_late = lambda _run, well: None

    def task(self) -> asyncio.Task[Any]:
        task = asyncio.current_task()
        assert task is not None
        return task

    async def handle(self, job: int) -> None:
        self.begun.append(job)
        places = set(self.runs.underway()) - self.tasks._replaced
        self.most, self.under_way[job] = max(self.most, len(places)), self.task()
        try:
            match self.kinds[job]:
                case "fail":
                    raise ValueError
                case "self":
                    self.task().cancel()
                    await asyncio.sleep(0)
                case "all":
                    for task in asyncio.all_tasks() - self.tests_own - {self.task()}:
                        task.cancel()
                case "turn":
                    await asyncio.sleep(0)
                case "wait" | "swallow" as kind:
                    with contextlib.suppress(*[asyncio.CancelledError] * (kind == "swallow")):
                        await self.goes_on[job].wait()
                    await asyncio.sleep(0)
        finally:
            del self.under_way[job]

    def act(self) -> None:
        draw, waiting = self.draw, [*self.under_way]
        match draw.choice(("bring", "bring", "bring soon", "end", "cancel", "late", "tick")):
            case "bring" | "bring soon" as when:
                first = len(self.kinds)
                self.kinds += [draw.choice(self.KINDS) for _ in range(draw.randint(1, 4))]
                jobs = [Job(number) for number in range(first, len(self.kinds))]
                self.goes_on |= {job: asyncio.Event() for job in jobs}
                if when == "bring":
                    self.source.bring(*jobs)
                else:
                    asyncio.get_running_loop().call_soon(self.source.bring, *jobs)
            case "end" if waiting:
                self.goes_on[draw.choice(waiting)].set()
            case "cancel" if waiting:
                self.under_way[draw.choice(waiting)].cancel()
            case "late":
                for run in self.runs.overdue(time.monotonic_ns() + 1):
                    self.ended.append(run.item)
                    self.tasks._cancel_late(run)
            case "tick":
                self.tasks.tick()


@pytest.mark.parametrize("turn_ns", [0, 1 << 60])
async def test_whatever_runs_do_each_delivery_has_one_and_no_place_is_lost(
    monkeypatch: pytest.MonkeyPatch, turn_ns: int
) -> None:
    monkeypatch.setattr(run_on_loop, "TURN_NS", turn_ns)
    for seed in range(examples(300)):
        monkeypatch.setattr(run_on_loop, "CANCELLED_NS", random.Random(seed).choice((-2, 1 << 60)))
        made = RandomRuns(seed)
        for _ in range(made.draw.randint(5, 40)):
            made.act()
            await turns(made.draw.choice((0, 1, 1, 2, 5)))
        await turns()  # what is brought soon has come by then
        while made.source.waiting or made.runs.underway():
            for event in made.goes_on.values():
                event.set()
            before = len(made.source.waiting), len(made.begun), len(made.runs.underway())
            await turns()
            made.tasks.tick()
            after = len(made.source.waiting), len(made.begun), len(made.runs.underway())
            assert before != after, f"seed {seed}: nothing goes on"
        await turns()
        assert sorted({*made.begun, *made.ended}) == [*range(1, len(made.kinds))], seed
        assert len(set(made.begun)) == len(made.begun), seed
        assert made.most <= made.count, seed
        assert made.tasks._free == made.count - 1, f"seed {seed}: the feeder holds one"
        await made.tasks.end(0)
