"""Search for one message over all brokers: parking queues, a recording, and what agents count of the rest."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from messagebus import BusConfig, ParkedFilter, read_parked
from messagebus_monitor.people import Principal, Role
from messagebus_tools.find import find_rows
from messagebus_tools.observing.snapshot import Bus
from messagebus_tools.observing.trace import Evidence, Trace, trace

AT_ONCE = 2
PARKED_MAX = 20
ID_CHARS_MIN, ID_CHARS_MAX = 6, 255


class Tracing:
    """Searches, two at once at most. recording: folder of a recorder's rows; "" for none."""

    def __init__(self, bus: BusConfig, recording: str) -> None:
        self._bus, self._recording = bus, recording
        self._at_once = asyncio.Semaphore(AT_ONCE)

    async def find(
        self, id: str, seen: Bus, who: Principal, *, topic: str = "", ago_s: int = 0
    ) -> Trace:
        """Look for a message. What its handler raised is for readers.

        ago_s: it was published so long ago, or earlier; 0 for not known. Raises MessageBusError, and
        ValueError for an id that none is.
        """
        if not ID_CHARS_MIN <= len(id) <= ID_CHARS_MAX:
            raise ValueError(
                f"an id, or its beginning, has {ID_CHARS_MIN} to {ID_CHARS_MAX} characters"
            )
        async with self._at_once:
            found, rows = await asyncio.to_thread(self._look, id)
        parked = found.messages
        if who.role < Role.READER:
            parked = tuple(replace(each, exception="") for each in parked)
        evidence = Evidence(
            id=id,
            parked=parked,
            recorded=rows,
            published_ms=seen.at_ms - ago_s * 1_000 if ago_s else None,
            topic=topic.removeprefix("queue:"),
            faults=found.faults,
        )
        return trace(evidence, seen)

    def _look(self, id: str) -> tuple[Any, list[dict[str, Any]]]:
        rows = find_rows(self._recording, id) if self._recording else []
        return read_parked(self._bus, where=ParkedFilter(message_id=id), count_max=PARKED_MAX), rows
