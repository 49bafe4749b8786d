"""What the nodes serve and the clients have applied, as tables, plain values and differences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table

from consumer_lists.nodes import Client, Served
from messagebus.broker import BrokerList

__all__ = ["client_table", "differences", "node_table", "plain"]


def plain(
    ours: BrokerList,
    serving: Iterable[Served],
    clients: Iterable[Client],
    silent: Mapping[str, str],
    *,
    tls: bool = False,
) -> dict[str, Any]:
    """For programs. silent: node name -> why its clients are not known. tls: agents speak https."""
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
    """How a node's list differs from ours, a sentence each; empty when it does not."""
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


def node_table(ours: BrokerList, serving: Sequence[Served]) -> Table:
    table = Table("node", "generation", "brokers", "state")
    for node in serving:
        brokers = str(len(node.served.listed)) if node.served else "-"
        generation = str(node.generation) if node.served else "-"
        state = "; ".join(differences(ours, node)) or "same"
        table.add_row(node.node, generation, brokers, state)
    return table


def client_table(ours: BrokerList, clients: Sequence[Client]) -> Table:
    table = Table("subscription", "client", "applied", "heard of")
    for client in clients:
        behind = "" if client.applied >= ours.generation else " (behind)"
        table.add_row(
            client.subscription, client.id, f"{client.applied}{behind}", f"{client.age_s:.0f} s ago"
        )
    return table
