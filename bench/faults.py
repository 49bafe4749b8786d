"""Faults of a local cluster while clients are at work: each begins, lasts and ends."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import lb.apply
from bench.errors import BenchError
from inventory.inventory import load
from messagebus.broker import BrokerList
from messagebus.files import replace_file
from ops.errors import LocalFault
from ops.local.cluster import LocalCluster
from ops.local.files import DISK_FREE_LIMIT_BYTES, MEMORY_SHARE

NO_DISK_HAS_BYTES = 1 << 60
# The management API lists a new connection at its next statistics interval.
LISTED_WITHIN_S = 5.0
POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that can be caused. name: in FAULTS. target: a broker, "" when it concerns none.

    cuts: whether links to the broker may end with acks under way that it never applied.
    """

    name: str
    target: str
    lasts_s: float
    cuts: str
    begin: Callable[[], object]
    end: Callable[[], object]

    def __str__(self) -> str:
        return f"{self.name} {self.target}".rstrip()


def alarm(
    cluster: LocalCluster, name: str, *, on: bool, kind: Literal["memory", "disk"] = "memory"
) -> None:
    """Raise or clear one of the broker's alarms. Raises BenchError."""
    if kind == "memory":
        share = "0.0" if on else str(MEMORY_SHARE)
        order = f"vm_memory_monitor:set_vm_memory_high_watermark({share})"
    else:
        limit = NO_DISK_HAS_BYTES if on else DISK_FREE_LIMIT_BYTES
        order = f"rabbit_disk_monitor:set_disk_free_limit({limit})"
    call(cluster, name, order)


def call(cluster: LocalCluster, name: str, expression: str) -> None:
    """Have the broker evaluate an expression whose value has to be `ok`. Raises BenchError."""
    try:
        value = cluster.evaluate(name, f"{expression}.")
    except LocalFault as fault:
        raise BenchError(f"{expression}: {fault}") from fault
    if value != "ok":
        raise BenchError(f"{name}: {expression}: {value}")


def close_connections(cluster: LocalCluster, name: str) -> None:
    """Make the broker close all client connections, as soon as it lists any."""
    until_s = time.monotonic() + LISTED_WITHIN_S
    while not close_listed(cluster, name, user="bus") and time.monotonic() < until_s:
        time.sleep(POLL_S)


def close_listed(cluster: LocalCluster, name: str, client: str = "", **like: str) -> int:
    """Make the broker close the connections that it lists by now; return how many.

    client: only those with this client id. like: fields of the management API, and the values that these
    connections have.
    """
    with cluster.management(name) as management:
        found = [
            each
            for each in management.get("/api/connections").raise_for_status().json()
            if client in ("", client_id(each))
            and all(each.get(key) == value for key, value in like.items())
        ]
        for each in found:
            # It may have ended by itself meanwhile.
            management.delete(f"/api/connections/{quote(each['name'], safe='')}")
    return len(found)


def client_id(connection: dict[str, Any]) -> str:
    """Return the client's id of a connection, as the management API lists it."""
    return str(connection.get("client_properties", {}).get("connection_name", ""))


def drained(listed: BrokerList, broker: str, *, draining: bool) -> BrokerList:
    """Return the next generation of the list, in which the broker is draining or not."""
    entries = tuple(
        dataclasses.replace(entry, draining=draining) if entry.broker.name == broker else entry
        for entry in listed
    )
    return dataclasses.replace(listed, generation=listed.generation + 1, listed=entries)


def push_list(cluster: LocalCluster, wanted: BrokerList) -> None:
    """Write the list as the operators' tool does: every node's copy first, then the operators' own."""
    files: list[Path] = [cluster.node(name).list_file for name in cluster.names]
    for file in [*files, cluster.layout.list_file]:
        replace_file(file, wanted.render())


def _drain(cluster: LocalCluster, target: str, *, draining: bool) -> None:
    listed = cluster.consumer_list()
    push_list(cluster, drained(listed, cluster.node(target).broker, draining=draining))


def _reload(cluster: LocalCluster, _target: str) -> None:
    lb.apply.apply(load(cluster.inventory), reload=True)


def _nothing(_cluster: LocalCluster, _target: str) -> None:
    pass


Step = Callable[[LocalCluster, str], object]
KINDS: dict[str, tuple[float, str, Step, Step]] = {
    "kill": (2.0, "kill", LocalCluster.kill, LocalCluster.start),
    "freeze": (4.0, "cut", LocalCluster.freeze, LocalCluster.thaw),
    "alarm": (4.0, "", partial(alarm, on=True), partial(alarm, on=False)),
    "reload": (0.0, "", _reload, _nothing),
    "agent": (
        3.0,
        "",
        partial(LocalCluster.kill, agent=True),
        partial(LocalCluster.start, agent=True),
    ),
    "close": (0.0, "cut", close_connections, _nothing),
    "drain": (3.0, "", partial(_drain, draining=True), partial(_drain, draining=False)),
}
"""Name -> seconds that it lasts, kind of the links' end, begin, end."""


def fault_of(name: str, cluster: LocalCluster, target: str) -> Fault:
    """Return the fault of that name at that broker."""
    lasts_s, cuts, begin, end = KINDS[name]
    at = "" if name == "reload" else target
    return Fault(
        name, at, lasts_s, cuts, partial(begin, cluster, target), partial(end, cluster, target)
    )


FAULTS: dict[str, Callable[[LocalCluster, str], Fault]] = {
    name: partial(fault_of, name) for name in KINDS
}
