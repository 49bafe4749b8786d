"""Comparison of the topology that all agents know with the queues of every broker: `python -m ops topology`.

Agents exchange their maps every second. So a lasting difference is that of an agent that is not on the list,
is cut off, or cannot change its broker. The commands at the end compare, and repair differences; the
functions before them are pure.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from messagebus.commands.exits import Exit
from messagebus.destination import PARTS, SEGMENTS
from messagebus.terminal import plural, say
from messagebus.topology import LADDER, declarations, with_options
from ops.cluster import definitions
from ops.cluster.absent import answering
from ops.cluster.view import View
from ops.errors import OpsError
from ops.run.command import confirm, inventory_option, locked, yes_option
from ops.run.waiting import Patience

# Prefixes of queues that we declare; others are not ours.
OURS = ("mb.sub/", "mb.queue/", "mb.park/", "mb.delay/", "mb.stream/")

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
    """One difference. node: its agent or broker differs. about: the entry or the queue. what: in words.

    is_stranger: a queue of the broker that no map has; `sync` leaves it.
    """

    node: str
    about: str
    what: str
    is_stranger: bool = field(default=False, compare=False)

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
        messages = plural(has[queue] or 0, "message")
        what = f"is not in the topology; it holds {messages}"
        yield Difference(node, queue, what, is_stranger=True)


def strangers(wanted: Mapping[str, bool], has: Iterable[str]) -> list[str]:
    """Return queues of ours that a broker has and the map does not."""
    return sorted(queue for queue in has if queue.startswith(OURS) and queue not in wanted)


def foreign(
    node: str,
    entries: Mapping[str, Entry],
    bindings: Iterable[Link],
) -> Iterator[Difference]:
    """Yield bindings from or to things of ours that no entry asks for.

    No right of an application makes one, so they come from an operator. They are reported and not removed:
    with an incomplete map, wanted ones would look the same.
    """
    wanted = {(b.exchange, b.queue, b.routing_key) for b in LADDER.bindings}
    for item in wanted_items(entries.values()):
        name = str(item.pop("name"))
        parts = declarations(with_options(name, item))
        wanted |= {(b.exchange, b.queue, b.routing_key) for b in parts.bindings}
    for source, to, key in sorted(set(bindings) - wanted):
        # Of segments the agents say themselves what is there and settled.
        if not source or source.startswith((SETTLED_MARK, PARTS, SEGMENTS)):
            continue
        if source.startswith("mb.") or to.startswith("mb."):
            under = f" under {key}" if key else ""
            yield Difference(
                node, f"exchange {source}", f"leads to {to}{under}, which is not in the topology"
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


# Brokers settle what is new in one go: the count of differences may rest for as long as that takes.
SAME_STALLED_S = 60.0
POLL_S = 0.25
# Names in one question to an agent.
NAMES_A_REQUEST = 500


@click.group(short_help="Compare the topology of all agents and brokers.")
def topology() -> None:
    """Compare the topology of all agents and brokers, and repair differences.

    \b
    Example:
      python -m ops topology diff
    """


@topology.command(short_help="Print what differs between agents and brokers.")
@inventory_option
def diff(file: Path) -> int:
    """Print differences between agents, on brokers, and in arguments of queues. Exit code 7 if any.

    Policies, users and rights that are not the inventory's come first: they may lose messages, or let in.
    Brokers and agents that do not answer are named, and the others compared.

    \b
    Example:
      python -m ops topology diff
    """
    view = answering(View(file.absolute()))
    imported = sorted(
        (*each, node.name)
        for node in view.brokers.present
        for each in definitions.look(view, node.name)
    )
    lines = [
        *(f"{name}: {what}" for _rank, what, name in imported),
        *(f"{each} does not answer, and is not compared" for each in view.absent.parts()),
        *map(str, drift(view)),
        *_otherwise(view),
    ]
    for line in lines:
        say(line)
    if lines:
        return Exit.FOUND
    say(f"{len(view.nodes)} agents and brokers have the same")
    return Exit.DONE


@topology.command(short_help="Copy topology that some agents lack to all.")
@inventory_option
def sync(file: Path) -> None:
    """Copy the topology that any agent knows to all agents, and wait until every broker has it, settled.

    Queues that are not in the topology are left, and reported.

    \b
    Example:
      python -m ops topology sync
    """
    file = file.absolute()
    view = View(file)
    with locked(file, "topology sync"):
        count = _merge_all(view)
        was = "was" if count == 1 else "were"
        say(f"{plural(count, 'entry')} {was} sent to agents that lacked them")
        left: list[Difference] = []
        patience = Patience(lambda: len(left), stalled_s=SAME_STALLED_S)
        while left := [each for each in drift(view) if not each.is_stranger]:
            if why := patience.spent():
                raise OpsError(f"{why}: {left[0]}; {plural(len(left), 'difference')}")
            time.sleep(POLL_S)
    for each in drift(view):
        say(str(each))
    for line in _otherwise(view):
        say(line)


@topology.command(short_help="Rebuild the topology after most agents lost it.")
@inventory_option
@yes_option
def adopt(file: Path, yes: bool) -> None:
    """Rebuild the topology from the agents that still have it, after a majority of agents lost it.

    An agent's map of the topology is not intact when the agent lost it and has not yet read a majority of
    the others. Without a majority of intact maps, nothing can be registered and no gate opens. This command
    joins the maps of all agents that answer, and gives every agent the result. Changes that only lost maps
    contained are lost.

    \b
    Example:
      python -m ops topology adopt
    """
    file = file.absolute()
    view = View(file)
    with locked(file, "topology adopt"):
        answered, silent = view.agents.answering_snapshots()
        for name, snapshot in answered.items():
            wanted = sum(bool(entry["alive"]) for entry in _entries(snapshot).values())
            state = "intact" if snapshot["intact"] else "NOT intact"
            say(f"{name}: {wanted} wanted, {state}")
        for why in silent.values():
            say(f"{why}: its map is taken in when it answers")
        intact = [name for name, snapshot in answered.items() if snapshot["intact"]]
        if len(intact) > len(view.nodes) // 2:
            raise OpsError(
                f"{', '.join(intact)} are a majority with intact maps: there is nothing to rebuild"
            )
        if len(answered) <= len(view.nodes) // 2:
            raise OpsError("fewer than a majority of agents answer: start them first")
        if not yes:
            confirm()
        for name in answered:
            for snapshot in answered.values():
                view.agents.adopt(name, snapshot)
        say(f"{len(answered)} agents have the map of all of them")


def drift(view: View) -> list[Difference]:
    """Return the differences between agents and brokers that are not absent. Raises NoAnswer."""
    maps = {name: _entries(found) for name, found in view.agents.snapshots().items()}
    newest = latest(maps)
    # An agent says what its broker has; without either nobody knows what is wanted there and missing.
    whole = [node.name for node in view.brokers.present if node.name not in view.absent.agents]
    return [
        *differences(
            maps,
            {name: view.agents.settled(name)["queues"] for name in whole},
            {
                name: {queue.name: queue.messages for queue in view.brokers.queues(name)}
                for name in whole
            },
        ),
        *(each for name in whole for each in foreign(name, newest, view.brokers.bindings(name))),
    ]


def _entries(snapshot: dict[str, object]) -> dict[str, dict[str, object]]:
    found = snapshot["entries"]
    assert isinstance(found, list)
    return {str(entry["wanted"]): entry for entry in found}


def _merge_all(view: View) -> int:
    """Send each agent's map to those that are behind it. Returns the number of newer entries."""
    snapshots, count = view.agents.snapshots(), 0
    for name, mine in snapshots.items():
        known = _entries(mine)
        for theirs in snapshots.values():
            entries = _entries(theirs)
            if newer := newer_than(known, entries):
                view.agents.merge(name, theirs)
                count += len(newer)
                known |= {wanted: entries[wanted] for wanted in newer}
    return count


def _otherwise(view: View) -> list[str]:
    """Return queues and exchanges that exist with other arguments than we would declare, in words."""
    lines = []
    for name, snapshot in view.agents.snapshots().items():
        if name in view.absent.brokers:
            continue
        items = wanted_items(_entries(snapshot).values())
        for begin in range(0, len(items), NAMES_A_REQUEST):
            if fault := view.agents.mismatch(name, items[begin : begin + NAMES_A_REQUEST]):
                lines.append(f"{name}: {fault}")
    return lines
