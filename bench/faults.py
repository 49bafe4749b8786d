"""Faults of a local cluster while clients are at work: each begins, lasts and ends."""

from __future__ import annotations

import dataclasses
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import httpx

import lb.apply
from bench.errors import BenchError
from bench.manifest import write_atomically
from inventory.inventory import load
from messagebus.broker import BrokerList
from ops.commands.broker import epmd_environment
from ops.local.cluster import LocalCluster
from ops.local.files import DISK_FREE_LIMIT_BYTES, MEMORY_SHARE

__all__ = [
    "FAULTS",
    "Fault",
    "alarm",
    "close_connections",
    "drained",
    "erl_call",
    "fault_of",
    "push_list",
]

CALL_WITHIN_S = 30.0
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
    begin: Callable[[], None]
    end: Callable[[], None]

    def __str__(self) -> str:
        return f"{self.name} {self.target}".rstrip()


def _nothing() -> None:
    pass


def fault_of(name: str, cluster: LocalCluster, target: str) -> Fault:
    """Return the fault of that name at that broker."""
    return FAULTS[name](cluster, target)


def _kill(cluster: LocalCluster, target: str) -> Fault:
    return Fault(
        "kill", target, 2.0, "kill", lambda: cluster.kill(target), lambda: cluster.start(target)
    )


def _freeze(cluster: LocalCluster, target: str) -> Fault:
    return Fault(
        "freeze", target, 4.0, "cut", lambda: cluster.freeze(target), lambda: cluster.thaw(target)
    )


def _alarm(cluster: LocalCluster, target: str) -> Fault:
    return Fault(
        "alarm",
        target,
        4.0,
        "",
        lambda: alarm(cluster, target, on=True),
        lambda: alarm(cluster, target, on=False),
    )


def _reload(cluster: LocalCluster, _target: str) -> Fault:
    def begin() -> None:
        lb.apply.apply(load(cluster.inventory), reload=True)

    return Fault("reload", "", 0.0, "", begin, _nothing)


def _agent(cluster: LocalCluster, target: str) -> Fault:
    return Fault(
        "agent",
        target,
        3.0,
        "",
        lambda: cluster.kill(target, agent=True),
        lambda: cluster.start(target, agent=True),
    )


def _close(cluster: LocalCluster, target: str) -> Fault:
    return Fault("close", target, 0.0, "cut", lambda: close_connections(cluster, target), _nothing)


def _drain(cluster: LocalCluster, target: str) -> Fault:
    def push(*, draining: bool) -> None:
        listed = cluster.consumer_list()
        push_list(cluster, drained(listed, cluster.node(target).broker, draining=draining))

    return Fault(
        "drain", target, 3.0, "", lambda: push(draining=True), lambda: push(draining=False)
    )


FAULTS: dict[str, Callable[[LocalCluster, str], Fault]] = {
    "kill": _kill,
    "freeze": _freeze,
    "alarm": _alarm,
    "reload": _reload,
    "agent": _agent,
    "close": _close,
    "drain": _drain,
}


def alarm(
    cluster: LocalCluster, name: str, *, on: bool, kind: Literal["memory", "disk"] = "memory"
) -> None:
    """Raise or clear one of the broker's alarms. Raises BenchError."""
    if kind == "memory":
        share = "0.0" if on else str(MEMORY_SHARE)
        call = f"vm_memory_monitor set_vm_memory_high_watermark [{share}]"
    else:
        limit = NO_DISK_HAS_BYTES if on else DISK_FREE_LIMIT_BYTES
        call = f"rabbit_disk_monitor set_disk_free_limit [{limit}]"
    erl_call(cluster, name, call)


def erl_call(cluster: LocalCluster, name: str, call: str) -> None:
    """Make the broker call a function: module, function and list of arguments. Raises BenchError."""
    node = cluster.node(name)
    done = subprocess.run(
        ["erl_call", "-n", node.node_name, "-a", call],
        env={**epmd_environment(cluster.layout.epmd_port), "HOME": str(node.home)},
        capture_output=True,
        timeout=CALL_WITHIN_S,
        check=False,
    )
    if done.stdout != b"ok":
        raise BenchError(f"{name}: {call}: {(done.stdout + done.stderr).decode().strip()}")


def close_connections(cluster: LocalCluster, name: str) -> None:
    """Make the broker close all client connections, as soon as it lists any."""
    until_s = time.monotonic() + LISTED_WITHIN_S
    with cluster.management(name) as management:
        while not (found := _clients(management)) and time.monotonic() < until_s:
            time.sleep(POLL_S)
        for connection in found:
            # It may have ended by itself meanwhile.
            management.delete(f"/api/connections/{quote(connection, safe='')}")


def _clients(management: httpx.Client) -> list[str]:
    connections = management.get("/api/connections").raise_for_status().json()
    return [str(each["name"]) for each in connections if each.get("user") == "bus"]


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
        write_atomically(file, wanted.render())
