"""The steps after which a broker has all that the map wants, and no more.

Pure: computed from the map, the entries applied before, and the queues of the broker. A queue whose
`mb-born` is below the entry's tomb is of an earlier life of the same name. Its backlog was deleted
with that name, also on a broker that was away, so the queue is deleted before it is declared again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from messagebus.destination import Stream, Subscription, Topic
from messagebus.services.agent.topology.homes import MARK, finished
from messagebus.services.agent.topology.register import Entry
from messagebus.topology import (
    Declarations,
    Wanted,
    declarations,
    parse_wanted,
    segment_declarations,
    with_options,
)

Births = Mapping[str, int | None]
"""Queues of the broker -> their `mb-born`, None for a queue without it."""


@dataclass(frozen=True, slots=True)
class DeleteQueue:
    name: str


@dataclass(frozen=True, slots=True)
class DeleteExchange:
    name: str


@dataclass(frozen=True, slots=True)
class Declare:
    entry: Entry
    declarations: Declarations


@dataclass(frozen=True, slots=True)
class Seal:
    """The end of a segment's publishes: its one binding goes, so no subscription gets more than another."""

    declarations: Declarations


Step = DeleteQueue | DeleteExchange | Declare | Seal


def wanted_of(entry: Entry) -> Declarations:
    """Return the declarations that an entry, or a segment, needs, born with its number."""
    name, mark, segment = entry.wanted.partition(MARK)
    if mark:
        of = with_options(name, dict(entry.options))
        assert isinstance(of, Topic | Subscription | Stream)
        return segment_declarations(of, segment, born=entry.number)
    return declarations(with_options(entry.wanted, dict(entry.options)), born=entry.number)


def expires_s_of(entry: Entry) -> int:
    """Return the seconds without use after which it may be deleted, 0 for never."""
    return int(dict(entry.options).get("expires_s", 0)) if entry.alive else 0


def unsure_of(
    entries: Mapping[str, Entry], *, brought: Mapping[str, Entry], held: Mapping[str, int]
) -> list[Entry]:
    """Return the entries for which `plan` must know when the broker's queues were born.

    held: numbers of the entries that this agent had applied here before: those queues are of this life.
    """
    return [
        entry
        for entry in _pending(entries, brought)
        if entry.alive and entry.tomb and held.get(entry.wanted) != entry.number
    ]


def plan(
    entries: Mapping[str, Entry],
    *,
    brought: Mapping[str, Entry],
    births: Births,
    floor: int,
) -> tuple[Step, ...]:
    """Return the steps in their order: deletions, then declarations.

    brought: entries that need nothing, because the broker has them as they are.
    births: may lack queues that nobody asked for; orphans are then left for another time.
    floor: `Register.floor` of an informed map, otherwise 0.
    """
    pending = list(_pending(entries, brought))
    return (
        *_deletions_of_orphans(entries, births, floor),
        *_deletions_of_dead(entries, pending),
        *(step for entry in pending if entry.alive for step in _revive(entry, births)),
    )


def ways_of_mqtt(
    entries: Mapping[str, Entry], *, brought: Mapping[str, Entry]
) -> Iterator[tuple[Entry, Declarations, Literal["bind", "unbind"]]]:
    """Yield the topics to which MQTT clients publish, or do no more, with their binding and what to do.

    They come after the steps and all other bindings, or some subscriptions would miss what others get.
    """
    for entry in _pending(entries, brought):
        mqtt = dict(entry.options).get("mqtt")
        if mqtt is not None:
            verb: Literal["bind", "unbind"] = "bind" if entry.alive and mqtt else "unbind"
            yield entry, declarations(Topic(entry.wanted, mqtt=True)), verb


def _pending(entries: Mapping[str, Entry], brought: Mapping[str, Entry]) -> Iterator[Entry]:
    for name in sorted(entries):
        if brought.get(name) != entries[name]:
            yield entries[name]


def _deletions_of_orphans(
    entries: Mapping[str, Entry], births: Births, floor: int
) -> Iterator[Step]:
    """Yield deletions of queues whose names were deleted, and forgotten, while this broker was away."""
    for name in sorted(births):
        if exchange := finished(entries, name):
            yield DeleteQueue(name)
            yield DeleteExchange(exchange)
    old = {name for name, born in births.items() if born is not None and born <= floor}
    if not old:
        return
    for entry in entries.values():
        old.difference_update(queue.name for queue in wanted_of(entry).queues)
    yield from (DeleteQueue(name) for name in sorted(old) if name.startswith("mb."))


def _revive(entry: Entry, births: Births) -> Iterator[Step]:
    wanted = wanted_of(entry)
    for name in (*(queue.name for queue in wanted.queues), *_in_other_form(entry, wanted, births)):
        born = births.get(name)
        if born is not None and born < entry.tomb:
            yield DeleteQueue(name)
    if "mqtt" in dict(entry.options):
        wanted = replace(wanted, bindings=())  # of `ways_of_mqtt`
    yield Declare(entry, wanted)


def _in_other_form(entry: Entry, wanted: Declarations, births: Births) -> list[str]:
    """Return the queues that a subscription had if it had segments in an earlier life, or had none."""
    of = with_options(entry.wanted.partition(MARK)[0], dict(entry.options))
    if not entry.tomb or MARK in entry.wanted or not isinstance(of, Subscription):
        return []
    below = of.segment_queue("")
    mine = {queue.name for queue in wanted.queues}
    return [
        name
        for name in births
        if name not in mine and (name in (of.amqp_queue, of.group_queue) or name.startswith(below))
    ]


def _deletions_of_dead(entries: Mapping[str, Entry], pending: list[Entry]) -> Iterator[Step]:
    alive = [parse_wanted(n) for n, entry in entries.items() if entry.alive and MARK not in n]
    # A topic's exchange outlives its entry while a subscription needs it, and is deleted with the last.
    exchanges = dict[str, None]()
    for entry in pending:
        if entry.alive:
            continue
        if MARK in entry.wanted or "partitions" in dict(entry.options):
            parts = wanted_of(entry)
            above = entries.get(entry.wanted.partition(MARK)[0])
            if MARK in entry.wanted and "/" not in entry.wanted and above and above.alive:
                yield Seal(parts)
                continue
            yield from (DeleteQueue(queue.name) for queue in parts.queues)
            if isinstance(parse_wanted(entry.wanted.partition(MARK)[0]), Topic):
                exchanges[parts.exchanges[-1].name] = None
            continue
        wanted = parse_wanted(entry.wanted)
        yield from (DeleteQueue(queue.name) for queue in declarations(wanted).queues)
        topic = wanted.topic if isinstance(wanted, Subscription | Stream) else wanted
        if isinstance(topic, Topic) and _is_dead(entries, topic) and not _is_used(topic, alive):
            exchanges[topic.exchange] = None
    yield from map(DeleteExchange, exchanges)


def _is_dead(entries: Mapping[str, Entry], topic: Topic) -> bool:
    entry = entries.get(str(topic))
    return entry is not None and not entry.alive


def _is_used(topic: Topic, alive: list[Wanted]) -> bool:
    return any(
        isinstance(wanted, Subscription | Stream) and wanted.topic == topic for wanted in alive
    )
