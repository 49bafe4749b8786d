"""Places of concurrent runs on a loop, with a source that the test controls."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from messagebus._io.consume.run_on_loop import HandlerTasks
from messagebus._io.consume.runs import Handling
from messagebus.core.attempts import Runs


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
