"""Promise: a key keeps its order on a partitioned topic through kills and freezes of homes and consumers."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from zlib import crc32

import pytest

from messagebus import BusConfig, Message, Outcome, Publisher, Subscription, Topic, declare
from messagebus.errors import PublishError
from ops.local.cluster import LocalCluster
from tests.support.eventually import eventually
from tests.support.faults import bus_config, direct
from tests.support.killed import Killed

WITHIN_S = 180.0
# The long form: TESTS_ORDER_MINUTES=30. Other schedules: TESTS_ORDER_SEED.
MINUTES = float(os.environ.get("TESTS_ORDER_MINUTES", "0.8"))
SEED = int(os.environ.get("TESTS_ORDER_SEED", "3"))
PARTITIONS, KEYS, CONSUMERS, SHARING = 12, 40, 3, 3
EVENT_S, FROZEN_S = 3.0, 7.0
HEARTBEAT_S = 2
# Less than the handlers can do while one of them is frozen.
PAUSE_S, BURST_PAUSE_S = 0.02, 0.5

HANDLER = """
import os, sys, time
from messagebus import BusConfig, Consumer, RetryPolicy, Subscription, Topic

out = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND)

def handle(delivery):
    number = int(delivery.body)
    line = f"{delivery.broker} {delivery.key} {number} {delivery.partition} {os.getpid()}\\n"
    time.sleep(0.001 * (number % 4))
    if number % 41 == 0 and delivery.attempt < 3:
        os.write(out, ("fail " + line).encode())
        raise ValueError("not now")
    os.write(out, ("end " + line).encode())

source = Subscription(Topic(sys.argv[1]), "ledger", single_active=sys.argv[3] == "plain")
consumer = Consumer(BusConfig.from_env(os.environ), source, order="key")
consumer.start()
consumer.run(handle, concurrency=8, retry=RetryPolicy(first_delay_s=0.05))
"""


class Group:
    """Consumers in processes of their own, which are killed and frozen."""

    def __init__(self, cluster: LocalCluster, topic: str, folder: Path, kind: str = "") -> None:
        self.told = folder / "runs"
        self.told.touch()
        env = os.environ | cluster.client_env() | {"MESSAGEBUS_HEARTBEAT_S": str(HEARTBEAT_S)}
        argv = ["-c", HANDLER, topic, str(self.told), kind]
        self.members = [Killed(argv, env, folder / f"{n}.log") for n in range(CONSUMERS)]

    def first_ends(self) -> dict[str, list[int]]:
        """Return the numbers of each key in the order of their first completions."""
        found: dict[str, dict[int, None]] = defaultdict(dict)
        for line in self.told.read_text().splitlines():
            what, _broker, key, number, _partition, _pid = line.split()
            if what == "end":
                found[key].setdefault(int(number))
        return {key: list(numbers) for key, numbers in found.items()}

    def end(self) -> None:
        for each in self.members:
            each.send(signal.SIGCONT)
            each.end()


def out_of_order(ends: dict[str, list[int]]) -> list[str]:
    """Return the first completions that came behind a later one of their key."""
    return [
        f"{key}: {number} behind {max(numbers[:place])}"
        for key, numbers in ends.items()
        for place, number in enumerate(numbers)
        if place and number < max(numbers[:place])
    ]


class Sharing:
    """Publishers that share keys: the next number of a key goes out when the one before is confirmed."""

    def __init__(self, bus: BusConfig, topic: str) -> None:
        self._bus, self._topic = bus, topic
        self._locks = [threading.Lock() for _ in range(KEYS)]
        self._next = [0] * KEYS
        self.over = threading.Event()
        self.confirmed: dict[str, list[int]] = defaultdict(list)
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(SHARING)]
        for each in self._threads:
            each.start()

    def _run(self, seed: int) -> None:
        rng = random.Random(seed)
        with Publisher(self._bus) as publisher:
            while not self.over.is_set():
                key = rng.randrange(KEYS)
                if not self._locks[key].acquire(blocking=False):
                    continue
                try:
                    self._publish(publisher, key)
                finally:
                    self._locks[key].release()
                time.sleep(PAUSE_S)

    def _publish(self, publisher: Publisher, key: int) -> None:
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

    def __init__(self, bus: BusConfig, topic: str) -> None:
        self._bus, self._topic = bus, topic
        self.over = threading.Event()
        self.confirmed: dict[str, list[int]] = defaultdict(list)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        first = 0
        with Publisher(self._bus) as publisher:
            while not self.over.is_set():
                numbers = range(first, first + 60)
                messages = [Message(body=b"%d" % n, key=f"own{n % 3}") for n in numbers]
                ends = publisher.send_many(self._topic, messages, timeout_s=3)
                for number, end in zip(numbers, ends, strict=True):
                    if end.outcome is Outcome.CONFIRMED:
                        self.confirmed[f"own{number % 3}"].append(number)
                first += 60
                time.sleep(BURST_PAUSE_S)

    def end(self) -> None:
        self.over.set()
        self._thread.join()


@contextmanager
def loaded(
    cluster: LocalCluster, topic: str, folder: Path, partitions: int = PARTITIONS
) -> Iterator[tuple[Group, Callable[[], dict[str, list[int]]]]]:
    """Publish to a new partitioned topic and consume it.

    Gives the consumers, and a function that ends the load and returns what was confirmed, once all is run.
    """
    bus = bus_config(cluster, heartbeat_s=HEARTBEAT_S)
    declare(bus, [Topic(topic, partitions=partitions), f"{topic}/ledger"], timeout_s=60)
    group = Group(cluster, topic, folder)
    with ExitStack() as stack:
        stack.callback(group.end)
        sharing, in_flight = Sharing(bus, topic), InFlight(bus, topic)
        stack.callback(sharing.end)
        stack.callback(in_flight.end)
        eventually(group.first_ends, within_s=WITHIN_S, what="the first run")

        def ended() -> dict[str, list[int]]:
            sharing.end()
            in_flight.end()
            confirmed = {**sharing.confirmed, **in_flight.confirmed}

            def missing() -> int:
                ends = group.first_ends()
                lost = (len(set(some) - set(ends.get(key, ()))) for key, some in confirmed.items())
                return sum(lost)

            eventually(
                lambda: not missing(), within_s=WITHIN_S, what="all that was confirmed completes"
            )
            return confirmed

        yield group, ended


def events(cluster: LocalCluster, group: Group, seed: int) -> Iterator[str]:
    """Break one thing after the other, and mend it; yield what was done."""
    rng = random.Random(seed)
    while True:
        what = rng.choice(["kill home", "freeze home", "kill consumer", "freeze consumer"])
        name, member = rng.choice(cluster.names), rng.choice(group.members)
        match what:
            case "kill home":
                cluster.kill(name)
                yield f"{what} {name}"
                cluster.start(name)
            case "freeze home":
                cluster.freeze(name)
                yield f"{what} {name}"
                time.sleep(FROZEN_S - EVENT_S)
                cluster.thaw(name)
            case "kill consumer":
                member.kill()
            case _:
                member.send(signal.SIGSTOP)
                yield what
                time.sleep(FROZEN_S - EVENT_S)
                member.send(signal.SIGCONT)
        yield what


@pytest.mark.guarantee("key-order-across-brokers")
@pytest.mark.timeout(MINUTES * 60 + 600)
def test_a_keys_order_holds_while_homes_and_consumers_are_killed_and_frozen(
    broken: LocalCluster, topic: str, tmp_path: Path
) -> None:
    with loaded(broken, topic, tmp_path) as (group, ended):
        until_s, said = time.monotonic() + MINUTES * 60, list[str]()
        for done in events(broken, group, SEED):
            said.append(done)
            time.sleep(EVENT_S)
            for member in group.members:
                member.revive()
            if time.monotonic() > until_s and "home" not in done.partition(" mb")[0]:
                break
        for name in broken.names:
            broken.thaw(name)
        broken.wait_ready()
        confirmed = ended()
        ends = group.first_ends()
    assert out_of_order(ends) == [], said
    assert sum(map(len, confirmed.values())) > 500, said
    assert len(said) >= 4


def test_a_hash_over_the_brokers_that_live_breaks_the_order_at_the_first_kill(
    broken: LocalCluster, topic: str, tmp_path: Path
) -> None:
    bus = bus_config(broken)
    declare(bus, [Subscription(Topic(topic), "ledger", single_active=True)], timeout_s=60)
    group = Group(broken, topic, tmp_path, "plain")
    with ExitStack() as stack:
        stack.callback(group.end)
        publishers = {
            name: stack.enter_context(Publisher(direct(broken, name))) for name in broken.names
        }

        def publish(numbers: range, living: list[str]) -> None:
            for number in numbers:
                for key in (f"k{n}" for n in range(KEYS)):
                    home = living[crc32(key.encode()) % len(living)]
                    message = Message(body=b"%d" % number, key=key)
                    publishers[home].send_safe(topic, message, timeout_s=60)

        living = list(broken.names)
        publish(range(10), living)
        victim = living.pop()
        group.members[0].send(signal.SIGSTOP)
        for each in group.members[1:]:
            each.send(signal.SIGSTOP)
        publish(range(10, 20), [*living, victim])
        broken.kill(victim)
        publish(range(20, 30), living)
        for each in group.members:
            each.send(signal.SIGCONT)
        eventually(
            lambda: any(29 in numbers for numbers in group.first_ends().values()),
            within_s=WITHIN_S,
            what="what came later completes",
        )
        broken.start(victim)
        broken.wait_ready()
        eventually(
            lambda: all(len(numbers) == 30 for numbers in group.first_ends().values()),
            within_s=WITHIN_S,
            what="all completes",
        )
        assert out_of_order(group.first_ends())
