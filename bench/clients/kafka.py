"""Kafka: nodes for a run, each both broker and controller (KRaft); and a client.

The client is `confluent-kafka`, with the defaults of Java's producer. A subscription is a group. Its
consumers get their partitions by number, not by Kafka's own balance, so that no run measures a rebalance.
Kafka has no ack for one message: a consumer commits a position, with `each` after every take, with `many`
after a quarter of the prefetch. Unanswered messages have no bound.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.clients.nodes import Node, Nodes, copies, in_sync, started_nodes, wait_up
from bench.clients.packages import KAFKA
from bench.errors import BenchError
from bench.harness.interface import Delivered, End, Where
from bench.harness.outcomes import CONFIRMED, OTHERWISE, UNKNOWN
from bench.load.profile import Profile, places
from bench.processes import run

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
DECLARE_WITHIN_S = 120.0
# Kafka's default of 1 MB is less than a body of 1 MiB with its header.
MESSAGE_BYTES_MAX = 16 << 20


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


@contextmanager
def started(profile: Profile, network: str, say: Callable[[str], None]) -> Iterator[Nodes]:
    """Run nodes with folders and addresses of their own; remove them afterwards."""
    with started_nodes(KAFKA, profile, network, say, all_prepared) as (nodes, children):
        servers = ",".join(node.broker for node in nodes)
        admin = AdminClient({"bootstrap.servers": servers} | QUIET)
        about = {
            "nodes": f"{len(nodes)} Kafka {KAFKA.version}, each broker and controller",
            "path": "each client to all nodes",
            "partitions": partitions(profile),
            "copies": copies(len(nodes)),
            "jvm": " ".join(JVM),
        }

        def are_all_known() -> bool:
            with suppress(KafkaException):
                return len(admin.list_topics(timeout=ASK_WITHIN_S).brokers) == len(nodes)
            return False

        wait_up(nodes, children, are_all_known, "all of Kafka's nodes know each other")
        yield Nodes(nodes, children, SERVERS, about, partial(_declare, admin, len(nodes)))


def _declare(admin: AdminClient, nodes: int, profile: Profile) -> None:
    """Create the topics. Subscriptions are groups: the first commit creates them."""
    names = sorted({topic for topic, _ in places(profile)})
    wanted = [NewTopic(name, partitions(profile), copies(nodes)) for name in names]
    for name, future in admin.create_topics(wanted, operation_timeout=DECLARE_WITHIN_S).items():
        try:
            future.result(DECLARE_WITHIN_S)
        except KafkaException as fault:
            if fault.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise BenchError(f"topic {name}: {fault.args[0].str()}") from fault


def all_prepared(hosts: Sequence[str], folder: Path, profile: Profile) -> list[Node]:
    nodes = [_prepared(number, hosts, folder, profile) for number in range(1, len(hosts) + 1)]
    with ThreadPoolExecutor(len(nodes)) as pool:
        list(pool.map(_format, (node.argv[-1] for node in nodes)))
    return nodes


def _prepared(number: int, hosts: Sequence[str], folder: Path, profile: Profile) -> Node:
    file = folder / f"node-{number}.properties"
    file.write_text(properties(number, hosts, folder / f"data-{number}", profile.system.durability))
    argv = ("java", *JVM, "-cp", KAFKA.classpath, "kafka.Kafka", str(file))
    return Node(number, hosts[number - 1], (CLIENT_PORT, CONTROLLER_PORT), argv)


def _format(file: str) -> None:
    """Format a node's data folder with the cluster's id. Raises BenchError."""
    argv = ["java", *SHORT_JVM, "-cp", KAFKA.classpath, "kafka.tools.StorageTool"]
    argv += ["format", "-t", CLUSTER_ID, "-c", file]
    run(argv, within_s=FORMAT_WITHIN_S, what="Kafka cannot format")


OPEN_WITHIN_S = 60.0
POLL_S = 0.1
TAKE_MAX = 500
NO_COORDINATOR = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}
# The same deadline as messagebus' own in these runs.
DEADLINE_MS = 300_000
# How long a message waits for others: Kafka's own default. With 0, a light load makes a request for each
# message: on two busy cores a confirm took 59 ms at 500/s, and 20 ms with 5.
LINGER_MS = 5
QUEUE_LEAST = 100_000
# Errors that leave unknown whether the broker has the message.
UNANSWERED = {KafkaError._MSG_TIMED_OUT, KafkaError._TRANSPORT, KafkaError.REQUEST_TIMED_OUT}


def producer_options(profile: Profile, where: Where) -> dict[str, Any]:
    load = profile.load
    options: dict[str, Any] = {
        "bootstrap.servers": where.env[SERVERS],
        "client.id": where.name,
        "acks": "all",
        # Java's default, not this client's: retries neither duplicate nor reorder.
        "enable.idempotence": True,
        "message.timeout.ms": DEADLINE_MS,
        "message.max.bytes": MESSAGE_BYTES_MAX,
        # The profile's window is the bound; the producer's queue must not be smaller.
        "queue.buffering.max.messages": max(QUEUE_LEAST, load.window * load.batch),
        "linger.ms": LINGER_MS,
    }
    return options | ({"batch.num.messages": load.batch} if load.batch > 1 else {})


def partitions_of(profile: Profile, number: int, count: int) -> list[int]:
    """Return the partitions of consumer `number` of the run, of `count` partitions."""
    every = len(places(profile))
    rivals = len(range(number % every, profile.load.consumers, every))
    return list(range(number // every, count, rivals))


class Sender:
    """A sender whose confirms are handled on a thread of its own, as they arrive."""

    def __init__(self, profile: Profile, where: Where) -> None:
        self._topic = where.topic
        self._window = profile.load.window * profile.load.batch
        self._producer = Producer(producer_options(profile, where))
        # Number -> time of sending. The loop adds entries, the thread removes them.
        self._open: dict[int, int] = {}
        self._ends: deque[End] = deque()
        self._room = asyncio.Event()
        self._is_waited_for = self._is_over = False
        self._thread = threading.Thread(target=self._serve, name="confirms", daemon=True)

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._leaders = await asyncio.to_thread(_leaders, self._producer, self._topic)
        self._thread.start()

    async def room(self) -> None:
        while len(self._open) >= self._window:
            self._room.clear()
            self._is_waited_for = True
            # Checked again after setting the flag for the thread, so as not to miss a confirm in between.
            if len(self._open) >= self._window:
                await self._room.wait()

    async def send(self, sequence: int, body: bytes, key: str) -> None:
        if len(self._open) >= self._window:
            await self.room()
        now_ns = self._open[sequence] = time.monotonic_ns()
        self._producer.produce(
            self._topic,
            body,
            key or None,
            on_delivery=partial(self._on_end, sequence, now_ns),
        )

    def ends(self) -> list[End]:
        return [self._ends.popleft() for _ in range(len(self._ends))]

    async def close(self, timeout_s: float) -> None:
        await asyncio.to_thread(self._producer.flush, timeout_s)
        self._is_over = True
        await asyncio.to_thread(self._thread.join, OPEN_WITHIN_S)
        now_ns = time.monotonic_ns()
        for sequence, sent_ns in self._open.items():
            self._ends.append(End(sequence, UNKNOWN, "", sent_ns, now_ns))

    def _serve(self) -> None:
        while not self._is_over:
            self._producer.poll(POLL_S)

    def _on_end(
        self, sequence: int, sent_ns: int, error: KafkaError | None, message: Message
    ) -> None:
        outcome = CONFIRMED
        if error is not None:
            outcome = UNKNOWN if error.code() in UNANSWERED else OTHERWISE
        broker = self._leaders.get(message.partition() or 0, "")
        self._ends.append(End(sequence, outcome, broker, sent_ns, time.monotonic_ns()))
        del self._open[sequence]
        if self._is_waited_for:
            self._is_waited_for = False
            self._loop.call_soon_threadsafe(self._room.set)


class Receiver:
    def __init__(self, profile: Profile, where: Where) -> None:
        self._profile, self._where, load = profile, where, profile.load
        self._per_commit = max(1, load.prefetch // 4) if load.ack == "many" else 1
        self._uncommitted = 0
        self._consumer = Consumer(
            {
                "bootstrap.servers": where.env[SERVERS],
                "client.id": where.name,
                "group.id": where.subscription,
                "enable.auto.commit": False,
            }
        )

    async def open(self) -> None:
        await asyncio.to_thread(self._open)

    async def take(self, max_wait_s: float) -> list[Delivered]:
        return await asyncio.to_thread(self._take, max_wait_s)

    async def close(self) -> None:
        await asyncio.to_thread(self._close)

    def _open(self) -> None:
        """Begin at the group's position, or at the beginning."""
        topic = self._where.topic
        self._leaders = _leaders(self._consumer, topic)
        own = partitions_of(self._profile, self._where.number, len(self._leaders))
        stored = self._committed([TopicPartition(topic, each) for each in own])
        for each in stored:
            if each.offset < 0:
                each.offset = OFFSET_BEGINNING
        self._consumer.assign(stored)

    def _committed(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return the group's positions. A node that has just started may not yet be its coordinator."""
        until_s = time.monotonic() + OPEN_WITHIN_S
        while True:
            try:
                return self._consumer.committed(partitions, OPEN_WITHIN_S)
            except KafkaException as fault:
                if fault.args[0].code() not in NO_COORDINATOR or time.monotonic() > until_s:
                    raise
                time.sleep(POLL_S)

    def _take(self, max_wait_s: float) -> list[Delivered]:
        first = self._consumer.poll(max_wait_s)
        if first is None:
            self._commit()
            return []
        messages = [first, *self._consumer.consume(TAKE_MAX - 1, 0)]
        now_ns = time.monotonic_ns()
        found = [self._delivered(message, now_ns) for message in messages]
        self._uncommitted += len(found)
        if self._uncommitted >= self._per_commit:
            self._commit()
        return found

    def _delivered(self, message: Message, now_ns: int) -> Delivered:
        if (fault := message.error()) is not None:
            raise BenchError(f"Kafka's consumer: {fault.str()}")
        return Delivered(message.value() or b"", self._leaders[message.partition() or 0], now_ns)

    def _commit(self) -> None:
        if self._uncommitted:
            self._consumer.commit(asynchronous=True)
            self._uncommitted = 0

    def _close(self) -> None:
        # Closing waits for pending commits.
        self._commit()
        self._consumer.close()


def _leaders(client: Producer | Consumer, topic: str) -> dict[int, str]:
    """Return partition -> broker, read once before the load. Raises BenchError if one has no leader."""
    found = client.list_topics(topic, OPEN_WITHIN_S)
    names = {number: f"{each.host}:{each.port}" for number, each in found.brokers.items()}
    leaders = {
        number: names.get(each.leader, "")
        for number, each in found.topics[topic].partitions.items()
    }
    if not leaders or "" in leaders.values():
        raise BenchError(f"topic {topic}: has no leader for each partition")
    return leaders
