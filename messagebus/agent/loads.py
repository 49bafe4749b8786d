"""How much waits in each queue of the agent's own broker, for whom and since when; and what room it has.

For monitoring alone: nothing is decided by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from messagebus.agent.ages import Ages
from messagebus.agent.management import Load, Management, ManagementUnavailable, Room
from messagebus.agent.metrics import Figure

__all__ = ["INTERVAL_S", "Loads"]

# A thousand queues take the broker 0.1 s.
INTERVAL_S = 10.0


class Loads:
    """What the broker said last; nothing while it says nothing."""

    def __init__(self, management: Management) -> None:
        self._management = management
        self._ages = Ages()
        self._known: list[tuple[Load, float]] = []
        self._room: Room | None = None

    async def watch(self, clock_ms: Callable[[], int]) -> None:
        """Look every INTERVAL_S, for ever; at once an end where there is no management API."""
        while self._management.is_there:
            await self.look(clock_ms())
            await asyncio.sleep(INTERVAL_S)

    async def look(self, now_ms: int) -> None:
        try:
            found, self._room = await self._management.loads(), await self._management.room()
        except ManagementUnavailable:
            self._known, self._room = [], None
            return
        self._known = [(load, self._age_s(load, now_ms)) for load in found]
        self._ages.keep_only(load.queue for load in found)

    def figures(self) -> Iterator[Figure]:
        for load, _ in self._known:
            text = "Ready or not acknowledged."
            yield Figure("queue_messages", text, load.messages, queue=load.queue)
        for load, _ in self._known:
            yield Figure("queue_consumers", "Of this queue.", load.consumers, queue=load.queue)
        for load, age_s in self._known:
            text = "Of the oldest message; too high where many are rejected or expire."
            yield Figure("queue_oldest_age_seconds", text, age_s, queue=load.queue)
        if room := self._room:
            yield Figure("disk_free_bytes", "As the broker sees it.", room.disk_free_bytes)
            text = "Below this much free disk the broker raises its alarm."
            yield Figure("disk_limit_bytes", text, room.disk_limit_bytes)
            yield Figure("memory_used_bytes", "As the broker sees it.", room.memory_used_bytes)
            text = "Above this much memory the broker raises its alarm."
            yield Figure("memory_limit_bytes", text, room.memory_limit_bytes)

    def _age_s(self, load: Load, now_ms: int) -> float:
        age_ms = self._ages.sample(
            load.queue, now_ms, waiting=load.messages, departed=load.departed
        )
        return age_ms / 1000
