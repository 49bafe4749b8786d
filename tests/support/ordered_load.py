"""Publishers and consumers of keys whose order is judged, in processes that are killed and frozen."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from zlib import crc32

from messagebus import BusConfig, Message, Outcome, Publisher, Subscription, Topic, declare
from messagebus.core.homes import partition_of
from messagebus.errors import PublishError
from messagebus.recording.events import body_hash
from messagebus.recording.files import EventFile, anchor_now, message_id_hex
from messagebus.recording.recorder import Recorder
from ops.local.cluster import LocalCluster
from tests.support.eventually import eventually
from tests.support.faults import bus_config, direct
from tests.support.killed import Killed

WITHIN_S = 180.0
WHOLE = bool(os.environ.get("TESTS_ORDER_WHOLE"))
"""The sizes of the long form."""
PARTITIONS, KEYS, CONSUMERS = (32, 1_000, 4) if WHOLE else (12, 40, 3)
SHARING, OWN = 3, 3
HEARTBEAT_S = 2
# Less than the handlers can do while one of them is frozen.
PAUSE_S, BURST_PAUSE_S = (0.04, 1.0) if WHOLE else (0.02, 0.5)
# Some keys have most of the messages.
SKEW = 3
# The naive publisher takes a broker for dead so long.
DEAD_S = 3.0
LEDGER, SEARCH, PLAIN = "ledger", "search", "plain"
EVENTS = "events"
"""Folder of the publishers' rows, below that of the load."""

HANDLER = """
import os, sys, time
from messagebus import BusConfig, Consumer, RetryPolicy, Subscription, Topic

out, kind = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND), sys.argv[3]

def handle(delivery):
    number = int(delivery.body)
    time.sleep(0.001 * (number % 4))
    is_failed = number % 41 == 0 and delivery.attempt < 3
    line = f"{'fail' if is_failed else 'end'} {delivery.broker} {delivery.key} {number} {os.getpid()}"
    line += f" {delivery.message_id} {int(delivery.redelivered)} {delivery.received_ns} {time.monotonic_ns()}"
    os.write(out, (line + "\\n").encode())
    if is_failed:
        raise ValueError("not now")

is_search = kind == "search"
source = Subscription(
    Topic(sys.argv[1]),
    "search" if is_search else "ledger",
    single_active=kind == "plain",
    ordered=not is_search,
)
order = "none" if is_search else "key"
consumer = Consumer(BusConfig.from_env(os.environ), source, order=order)
consumer.start()
consumer.run(handle, concurrency=8, retry=RetryPolicy(first_delay_s=0.05))
"""


class Group:
    """Consumers in processes of their own, which are killed and frozen. kind: LEDGER, SEARCH or PLAIN."""

    def __init__(
        self, cluster: LocalCluster, topic: str, folder: Path, kind: str, count: int = CONSUMERS
    ) -> None:
        self.told = folder / f"runs.{kind}"
        self.told.touch()
        env = os.environ | cluster.client_env() | {"MESSAGEBUS_HEARTBEAT_S": str(HEARTBEAT_S)}
        argv = ["-c", HANDLER, topic, str(self.told), kind]
        self.members = [Killed(argv, env, folder / f"{kind}{n}.log") for n in range(count)]

    def first_ends(self) -> dict[str, list[int]]:
        """Return the numbers of each key in the order of their first completions."""
        found: dict[str, dict[int, None]] = defaultdict(dict)
        for line in self.told.read_text().splitlines():
            what, _broker, key, number, _rest = line.split(maxsplit=4)
            if what == "end":
                found[key].setdefault(int(number))
        return {key: list(numbers) for key, numbers in found.items()}

    def end(self) -> None:
        for each in self.members:
            each.send(signal.SIGCONT)
            each.end()


def out_of_order(ends: dict[str, list[int]]) -> list[str]:
    """Return the first completions that came behind a later one of their key."""
    late = list[str]()
    for key, numbers in ends.items():
        reached = -1
        for number in numbers:
            if number < reached:
                late.append(f"{key}: {number} behind {reached}")
            reached = max(reached, number)
    return late


def write_deliveries(
    group: Group, topic: str, subscription: str, folder: Path, run_id: str
) -> None:
    """Write the runs of a group into the folder of a recorded run, as rows of deliveries."""
    path = folder / f"delivered-{subscription}.ndjson"
    with EventFile(path, anchor_now(subscription), clock_ns=time.monotonic_ns) as file:
        for line in group.told.read_text().splitlines():
            what, broker, key, number, pid, message_id, redelivered, received_ns, at_ns = (
                line.split()
            )
            body = number.encode()
            row = {
                **{"run_id": run_id, "topic": topic, "subscription": subscription},
                **{"broker": broker, "consumer": pid, "message_id": message_id_hex(message_id)},
                **{"key": key, "size": len(body), "body_hash": body_hash(body)},
                **{"redelivered": int(redelivered), "received_ns": int(received_ns)},
                **{"ack": "acked", "acknowledged_ns": int(at_ns)},
            }
            if what == "fail":
                row |= {"ack": "none"}
                del row["acknowledged_ns"]
            file.write(json.dumps(row, separators=(",", ":")))


class Hashed:
    """A naive publisher: a key goes to the broker that its hash gives among those that it takes for alive."""

    def __init__(self, cluster: LocalCluster, stack: ExitStack) -> None:
        self._to = [stack.enter_context(Publisher(direct(cluster, n))) for n in cluster.names]
        self._dead_until_s = [0.0] * len(self._to)

    def send_safe(self, topic: str, message: Message, *, timeout_s: float) -> object:
        now_s = time.monotonic()
        living = [n for n, until_s in enumerate(self._dead_until_s) if until_s < now_s]
        if not living:
            raise PublishError("none is alive")
        home = living[crc32(message.key.encode()) % len(living)]
        try:
            return self._to[home].send_safe(topic, message, timeout_s=timeout_s)
        except PublishError:
            self._dead_until_s[home] = time.monotonic() + DEAD_S
            raise


class Sharing:
    """Publishers that share keys: the next number of a key goes out when the one before is confirmed."""

    def __init__(
        self,
        topic: str,
        opened: Callable[[ExitStack, int], Publisher | Hashed],
        pause_s: float = PAUSE_S,
    ) -> None:
        self._topic, self._opened, self._pause_s = topic, opened, pause_s
        self._locks = [threading.Lock() for _ in range(KEYS)]
        self._next = [0] * KEYS
        self.over = threading.Event()
        self.confirmed: dict[str, list[int]] = defaultdict(list)
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(SHARING)]
        for each in self._threads:
            each.start()

    def _run(self, seed: int) -> None:
        rng = random.Random(seed)
        with ExitStack() as stack:
            publisher = self._opened(stack, seed)
            while not self.over.is_set():
                key = int(KEYS * rng.random() ** SKEW)
                if not self._locks[key].acquire(blocking=False):
                    continue
                try:
                    self._publish(publisher, key)
                finally:
                    self._locks[key].release()
                time.sleep(self._pause_s)

    def _publish(self, publisher: Publisher | Hashed, key: int) -> None:
        number, self._next[key] = self._next[key], self._next[key] + 1
        message = Message(
            body=b"%d" % number, key=f"k{key}", message_id=f"{self._topic}-{key}-{number}"
        )
        while not self.over.is_set():
            try:
                publisher.send_safe(self._topic, message, timeout_s=2)
            except PublishError:
                continue  # again, with its id: nothing of the key may pass it
            self.confirmed[f"k{key}"].append(number)
            return

    def end(self) -> None:
        self.over.set()
        for each in self._threads:
            each.join()


class InFlight:
    """A publisher with many messages of a key in flight, of keys of its own."""

    def __init__(
        self, topic: str, opened: Callable[[ExitStack, int], Publisher], pause_s: float
    ) -> None:
        self._topic, self._opened, self._pause_s = topic, opened, pause_s
        self.over = threading.Event()
        self.confirmed: dict[str, list[int]] = defaultdict(list)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        first = 0
        with ExitStack() as stack:
            publisher = self._opened(stack, SHARING)
            while not self.over.is_set():
                numbers = range(first, first + 60)
                messages = [Message(body=b"%d" % n, key=f"own{n % OWN}") for n in numbers]
                ends = publisher.send_many(self._topic, messages, timeout_s=3)
                for number, end in zip(numbers, ends, strict=True):
                    if end.outcome is Outcome.CONFIRMED:
                        self.confirmed[f"own{number % OWN}"].append(number)
                first += 60
                time.sleep(self._pause_s)

    def end(self) -> None:
        self.over.set()
        self._thread.join()


def opened(bus: BusConfig, topic: str, folder: Path) -> Callable[[ExitStack, int], Publisher]:
    """Return a function that opens a publisher which records what it publishes, under its number."""

    def made(stack: ExitStack, number: int) -> Publisher:
        recorder = Recorder(
            folder / EVENTS,
            run_id=topic,
            name=f"publisher{number}",
            files_max=1_000,
            topics={topic: {LEDGER, SEARCH}},
        )
        stack.enter_context(recorder)
        return stack.enter_context(Publisher(bus, hooks=[recorder]))

    return made


def keys_of(broker: str, homes: Sequence[str]) -> set[str]:
    """Return the keys of the load that are at home on a broker. homes: of each partition."""
    keys = {f"k{n}" for n in range(KEYS)} | {f"own{n}" for n in range(OWN)}
    return {key for key in keys if homes[partition_of(key, len(homes))] == broker}


Loaded = tuple[Group, Group, Callable[..., dict[str, list[int]]]]


@contextmanager
def loaded(
    cluster: LocalCluster,
    topic: str,
    folder: Path,
    partitions: int = PARTITIONS,
    slower: float = 1.0,
) -> Iterator[Loaded]:
    """Publish to a new partitioned topic and consume it, by a subscription with an order and by one without.

    slower: by this much the pauses between publishes are longer.

    Gives the consumers of both, and a function that ends the load and returns what was confirmed, once all is
    run by both. It takes keys that do not matter.
    """
    bus = bus_config(cluster, heartbeat_s=HEARTBEAT_S)
    unordered = Subscription(Topic(topic), SEARCH, ordered=False)
    declare(
        bus, [Topic(topic, partitions=partitions), f"{topic}/{LEDGER}", unordered], timeout_s=60
    )
    group = Group(cluster, topic, folder, LEDGER)
    search = Group(cluster, topic, folder, SEARCH, count=1)
    with ExitStack() as stack:
        stack.callback(group.end)
        stack.callback(search.end)
        make = opened(bus, topic, folder)
        sharing = Sharing(topic, make, slower * PAUSE_S)
        in_flight = InFlight(topic, make, slower * BURST_PAUSE_S)
        stack.callback(sharing.end)
        stack.callback(in_flight.end)
        eventually(group.first_ends, within_s=WITHIN_S, what="the first run")

        def ended(but: Collection[str] = ()) -> dict[str, list[int]]:
            sharing.end()
            in_flight.end()
            confirmed = {**sharing.confirmed, **in_flight.confirmed}
            confirmed = {key: some for key, some in confirmed.items() if key not in but}

            def missing() -> int:
                lost = 0
                # A run without order is repeated by a copy at any broker, which may be the lost one.
                for each in (group,) if but else (group, search):
                    ends = each.first_ends()
                    lost += sum(len(set(n) - set(ends.get(k, ()))) for k, n in confirmed.items())
                return lost

            eventually(
                lambda: not missing(), within_s=WITHIN_S, what="all that was confirmed completes"
            )
            return confirmed

        yield group, search, ended


@contextmanager
def loaded_naively(cluster: LocalCluster, topic: str, folder: Path) -> Iterator[Group]:
    """Publish to a plain topic by a hash over the living brokers; give consumers that keep all they can."""
    source = Subscription(Topic(topic), LEDGER, single_active=True)
    declare(bus_config(cluster), [source], timeout_s=60)
    group = Group(cluster, topic, folder, PLAIN)
    with ExitStack() as stack:
        stack.callback(group.end)
        sharing = Sharing(topic, lambda stack, _number: Hashed(cluster, stack))
        stack.callback(sharing.end)
        eventually(group.first_ends, within_s=WITHIN_S, what="the first run")
        yield group
