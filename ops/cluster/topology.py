"""Comparison of the topology that all agents know with the queues of every broker. Pure.

Agents exchange their maps every second. So a lasting difference is that of an agent that is not on the list,
is cut off, or cannot change its broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from messagebus.terminal import plural
from messagebus.topology import LADDER, declarations, with_options

__all__ = [
    "Difference",
    "Link",
    "differences",
    "foreign",
    "latest",
    "newer_than",
    "strangers",
    "wanted_items",
]

# Prefixes of queues that we declare; others are not ours.
OURS = ("mb.sub/", "mb.queue/", "mb.park/", "mb.delay/")

Entry = Mapping[str, Any]
"""An entry of an agent's map: wanted, number, origin, alive, and options."""
Maps = Mapping[str, Mapping[str, Entry]]
"""Name of the node -> wanted -> its entry."""


Link = tuple[str, str, str]
"""A binding: its exchange, its destination, its routing key."""
# Prefix of exchanges by which a client without agents remembers that a queue is settled.
SETTLED_MARK = "mb.settled/"


@dataclass(frozen=True, slots=True, order=True)
class Difference:
    """One difference. node: its agent or broker differs. about: the entry or the queue. what: in words."""

    node: str
    about: str
    what: str

    def __str__(self) -> str:
        return f"{self.node}: {self.about} {self.what}"


def latest(maps: Maps) -> dict[str, Entry]:
    """Return the newest entry of each name, over all agents."""
    found: dict[str, Entry] = {}
    for entries in maps.values():
        for wanted, entry in entries.items():
            if wanted not in found or _age(entry) > _age(found[wanted]):
                found[wanted] = entry
    return found


def newer_than(mine: Mapping[str, Entry], theirs: Mapping[str, Entry]) -> list[str]:
    """Return the names of which they have a newer entry.

    Deletions of names that are not here are left out: those are forgotten.
    """
    return [
        wanted
        for wanted, entry in theirs.items()
        if (_age(entry) > _age(mine[wanted]) if wanted in mine else entry["alive"])
    ]


def differences(
    maps: Maps,
    settled: Mapping[str, Mapping[str, bool]],
    queues: Mapping[str, Mapping[str, int | None]],
) -> list[Difference]:
    """Return the differences of agents and brokers from the newest map.

    settled: node -> wanted queue -> whether it is there and settled, by its agent's word. queues: node ->
    queue of its broker -> messages in it.
    """
    return sorted(
        [
            *_of_agents(maps),
            *_of_brokers(settled),
            *(
                each
                for node in queues
                for each in _strange(node, settled.get(node, {}), queues[node])
            ),
        ]
    )


def _of_agents(maps: Maps) -> Iterator[Difference]:
    newest = latest(maps)
    for node, entries in maps.items():
        for wanted in newer_than(entries, newest):
            has = entries.get(wanted)
            state = "is deleted" if not newest[wanted]["alive"] else "is wanted"
            what = "its agent does not know" if has is None else "its agent has an older word"
            yield Difference(node, wanted, f"{state}: {what}")


def _of_brokers(settled: Mapping[str, Mapping[str, bool]]) -> Iterator[Difference]:
    for node, queues in settled.items():
        for queue, is_settled in queues.items():
            if not is_settled:
                yield Difference(node, queue, "is not there, or not settled")


def _strange(
    node: str, wanted: Mapping[str, bool], has: Mapping[str, int | None]
) -> Iterator[Difference]:
    for queue in strangers(wanted, has):
        yield Difference(
            node, queue, f"is wanted by nobody; it holds {plural(has[queue] or 0, 'message')}"
        )


def strangers(wanted: Mapping[str, bool], has: Iterable[str]) -> list[str]:
    """Return queues of ours that a broker has and the map does not."""
    return sorted(queue for queue in has if queue.startswith(OURS) and queue not in wanted)


def foreign(
    node: str,
    entries: Mapping[str, Entry],
    bindings: Iterable[Link],
    *,
    old_publishers: bool = False,
) -> Iterator[Difference]:
    """Yield bindings from or to things of ours that no entry asks for.

    No right of an application makes one, so they come from an operator, or from before these rights. They
    are reported and not removed: with an incomplete map, wanted ones would look the same.
    old_publishers: queues are published to by the exchanges of an earlier version, too.
    """
    wanted = {(b.exchange, b.queue, b.routing_key) for b in LADDER.bindings}
    for item in wanted_items(entries.values()):
        name = str(item.pop("name"))
        parts = declarations(with_options(name, item))
        wanted |= {(b.exchange, b.queue, b.routing_key) for b in parts.bindings}
    for source, to, key in sorted(set(bindings) - wanted):
        if not source or source.startswith(SETTLED_MARK):
            continue
        if source == to and source.startswith("mb.queue/"):
            what = "is of an earlier version: delete it when no publisher needs it any more"
            if not old_publishers:
                yield Difference(node, f"exchange {source}", what)
        elif source.startswith("mb.") or to.startswith("mb."):
            under = f" under {key}" if key else ""
            yield Difference(
                node, f"exchange {source}", f"leads to {to}{under}, and nobody wants that"
            )


def wanted_items(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """Return the entries that are alive, in the form of a request to an agent."""
    known = ("wanted", "number", "origin", "alive", "tomb", "changed_at_ms")
    return [
        {"name": entry["wanted"], **{key: entry[key] for key in entry if key not in known}}
        for entry in entries
        if entry["alive"]
    ]


def _age(entry: Entry) -> tuple[int, str, bool]:
    return int(entry["number"]), str(entry["origin"]), bool(entry["alive"])
