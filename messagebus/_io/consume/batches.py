"""Batches of deliveries for batch handlers: full ones, or those that arrived within a time.

The time begins when the first of a batch is taken. A delivery that does not fit the handler's type never gets
into a batch. Runs on one asyncio loop; the runners of handlers take batches, at the end of a run or waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from messagebus._io.consume.runs import Batch
from messagebus.message import Delivery


class Gathering:
    """The batch being gathered. size: of a batch, at most. linger_s: wait for a batch to become full.

    take: returns a waiting delivery, or None. receive: waits for one up to this time in s; None: there is
    none. is_over: no more will come. is_wanted: whether a delivery may still be handled; if not, it
    comes again. read: makes the handler's payload of a delivery.
    """

    def __init__(
        self,
        size: int,
        linger_s: float,
        *,
        take: Callable[[], Delivery | None],
        receive: Callable[[float | None], Awaitable[Delivery | None]],
        is_over: Callable[[], bool],
        is_wanted: Callable[[Delivery], bool],
        read: Callable[[Delivery], Any] | None = None,
    ) -> None:
        self._size, self._linger_s = size, linger_s
        self._take, self._receive, self._is_over = take, receive, is_over
        self._read, self._is_wanted = read, is_wanted
        self.on_misfit: Callable[[Delivery, Exception], object]
        """Answers a delivery for which `read` raised."""
        self._held = Batch()
        self._until_s = 0.0
        self._is_waiting = False
        self._loop = asyncio.get_running_loop()

    def take(self) -> Batch | None:
        """Return a batch that is full, or whose time is over; None: there is none yet."""
        if (
            self._is_waiting
        ):  # without an end: it would not see the time of what was taken behind its back
            return None
        while len(self._held) < self._size and (delivery := self._take()) is not None:
            self._add(delivery)
        if len(self._held) >= self._size or (self._held and self._loop.time() >= self._until_s):
            return self._wanted_batch()
        return None

    async def receive(self) -> Batch | None:
        """Wait for a batch; None: no more will come. The last one may be of any length."""
        while True:
            if (batch := self.take()) is not None:
                return batch
            wait_s = max(0.0, self._until_s - self._loop.time()) if self._held else None
            self._is_waiting = wait_s is None
            try:
                delivery = await self._receive(wait_s)
            finally:
                self._is_waiting = False
            if delivery is not None:
                self._add(delivery)
            elif self._is_over():
                return self._wanted_batch()

    def withdraw(self) -> Batch:
        """Take out the deliveries that wait for their batch, which will not be in one now."""
        held, self._held = self._held, Batch()
        return held

    def _add(self, delivery: Delivery) -> None:
        if self._read is not None:
            try:
                payload = self._read(delivery)
            except Exception as misfit:  # Park, or a fault of a type's own code
                self.on_misfit(delivery, misfit)
                return
            self._held.payloads.append(payload)
        self._held.append(delivery)
        if len(self._held) == 1:
            self._until_s = self._loop.time() + self._linger_s

    def _wanted_batch(self) -> Batch | None:
        """Return the batch without deliveries whose link was lost meanwhile: they come again."""
        held = self.withdraw()
        if all(map(self._is_wanted, held)):
            return held or None
        made = Batch()
        for place, delivery in enumerate(held):
            if self._is_wanted(delivery):
                made.append(delivery)
                made.payloads += held.payloads[place : place + 1]
        return made or None
