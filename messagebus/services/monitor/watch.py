"""The observation that never ends: asks all agents, keeps history and events, wakes those who look."""

# One observation:  ask all agents ─▶ conclude: rates, rules, events ─▶ board ─▶ history, log ─▶ `number`
#
# It is repeated each second or so while somebody looks (`looking`, for LOOKED_AT_S), else each
# REST_EVERY_S, and at once when an agent says that something has changed.
#
# Owners: the asker has the agents' last answers, `Concluding` what was so before, `History` the series,
# `EventLog` the disk. Pages read `board` and wait with `next`; nobody else writes it.

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from messagebus import MessageBusError
from messagebus.clock import MS_PER_S, wall_ms
from messagebus.observing.snapshot import Bus
from messagebus.observing.totals import known
from messagebus.services.monitor.board import Board, Source, View, board
from messagebus.services.monitor.concluding import Concluding
from messagebus.services.monitor.eventlog import EventLog
from messagebus.services.monitor.history import History
from messagebus.services.monitor.pages.shared import BUS

log = logging.getLogger("messagebus.monitor")

LOOK_EVERY_S = 1.0
# A large bus is looked at less often, so that all takes no more than this part of a core; states arrive at
# once anyway. 32,000 rows and three pages take 0.3 to 0.6 s of CPU.
CPU_SHARE_MAX = 0.15
# While nobody looks at a page.
REST_EVERY_S = 5.0
LOOKED_AT_S = 15.0
STOP_WITHIN_S = 3.0
NAMES_MAX = 200


class Looks(Protocol):
    """A source of observations, as `messagebus.observing.ask.Asker`."""

    async def look(self, *, names: Iterable[str] = (), all_clients: bool = False) -> Bus: ...

    async def changed(self, *, within_s: float) -> bool: ...

    def bus(self) -> Bus: ...

    async def close(self) -> None: ...


class Watch:
    """The newest board, made about once a second; runs on one loop."""

    def __init__(self, asker: Looks, events: EventLog) -> None:
        self._asker, self.events = asker, events
        self.history = History()
        self._concluding = Concluding()
        self.number = 0
        """Number of the observation; pages are rendered once for each."""
        self.board = board(
            View(
                bus=Bus(at_ms=wall_ms(), brokers=()),
                now_ms=wall_ms(),
                history=self.history,
                fault="no agent has been asked yet",
            )
        )
        self._news = asyncio.Condition()
        self._names: dict[str, float] = {}
        self._looked_at_s = self._clients_at_s = -LOOKED_AT_S

    def looking(self, names: Iterable[str] = (), *, all_clients: bool = False) -> None:
        """Note that somebody looks; names are counted in each observation, with their consumers."""
        now_s = time.monotonic()
        self._looked_at_s = now_s
        if all_clients:
            self._clients_at_s = now_s
        for name in names:
            if name.isascii() and name.isprintable():  # no other name can be declared, or asked for
                self._names[name] = now_s

    async def next(self, after: int, *, within_s: float) -> bool:
        """Wait until there is a newer observation than this number. False: none came in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s), self._news:
                await self._news.wait_for(lambda: self.number > after)
                return True
        return False

    async def run(self) -> None:
        """Observe until cancelled."""
        try:
            began_cpu_s = time.process_time()
            while True:
                began_s = time.monotonic()
                await self.once()
                cpu_s, began_cpu_s = time.process_time() - began_cpu_s, time.process_time()
                look_every_s = min(max(LOOK_EVERY_S, cpu_s / CPU_SHARE_MAX), REST_EVERY_S)
                is_watched = began_s - self._looked_at_s < LOOKED_AT_S
                until_s = began_s + (look_every_s if is_watched else REST_EVERY_S)
                while (left_s := until_s - time.monotonic()) > 0:
                    if await self._asker.changed(within_s=left_s):
                        await self._take(self._asker.bus(), "")
                    if time.monotonic() - self._looked_at_s < LOOKED_AT_S:
                        until_s = min(until_s, began_s + look_every_s)
        finally:
            async with asyncio.timeout(STOP_WITHIN_S):
                await self._asker.close()

    async def once(self) -> None:
        """Ask all agents once."""
        recent_s = time.monotonic() - LOOKED_AT_S
        self._names = {name: at for name, at in self._names.items() if at > recent_s}
        names = sorted(self._names, key=lambda name: -self._names[name])[:NAMES_MAX]
        try:
            found = await self._asker.look(names=names, all_clients=self._clients_at_s > recent_s)
        except MessageBusError as fault:
            await self._take(self._asker.bus(), str(fault))
            return
        try:
            await self._take(found, "")
        except Exception as fault:  # what agents say must not end what shows it
            log.exception("observation not concluded")
            await self._take(self.board.view.bus, f"{type(fault).__name__}: {fault}")

    async def _take(self, bus: Bus, fault: str) -> None:
        if fault and not bus.brokers:
            bus = replace(self.board.view.bus, at_ms=bus.at_ms)
        view, events = self._concluding.view(bus, self.history, fault)
        self.board = board(view)
        self._remember(self.board)
        if events or self.events.fault:
            await asyncio.to_thread(self.events.add, events)
        async with self._news:
            self.number += 1
            self._news.notify_all()

    def _remember(self, board: Board) -> None:
        view, at_s = board.view, board.view.now_ms / MS_PER_S
        if view.fault:
            return
        for name, source in board.sources.items():
            if source.answering:
                self.history.put(f"source:{name}", at_s, course_of(source))
        for broker, sums in board.brokers.items():
            rates = view.through.get(broker)
            moving = (rates.came, rates.left) if rates else (None, None)
            self.history.put(f"broker:{broker}", at_s, (sums.oldest_s, sums.waiting, *moving))
        if view.bus.answers:
            oldest_s = (board.worst.oldest_s or 0.0) if board.worst else 0.0
            flows = board.published, board.handled
            figures = known(oldest_s, board.oldest_is_least), board.waiting, *flows
            self.history.put(BUS, at_s, figures)


def course_of(source: Source) -> tuple[float | None, ...]:
    """Return the figures of `history.FIELDS`; None for those that are not known."""
    each = source.sum
    return (
        known(source.oldest_s, each.oldest_is_least),
        known(each.waiting, each.is_least),
        known(each.came, each.is_least),
        known(each.left, each.is_least),
    )
