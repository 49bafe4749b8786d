"""ActiveMQ Artemis nodes for a run, standalone or in one cluster: configured, started, stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.clients.jvm import processes
from bench.clients.jvm.maven import ARTEMIS
from bench.clients.jvm.processes import UP_WITHIN_S, Node
from bench.errors import BenchError
from bench.faults import Fault
from bench.harness.sampling import Probe
from bench.load.profile import Profile, places
from bench.processes import Children, wait_until

# The environment variable that gives load processes the nodes' addresses.
NODES = "BENCH_ARTEMIS_NODES"
CLUSTERED = "artemis-cluster"
STOMP_PORT, CORE_PORT = 61613, 61616
# The options of its own `artemis create`.
JVM = (
    *("-Xms512m", "-Xmx2g", "-XX:+UseG1GC", "-XX:+UseStringDeduplication"),
    *("-XX:AutoBoxCacheMax=20000", "-Djava.net.preferIPv4Stack=true"),
)
MAIN = "org.apache.activemq.artemis.cli.Artemis"
# How long writes gather before they are synced. `artemis create` measures the disk and chooses a value; on
# one busy machine it chose 276 to 824 us, so nodes would differ by chance. All of ours have the same value.
JOURNAL_TIMEOUT_NS = 400_000
# Clients send no heartbeats; Artemis would disconnect a silent client after a minute.
SILENT_MS = 24 * 3600 * 1000
JOINED = b"AMQ221027"


def is_cluster(profile: Profile) -> bool:
    return profile.system.name == CLUSTERED


def durability(profile: Profile) -> str:
    return {
        "fsync": "fsynced by one broker before the receipt (journal-datasync, persistent)",
        "page-cache": "in the page cache of one broker, not fsynced: a power-off of it loses it "
        "(journal-datasync=false, persistent)",
    }[profile.system.durability]


def broker_xml(number: int, hosts: Sequence[str], folder: Path, profile: Profile) -> str:
    """Return the configuration of node `number`, counted from 1."""
    host = hosts[number - 1]
    data = "".join(
        f"<{kind}-directory>{folder}/{kind}</{kind}-directory>"
        for kind in ("journal", "bindings", "paging", "large-messages")
    )
    topics = "".join(
        f'<address name="{topic}"><multicast>'
        + "".join(f'<queue name="{t}.{s}"/>' for t, s in places(profile) if t == topic)
        + "</multicast></address>"
        for topic in sorted({topic for topic, _ in places(profile)})
    )
    syncs = "true" if profile.system.durability == "fsync" else "false"
    return (
        '<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">'
        f"<name>node-{number}</name><security-enabled>false</security-enabled>"
        f"<journal-type>NIO</journal-type><journal-datasync>{syncs}</journal-datasync>"
        f"<journal-buffer-timeout>{JOURNAL_TIMEOUT_NS}</journal-buffer-timeout>{data}"
        "<max-disk-usage>-1</max-disk-usage>"
        f"{_cluster(number, hosts) if is_cluster(profile) else ''}<acceptors>"
        f'<acceptor name="core">tcp://{host}:{CORE_PORT}?protocols=CORE</acceptor>'
        f'<acceptor name="stomp">tcp://{host}:{STOMP_PORT}?protocols=STOMP;'
        f"connectionTtl={SILENT_MS}</acceptor></acceptors>"
        f"<addresses>{topics}</addresses>{SETTINGS}</core></configuration>\n"
    )


# Messages of a node without consumers go at once to nodes that have some.
SETTINGS = (
    '<address-settings><address-setting match="#"><redistribution-delay>0</redistribution-delay>'
    "<address-full-policy>PAGE</address-full-policy></address-setting></address-settings>"
)


def _cluster(number: int, hosts: Sequence[str]) -> str:
    connectors = "".join(
        f'<connector name="node-{n}">tcp://{host}:{CORE_PORT}</connector>'
        for n, host in enumerate(hosts, 1)
    )
    others = "".join(
        f"<connector-ref>node-{n}</connector-ref>" for n in range(1, len(hosts) + 1) if n != number
    )
    return (
        f"<connectors>{connectors}</connectors>"
        "<cluster-user>bench</cluster-user><cluster-password>loopback</cluster-password>"
        '<cluster-connections><cluster-connection name="all">'
        f"<connector-ref>node-{number}</connector-ref>"
        "<message-load-balancing>ON_DEMAND</message-load-balancing><max-hops>1</max-hops>"
        f"<static-connectors>{others}</static-connectors>"
        "</cluster-connection></cluster-connections>"
    )


class Artemis:
    """The running nodes of a run."""

    def __init__(self, nodes: Sequence[Node], children: Children, profile: Profile) -> None:
        self.nodes, self._children = nodes, children
        self._profile = profile

    def env(self) -> Mapping[str, str]:
        return {NODES: " ".join(node.broker for node in self.nodes)}

    def declare(self, profile: Profile) -> None:
        """Do nothing: the nodes' configuration already names the topics of their profile."""

    def probes(self) -> list[Probe]:
        return processes.probes(self.nodes, self._children)

    def about(self) -> Mapping[str, Any]:
        alone = f"{len(self.nodes)} standalone Artemis {ARTEMIS.version}"
        together = f"{len(self.nodes)} Artemis {ARTEMIS.version} in one cluster, ON_DEMAND"
        clustered = is_cluster(self._profile)
        return {
            "nodes": together if clustered else alone,
            "path": "each publisher to one node, by turns; each consumer to "
            + ("one" if clustered else "all"),
            "protocol": "STOMP 1.2, a client of the bench",
            "journal": f"NIO, gathers for {JOURNAL_TIMEOUT_NS // 1000} us",
            "jvm": " ".join(JVM),
        }

    def fault(self, name: str, number: int) -> Fault:
        raise BenchError(f"{name} of node {number}: Artemis has no faults here")


@contextmanager
def started(profile: Profile, network: str, say: Callable[[str], None]) -> Iterator[Artemis]:
    """Run nodes with folders and addresses of their own; remove them afterwards."""
    with processes.started(ARTEMIS, profile, network, say, _all_prepared) as (nodes, children):
        if is_cluster(profile):
            _wait_for_all(nodes, children)
        yield Artemis(nodes, children, profile)


def _all_prepared(hosts: Sequence[str], folder: Path, profile: Profile) -> list[Node]:
    return [_prepared(number, hosts, folder, profile) for number in range(1, len(hosts) + 1)]


def _prepared(number: int, hosts: Sequence[str], folder: Path, profile: Profile) -> Node:
    """Write the files of `artemis create`, without those that are not used here."""
    own = folder / f"node-{number}"
    etc = own / "etc"
    etc.mkdir(parents=True)
    schema = 'xmlns="http://activemq.apache.org/schema"'
    (etc / "broker.xml").write_text(broker_xml(number, hosts, own, profile))
    (etc / "management.xml").write_text(f"<management-context {schema}/>\n")
    (etc / "bootstrap.xml").write_text(
        f'<broker {schema}><jaas-security domain="activemq"/>'
        f'<server configuration="{(etc / "broker.xml").as_uri()}"/></broker>\n'
    )
    folders = (f"-Dartemis.{name}={own}" for name in ("home", "instance"))
    argv = (*JVM, *folders, f"-Dartemis.instance.etc={etc}", "-cp", ARTEMIS.classpath, MAIN, "run")
    return Node(number, hosts[number - 1], (STOMP_PORT, CORE_PORT), argv)


def _wait_for_all(nodes: Sequence[Node], children: Children) -> None:
    """Wait until every node's log reports a bridge to each other node. Raises BenchError."""
    logs = [children.log_of(node.name) for node in nodes]
    wait_until(
        lambda: all(log.read_bytes().count(JOINED) >= len(nodes) - 1 for log in logs),
        within_s=UP_WITHIN_S,
        what="Artemis' nodes are not all joined",
    )
