"""Answers to `GET /observe`: everything that the agent knows about its own broker.

Costs grow with what is looked at. A change of the state is told to one waiting request. Ready messages and
consumers are counted over AMQP when somebody asks: what is named each time, all others at most every
COUNT_EVERY_MS. All other figures are of the last look of `Loads`, which looks more often while somebody asks.
Each figure carries its age: of a broker that is away, the last figures stay and grow old.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from messagebus import __version__
from messagebus.clock import monotonic_ms, wall_ms
from messagebus.destination import UNDELIVERED_QUEUE, Delay, Queue, Subscription
from messagebus.errors import LinkError
from messagebus.observing.snapshot import (
    Answer,
    Client,
    Consumer,
    Kind,
    Loss,
    Mirror,
    Room,
    Row,
    State,
    Totals,
    answer_to_json,
)
from messagebus.services.agent.broker.loads import Loads, Sweep
from messagebus.services.agent.broker.upkeep import Upkeep
from messagebus.services.agent.consumer_list import Clients, ListFile
from messagebus.services.agent.gate import Condition, Verdict
from messagebus.services.agent.topology.register import Register
from messagebus.services.agent.web.metrics import MirrorState
from messagebus.topology import DUE, parse_wanted, with_options

# One passive declaration costs the broker 60 us: of more than 200 queues, only those asked for by name, which
# somebody looks at, are counted every 2 s, all others at COUNTS_A_S, but every 10 s at least.
COUNT_EVERY_MS, COUNT_MANY_EVERY_MS = 2_000, 10_000
COUNTS_A_S = 100
# A change of the state is told within this time, to whoever waits for it.
LOOK_S = 0.1
DIGITS_MAX = 18
MISSING_SHOWN = LOSSES_SHOWN = 20

Key = tuple[str, Kind]


class _Place(NamedTuple):
    """One row to be: its key, its queue inside the broker, and whether it is counted over AMQP.

    below: the queues of its segments, which are summed; the queue then has its consumers only.
    """

    key: Key
    queue: str
    is_source: bool
    below: tuple[str, ...] = ()


class _Count(NamedTuple):
    """The last count of one queue. since_ms: it has had ready messages for so long."""

    ready: int
    consumers: int
    at_ms: int
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of the agent that know something. more: parts of the state that nobody waits for."""

    broker: str
    started: str
    register: Register
    upkeep: Upkeep
    lists: ListFile
    clients: Clients
    loads: Loads
    condition: Callable[[], Condition]
    verdict: Callable[[], Verdict]
    mirror: Callable[[], MirrorState | None]
    certificate_s: Callable[[], float]


class Observer:
    """The word of one agent about its broker. Runs on one loop."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._version, self._mark = secrets.randbits(32), ()
        self._map_version, self._places, self._topology = -1, list[_Place](), ""
        self._counts: dict[str, _Count] = {}
        self._counted_at_ms: int | None = None
        self._counting = asyncio.Lock()
        self._rows: dict[Key, Row] = {}
        # The number of the last change of any row, of each row, and of the last that took a row away.
        self._number, self._taken, self._life = 0, 0, -1
        self._changed: dict[Key, int] = {}
        self._numbers_of = secrets.token_hex(4)

    # The state.

    @property
    def version(self) -> int:
        """A number that changes with the state; reading it looks at the state."""
        parts = self._parts
        condition, current = parts.condition(), parts.lists.current
        mark: tuple[Any, ...] = (
            replace(condition, behind_since_ms=None),
            parts.verdict().kind,
            current,
            parts.upkeep.losses.mark,
        )
        if mark != self._mark:
            self._mark = mark
            self._version += 1
        return self._version

    async def changed(self, version: int) -> None:
        """Wait, without a time limit, until the state has another version."""
        # No event: the state is of many parts, each of which would have to know that somebody waits.
        while self.version == version:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)

    def _state(self) -> State:
        parts, upkeep = self._parts, self._parts.upkeep
        condition, verdict, sweep = parts.condition(), parts.verdict(), parts.loads.last
        current, missing = parts.lists.current, upkeep.missing()
        mirror, certificate_s = parts.mirror(), parts.certificate_s()
        return State(
            version=self.version,
            verdict=verdict.kind.value,
            reason=verdict.reason,
            linked=condition.linked,
            gate=condition.linked and condition.gate_open,
            settled=upkeep.is_settled,
            informed=condition.informed,
            alarm=condition.alarm,
            draining=condition.draining,
            cluster=current.cluster if current else "",
            generation=parts.lists.generation,
            topology=self._topology,
            entries=sum(entry.alive for entry in parts.register.entries.values()),
            missing=tuple(missing[:MISSING_SHOWN]),
            missing_count=len(missing),
            losses=tuple(
                Loss(
                    wanted=loss.wanted,
                    what=loss.what,
                    name=loss.name,
                    noticed_at_ms=loss.noticed_at_ms,
                    repaired=bool(loss.repaired_at_ms),
                )
                for loss in list(upkeep.losses.kept)[-LOSSES_SHOWN:]
            ),
            lost=upkeep.losses.total,
            mirror=Mirror(**asdict(mirror)) if mirror else None,
            certificate_s=round(certificate_s) if certificate_s else None,
            rabbitmq=sweep.overview.version if sweep else "",
            agent=__version__,
        )

    # Answers.

    async def answer(
        self,
        allowed: Collection[str] | None,
        *,
        names: Iterable[str] = (),
        since: str = "",
        state_only: bool = False,
        all_clients: bool = False,
    ) -> dict[str, Any]:
        """Return the body of an answer.

        allowed: the names that the caller may see; None: all. names: only these, counted now. since: the
        `mark` of an earlier answer; only rows that have changed since, unless some are gone. state_only:
        no rows.
        """
        now_ms, at_ms, wanted = monotonic_ms(), wall_ms(), set(names)
        self._read_map()
        if not state_only:
            self._parts.loads.hurry(now_ms)
            await self._count(wanted)
            now_ms = monotonic_ms()
            self._refresh()
        after = self._number_of(since)
        whole = not wanted and not state_only and after < self._taken
        rows = () if state_only else self._chosen(allowed, wanted, -1 if whole else after)
        sweep, clients = self._parts.loads.last, self._clients(wanted, all_clients)
        answer = Answer(
            broker=self._parts.broker,
            life=f"{self._parts.started}-{max(0, self._life)}",
            at_ms=at_ms,
            mark=f"{self._numbers_of}-{self._number}",
            received_at_ms=now_ms,
            state=self._state(),
            rows={(row.name, row.kind): row for row in rows},
            counted_at_ms=self._counted_at_ms,
            swept_at_ms=sweep.at_ms if sweep else None,
            room=_room(sweep) if sweep else None,
            totals=_totals(sweep) if sweep else None,
            clients=tuple(clients),
            client_count=len(self._parts.clients.here(now_ms)),
            consumers=tuple(self._consumers(allowed, wanted, all_clients)),
            whole=whole,
        )
        return answer_to_json(answer, now_ms)

    def _number_of(self, mark: str) -> int:
        """Return the number in a mark; -1 for none, and for one of another agent or run."""
        numbers_of, _, number = mark.partition("-")
        is_ours = numbers_of == self._numbers_of and number.isdecimal()
        return int(number) if is_ours and len(number) <= DIGITS_MAX else -1

    def _chosen(self, allowed: Collection[str] | None, wanted: set[str], after: int) -> list[Row]:
        return [
            row
            for key, row in self._rows.items()
            if (allowed is None or row.name in allowed)
            and (not wanted or row.name in wanted)
            and self._changed[key] > after
        ]

    def _clients(self, wanted: set[str], all_clients: bool) -> Iterator[Client]:
        """Yield the clients of these names; without names those that are behind, or all."""
        generation = self._parts.lists.generation
        for each in self._parts.clients.here(monotonic_ms()):
            if each.subscription in wanted or (
                not wanted and (all_clients or each.applied < generation)
            ):
                yield Client(
                    id=each.id,
                    subscription=each.subscription,
                    applied=each.applied,
                    age_ms=each.age_ms,
                )

    def _consumers(
        self, allowed: Collection[str] | None, wanted: set[str], all_clients: bool
    ) -> Iterator[Consumer]:
        """Yield the consumers of these names; without names all of them where all clients are asked for."""
        if not wanted and not all_clients:
            return
        names = {
            queue: place.key[0]
            for place in self._places
            if place.is_source
            for queue in (place.queue, *place.below)
        }
        for each in self._parts.loads.attached(monotonic_ms()):
            name = names.get(each.queue)
            if name and (allowed is None or name in allowed) and (not wanted or name in wanted):
                yield Consumer(
                    name=name,
                    client=each.client,
                    peer=each.peer,
                    prefetch=each.prefetch,
                    owed=each.owed,
                    active=each.active,
                    version=each.version,
                )

    # Rows.

    def _read_map(self) -> None:
        register = self._parts.register
        if register.version == self._map_version:
            return
        self._map_version = register.version
        entries = sorted(register.entries.items())
        text = repr([(n, e.number, e.origin, e.alive) for n, e in entries])
        self._topology = hashlib.sha256(text.encode()).hexdigest()[:16]
        alive = [name for name, entry in entries if entry.alive]
        self._places = [
            self._of_segments(place) if place.key[1] == "sub" else place
            for name in alive
            for place in _places(name)
        ]
        self._places.append(_Place((DUE, "park"), UNDELIVERED_QUEUE, is_source=False))

    def _of_segments(self, place: _Place) -> _Place:
        """Return the place of a subscription that has segments with their queues."""
        wanted = with_options(
            place.key[0], dict(self._parts.register.entries[place.key[0]].options)
        )
        if not isinstance(wanted, Subscription) or not wanted.has_segments:
            return place
        below = tuple(self._parts.upkeep.partitions.segment_queues(place.key[0]).values())
        return _Place(place.key, wanted.group_queue, is_source=True, below=below)

    async def _count(self, wanted: set[str]) -> None:
        """Count what is due over AMQP; leave the last counts, which grow old, where the broker is away."""
        everything = wanted or not self._parts.loads.is_there
        due = [
            queue
            for place in self._places
            if (place.is_source or everything) and (not wanted or place.key[0] in wanted)
            for queue in (place.queue, *place.below)
        ]
        slow_ms = min(COUNT_MANY_EVERY_MS, len(due) * 1_000 // COUNTS_A_S)
        async with self._counting:
            age_ms = monotonic_ms() - (self._counted_at_ms or -COUNT_MANY_EVERY_MS)
            if not wanted and age_ms < max(COUNT_EVERY_MS, slow_ms):
                return
            try:
                found = await self._parts.upkeep.link.counts(due)
            except LinkError:
                return
            now_ms = monotonic_ms()
            self._keep_counts(found, now_ms)
            if not wanted:
                self._counted_at_ms = now_ms
                self._counts = {queue: self._counts[queue] for queue in found if found[queue]}

    def _keep_counts(self, counts: Mapping[str, tuple[int, int] | None], now_ms: int) -> None:
        """Keep these counts, with the time since when each queue has not been empty."""
        for queue, pair in counts.items():
            before = self._counts.pop(queue, None)
            if pair is not None:
                kept = before and before.ready and pair[0]
                since_ms = before.since_ms if before and kept else now_ms
                self._counts[queue] = _Count(*pair, now_ms, since_ms)

    def _refresh(self) -> None:
        """Make the rows of what is known now, and note which have changed."""
        sweep, rows = self._parts.loads.last, dict[Key, Row]()
        for place in self._places:
            if row := self._row(place, sweep):
                rows[place.key] = row
        changed = [
            key for key, row in rows.items() if _figures(row) != _figures(self._rows.get(key))
        ]
        life = sweep.life if sweep else -1
        taken = self._rows.keys() - rows.keys() or life != self._life
        if changed or taken:
            self._number += 1
        if taken:
            self._taken, self._life = self._number, life
        self._changed = {key: self._changed.get(key, 0) for key in rows}
        self._changed.update(dict.fromkeys(changed, self._number))
        self._rows = rows

    def _row(self, place: _Place, sweep: Sweep | None) -> Row | None:
        """Return the row of a queue; None for one that is neither counted nor swept."""
        if place.below:
            return self._sum(place, sweep)
        count = self._counts.get(place.queue)
        load = sweep.loads.get(place.queue) if sweep else None
        if sweep and load:
            # A search holds all that is parked: it is ready again, or held, as of one time.
            if count is None or (load.unacked and place.key[1] == "park"):
                ready = max(0, load.messages - load.unacked)
                count = _Count(ready, load.consumers, sweep.at_ms, sweep.at_ms)
            oldest = sweep.at_ms - sweep.ages_ms[place.queue] if load.messages else count.since_ms
            oldest_at = oldest if count.ready or load.unacked else None
            arrived, departed = sweep.flows[place.queue]
            more = (load.unacked, count.consumers, arrived, departed, oldest_at)
            is_least = place.queue in sweep.least
            return Row(*place.key, count.ready, *more, count.at_ms, sweep.at_ms, is_least)
        if count is None:
            return None
        ready, consumers, at_ms, since_ms = count
        oldest_at = since_ms if ready else None
        return Row(*place.key, ready, None, consumers, None, None, oldest_at, at_ms, None)

    def _sum(self, place: _Place, sweep: Sweep | None) -> Row | None:
        """Return the row of the segments of a subscription; None until all are counted."""
        counts = [self._counts[each] for each in place.below if each in self._counts]
        members = self._counts.get(place.queue)
        if members is None or len(counts) < len(place.below):
            return None
        ready, at_ms = sum(each.ready for each in counts), min(each.at_ms for each in counts)
        oldest_at = min((each.since_ms for each in counts if each.ready), default=None)
        flows = sweep and [sweep.flows[each] for each in place.below if each in sweep.flows]
        if not sweep or not flows or len(flows) < len(place.below):
            consumers = members.consumers
            return Row(*place.key, ready, None, consumers, None, None, oldest_at, at_ms, None)
        unacked = sum(sweep.loads[each].unacked for each in place.below)
        arrived, departed = (sum(each) for each in zip(*flows, strict=True))
        since = [
            sweep.at_ms - sweep.ages_ms[each] for each in place.below if sweep.loads[each].messages
        ]
        oldest = min(since, default=None)
        more = (unacked, members.consumers, arrived, departed, oldest)
        is_least = not sweep.least.isdisjoint(place.below)
        return Row(*place.key, ready, *more, at_ms, sweep.at_ms, is_least)


def _places(name: str) -> Iterator[_Place]:
    match wanted := parse_wanted(name):
        case Subscription() | Queue():
            kind: Kind = "sub" if isinstance(wanted, Subscription) else "queue"
            yield _Place((name, kind), wanted.amqp_queue, is_source=True)
            yield _Place((name, "park"), wanted.parking_queue, is_source=False)
        case Delay():
            yield _Place((name, "delay"), wanted.amqp_queue, is_source=False)


def _figures(row: Row | None) -> tuple[Any, ...] | None:
    """Return what is compared of a row: an age alone does not change it."""
    if row is None:
        return None
    return row.ready, row.unacked, row.consumers, row.arrived, row.departed


def _room(sweep: Sweep) -> Room:
    return Room(
        disk_free=sweep.room.disk_free_bytes,
        disk_limit=sweep.room.disk_limit_bytes,
        memory_used=sweep.room.memory_used_bytes,
        memory_limit=sweep.room.memory_limit_bytes,
        connections=sweep.overview.connections,
    )


def _totals(sweep: Sweep) -> Totals:
    told: Mapping[str, int] = sweep.overview.totals
    return Totals(
        published=told.get("publish", 0),
        confirmed=told.get("confirm", 0),
        delivered=told.get("deliver_get", 0),
        acked=told.get("ack", 0),
        returned=told.get("return_unroutable", 0),
        redelivered=told.get("redeliver", 0),
    )
