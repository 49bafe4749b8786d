"""Playbooks as an operator runs them, and publishers and consumers that count the fate of each id."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

from messagebus import BusConfig, Consumer, Message, Publisher, PublisherConfig
from ops.errors import LocalFault
from ops.local.cluster import LocalCluster
from ops.run.command import JOURNALS
from ops.run.journal import open_runs
from tests.support.cluster import MakeCluster, end
from tests.support.eventually import FACTOR, eventually
from tests.support.faults import bus_config

BROKERS = 3
PLAYBOOK_WITHIN_S = 900
SUBSCRIPTION = "audit"
# Bodies are small: what matters is who gets them, not how fast. The shortest step of a playbook that runs a
# command takes 0.3 s, so each publisher has messages in it. The load is most of the processor time of all
# playbook tests.
PAUSE_S = 0.1
SEND_WITHIN_S = 30.0
# Nothing more came for so long: the rest is lost.
QUIET_S = 20.0
AUDITED_WITHIN_S = 60.0


def argv(cluster: LocalCluster, *words: str) -> list[str]:
    return [sys.executable, "-m", "ops", *words, "--inventory", str(cluster.inventory)]


def ops(cluster: LocalCluster, *words: str) -> subprocess.CompletedProcess[str]:
    """Run one command of the kit to its end."""
    return _ended(argv(cluster, *words))


def lb(cluster: LocalCluster, *words: str) -> subprocess.CompletedProcess[str]:
    return _ended([sys.executable, "-m", "lb", "--inventory", str(cluster.inventory), *words])


def _ended(argv: list[str]) -> subprocess.CompletedProcess[str]:
    within_s = PLAYBOOK_WITHIN_S * FACTOR
    return subprocess.run(argv, capture_output=True, text=True, timeout=within_s)


class Audit(NamedTuple):
    """Ids of confirmed messages that nobody received, and of messages received twice."""

    lost: set[str]
    doubled: set[str]


class AuditedLoad:
    """Load that publishes and consumes until told to stop.

    topic: where it publishes. confirmed: id -> the broker that confirmed it. received: id -> how often.
    """

    def __init__(self, bus: BusConfig, topic: str) -> None:
        self._bus, self.topic = bus, topic
        self._stop = threading.Event()
        self._all_published = threading.Event()
        self.confirmed: dict[str, str] = {}
        self.received: Counter[str] = Counter()
        self.consumed_from: Counter[str] = Counter()
        self._confirmed_by: Counter[str] = Counter()
        self._counting = threading.Lock()
        self._told: set[str] = set()

    @property
    def lost(self) -> set[str]:
        return self._ids() - set(dict(self.received))

    def _ids(self) -> set[str]:
        """Return the confirmed ids. To copy a dict is one step; to iterate over it is not."""
        return set(dict(self.confirmed))

    @property
    def doubled(self) -> list[str]:
        return [id for id, times in dict(self.received).items() if times > 1]

    def audit(self, *, but: Collection[str] = ()) -> Audit:
        """Wait until all that is confirmed by now was received, and tell what is lost or doubled.

        Each id is told once: the next audit is about the time since. but: ids that are not waited for.
        """
        wanted = self._ids() - self._told
        with suppress(AssertionError):
            eventually(
                lambda: self.received.keys() >= wanted.difference(but), within_s=AUDITED_WITHIN_S
            )
        doubled = {id for id, times in dict(self.received).items() if times > 1}
        told = Audit(wanted - set(dict(self.received)), doubled - self._told)
        self._told |= told.lost | told.doubled
        return told

    def confirmed_by(self, broker: str) -> int:
        return self._confirmed_by[broker]

    @contextmanager
    def running(self, publishers: int = 2, consumers: int = 2) -> Iterator[None]:
        """Run the load; return when all confirmed messages were received, or nothing comes any more."""
        with ExitStack() as open_clients:
            consuming = [
                threading.Thread(
                    target=self._consume,
                    args=(open_clients.enter_context(self._consumer()),),
                    daemon=True,
                )
                for _ in range(consumers)
            ]
            publishing = [
                threading.Thread(target=self._publish, daemon=True) for _ in range(publishers)
            ]
            for thread in (*publishing, *consuming):
                thread.start()
            try:
                yield
            finally:
                self._stop.set()
                for thread in publishing:
                    thread.join(timeout=2 * SEND_WITHIN_S)
                self._all_published.set()
                for thread in consuming:
                    thread.join(timeout=2 * QUIET_S * FACTOR)

    def _consumer(self) -> Consumer:
        return Consumer(self._bus, self.topic, subscription=SUBSCRIPTION)

    def _publish(self) -> None:
        # Publishers renew often, so that a new broker gets some within the test.
        config = PublisherConfig(connection_lifetime_s=2)
        with Publisher(self._bus, config) as publisher:
            while not self._stop.wait(PAUSE_S):
                published = publisher.send_safe(
                    self.topic, Message.text("x"), timeout_s=SEND_WITHIN_S
                )
                self.confirmed[published.message_id] = published.broker
                with self._counting:
                    self._confirmed_by[published.broker] += 1

    def _consume(self, consumer: Consumer) -> None:
        quiet_s = 0.0
        while quiet_s < QUIET_S * FACTOR:
            if self._all_published.is_set() and not self.lost:
                return
            if delivery := consumer.receive(timeout_s=1):
                self.received[delivery.message_id] += 1
                self.consumed_from[delivery.broker] += 1
                consumer.ack(delivery)
                quiet_s = 0.0
            elif self._all_published.is_set():
                quiet_s += 1


class Reused:
    """A cluster of three brokers that several tests change, and the load on it.

    Each test leaves three brokers, all ready, and no unfinished run. A test that does not fails alone: the
    next has a new cluster. The load goes on between tests, too.
    """

    def __init__(self, make: MakeCluster) -> None:
        self._make = make
        self._cluster: LocalCluster | None = None
        self._load: AuditedLoad | None = None
        self._running = ExitStack()

    def cluster(self) -> LocalCluster:
        if self._cluster is not None and not _is_left_as_found(self._cluster):
            self.close()
        if self._cluster is None:
            self._cluster = self._make(BROKERS)
            self._running.callback(end, self._cluster)
        return self._cluster

    def load(self) -> AuditedLoad:
        """Return the load on the cluster, which runs."""
        if self._load is None:
            self._load = AuditedLoad(bus_config(self.cluster()), "load")
            self._running.enter_context(self._load.running())
        return self._load

    def close(self) -> None:
        """End the load, then the cluster."""
        self._running.close()
        self._cluster = self._load = None


def _is_left_as_found(cluster: LocalCluster) -> bool:
    if len(cluster.names) != BROKERS or open_runs(cluster.inventory.parent / JOURNALS, but=""):
        return False
    try:
        cluster.wait_ready()
    except LocalFault:
        return False
    return True
