"""Promises of a publisher while nothing is broken, and of both clients on the caller's own loop."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import pytest

from messagebus import (
    BusConfig,
    Outcome,
    Published,
    Publisher,
    PublisherConfig,
    Queue,
    Secret,
)
from ops.local.cluster import LocalCluster
from tests.support.eventually import FACTOR, eventually
from tests.support.faults import register
from tests.support.load import drain, publishing

READY_WITHIN_S = 60.0
MANY = 2_000
THREADS = 8
MOVED_WITHIN_S = 60.0
# A refused destination is tried again after 5 s, at the cost of one link.
REFUSALS_IN_TEST = 3


@pytest.mark.guarantee("one-outcome-per-publish")
def test_every_publish_of_many_threads_reaches_exactly_one_outcome(
    bus: BusConfig, topic: str
) -> None:
    ends: Counter[str] = Counter()
    futures: list[Future[Published]] = []
    with Publisher(bus) as publisher:

        def work() -> None:
            for _ in range(MANY // THREADS):
                future = publisher.submit(Queue(topic, create=True), b"x")
                future.add_done_callback(lambda done: ends.update([done.result().message_id]))
                futures.append(future)

        threads = [threading.Thread(target=work) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert publisher.flush(READY_WITHIN_S * FACTOR) == 0
        stats = publisher.stats()
    assert len(ends) == MANY
    assert set(ends.values()) == {1}
    assert {future.result().outcome for future in futures} == {Outcome.CONFIRMED}
    assert stats.confirmed == MANY
    got = drain(bus, f"queue:{topic}", expected=ends.keys())
    assert ends.keys() - got.keys() == set()
    assert sum(got.values()) == MANY


@pytest.mark.guarantee("publisher-changes-brokers")
def test_a_publisher_that_lives_long_visits_other_brokers_and_nothing_becomes_unknown(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    config = PublisherConfig(connection_lifetime_s=1)
    register(cluster, f"queue:{topic}")
    with publishing(bus, f"queue:{topic}", publishers=1, config=config) as load:
        eventually(
            lambda: {sent.published.broker for sent in load.confirmed()} == _brokers(cluster),
            within_s=MOVED_WITHIN_S,
            what="every broker took some",
        )
        assert load.publishers[0].stats().moves >= 2
    assert set(load.outcomes()) == {Outcome.CONFIRMED}
    assert {sent.published.attempts for sent in load.sent} == {1}
    assert load.links_lost == 0


def _brokers(cluster: LocalCluster) -> set[str]:
    return {cluster.node(name).broker for name in cluster.names}


@pytest.mark.guarantee("rights-taken-away")
def test_a_forbidden_destination_is_refused_and_costs_the_others_nothing(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    """A broker closes the whole channel for it, so it must not be tried with every publish."""
    register(cluster, f"{topic}/all", "forbidden/all")
    with limited_user(cluster, write=f"^mb\\.topic/{topic}$") as (user, password):
        limited = dataclasses.replace(bus, user=user, password=Secret(password), password_file="")
        with Publisher(limited) as publisher:
            allowed, forbidden = [], []
            for _ in range(50):
                allowed.append(publisher.submit(topic, b"allowed"))
                forbidden.append(publisher.submit("forbidden", b"forbidden"))
                allowed[-1].result()
            ends = [each.result() for each in forbidden]
            stats = publisher.stats()
    assert {each.result().outcome for each in allowed} == {Outcome.CONFIRMED}
    assert Outcome.CONFIRMED not in {each.outcome for each in ends}
    assert all("ACCESS_REFUSED" in each.reason for each in ends)
    assert stats.links_lost <= 1 + REFUSALS_IN_TEST


@contextmanager
def limited_user(cluster: LocalCluster, *, write: str) -> Iterator[tuple[str, str]]:
    """Give a user on all brokers who may publish to few exchanges."""
    name, password = "limited", "limited-password"
    rights = {"configure": "^$", "write": write, "read": "^$"}
    for broker in cluster.names:
        with cluster.management(broker) as api:
            api.put(f"/api/users/{name}", json={"password": password, "tags": ""})
            api.put(f"/api/permissions/%2F/{name}", json=rights).raise_for_status()
    try:
        yield name, password
    finally:
        for broker in cluster.names:
            with cluster.management(broker) as api:
                api.delete(f"/api/users/{name}")
