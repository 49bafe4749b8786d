"""Processes, cores and lines of simulated hosts: what a step of a process takes, in virtual time.

A core is a server, and the processes that are ready to compute are its queue: a process that has computed one
step goes to the end of it. So processes that share cores take turns, as Linux lets them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lines:
    """The times of lines, in ms. refused: until a port refuses. login: until a link is open."""

    answer_ms: float = 1.0
    refused_ms: float = 1.0
    login_ms: float = 10.0


@dataclass(frozen=True, slots=True)
class Processors:
    """CPU times of steps, in ms, as `reach.sixteen` measured them, and the cores for them.

    request_ms: of an agent, for its side of a request: of another agent, to another agent, of a consumer.
    list_ms: of a consumer, for a new list of a few brokers. login_ms, refused_ms: of a consumer, for a dial.
    upkeep_ms: of an agent, each second, for all that it does at rest.
    cores: of one machine for all; 0: each process has a core of its own. busy: part of the cores that other
    processes use.
    """

    request_ms: float = 1.5
    list_ms: float = 2.4
    login_ms: float = 3.1
    refused_ms: float = 1.2
    upkeep_ms: float = 0.0
    cores: int = 0
    busy: float = 0.0


class Cores:
    """Cores that processes share. busy: see `Processors`."""

    def __init__(self, count: int, busy: float) -> None:
        self._free = count * (1.0 - busy)
        self._places, self._computing = asyncio.Semaphore(count), 0

    async def compute(self, ms: float) -> None:
        """Take a core for a step. What others leave of all cores is shared by the steps of one moment.

        A step alone may have a whole core while the others use no more than the rest of them.
        """
        async with self._places:
            self._computing += 1
            try:
                await asyncio.sleep(ms / min(1.0, self._free / self._computing) / 1000)
            finally:
                self._computing -= 1


class Process:
    """Computes one step at a time, on the cores of its host."""

    def __init__(self, cores: Cores) -> None:
        self._turn, self._cores = asyncio.Lock(), cores

    async def compute(self, ms: float) -> None:
        async with self._turn:
            await self._cores.compute(ms)


class Hosts:
    """The hosts of a bus. agents: name -> process of each agent."""

    def __init__(self, names: Iterable[str], lines: Lines, processors: Processors) -> None:
        self.lines, self.processors = lines, processors
        self._shared = self._cores(processors.cores) if processors.cores else None
        self.agents = {name: self.process() for name in names}

    def process(self) -> Process:
        return Process(self._shared or self._cores(1))

    def _cores(self, count: int) -> Cores:
        return Cores(count, self.processors.busy)

    async def ask(self, asker: str, names: Iterable[str], at_once: int) -> None:
        """Let an agent ask others, so many of them at once."""
        places = asyncio.Semaphore(at_once)
        await asyncio.gather(*(self._request(asker, name, places) for name in names))

    async def _request(self, asker: str, asked: str, places: asyncio.Semaphore) -> None:
        half_ms = self.processors.request_ms / 2
        async with places:
            await self.agents[asker].compute(half_ms)
            await self.agents[asked].compute(2 * half_ms)
            await asyncio.sleep(self.lines.answer_ms / 1000)
            await self.agents[asker].compute(half_ms)
