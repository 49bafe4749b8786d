"""Publishes in flight, and deliveries that the load has not taken yet, of clients that are not ours."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from bench.harness.interface import Delivered, End
from bench.harness.outcomes import UNKNOWN


class Flight:
    """The publishes in flight, at most a window of them, and the ends that the load has not had. One loop's.

    check: raises when the connection is gone, so that nobody waits for room any more.
    """

    def __init__(self, window: int, check: Callable[[], object] = lambda: None) -> None:
        self._window, self._check = window, check
        self._open: dict[int, tuple[int, int]] = {}
        self._ends: list[End] = []
        self._changed = asyncio.Event()

    async def room(self, window: int = 0) -> None:
        """Wait until fewer publishes are in flight than the window."""
        while len(self._open) >= (window or self._window):
            self._check()
            self._changed.clear()
            await self._changed.wait()

    def begin(self, key: int, sequence: int) -> None:
        """Add a publish that is written now. key: the client's own, such as a delivery tag."""
        self._open[key] = sequence, time.monotonic_ns()

    def end(self, key: int, outcome: int, broker: str, sent_ns: int = 0) -> None:
        """End a publish, if it is in flight. sent_ns: where it was written later than it began."""
        if (open_ := self._open.pop(key, None)) is not None:
            sequence, began_ns = open_
            now_ns = time.monotonic_ns()
            self._ends.append(End(sequence, outcome, broker, sent_ns or began_ns, now_ns))
            self._changed.set()

    def wake(self) -> None:
        """Have whoever waits check the connection."""
        self._changed.set()

    def ends(self) -> list[End]:
        """Return the publishes that have ended since the last call."""
        ends, self._ends = self._ends, []
        return ends

    async def close(self, timeout_s: float, broker: str) -> None:
        """Wait for what is in flight; the rest ends unknown."""
        with contextlib.suppress(Exception):  # late, or the connection is gone
            await asyncio.wait_for(self.room(1), timeout_s)
        for key in list(self._open):
            self.end(key, UNKNOWN, broker)


class Arrived:
    """The deliveries that the load has not taken. One loop's."""

    def __init__(self) -> None:
        self._had: list[Delivered] = []
        self._some = asyncio.Event()

    def add(self, body: bytes, broker: str) -> None:
        self._had.append(Delivered(body, broker, time.monotonic_ns()))
        self._some.set()

    def wake(self) -> None:
        self._some.set()

    async def take(self, max_wait_s: float) -> list[Delivered]:
        """Return new deliveries; empty after max_wait_s without any."""
        if not self._had:
            self._some.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._some.wait(), max_wait_s)
        had, self._had = self._had, []
        return had
