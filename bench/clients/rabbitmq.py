"""Standalone RabbitMQ nodes behind HAProxy, with their agents: the system that messagebus runs on.

Clients that know only one broker are measured on one such node, without HAProxy.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.errors import BenchError
from bench.faults import FAULTS, Fault, fault_of
from bench.harness.interface import Where
from bench.harness.sampling import Probe
from bench.load.profile import Profile, places
from messagebus import BusConfig, Subscription, Topic, declare
from messagebus.topology import GATE, with_options
from ops.local.cluster import LocalCluster

OPEN_WITHIN_S = 60.0
# With its name, a queue without statistics is an object too.
COLUMNS = "name,messages_ready,messages_unacknowledged"


class Standalone:
    """The running nodes of a run. direct: clients connect to the first node instead of the balancer."""

    def __init__(self, cluster: LocalCluster, *, direct: bool = False) -> None:
        self.cluster = cluster
        self._direct = direct

    def env(self) -> Mapping[str, str]:
        env = self.cluster.client_env()
        if self._direct:
            env["MESSAGEBUS_BROKER"] = self.cluster.node(self.cluster.names[0]).broker
        return env

    def declare(self, profile: Profile) -> None:
        """Declare the run's topics and subscriptions on every broker, with the profile's durability."""
        level = profile.system.durability
        options = {} if level == "fsync" else {"durability": level}
        names = [f"{topic}/{subscription}" for topic, subscription in places(profile)]
        topics = {topic for topic, _ in places(profile)}
        wanted = [with_options(name, options) for name in (*sorted(topics), *names)]
        declare(BusConfig.from_env(self.cluster.client_env()), wanted)

    def probes(self) -> list[Probe]:
        found = []
        for name in self.cluster.names:
            process = self.cluster.process_of(name)
            if process is not None:
                broker = self.cluster.node(name).broker
                found.append(Probe(broker, process.pid, _counts(self.cluster, name)))
        return found

    def about(self) -> Mapping[str, Any]:
        path = "to the first node" if self._direct else "through HAProxy"
        return {"nodes": f"{len(self.cluster.names)} standalone RabbitMQ", "path": path}

    def fault(self, name: str, number: int) -> Fault:
        if name not in FAULTS:
            raise BenchError(f"no fault {name!r}: one of {', '.join(FAULTS)}")
        return fault_of(name, self.cluster, self.cluster.names[number - 1])


class Peer:
    """Settings of a client that is not ours: its broker, its login, its exchange and its queue."""

    def __init__(self, where: Where) -> None:
        bus = BusConfig.from_env(where.env)
        self.broker, self.address = bus.broker, bus.address
        self.host, self.port = bus.address.host, bus.address.port
        self.user, self.password = bus.current_user(), bus.current_password()
        self.exchange = Topic(where.topic).exchange
        self.queue = (
            Subscription(Topic(where.topic), where.subscription).amqp_queue
            if where.subscription
            else ""
        )


@contextmanager
def started(
    profile: Profile, network: str, say: Callable[[str], None], *, direct: bool = False
) -> Iterator[Standalone]:
    """Run a cluster with the profile's brokers; remove it afterwards."""
    with tempfile.TemporaryDirectory(
        prefix="messagebus-run-", ignore_cleanup_errors=True
    ) as folder:
        dir, brokers = Path(folder) / "cluster", profile.system.brokers
        with LocalCluster(dir, brokers, network=network, say=say).running() as cluster:
            say(live_page(cluster.client_env()))
            yield Standalone(cluster, direct=direct)


def live_page(env: Mapping[str, str]) -> str:
    """Return the line with the command that opens the live page of these brokers while they run."""
    settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in env.items())
    return f"live page, from another terminal: {settings} messagebus monitor"


@contextmanager
def started_direct(
    profile: Profile, network: str, say: Callable[[str], None]
) -> Iterator[Standalone]:
    """Run a cluster for a client that knows only one broker."""
    with started(profile, network, say, direct=True) as running:
        yield running


def durability_direct(_profile: Profile) -> str:
    return "fsynced by one broker before the confirm (quorum queue of one member)"


def _counts(cluster: LocalCluster, name: str) -> Callable[[], Mapping[str, int]]:
    def ask() -> Mapping[str, int]:
        with cluster.management(name) as management:
            queues = management.get("/api/queues", params={"columns": COLUMNS}).raise_for_status()
            nodes = management.get("/api/nodes").raise_for_status().json()
        rows = [row for row in queues.json() if row["name"] != GATE]
        own = cluster.node(name).node_name
        (node,) = [each for each in nodes if each["name"] == own]
        # The broker's own count, including quorum queues' logs: 4,949 where strace saw 4,954. It is some
        # seconds old.
        syncs = {"syncs": int(node["io_sync_count"])} if "io_sync_count" in node else {}
        return syncs | {
            "ready": sum(int(row.get("messages_ready", 0)) for row in rows),
            "unacked": sum(int(row.get("messages_unacknowledged", 0)) for row in rows),
        }

    return ask
