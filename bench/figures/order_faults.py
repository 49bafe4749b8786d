"""Order under faults: how long a key stands still when its home, or its consumer, is killed; beside Kafka.

Both systems get the same load: of each key one message at a time, the next one when the last is confirmed.
Readers in processes of their own note each message. A broker that was killed is started again at once, a
reader that was killed is not. Kafka's clients and nodes have their defaults, but for `acks=all` with two of
three copies: a confirm means the page cache of two nodes there, and the disk of one broker here.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4
from zlib import crc32

from bench.clients import kafka
from bench.clients.java import KAFKA, hosts, running
from bench.errors import BenchError
from bench.figures.form import Figure, Maker, at_most
from bench.figures.scene import BEHIND_HAPROXY, Group, Scene, repeat_command
from bench.load.profile import Profile
from bench.processes import Children, wait_until
from messagebus import BusConfig, Consumer, Delivery, Message, Outcome, Published, Publisher, Topic
from messagebus import declare as declared

NAME, JOINS, KAFKA_NAME = "order.faults", "order.join", "order.kafka"
TOPIC, SUBSCRIPTION = "orders", "billing"
PARTITIONS, BROKERS, READERS, JOINED = 32, 3, 4, 8
# One in each partition.
KEYS = tuple(
    next(f"k{n}" for n in range(10_000) if crc32(f"k{n}".encode()) % PARTITIONS == partition)
    for partition in range(PARTITIONS)
)
PAUSE_S, CALM_S, WITHIN_S, DEADLINE_S = 0.02, 3.0, 240.0, 60.0
GOAL_BEYOND_BOOT_MS, GOAL_SERVED_MS, GOAL_EVEN_S, GOAL_HANDED = 500.0, 1_000.0, 20.0, 80
MS, S = 1e6, 1e9

Submit = Callable[[str, int, Callable[[bool], None]], None]


class Run(NamedTuple):
    """One handled message. at_ns: of the monotonic clock."""

    key: str
    number: int
    partition: int
    pid: int
    at_ns: int


def runs(told: Path) -> list[Run]:
    """Return what the readers have noted, as far as lines are whole."""
    lines = told.read_text().rpartition("\n")[0].splitlines()
    rows = (line.split() for line in lines)
    return sorted(
        (Run(key, *map(int, rest)) for key, *rest in rows),
        key=lambda run: run.at_ns,
    )


def standstill_ms(found: list[Run], since_ns: int) -> float:
    """Return the longest time without a first run that a key had behind some moment."""
    last, seen, longest = dict.fromkeys(KEYS, since_ns), set[tuple[str, int]](), 0
    for run in found:
        if (run.key, run.number) in seen:
            continue
        seen.add((run.key, run.number))
        if run.at_ns > since_ns:
            longest = max(longest, run.at_ns - last[run.key])
            last[run.key] = run.at_ns
    return longest / MS


def disorder(found: list[Run]) -> int:
    """Count the first runs behind that of a later message of their key."""
    reached, seen, late = dict.fromkeys(KEYS, -1), set[tuple[str, int]](), 0
    for run in found:
        if (run.key, run.number) not in seen:
            seen.add((run.key, run.number))
            late += run.number < reached[run.key]
            reached[run.key] = max(reached[run.key], run.number)
    return late


class Load(threading.Thread):
    """A publisher with one message of each key under way."""

    def __init__(self, submit: Submit, poll: Callable[[], object] = lambda: None) -> None:
        super().__init__(name="load")
        self._submit, self._poll = submit, poll
        self._next, self._open = dict.fromkeys(KEYS, 0), set[str]()
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(PAUSE_S):
            for key in set(KEYS) - self._open:
                self._open.add(key)
                self._submit(key, self._next[key], partial(self._ended, key))
            self._poll()

    def _ended(self, key: str, is_confirmed: bool) -> None:
        self._next[key] += is_confirmed
        self._open.discard(key)

    def __enter__(self) -> Load:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


class Readers:
    """Readers in processes of their own. told: the file of their runs."""

    def __init__(self, children: Children, kind: str, env: Mapping[str, str], folder: Path) -> None:
        self._children, self._kind, self._env, self._folder = children, kind, env, folder
        self.told = folder / f"runs.{kind}"
        self.told.touch()
        self._count = 0

    def add(self, count: int) -> None:
        for _ in range(count):
            self._count += 1
            argv = [sys.executable, "-m", __name__, self._kind, str(self.told)]
            self._children.start(f"reader-{self._count}", argv, os.environ | self._env, Path.cwd())

    def kill_one(self) -> int:
        """Kill one that has work, and return when, in ns."""
        pid = runs(self.told)[-1].pid
        at_ns = time.monotonic_ns()
        os.kill(pid, signal.SIGKILL)
        return at_ns

    def progress(self, since_ns: int) -> None:
        """Wait until every key has had runs for a while, from some moment on."""

        def still() -> list[str]:
            return sorted(set(KEYS) - {r.key for r in runs(self.told) if r.at_ns > since_ns})

        wait_until(
            lambda: not still(),
            within_s=WITHIN_S,
            what=lambda: f"{len(still())} of {len(KEYS)} keys do not go on",
        )
        time.sleep(CALM_S)

    def owners(self) -> tuple[dict[int, int], int]:
        """Return who has had each partition last: partition -> pid; and how often one has passed on."""
        last, passed = dict[int, int](), 0
        for run in runs(self.told):
            passed += last.get(run.partition, run.pid) != run.pid
            last[run.partition] = run.pid
        return last, passed


@contextmanager
def _bus(scene: Scene, readers: int) -> Iterator[Readers]:
    """Publish to a new topic of the bus, and read it."""
    topic = f"{TOPIC}-{uuid4().hex[:8]}"
    bus = BusConfig.from_env(scene.cluster.client_env())
    declared(bus, [Topic(topic, partitions=PARTITIONS), f"{topic}/{SUBSCRIPTION}"], timeout_s=60)
    folder = scene.folder / topic
    with ExitStack() as stack:
        children = Children(folder / "logs")
        stack.callback(children.stop_all)
        env = dict(scene.cluster.client_env()) | {"BENCH_TOPIC": topic}
        found = Readers(children, "bus", env, folder)
        found.add(readers)
        publisher = stack.enter_context(Publisher(bus))

        def submit(key: str, number: int, ended: Callable[[bool], None]) -> None:
            message = Message(body=b"%d" % number, key=key, message_id=f"{topic}-{key}-{number}")
            future = publisher.submit(topic, message, timeout_s=DEADLINE_S)
            future.add_done_callback(lambda end: ended(_is_confirmed(end.result())))

        stack.enter_context(Load(submit))
        found.progress(time.monotonic_ns())
        yield found


def _is_confirmed(end: Published) -> bool:
    return end.outcome is Outcome.CONFIRMED


def _faults(scene: Scene) -> Iterator[Figure]:
    make, cluster = Maker("order", repeat_command(NAME, scene.repeat)), scene.cluster
    beyond, still, served = list[float](), list[float](), list[float]()
    with _bus(scene, READERS) as readers:
        for turn in range(scene.repeat):
            name = cluster.names[turn % len(cluster.names)]
            killed_ns = time.monotonic_ns()
            cluster.kill(name)
            cluster.start(name)
            boot_ms = (time.monotonic_ns() - killed_ns) / MS
            readers.progress(time.monotonic_ns())
            still.append(standstill_ms(runs(readers.told), killed_ns))
            beyond.append(still[-1] - boot_ms)
            killed_ns = readers.kill_one()
            readers.progress(killed_ns)
            served.append(standstill_ms(runs(readers.told), killed_ns))
            readers.add(1)
            readers.progress(time.monotonic_ns())
        late = disorder(runs(readers.told))
    what = "Home killed and started again at once: longest time without a run of a key"
    yield make("home_killed_ms", what, still, "ms")
    what = "The same, beyond the time until the broker takes connections again"
    yield make("home_beyond_boot_ms", what, beyond, "ms", (at_most, GOAL_BEYOND_BOOT_MS))
    what = f"One of {READERS} consumers killed: longest time without a run of a key"
    yield make("consumer_killed_ms", what, served, "ms", (at_most, GOAL_SERVED_MS))
    yield make(
        "violations", "Runs out of the order of their key, in these kills", late, "", (at_most, 0)
    )


def _joins(scene: Scene) -> Iterator[Figure]:
    make = Maker("order", repeat_command(JOINS, scene.repeat))
    even, handed = list[float](), list[float]()
    for _ in range(scene.repeat):
        with _bus(scene, 1) as readers:
            readers.add(JOINED - 1)
            began_ns = time.monotonic_ns()

            def is_even(readers: Readers = readers) -> bool:
                counts = defaultdict[int, int](int)
                for pid in readers.owners()[0].values():
                    counts[pid] += 1
                return sorted(counts.values()) == [PARTITIONS // JOINED] * JOINED

            wait_until(is_even, within_s=WITHIN_S, what="not even")
            even.append((time.monotonic_ns() - began_ns) / S)
            time.sleep(CALM_S)
            handed.append(readers.owners()[1])
            late = disorder(runs(readers.told))
            if late:
                raise BenchError(f"{JOINS}: {late} runs out of order")
    what = f"{JOINED - 1} consumers join 1, {PARTITIONS} partitions: even after, with their start"
    yield make("join_s", what, even, "s", (at_most, GOAL_EVEN_S))
    yield make(
        "join_handed", "Partitions that passed on meanwhile", handed, "", (at_most, GOAL_HANDED)
    )


def _kafka(scene: Scene) -> Iterator[Figure]:
    make = Maker("order", repeat_command(KAFKA_NAME, scene.repeat))
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    load = {"schedule": {"kind": "closed", "count": 1}}
    # With an fsync for each message three nodes on one disk confirm 20 a second, and little is seen.
    system = {"name": "kafka", "brokers": BROKERS, "durability": "page-cache"}
    values = {"name": "order", "load": load, "system": system}
    profile = Profile.from_values({**values, "time": {"warm_up_s": 0}}, KAFKA_NAME)
    KAFKA.fetch()
    nodes = kafka.all_prepared(hosts("127.0.0", BROKERS), scene.folder, profile)
    servers = ",".join(node.broker for node in nodes)
    still, served = list[float](), list[float]()
    with running(nodes, scene.folder) as children:
        admin = AdminClient({"bootstrap.servers": servers, **kafka.QUIET})
        wait_until(
            lambda: len(admin.list_topics(timeout=5).brokers) == BROKERS,
            within_s=WITHIN_S,
            what="the nodes do not know each other",
        )
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, BROKERS)])[TOPIC].result(WITHIN_S)
        producer = Producer(
            {"bootstrap.servers": servers, "acks": "all", "enable.idempotence": True}
            | {"linger.ms": 0, **kafka.QUIET}
        )

        def submit(key: str, number: int, ended: Callable[[bool], None]) -> None:
            producer.produce(
                TOPIC, b"%d" % number, key, on_delivery=lambda error, _: ended(error is None)
            )

        readers = Readers(children, "kafka", {kafka.SERVERS: servers}, scene.folder)
        readers.add(READERS)
        with Load(submit, lambda: producer.poll(0)):
            readers.progress(time.monotonic_ns())
            for turn in range(scene.repeat):
                node = nodes[turn % BROKERS]
                name = node.name if turn < BROKERS else f"{node.name}-{turn - BROKERS}"
                killed_ns = time.monotonic_ns()
                os.kill(children.pid(name), signal.SIGKILL)
                children.start(
                    f"{node.name}-{turn}", ["java", *node.argv], os.environ, scene.folder
                )
                time.sleep(4 * CALM_S)  # a leader's death is noticed by a time limit
                readers.progress(time.monotonic_ns())
                still.append(standstill_ms(runs(readers.told), killed_ns))
                killed_ns = readers.kill_one()
                time.sleep(CALM_S)
                readers.progress(time.monotonic_ns())
                served.append(standstill_ms(runs(readers.told), killed_ns))
                readers.add(1)
                readers.progress(time.monotonic_ns())
            late = disorder(runs(readers.told))
    what = "Kafka: a leader killed and started again at once: longest time without a run of a key"
    yield make("kafka_leader_killed_ms", what, still, "ms")
    what = f"Kafka: one of {READERS} consumers killed: longest time without a run of a key"
    yield make("kafka_consumer_killed_ms", what, served, "ms")
    yield make("kafka_violations", "Kafka: runs out of the order of their key", late, "")


def _read_bus(note: Callable[[str, int, int], None]) -> None:
    consumer = Consumer(
        BusConfig.from_env(os.environ),
        os.environ["BENCH_TOPIC"],
        subscription=SUBSCRIPTION,
        order="key",
    )

    def handle(delivery: Delivery) -> None:
        note(delivery.key, int(delivery.body), delivery.partition)

    consumer.start()
    consumer.run(handle)


def _read_kafka(note: Callable[[str, int, int], None]) -> None:
    from confluent_kafka import Consumer as KafkaConsumer

    options: dict[str, Any] = {
        "bootstrap.servers": os.environ[kafka.SERVERS],
        "group.id": SUBSCRIPTION,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }
    consumer = KafkaConsumer(options | kafka.QUIET)
    consumer.subscribe([TOPIC])
    while True:
        message = consumer.poll(1)
        if message is None or message.error():
            continue
        key, body = message.key() or b"", message.value() or b""
        note(key.decode(), int(body), message.partition() or 0)
        consumer.commit(message=message, asynchronous=True)


def _main(kind: str, told: str) -> None:
    out = os.open(told, os.O_WRONLY | os.O_APPEND)

    def note(key: str, number: int, partition: int) -> None:
        line = f"{key} {number} {partition} {os.getpid()} {time.monotonic_ns()}\n"
        os.write(out, line.encode())

    {"bus": _read_bus, "kafka": _read_kafka}[kind](note)


FAULTS_GROUP = Group(NAME, BROKERS, BEHIND_HAPROXY, _faults)
JOINS_GROUP = Group(JOINS, BROKERS, BEHIND_HAPROXY, _joins)
KAFKA_GROUP = Group(KAFKA_NAME, 0, "Kafka's clients to 3 nodes", _kafka)

if __name__ == "__main__":
    _main(*sys.argv[1:])
