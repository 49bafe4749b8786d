"""Lists that nodes serve and clients have applied, as tables, plain values and differences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Column, Table
from rich.text import Text

from consumer_lists.nodes import Client, Served
from messagebus.broker import BrokerList
from messagebus.terminal import printable

# Names shown of clients in the same state; --json has all.
NAMES_SHOWN = 3


def plain(
    ours: BrokerList,
    serving: Iterable[Served],
    clients: Iterable[Client],
    silent: Mapping[str, str],
    *,
    tls: bool = False,
) -> dict[str, Any]:
    """Return the state for programs.

    silent: node name -> why its clients are not known. tls: agents speak https.
    """
    begin = "https://" if tls else "http://"
    return {
        "cluster": ours.cluster,
        "generation": ours.generation,
        "brokers": [
            {
                "broker": entry.broker.name,
                "draining": entry.draining,
                "agent": begin + entry.agent_address,
            }
            for entry in ours
        ],
        "nodes": [
            {
                "name": node.node,
                "generation": node.generation,
                "same": node.served == ours,
                "fault": node.fault,
            }
            for node in serving
        ],
        "clients": [
            {
                "id": client.id,
                "subscription": client.subscription,
                "applied": client.applied,
                "age_s": client.age_s,
            }
            for client in clients
        ],
        "silent": dict(silent),
    }


def differences(ours: BrokerList, node: Served) -> list[str]:
    """Return the differences of a node's list from ours, a sentence each; empty when there are none."""
    if node.served is None:
        return [f"serves no list: {node.fault}"]
    theirs = node.served
    found = []
    if theirs.generation != ours.generation:
        found.append(f"generation {theirs.generation} instead of {ours.generation}")
    if theirs.cluster != ours.cluster:
        found.append(f"cluster {theirs.cluster!r} instead of {ours.cluster!r}")
    found += [f"lacks {name}" for name in sorted(ours.names - theirs.names)]
    found += [f"has {name} too" for name in sorted(theirs.names - ours.names)]
    for entry in ours:
        other = theirs.find(entry.broker.name)
        if other and other != entry:
            found.append(f"says '{other.render()}' instead of '{entry.render()}'")
    if not found and theirs != ours:
        found.append("another order")
    return found


def behind(ours: BrokerList, clients: Iterable[Client]) -> list[str]:
    """Return the clients that work by an older list than ours, a sentence each."""
    return [
        f"client {one.id} of {one.subscription or 'no subscription'}: applied {one.applied}"
        f" instead of {ours.generation}, heard of {one.age_s:.0f} s ago"
        for one in clients
        if one.applied < ours.generation
    ]


def node_table(ours: BrokerList, serving: Sequence[Served]) -> Table:
    table = Table(
        "node", "broker", _right("generation"), _right("brokers"), "state", box=SIMPLE_HEAD
    )
    for node in serving:
        found = differences(ours, node)
        table.add_row(
            Text(printable(node.node)),
            Text(printable(node.address)),
            str(node.generation) if node.served else "-",
            str(len(node.served.listed)) if node.served else "-",
            Text(printable("; ".join(found)), style="red")
            if found
            else Text("same", style="green"),
        )
    return table


def client_table(ours: BrokerList, clients: Iterable[Client]) -> Table:
    """Make a table with a row for each subscription and generation: 10,000 clients still fit a screen."""
    table = Table("subscription", _right("applied"), _right("clients"), "who", box=SIMPLE_HEAD)
    groups: dict[tuple[str, int], list[Client]] = {}
    for client in clients:
        groups.setdefault((client.subscription, client.applied), []).append(client)
    for (subscription, applied), group in sorted(groups.items()):
        late = applied < ours.generation
        table.add_row(
            Text(printable(subscription or "-")),
            Text(f"{applied} (behind)" if late else str(applied), style="red" if late else "green"),
            str(len(group)),
            Text(printable(_who(group))),
        )
    return table


def _who(group: Sequence[Client]) -> str:
    named = [f"{one.id} ({one.age_s:.0f} s ago)" for one in group[:NAMES_SHOWN]]
    more = len(group) - NAMES_SHOWN
    return ", ".join(named) + (f" and {more} more" if more > 0 else "")


def _right(title: str) -> Column:
    return Column(title, justify="right")
