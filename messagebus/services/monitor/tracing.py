"""Search for one message over all brokers, two at once, and what somebody may see of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from messagebus import BusConfig
from messagebus.observing.snapshot import Bus
from messagebus.observing.trace import Trace, trace
from messagebus.services.monitor.people import Principal, Role
from messagebus.tools.find import evidence_of

AT_ONCE = 2


class Tracing:
    """Searches, two at once at most. recording: folder of a recorder's rows; "" for none."""

    def __init__(self, bus: BusConfig, recording: str) -> None:
        self._bus, self._recording = bus, recording
        self._at_once = asyncio.Semaphore(AT_ONCE)

    async def find(
        self, id: str, bus: Bus, who: Principal, *, topic: str = "", ago_s: int = 0
    ) -> Trace:
        """Look for a message. The error of its handler is for readers.

        ago_s: it was published so long ago, or earlier; 0 for not known. Raises MessageBusError, and
        ValueError for an id that none is.
        """
        async with self._at_once:
            found = await asyncio.to_thread(
                evidence_of,
                self._bus,
                id,
                recording=self._recording,
                topic=topic,
                published_ms=bus.at_ms - ago_s * 1_000 if ago_s else None,
            )
        if who.role < Role.READER:
            parked = tuple(replace(each, exception="") for each in found.parked)
            trail = tuple({**row, "error": ""} for row in found.trail)
            found = replace(found, parked=parked, trail=trail)
        return trace(found, bus)
