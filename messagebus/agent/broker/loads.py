"""Loads of the agent's own broker: the messages in each queue, their age, its consumers, the broker's room.

`Loads` is for monitoring alone: nothing is decided by it. `Counting` counts and purges for operators.

`Ages` tells how long the oldest message of each queue has waited, from counts alone: quorum queues do not
tell it. What has arrived is what is there and what has left. A queue is first in, first out, so its oldest
message arrived when the count of arrivals first passed today's count of departures. Pure; time comes in as
whole milliseconds.

A broker does not count departures other than by acks: rejected into the parking queue, expired. So a queue
that has them and is never empty looks older than it is, until it is empty once. What was published to it
is no way out: a queue at its bound refuses, and that is counted as published too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from messagebus.agent.broker.management import Load, Management, ManagementUnavailable, Room
from messagebus.agent.broker.upkeep import Upkeep
from messagebus.agent.metrics import Figure
from messagebus.core.register import Entry
from messagebus.destination import Queue, Subscription
from messagebus.topology import with_options

__all__ = ["INTERVAL_S", "Loads", "SAMPLES_MAX", "Ages", "Count", "Counting", "sources_of"]

# A thousand queues take the broker 0.1 s.
INTERVAL_S = 10.0
# Of one queue. A backlog is known by so many moments; beyond that every second one is forgotten.
SAMPLES_MAX = 500


class Loads:
    """The broker's last word on its queues; nothing while it says nothing."""

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


class Ages:
    """The queues of one broker."""

    def __init__(self) -> None:
        # queue -> (when, arrived by then) for each moment that the oldest message may be from
        self._arrivals: dict[str, deque[tuple[int, int]]] = {}
        self._departed: dict[str, int] = {}

    def sample(self, queue: str, now_ms: int, *, waiting: int, departed: int) -> int:
        """Return how old the oldest message is at least, in milliseconds; 0 for an empty queue.

        waiting: ready or unacknowledged. departed: acknowledged since the broker's start; what was there
        before the first sample counts from that.
        """
        if departed < self._departed.get(queue, 0) or not waiting:
            self._arrivals.pop(queue, None)
        self._departed[queue] = departed
        if not waiting:
            return 0
        arrivals = self._arrivals.setdefault(queue, deque())
        arrivals.append((now_ms, waiting + departed))
        while arrivals[0][1] <= departed:
            arrivals.popleft()
        if len(arrivals) > SAMPLES_MAX:
            self._arrivals[queue] = arrivals = deque(list(arrivals)[::2])
        return now_ms - arrivals[0][0]

    def keep_only(self, queues: Iterable[str]) -> None:
        """Forget queues that are gone."""
        gone = self._departed.keys() - set(queues)
        for queue in gone:
            self._arrivals.pop(queue, None)
            del self._departed[queue]


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """One subscription or queue on one broker.

    ready: messages that wait; consumers: of this queue. unacked: delivered and not answered, up to
    some seconds old; None where there is no management API or it does not know the queue yet.
    """

    ready: int
    consumers: int
    unacked: int | None


class Counting:
    """Counts on the broker of `upkeep`; what is not there is left out."""

    def __init__(self, upkeep: Upkeep, management: Management) -> None:
        self._upkeep, self._management = upkeep, management

    async def counts(self, entries: Mapping[str, Entry]) -> dict[str, Count]:
        """By name, as the broker says now. Raises LinkError."""
        queues = sources_of(entries)
        found = await self._upkeep.counts(queues.values())
        unacked = await self._unacked()
        counts = dict[str, Count]()
        for name, queue in queues.items():
            if (pair := found[queue]) is not None:
                ready, consumers = pair
                counts[name] = Count(ready=ready, consumers=consumers, unacked=unacked.get(queue))
        return counts

    async def purge(self, entries: Mapping[str, Entry], names: Iterable[str]) -> dict[str, int]:
        """Drop what is ready; how many by name, without those that are not there. Raises LinkError."""
        queues = sources_of(entries)
        wanted = {name: queues[name] for name in names if name in queues}
        dropped = await self._upkeep.purge(wanted.values())
        return {
            name: count for name, queue in wanted.items() if (count := dropped[queue]) is not None
        }

    async def _unacked(self) -> Mapping[str, int]:
        if not self._management.is_there:
            return {}
        try:
            return await self._management.unacked()
        except ManagementUnavailable:
            return {}


def sources_of(entries: Mapping[str, Entry]) -> dict[str, str]:
    """Map what of the map lives and can be consumed from to its queue inside a broker."""
    queues = dict[str, str]()
    for name, entry in entries.items():
        wanted = with_options(name, dict(entry.options))
        if entry.alive and isinstance(wanted, Subscription | Queue):
            queues[name] = wanted.amqp_queue
    return queues
