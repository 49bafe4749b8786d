"""Differences of a cluster from its inventory. Pure: each function takes observations and yields findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from consumer_lists.nodes import Served
from inventory.inventory import Inventory, Node
from messagebus.broker import BrokerList

__all__ = [
    "Finding",
    "of_balancers",
    "of_broker",
    "of_certificate",
    "of_clock",
    "of_disks",
    "of_health",
    "of_lists",
]

# Other machines judge certificates and "parked since" by their own clocks.
CLOCK_S_MAX = 1.0
# A broker with less free disk than this multiple of its limit will soon refuse publishes.
DISK_FREE_LIMITS = 3
DISK_PERCENT_MAX = 85
# Enough time for an authority, and earlier than the alert of `ops/monitoring`.
CERTIFICATE_DAYS_LEFT = 30
DAY_S = 86_400


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One difference. where: a host, broker, agent, balancer or the list. what: the fault, in words."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def of_lists(inventory: Inventory, ours: BrokerList, served: Iterable[Served]) -> Iterator[Finding]:
    """Yield faults of the operators' list, and of the list that each agent serves."""
    known = {str(node.address) for node in inventory.brokers}
    if ours.cluster and ours.cluster != inventory.cluster:
        yield Finding("list", f"is of cluster {ours.cluster!r}, not {inventory.cluster!r}")
    for name in sorted(known - ours.names):
        yield Finding("list", f"does not name {name}, which is in the inventory")
    for name in sorted(ours.names - known):
        yield Finding("list", f"names {name}, which is not in the inventory")
    for entry in ours:
        if entry.draining:
            yield Finding("list", f"{entry.broker.name} is draining")
    for one in served:
        yield from _of_served(inventory, ours, one)


def _of_served(inventory: Inventory, ours: BrokerList, one: Served) -> Iterator[Finding]:
    where = f"agent of {one.node}"
    if one.served is None:
        yield Finding(where, f"serves no list: {one.fault}")
    elif one.served.cluster and one.served.cluster != inventory.cluster:
        yield Finding(where, f"serves the list of another cluster, {one.served.cluster!r}")
    elif one.generation != ours.generation:
        yield Finding(where, f"serves generation {one.generation}, not {ours.generation}")
    elif one.served != ours:
        yield Finding(where, f"serves another list of generation {one.generation}")


def of_health(name: str, health: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield faults of a broker by its agent's answer."""
    if health["verdict"] != "ready":
        reason = health.get("reason", "no reason given")
        yield Finding(name, f"takes no new publishers: {health['verdict']}, {reason}")


def of_broker(
    node: Node, overview: Mapping[str, Any], resources: Mapping[str, Any]
) -> Iterator[Finding]:
    """Yield faults of a broker by its own answers."""
    version = str(overview.get("rabbitmq_version", ""))
    if node.version and node.version.partition("-")[0] != version:
        yield Finding(node.name, f"runs RabbitMQ {version}, not {node.version}")
    own = overview.get("cluster_name")
    if own != str(node.address):
        yield Finding(node.name, f"calls itself {own!r}, not {str(node.address)!r}")
    for what in ("mem", "disk_free"):
        if resources.get(f"{what}_alarm"):
            yield Finding(node.name, f"{'memory' if what == 'mem' else 'disk'} alarm")
    free, limit = resources.get("disk_free"), resources.get("disk_free_limit")
    if isinstance(free, int) and isinstance(limit, int) and free < DISK_FREE_LIMITS * limit:
        told = f"{free // 1_000_000:,} MB of disk are free; below {limit // 1_000_000:,} it takes no more"
        yield Finding(node.name, told)


def of_balancers(inventory: Inventory, shown: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield faults by the state that every HAProxy shows. shown: `lb status --json`."""
    names = {node.name for node in inventory.brokers}
    for balancer in shown["balancers"]:
        where = f"balancer {balancer['name']}"
        if balancer["process"] is None:
            yield Finding(where, f"does not answer: {balancer['fault']}")
            continue
        if balancer["current"] is False:
            yield Finding(where, "does not serve what the inventory says: python -m lb apply")
        servers = {server["name"]: server for server in balancer["servers"]}
        for name in sorted(names - servers.keys()):
            yield Finding(where, f"does not know {name}")
        for name, server in sorted(servers.items()):
            if name in names and server["verdict"] != "up":
                yield Finding(where, f"has {name} as {server['verdict']} ({server['check']})")


def of_clock(host: str, seconds: float) -> Iterator[Finding]:
    """Yield a fault of a host's clock. seconds: how far it is ahead of ours."""
    if abs(seconds) > CLOCK_S_MAX:
        word = "ahead of" if seconds > 0 else "behind"
        yield Finding(host, f"its clock is {abs(seconds):.1f} s {word} this machine's")


def of_disks(host: str, said: str) -> Iterator[Finding]:
    """Yield faults of a host's disks. said: output of ``df --output=pcent,target``."""
    for line in said.splitlines():
        percent, _, target = line.strip().partition(" ")
        if (
            percent.endswith("%")
            and percent[:-1].isdigit()
            and int(percent[:-1]) > DISK_PERCENT_MAX
        ):
            yield Finding(host, f"{target.strip()} is {percent} full")


def of_certificate(where: str, left_s: float) -> Iterator[Finding]:
    """Yield a fault of a certificate. left_s: seconds until it ends."""
    if left_s <= 0:
        yield Finding(where, "its certificate has ended")
    elif left_s < CERTIFICATE_DAYS_LEFT * DAY_S:
        yield Finding(where, f"its certificate ends in {left_s / DAY_S:.0f} days")
