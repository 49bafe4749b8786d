"""Loads of the agent's own broker: messages of each queue, their age, its consumers, the broker's room.

`Loads` is for monitoring alone: nothing is decided by it. `Counting` counts and purges for operators.

`Ages` computes the age of the oldest message of each queue from counts alone, as quorum queues do not
tell it. Arrivals are the messages present and those departed. A queue is first in, first out, so its oldest
message arrived when the count of arrivals first passed today's count of departures. Pure; time is passed in,
as whole milliseconds.

A broker counts departures by acks only, not by rejection into the parking queue or by expiry. So a queue
that has these and is never empty looks older than it is, until it is empty once. Counting publishes would
not help: a queue at its bound refuses some, and counts them as published too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from messagebus.destination import GROUPS, Queue, Subscription
from messagebus.services.agent.broker.management import (
    Attached,
    Load,
    Management,
    ManagementUnavailable,
    Overview,
    Room,
)
from messagebus.services.agent.broker.upkeep import Upkeep
from messagebus.services.agent.topology.homes import has_segments
from messagebus.services.agent.topology.register import Entry
from messagebus.services.agent.web.metrics import Figure
from messagebus.topology import with_options

# A thousand queues take the broker 0.1 s.
INTERVAL_S = 10.0
# While somebody observes the broker, whose statistics are as old. A row costs the broker 90 us: so many rows
# are looked at less often.
HURRIED_S, HURRIED_ROWS_A_S = 5.0, 140
# A consumer costs three rows, with its channel and connection.
ATTACHED_A_S = 50
# Consumers that were listed longer ago are told no more, unless they are that many.
ATTACHED_OLD_MS = 30_000
# Samples kept of one queue; beyond that every second one is dropped.
SAMPLES_MAX = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The figures of one look. ages_ms: by queue; flows: arrived and departed by queue.

    least: queues whose oldest message is older than that, by an unknown time.
    life: arrived, departed and the broker's counters only grow within one.
    """

    at_ms: int
    loads: Mapping[str, Load]
    ages_ms: Mapping[str, int]
    least: frozenset[str]
    flows: Mapping[str, tuple[int, int]]
    room: Room
    overview: Overview
    life: int


class Loads:
    """The last figures of the broker's queues.

    last: of the last answered look, None before. Prometheus gets nothing while the broker gives none.
    """

    def __init__(self, management: Management) -> None:
        self._management = management
        self._ages, self._flows = Ages(), Flows()
        self._is_answered = False
        self._hurried = asyncio.Event()
        self._attached: list[Attached] = []
        self._attached_at_ms = -ATTACHED_OLD_MS
        self._listing: asyncio.Task[None] | None = None
        self.last: Sweep | None = None

    @property
    def is_there(self) -> bool:
        """True where there is a management API."""
        return self._management.is_there

    async def watch(self, clock_ms: Callable[[], int]) -> None:
        """Look every INTERVAL_S, for ever; return at once where there is no management API."""
        try:
            while self._management.is_there:
                await self.look(clock_ms())
                # Whoever asked during the look wants no second one: it would double the broker's cost.
                self._hurried.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(INTERVAL_S):
                        await self._hurried.wait()
        finally:
            if self._listing:
                self._listing.cancel()

    def hurry(self, now_ms: int) -> None:
        """Have `watch` look now unless the last look is young: somebody observes."""
        last = self.last
        after_s = max(HURRIED_S, len(last.loads) / HURRIED_ROWS_A_S) if last else 0.0
        if last is None or now_ms - last.at_ms >= after_s * 1000:
            self._hurried.set()

    def attached(self, now_ms: int) -> list[Attached]:
        """Return the consumers as they were listed last; an old list is made anew beside."""
        age_ms = now_ms - self._attached_at_ms
        after_ms = round(1_000 * max(HURRIED_S, len(self._attached) / ATTACHED_A_S))
        is_listing = self._listing is not None and not self._listing.done()
        if self.is_there and age_ms >= after_ms and not is_listing:
            self._listing = asyncio.ensure_future(self._list_attached(now_ms))
        return self._attached if age_ms < max(ATTACHED_OLD_MS, 2 * after_ms) else []

    async def _list_attached(self, now_ms: int) -> None:
        with contextlib.suppress(ManagementUnavailable):
            self._attached = await self._management.attached()
            self._attached_at_ms = now_ms

    async def look(self, now_ms: int) -> None:
        try:
            found, room = await self._management.loads(), await self._management.room()
            overview = await self._management.overview()
        except ManagementUnavailable:
            self._is_answered = False
            return
        self._is_answered = True
        self.last = Sweep(
            at_ms=now_ms,
            loads={load.queue: load for load in found},
            ages_ms={load.queue: self._age_ms(load, now_ms) for load in found},
            least=frozenset(load.queue for load in found if self._ages.is_least(load.queue)),
            flows=self._flows.sample(found, overview.totals.get("publish", 0)),
            room=room,
            overview=overview,
            life=self._flows.life,
        )
        self._ages.keep_only(load.queue for load in found)

    def figures(self) -> Iterator[Figure]:
        if not (self._is_answered and (last := self.last)):
            return
        for load in last.loads.values():
            yield Figure("queue_messages", load.messages, queue=load.queue)
        for load in last.loads.values():
            yield Figure("queue_consumers", load.consumers, queue=load.queue)
        for queue, age_ms in last.ages_ms.items():
            yield Figure("queue_oldest_age_seconds", age_ms / 1000, queue=queue)
        room = last.room
        yield Figure("disk_free_bytes", room.disk_free_bytes)
        yield Figure("disk_limit_bytes", room.disk_limit_bytes)
        yield Figure("memory_used_bytes", room.memory_used_bytes)
        yield Figure("memory_limit_bytes", room.memory_limit_bytes)

    def _age_ms(self, load: Load, now_ms: int) -> int:
        return self._ages.sample(load.queue, now_ms, waiting=load.messages, departed=load.departed)


class Flows:
    """Counts of messages that came to each queue of one broker, and of those that left it.

    A broker counts neither rejects nor what a policy drops. So what is missing has left, and what is there
    beyond the acknowledged has come: both are lower bounds between two samples, and their difference is what
    is present. life: grows when the broker's own counters went back, as after its restart.
    """

    def __init__(self) -> None:
        self._before: dict[str, tuple[Load, int, int]] = {}
        self._published = 0
        self.life = 0

    def sample(self, loads: Iterable[Load], published: int) -> dict[str, tuple[int, int]]:
        """Return arrived and departed of each queue since this life began. published: by the broker."""
        loads, before = list(loads), self._before
        known = [(load, before[load.queue][0]) for load in loads if load.queue in before]
        if published < self._published or any(new.departed < old.departed for new, old in known):
            self.life += 1
            before = {}
        self._published = published
        self._before = {load.queue: _flown(load, before.get(load.queue)) for load in loads}
        return {queue: (came, left) for queue, (_, came, left) in self._before.items()}


def _flown(load: Load, before: tuple[Load, int, int] | None) -> tuple[Load, int, int]:
    if before is None:
        return load, load.messages, 0
    old, arrived, departed = before
    acked = load.departed - old.departed
    came = load.messages - old.messages + acked
    return load, arrived + max(0, came), departed + acked + max(0, -came)


@dataclass(slots=True)
class _Queue:
    """The past of one queue.

    arrivals: (time, arrived by then) for each time at which the oldest message may have arrived.
    departed: as the broker said last; before: departures that it has forgotten since. first: arrived by the
    first sample: these messages are older than that by an unknown time.
    """

    first: int
    waiting: int
    departed: int
    before: int = 0
    arrivals: deque[tuple[int, int]] = field(default_factory=deque)

    @property
    def gone(self) -> int:
        return self.before + self.departed


class Ages:
    """The ages of the queues of one broker."""

    def __init__(self) -> None:
        self._queues: dict[str, _Queue] = {}

    def sample(self, queue: str, now_ms: int, *, waiting: int, departed: int) -> int:
        """Return the age of the oldest message, in milliseconds; 0 for an empty queue.

        waiting: ready or unacknowledged. departed: acknowledged since the broker's start, which makes no
        message younger.
        """
        known = self._queues.get(queue)
        if known is None:
            known = self._queues[queue] = _Queue(waiting + departed, waiting, departed)
        elif departed < known.departed:
            # What the broker has forgotten: all until the last sample, and what is missing since then.
            known.before += known.departed + max(0, known.waiting - waiting - departed)
        known.waiting, known.departed = waiting, departed
        if not waiting:
            known.first = 0
            known.arrivals.clear()
            return 0
        known.arrivals.append((now_ms, waiting + known.gone))
        while known.arrivals[0][1] <= known.gone:
            known.arrivals.popleft()
        if len(known.arrivals) > SAMPLES_MAX:
            known.arrivals = deque(list(known.arrivals)[::2])
        return now_ms - known.arrivals[0][0]

    def is_least(self, queue: str) -> bool:
        """Return whether its oldest message was there before the first sample: it is older than that."""
        known = self._queues[queue]
        return known.gone < known.first

    def keep_only(self, queues: Iterable[str]) -> None:
        """Drop queues that are gone."""
        for queue in self._queues.keys() - set(queues):
            del self._queues[queue]


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """The counts of one subscription or queue on one broker.

    ready: messages that wait; consumers: of this queue. unacked: delivered and not answered, up to
    some seconds old; None where there is no management API or it does not know the queue yet.
    """

    ready: int
    consumers: int
    unacked: int | None
    segments: Mapping[str, int] | None = None
    """Messages that wait in each of its segments here, where its topic has partitions."""


SUBS = "mb.sub/"


class Counting:
    """Counts on the broker of `upkeep`, without missing queues."""

    def __init__(self, upkeep: Upkeep, management: Management) -> None:
        self._upkeep, self._management = upkeep, management

    async def counts(self, entries: Mapping[str, Entry]) -> dict[str, Count]:
        """Return the current counts by name. Raises LinkError."""
        queues = sources_of(entries)
        segments = {
            name: self._upkeep.partitions.segment_queues(name)
            for name in queues
            if has_segments(entries[name])
        }
        below = [queue for each in segments.values() for queue in each.values()]
        groups = [each.replace(SUBS, GROUPS, 1) for n, each in queues.items() if n in segments]
        whole = [queue for name, queue in queues.items() if name not in segments]
        found = await self._upkeep.link.counts([*whole, *below, *groups])
        unacked = await self._unacked()
        counts = dict[str, Count]()
        for name, queue in queues.items():
            if name in segments:
                waiting = {
                    segment: pair[0]
                    for segment, each in segments[name].items()
                    if (pair := found[each]) is not None
                }
                members = found[queue.replace(SUBS, GROUPS, 1)]
                held = [unacked[each] for each in segments[name].values() if each in unacked]
                counts[name] = Count(
                    ready=sum(waiting.values()),
                    consumers=0 if members is None else members[1],
                    unacked=sum(held) if held or not segments[name] else None,
                    segments=waiting,
                )
            elif (pair := found[queue]) is not None:
                ready, consumers = pair
                counts[name] = Count(ready=ready, consumers=consumers, unacked=unacked.get(queue))
        return counts

    async def purge(self, entries: Mapping[str, Entry], names: Iterable[str]) -> dict[str, int]:
        """Drop ready messages. Returns how many by name, without missing queues. Raises LinkError."""
        queues = sources_of(entries)
        wanted = {
            name: list(self._upkeep.partitions.segment_queues(name).values())
            if has_segments(entries[name])
            else [queues[name]]
            for name in names
            if name in queues
        }
        dropped = await self._upkeep.link.purge(
            [queue for each in wanted.values() for queue in each]
        )
        found = {name: [dropped[queue] for queue in each] for name, each in wanted.items()}
        return {
            name: sum(count or 0 for count in counts)
            for name, counts in found.items()
            if any(count is not None for count in counts)
        }

    async def _unacked(self) -> Mapping[str, int]:
        if not self._management.is_there:
            return {}
        try:
            return await self._management.unacked()
        except ManagementUnavailable:
            return {}


def sources_of(entries: Mapping[str, Entry]) -> dict[str, str]:
    """Map each living source of the map to its queue inside a broker."""
    queues = dict[str, str]()
    for name, entry in entries.items():
        wanted = with_options(name, dict(entry.options))
        if entry.alive and isinstance(wanted, Subscription | Queue):
            queues[name] = wanted.amqp_queue
    return queues
