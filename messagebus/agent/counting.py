"""How much waits in the subscriptions and queues of the agent's own broker, and dropping it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from messagebus.agent.management import Management, ManagementUnavailable
from messagebus.agent.upkeep import Upkeep
from messagebus.core.register import Entry
from messagebus.destination import Queue, Subscription
from messagebus.topology import with_options

__all__ = ["Count", "Counting", "sources_of"]


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
    """What of the map lives and can be consumed from -> its queue inside a broker."""
    queues = dict[str, str]()
    for name, entry in entries.items():
        wanted = with_options(name, dict(entry.options))
        if entry.alive and isinstance(wanted, Subscription | Queue):
            queues[name] = wanted.amqp_queue
    return queues
