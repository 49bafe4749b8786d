"""Playbooks as an operator runs them, and publishers and consumers that count the fate of each id."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from messagebus import BusConfig, Consumer, Message, Publisher, PublisherConfig
from ops.local.cluster import LocalCluster
from tests.support.eventually import FACTOR

__all__ = ["SUBSCRIPTION", "AuditedLoad", "argv", "lb", "ops"]

PLAYBOOK_WITHIN_S = 900
SUBSCRIPTION = "audit"
# Bodies are small: what matters is who gets them, not how fast.
PAUSE_S = 0.01
SEND_WITHIN_S = 30.0
# Nothing more came for so long: the rest is lost.
QUIET_S = 20.0


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


class AuditedLoad:
    """Load that publishes and consumes until told to stop.

    confirmed: id -> the broker that confirmed it. received: id -> how often.
    """

    def __init__(self, bus: BusConfig, topic: str) -> None:
        self._bus, self._topic = bus, topic
        self._stop = threading.Event()
        self._all_published = threading.Event()
        self.confirmed: dict[str, str] = {}
        self.received: Counter[str] = Counter()
        self.consumed_from: Counter[str] = Counter()

    @property
    def lost(self) -> set[str]:
        return set(self.confirmed) - set(self.received)

    @property
    def doubled(self) -> list[str]:
        return [id for id, times in self.received.items() if times > 1]

    def confirmed_by(self, broker: str) -> int:
        return sum(each == broker for each in list(self.confirmed.values()))

    @contextmanager
    def running(self, publishers: int = 4, consumers: int = 4) -> Iterator[None]:
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
        return Consumer(self._bus, self._topic, subscription=SUBSCRIPTION)

    def _publish(self) -> None:
        # Publishers renew often, so that a new broker gets some within the test.
        config = PublisherConfig(connection_lifetime_s=2)
        with Publisher(self._bus, config) as publisher:
            while not self._stop.wait(PAUSE_S):
                published = publisher.send_safe(
                    self._topic, Message.text("x"), timeout_s=SEND_WITHIN_S
                )
                self.confirmed[published.message_id] = published.broker

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
