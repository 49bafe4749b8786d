"""Kafka nodes for a run, each both broker and controller (KRaft): configured, started, stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.clients.jvm import processes
from bench.clients.jvm.maven import KAFKA
from bench.clients.jvm.processes import UP_WITHIN_S, Node
from bench.errors import BenchError
from bench.faults import Fault
from bench.harness.sampling import Probe
from bench.load.profile import Profile, places
from bench.processes import Children, run, wait_until

# Hides its log messages while nodes start and stop.
QUIET: dict[str, Any] = {"log_level": 2}
# The environment variable that gives load processes the servers' addresses.
SERVERS = "BENCH_KAFKA_SERVERS"
CLIENT_PORT, CONTROLLER_PORT = 9092, 9093
# The options of its own kafka-run-class.sh.
JVM = (
    *("-server", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
    *("-Djava.net.preferIPv4Stack=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"),
)
# For a command that runs for a second: full compilation would take longer.
SHORT_JVM = ("-Xmx128m", "-XX:TieredStopAtLevel=1")
CLUSTER_ID = "bWVzc2FnZWJ1cy1iZW5jaA"
FORMAT_WITHIN_S = 60.0
ASK_WITHIN_S = 5.0
DECLARE_WITHIN_S = 30.0
COPIES_MAX = 3
# Kafka's default of 1 MB is less than a body of 1 MiB with its header.
MESSAGE_BYTES_MAX = 16 << 20


def copies(nodes: int) -> int:
    return min(COPIES_MAX, nodes)


def in_sync(nodes: int) -> int:
    """Return the number of copies that must have a message before its confirm: more than half."""
    return copies(nodes) // 2 + 1


def partitions(profile: Profile) -> int:
    """Return the partitions of each topic: at least one per node, and one per consumer of a subscription."""
    rivals = -(-profile.load.consumers // len(places(profile)))
    return max(profile.system.brokers, rivals)


def durability(profile: Profile) -> str:
    nodes = profile.system.brokers
    where = f"{in_sync(nodes)} or more of {copies(nodes)} copies" if nodes > 1 else "one broker"
    return {
        "fsync": f"fsynced by {where} before the confirm (acks=all, log.flush.interval.messages=1)",
        "page-cache": f"in the page cache of {where}, not fsynced: a power-off of these loses it "
        "(acks=all, Kafka's own default)",
    }[profile.system.durability]


def properties(number: int, hosts: Sequence[str], data: Path, durability: str) -> str:
    """Return server.properties of node `number`, counted from 1."""
    host, count = hosts[number - 1], len(hosts)
    listeners = f"CLIENT://{host}:{CLIENT_PORT},CONTROLLER://{host}:{CONTROLLER_PORT}"
    voters = ",".join(f"{n}@{each}:{CONTROLLER_PORT}" for n, each in enumerate(hosts, 1))
    values = {
        "process.roles": "broker,controller",
        "node.id": number,
        # Not together with --standalone of its storage tool, which refuses that.
        "controller.quorum.voters": voters,
        "listeners": listeners,
        "advertised.listeners": f"CLIENT://{host}:{CLIENT_PORT}",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "CLIENT",
        "log.dirs": data,
        "auto.create.topics.enable": "false",
        "message.max.bytes": MESSAGE_BYTES_MAX,
        "default.replication.factor": copies(count),
        "min.insync.replicas": in_sync(count),
        "offsets.topic.replication.factor": copies(count),
        "offsets.topic.num.partitions": count,
        "group.initial.rebalance.delay.ms": 0,
    }
    if durability == "fsync":
        values["log.flush.interval.messages"] = 1
    return "".join(f"{name}={value}\n" for name, value in values.items())


class Kafka:
    """The running nodes of a run."""

    def __init__(self, nodes: Sequence[Node], children: Children, profile: Profile) -> None:
        self.servers = ",".join(node.broker for node in nodes)
        self._nodes, self._children = nodes, children
        self._profile = profile
        self._admin = AdminClient({"bootstrap.servers": self.servers} | QUIET)

    def env(self) -> Mapping[str, str]:
        return {SERVERS: self.servers}

    def declare(self, profile: Profile) -> None:
        # Subscriptions are groups: the first commit creates them.
        names = sorted({topic for topic, _ in places(profile)})
        wanted = [NewTopic(name, partitions(profile), copies(len(self._nodes))) for name in names]
        made = self._admin.create_topics(wanted, operation_timeout=DECLARE_WITHIN_S)
        for name, future in made.items():
            try:
                future.result(DECLARE_WITHIN_S)
            except KafkaException as fault:
                if fault.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise BenchError(f"topic {name}: {fault.args[0].str()}") from fault

    def probes(self) -> list[Probe]:
        return processes.probes(self._nodes, self._children)

    def about(self) -> Mapping[str, Any]:
        return {
            "nodes": f"{len(self._nodes)} Kafka {KAFKA.version}, each broker and controller",
            "path": "each client to all nodes",
            "partitions": partitions(self._profile),
            "copies": copies(len(self._nodes)),
            "jvm": " ".join(JVM),
        }

    def fault(self, name: str, number: int) -> Fault:
        raise BenchError(f"{name} of node {number}: Kafka has no faults here")

    def wait_for_all(self) -> None:
        """Wait until every node knows all nodes. Raises BenchError."""
        wait_until(
            self._are_all_known,
            within_s=UP_WITHIN_S,
            what="Kafka's nodes do not all know each other",
        )

    def _are_all_known(self) -> bool:
        try:
            return len(self._admin.list_topics(timeout=ASK_WITHIN_S).brokers) == len(self._nodes)
        except KafkaException:
            return False


@contextmanager
def started(profile: Profile, network: str, say: Callable[[str], None]) -> Iterator[Kafka]:
    """Run nodes with folders and addresses of their own; remove them afterwards."""
    with processes.started(KAFKA, profile, network, say, _all_prepared) as (nodes, children):
        kafka = Kafka(nodes, children, profile)
        kafka.wait_for_all()
        yield kafka


def _all_prepared(hosts: Sequence[str], folder: Path, profile: Profile) -> list[Node]:
    nodes = [_prepared(number, hosts, folder, profile) for number in range(1, len(hosts) + 1)]
    with ThreadPoolExecutor(len(nodes)) as pool:
        list(pool.map(_format, (node.argv[-1] for node in nodes)))
    return nodes


def _prepared(number: int, hosts: Sequence[str], folder: Path, profile: Profile) -> Node:
    file = folder / f"node-{number}.properties"
    file.write_text(properties(number, hosts, folder / f"data-{number}", profile.system.durability))
    argv = (*JVM, "-cp", KAFKA.classpath, "kafka.Kafka", str(file))
    return Node(number, hosts[number - 1], (CLIENT_PORT, CONTROLLER_PORT), argv)


def _format(file: str) -> None:
    """Format a node's data folder with the cluster's id. Raises BenchError."""
    argv = ["java", *SHORT_JVM, "-cp", KAFKA.classpath, "kafka.tools.StorageTool"]
    argv += ["format", "-t", CLUSTER_ID, "-c", file]
    run(argv, within_s=FORMAT_WITHIN_S, what="Kafka cannot format")
