"""A broker is added and one removed under load: nothing is lost, nothing is doubled."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from messagebus import Broker, BusConfig, Consumer, Message, Publisher, PublisherConfig
from messagebus._io.link import Credentials, dial
from ops.local import process
from ops.local.cluster import LocalCluster
from tests.support.cluster import MakeCluster
from tests.support.eventually import eventually, eventually_async

TOPIC = "playbooks"
PLAYBOOK_WITHIN_S = 300
# Bodies are small: what matters here is who gets them, not how fast.
PAUSE_S = 0.002


@pytest.fixture(scope="module")
def cluster(make_cluster: MakeCluster) -> Iterator[LocalCluster]:
    """One of their own: these tests change which brokers there are."""
    made = make_cluster(3)
    yield made
    made.down()


def ops(cluster: LocalCluster, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "ops", *words, "--inventory", str(cluster.inventory)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=PLAYBOOK_WITHIN_S)


class Load:
    """Publishes and consumes until told to stop. ids: confirmed and received."""

    def __init__(self, bus: BusConfig) -> None:
        self._bus = bus
        self._stop = threading.Event()
        self._all_published = threading.Event()
        self.confirmed: list[str] = []
        self.received: Counter[str] = Counter()
        self.brokers: Counter[str] = Counter()
        self.consumed_from: Counter[str] = Counter()

    def publish(self) -> None:
        # Publishers renew often, so that a new broker gets some within the test.
        config = PublisherConfig(connection_lifetime_s=2)
        with Publisher(self._bus, config) as publisher:
            while not self._stop.wait(PAUSE_S):
                published = publisher.send_safe(TOPIC, Message.text("x"), timeout_s=30)
                self.confirmed.append(published.message_id)
                self.brokers[published.broker] += 1

    def consume(self, consumer: Consumer) -> None:
        while not self._all_published.is_set() or self._missing():
            if delivery := consumer.receive(timeout_s=1):
                self.received[delivery.message_id] += 1
                self.consumed_from[delivery.broker] += 1
                consumer.ack(delivery)

    def _missing(self) -> bool:
        return len(self.received) < len(self.confirmed)

    @contextmanager
    def running(self, publishers: int = 4) -> Iterator[None]:
        with Consumer(self._bus, TOPIC, subscription="audit") as consumer:
            publishing = [
                threading.Thread(target=self.publish, daemon=True) for _ in range(publishers)
            ]
            consuming = threading.Thread(target=self.consume, args=(consumer,), daemon=True)
            for thread in (*publishing, consuming):
                thread.start()
            try:
                yield
            finally:
                self._stop.set()
                for thread in publishing:
                    thread.join(timeout=60)
                self._all_published.set()
                consuming.join(timeout=60)


def test_adding_and_removing_under_load_loses_and_doubles_nothing(cluster: LocalCluster) -> None:
    load = Load(BusConfig.from_env(cluster.client_env()))
    with load.running():
        eventually(lambda: len(load.received) > 100, within_s=60)

        added = ops(cluster, "add", "mb4", "--yes")
        assert added.returncode == 0, added.stderr
        fourth = cluster.node("mb4").broker
        eventually(lambda: load.brokers[fourth] and load.consumed_from[fourth], within_s=30)

        second = cluster.node("mb2").broker
        removed = ops(cluster, "remove", "mb2", "--yes")
        assert removed.returncode == 0, removed.stderr
        assert load.brokers[second]
    assert set(load.received) == set(load.confirmed)
    assert [id for id, times in load.received.items() if times > 1] == []
    assert cluster.names == ["mb1", "mb3", "mb4"]
    assert second not in cluster.consumer_list().names
    assert process.marked(f"{cluster.dir}#mb2#") == []


def test_a_dry_run_prints_the_argv_and_changes_nothing(cluster: LocalCluster) -> None:
    before = cluster.layout, cluster.consumer_list()
    dry = ops(cluster, "remove", "mb1", "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert (
        f"$ {sys.executable} -m consumer_lists --inventory {cluster.inventory} drain" in dry.stdout
    )
    assert (cluster.layout, cluster.consumer_list()) == before


def applications_on(cluster: LocalCluster, name: str) -> int:
    with cluster.management(name) as api:
        return sum(each.get("user") == "bus" for each in api.get("/api/connections").json())


async def test_a_publisher_that_does_not_move_is_hung_up_on(cluster: LocalCluster) -> None:
    login = Credentials(user="bus", password=cluster.password)
    link = await dial(Broker.parse(cluster.node("mb4").broker), login, timeout_ms=5_000)
    # Management shows the past: a connection is listed one statistics interval after it came.
    await eventually_async(lambda: applications_on(cluster, "mb4"), within_s=30)
    removed = await asyncio.to_thread(ops, cluster, "remove", "mb4", "--yes")
    assert removed.returncode == 0, removed.stderr
    assert "wait for publishers to leave mb4: 1 connections that may publish" in removed.stderr
    assert not link.is_open


def test_a_queue_without_consumers_is_named_and_the_run_can_be_taken_back(
    cluster: LocalCluster,
) -> None:
    bus = BusConfig.from_env(cluster.client_env())
    with Consumer(bus, "forgotten", subscription="nobody"):
        pass
    with Publisher(bus) as publisher:
        taken_by = publisher.send_safe("forgotten", Message.text("x"), timeout_s=30).broker
    (name,) = (name for name in cluster.names if cluster.node(name).broker == taken_by)
    refused = ops(cluster, "remove", name, "--yes")
    assert refused.returncode == 1
    assert "no consumer for mb.sub/forgotten/nobody" in refused.stderr
    undone = ops(cluster, "remove", name, "--undo", "--yes")
    assert undone.returncode == 0, undone.stderr
    cluster.wait_ready()
    assert not any(entry.draining for entry in cluster.consumer_list())


def test_wrong_use_is_told_in_one_line(cluster: LocalCluster) -> None:
    for words, said in (
        (("remove", "mb7"), "no broker 'mb7' in the inventory"),
        (("add", "mb1"), "mb1 is on the list already"),
        (("add", "rabbit"), "local brokers are called mb1"),
    ):
        failed = ops(cluster, *words, "--yes")
        assert failed.returncode == 1
        assert said in failed.stderr
        assert failed.stderr.count("\n") == 1


def test_delayed_messages_are_told_and_waited_for(cluster: LocalCluster) -> None:
    bus = BusConfig.from_env(cluster.client_env())
    with Consumer(bus, "forgotten", subscription="nobody") as consumer:
        while (left := consumer.receive(timeout_s=5)) is not None:
            consumer.ack_safe(left)
    last = cluster.names[-1]
    there = dataclasses.replace(bus, broker=cluster.node(last).broker)
    with Consumer(bus, "later", subscription="all") as consumer:
        with Publisher(there) as publisher:
            sent = publisher.send_safe("later", b"x", deliver_after_s=10, timeout_s=30).message_id
        # Statistics show the past.
        told = "until every queue is empty, counted twice and tried, 1 delayed messages too, which takes 10 s"
        eventually(lambda: told in ops(cluster, "remove", last, "--dry-run").stdout, within_s=8)
        with ThreadPoolExecutor(1) as thread:
            removing = thread.submit(ops, cluster, "remove", last, "--yes")
            delivery = consumer.receive(timeout_s=60)
            assert delivery is not None
            assert delivery.message_id == sent
            consumer.ack(delivery)
            assert removing.result().returncode == 0, removing.result().stderr
