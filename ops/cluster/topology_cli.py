"""`python -m ops topology`: comparison of the topology of all brokers, and repair of differences."""

from __future__ import annotations

import time
from pathlib import Path

import click

from messagebus.commands.exits import Exit
from messagebus.terminal import plural, say
from ops.cluster.topology import Difference, differences, foreign, latest, newer_than, wanted_items
from ops.cluster.view import View
from ops.errors import OpsError
from ops.run.command import confirm, inventory_option, locked

__all__ = ["drift", "topology"]

SAME_WITHIN_S = 30.0
POLL_S = 0.25
# Names in one question to an agent.
ASKED_AT_ONCE = 500


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
    """Print differences: between agents, on brokers, and in arguments of existing queues. Exit code 7 then.

    \b
    Example:
      python -m ops topology diff
    """
    view = View(file.absolute())
    told = [*map(str, drift(view)), *_otherwise(view)]
    for line in told:
        say(line)
    if told:
        return Exit.FOUND
    say(f"{len(view.nodes)} agents and brokers have the same")
    return Exit.DONE


@topology.command(short_help="Tell every agent what any agent knows.")
@inventory_option
def sync(file: Path) -> None:
    """Tell every agent what any agent knows, and wait until every broker has it, settled.

    Queues that nobody wants are left where they are, and reported.

    \b
    Example:
      python -m ops topology sync
    """
    file = file.absolute()
    view = View(file)
    with locked(file, "topology sync"):
        told = _tell_all(view)
        was = "was" if told == 1 else "were"
        say(f"{plural(told, 'entry')} {was} told to agents that did not know them")
        until = time.monotonic() + SAME_WITHIN_S
        while left := [each for each in drift(view) if "wanted by nobody" not in each.what]:
            if time.monotonic() > until:
                raise OpsError(
                    f"after {SAME_WITHIN_S:.0f} s: {left[0]}; {plural(len(left), 'difference')}"
                )
            time.sleep(POLL_S)
    for each in drift(view):
        say(str(each))
    for line in _otherwise(view):
        say(line)


@topology.command(short_help="Vouch for maps when most of them were lost.")
@inventory_option
@click.option("--yes", is_flag=True, help="Do not ask.")
def adopt(file: Path, yes: bool) -> None:
    """Vouch for the maps that are left, when most maps were lost and no majority of agents can.

    A map is not intact when its agent lost it, and had not yet read a majority of others. Where half of
    the agents or more have no intact map, nothing can be registered and no gate opens. This joins the maps of
    all agents that answer, and makes the result the map of each of them. Changes that only the lost maps knew
    are gone.

    \b
    Example:
      python -m ops topology adopt
    """
    file = file.absolute()
    view = View(file)
    with locked(file, "topology adopt"):
        told, silent = view.snapshots_told()
        for name, snapshot in told.items():
            wanted = sum(bool(entry["alive"]) for entry in _entries(snapshot).values())
            state = "intact" if snapshot["intact"] else "NOT intact"
            say(f"{name}: {wanted} wanted, {state}")
        for why in silent.values():
            say(f"{why}: its map is taken in when it answers")
        intact = [name for name, snapshot in told.items() if snapshot["intact"]]
        if len(intact) > len(view.nodes) // 2:
            raise OpsError(f"{', '.join(intact)} are a majority and intact: nothing to vouch for")
        if len(told) <= len(view.nodes) // 2:
            raise OpsError("fewer than a majority of agents answer: start them first")
        if not yes:
            confirm()
        for name in told:
            for snapshot in told.values():
                view.adopt(name, snapshot)
        say(f"{len(told)} agents have the map of all of them")


def drift(view: View) -> list[Difference]:
    """Return the differences between all agents and brokers of the inventory. Raises NoAnswer."""
    names = [node.name for node in view.nodes]
    maps = {name: _entries(found) for name, found in view.snapshots().items()}
    newest, old = latest(maps), view.inventory.provision.old_publishers
    return [
        *differences(
            maps,
            {name: view.settled(name)["queues"] for name in names},
            {name: {queue.name: queue.messages for queue in view.queues(name)} for name in names},
        ),
        *(
            each
            for name in names
            for each in foreign(name, newest, view.bindings(name), old_publishers=old)
        ),
    ]


def _entries(snapshot: dict[str, object]) -> dict[str, dict[str, object]]:
    found = snapshot["entries"]
    assert isinstance(found, list)
    return {str(entry["wanted"]): entry for entry in found}


def _tell_all(view: View) -> int:
    """Send each agent's map to those that are behind it. Returns the number of newer entries."""
    snapshots, told = view.snapshots(), 0
    for name, mine in snapshots.items():
        known = _entries(mine)
        for theirs in snapshots.values():
            entries = _entries(theirs)
            if newer := newer_than(known, entries):
                view.merge(name, theirs)
                told += len(newer)
                known |= {wanted: entries[wanted] for wanted in newer}
    return told


def _otherwise(view: View) -> list[str]:
    """Return queues and exchanges that exist with other arguments than we would declare, in words."""
    told = []
    for name, snapshot in view.snapshots().items():
        items = wanted_items(_entries(snapshot).values())
        for begin in range(0, len(items), ASKED_AT_ONCE):
            if fault := view.mismatch(name, items[begin : begin + ASKED_AT_ONCE]):
                told.append(f"{name}: {fault}")
    return told
