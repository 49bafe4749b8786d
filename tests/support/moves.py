"""Moves of partitions on a running cluster, as operators begin them."""

from __future__ import annotations

import asyncio

from messagebus import Topic
from messagebus._io.agents.subscriptions import topology
from messagebus.core.homes import Chain, read_chains
from messagebus.tools.partitions import begun
from ops.local.cluster import LocalCluster
from tests.support.faults import agent_answer, bus_config


def chains(cluster: LocalCluster, topic: str, at: str = "") -> tuple[Chain, ...]:
    """Return the unfinished segments of each partition, as an agent has them."""
    count = next(
        each.partitions
        for each in asyncio.run(topology(bus_config(cluster)))
        if isinstance(each, Topic) and each.name == topic
    )
    told = agent_answer(cluster, at or cluster.names[0], f"/partitions?topic={topic}")
    return read_chains(told["homes"], count)


def homes(cluster: LocalCluster, topic: str) -> list[str]:
    """Return the broker of the last home of each partition."""
    return [chain.homes[-1].broker for chain in chains(cluster, topic)]


def settled(cluster: LocalCluster, topic: str) -> bool:
    """Return whether no partition moves, or has a segment of before that is not finished."""
    return all(len(chain.homes) == 1 for chain in chains(cluster, topic))


def begin(cluster: LocalCluster, topic: str, to: dict[int, str]) -> dict[int, str]:
    """Begin moves: partition -> broker. Returns the refused ones with the reason."""
    bus = bus_config(cluster)
    return asyncio.run(begun(bus, cluster.consumer_list(), topic, to, token=cluster.token))


def rotated(cluster: LocalCluster, topic: str) -> dict[int, str]:
    """Return each partition's next broker."""
    names = cluster.brokers
    known = homes(cluster, topic)
    return {p: names[(names.index(home) + 1) % len(names)] for p, home in enumerate(known)}
