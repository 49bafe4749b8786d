"""Places of concurrent runs on a loop, with a source that the test controls."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from types import SimpleNamespace
from typing import Any, cast

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


async def test_places_that_are_given_away_before_the_feeder_wakes_cost_no_delivery() -> None:
    """Two runs end in one turn of the loop; between them arrive deliveries that take both places."""
    source, runs, begun = Source(), Runs[Any](None), dict[int, int]()
    ends = {job: asyncio.Event() for job in range(1, 7)}

    async def handle(job: int) -> None:
        begun[job] = len(runs.underway())
        await ends[job].wait()

    handling = SimpleNamespace(name="handle", around=None, limit_ns=None, runs=runs)
    handling.returned = lambda *_: None
    handling.left = lambda _what: 0
    tasks = HandlerTasks(
        cast(Handling, handling),
        handle,
        take=source.take,
        receive=source.receive,
        give_back=lambda _job: None,
        context=contextvars.Context(),
    )
    tasks.start(2)
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
