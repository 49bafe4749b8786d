"""Copies of what was delivered, published before the original is answered.

A part of a batch that is given back, or a delivery that must be parked with a reason, cannot be told
to the broker by a nack. It is published again, over a publishing link of its own (a consuming link
never publishes), to a queue that every broker has; the original is answered after the confirm.
Runs on one asyncio loop; the link is made when the first copy is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from messagebus._io.properties import with_headers
from messagebus._io.publishing import PublishDriver
from messagebus._io.tickets import Address, Shape
from messagebus._io.wire import Wire
from messagebus.config import BusConfig, PublisherConfig
from messagebus.destination import Source
from messagebus.message import Message
from messagebus.outcome import Durability, Outcome, Published

__all__ = ["PARK_REASON", "Copies"]

log = logging.getLogger("messagebus.consumer")

PARK_REASON = "mb-park-reason"
"""Header of what is parked by a client: why."""
COPY_TIMEOUT_MS = 30_000
RETRY_S = 1.0
STOP_TIMEOUT_S = 2.0


class Copies:
    """The copies of one consumer's deliveries."""

    def __init__(self, bus: BusConfig, source: Source, wire: Wire) -> None:
        self._bus, self._source, self._wire = bus, source, wire
        self._driver: PublishDriver | None = None

    async def give_back(self, message: Message, wanted: Callable[[], bool]) -> bool:
        """Put it at the end of its own queue. wanted: False gives up. True: it is confirmed."""
        return await self._copy(message, self._source.amqp_queue, self._source.durability, wanted)

    async def park(self, message: Message, reason: str, wanted: Callable[[], bool]) -> bool:
        """Put it into the parking queue of its source."""
        marked = with_headers(message, {PARK_REASON: reason})
        return await self._copy(marked, self._source.parking_queue, self._source.durability, wanted)

    async def _copy(
        self, message: Message, queue: str, durability: Durability, wanted: Callable[[], bool]
    ) -> bool:
        # A copy is always confirmed, whatever its queue promises: the original is answered on it.
        kept = durability if durability is not Durability.NONE else Durability.PAGE_CACHE
        shape = Shape(Address.queue(queue, kept), message.content_type)
        while wanted():
            done: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
            self._started().submit(shape, message.body, message, COPY_TIMEOUT_MS, done)
            published = await done
            if published.outcome is Outcome.CONFIRMED:
                return True
            log.warning(
                "copy not stored queue=%s message=%s outcome=%s reason=%r",
                queue,
                message.message_id,
                published.outcome.value,
                published.reason,
            )
            await asyncio.sleep(RETRY_S)
        return False

    def _started(self) -> PublishDriver:
        if self._driver is None:
            self._driver = PublishDriver(self._bus, PublisherConfig(), lambda: None, self._wire)
            self._driver.start()
        return self._driver

    async def stop(self) -> None:
        if self._driver is not None:
            await self._driver.stop(STOP_TIMEOUT_S)
