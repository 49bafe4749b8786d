"""Promise: balancer and agents may be reloaded, restarted or away: no session is cut, nothing lost."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import lb.agents
import lb.apply
from inventory.inventory import load as load_inventory
from messagebus import (
    BusConfig,
    Consumer,
    ConsumerConfig,
    NotReady,
    Outcome,
    Publisher,
    PublisherConfig,
    Queue,
)
from ops.local.cluster import LocalCluster
from tests.support.eventually import eventually
from tests.support.faults import balancer_state, register
from tests.support.load import Load, consuming, publishing

log = logging.getLogger(__name__)

SEEN_WITHIN_S = 60.0
INSIST_S = 1.0
SOME = 150
# Longer than the checks after a reload need to find every server up again.
WATCHED_S = 4.0
CUT_SILENCE_S = 20.0
# A busy machine's broker is not left for another: the dials that are counted are the fault's.
NEVER_SLOW_S = 3_600


@pytest.mark.guarantee("haproxy-cuts-nobody")
def test_a_drain_holds_while_the_balancer_is_reloaded(
    broken: LocalCluster, bus: BusConfig, topic: str
) -> None:
    register(broken, f"queue:{topic}")
    inventory = load_inventory(broken.inventory)
    third = broken.node("mb3").broker
    with publishing(bus, f"queue:{topic}") as load:
        eventually(lambda: load.confirmed_by(third) > 0, within_s=SEEN_WITHIN_S)
        lb.agents.drain(inventory, "mb3")
        eventually(lambda: third not in _in_use(load), within_s=SEEN_WITHIN_S, what="all left mb3")
        left_ns = time.monotonic_ns()
        assert lb.apply.apply(inventory, reload=True).reloaded
        until = time.monotonic() + WATCHED_S
        states = set()
        while time.monotonic() < until:
            states.add(balancer_state(broken, "mb3"))
            for publisher in load.publishers:
                publisher.refresh_connection()
            _wait_some_more(load, SOME // 10)
        assert states <= {"DRAIN", ""}
        assert load.confirmed_by(third, since_ns=left_ns) == 0
        lb.agents.ready(inventory, "mb3")
        eventually(
            lambda: load.confirmed_by(third, since_ns=left_ns) > 0,
            within_s=SEEN_WITHIN_S,
            what="mb3 is used again",
        )
    assert set(load.outcomes()) == {Outcome.CONFIRMED}
    assert load.links_lost == 0


@pytest.mark.guarantee("haproxy-cuts-nobody")
def test_a_reload_of_the_balancer_cuts_nobody(
    broken: LocalCluster, bus: BusConfig, topic: str
) -> None:
    with _watched(broken, bus, topic) as load:
        lb.apply.apply(load_inventory(broken.inventory), reload=True)
        _wait_some_more(load, SOME)


@pytest.mark.guarantee("dead-agents-cut-nobody")
def test_the_restart_of_all_agents_cuts_nobody(
    broken: LocalCluster, bus: BusConfig, topic: str
) -> None:
    with _watched(broken, bus, topic) as load:
        for name in broken.names:
            broken.stop(name, agent=True)
        _wait_some_more(load, SOME)
        for name in broken.names:
            broken.start(name, agent=True)
        _wait_some_more(load, SOME)
        broken.wait_ready()


@pytest.mark.guarantee("dead-agents-cut-nobody")
def test_killed_agents_cut_nobody(broken: LocalCluster, bus: BusConfig, topic: str) -> None:
    with _watched(broken, bus, topic) as load:
        for name in broken.names:
            broken.kill(name, agent=True)
        _wait_some_more(load, SOME)
        for name in broken.names:
            broken.start(name, agent=True)
        broken.wait_ready()


@pytest.mark.guarantee("haproxy-cuts-nobody")
def test_a_killed_balancer_loses_nothing_and_consumers_do_not_notice(
    broken: LocalCluster, bus: BusConfig, topic: str
) -> None:
    register(broken, f"queue:{topic}")
    with (
        publishing(bus, f"queue:{topic}", config=PublisherConfig()) as load,
        consuming(bus, f"queue:{topic}") as work,
    ):
        _wait_some_more(load, SOME)
        epochs = work.epochs()
        broken.kill("haproxy")
        for publisher in load.publishers:
            _wait_without_link(publisher)
        broken.start("haproxy")
        _wait_some_more(load, SOME)
        load.stop()
        assert work.wait_for(load.confirmed_ids()) == set()
        assert {name: work.epochs()[name] for name in epochs} == epochs
        counts = work.counts()
    assert set(load.outcomes()) == {Outcome.CONFIRMED}
    sent_again = {s.published.message_id for s in load.sent if s.published.attempts > 1}
    assert {each for each, count in counts.items() if count > 1} <= sent_again


@pytest.mark.guarantee("cached-list")
def test_without_a_list_a_consumer_keeps_trying_and_says_so_until_there_is_one(
    broken: LocalCluster, bus: BusConfig, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    register(broken, f"queue:{topic}")
    broken.stop("haproxy")
    began = time.monotonic()
    with pytest.raises(NotReady, match="no list"):
        Consumer(bus, f"queue:{topic}").start(require="all", timeout_s=INSIST_S)
    assert time.monotonic() - began < INSIST_S + CUT_SILENCE_S
    consumer = Consumer(bus, f"queue:{topic}")
    try:
        consumer.start(timeout_s=INSIST_S)
        assert not consumer.registered
        stats = consumer.stats()
        assert stats.list_faults > 0
        assert stats.list_age_s is None
        assert any("list fault" in record.getMessage() for record in caplog.records)
        broken.start("haproxy")
        eventually(consumer.keep_alive, within_s=SEEN_WITHIN_S, what="attached to every broker")
        assert consumer.stats().list_age_s is not None
    finally:
        consumer.stop(timeout_s=0)


@pytest.mark.guarantee("cached-list")
def test_a_consumer_starts_from_the_cached_list_while_the_balancer_is_away(
    broken: LocalCluster, bus: BusConfig, topic: str, tmp_path: Path
) -> None:
    bus = replace(bus, list_cache=str(tmp_path / "list"))
    with Publisher(bus) as publisher:
        sent = publisher.send_safe(Queue(topic, create=True), b"x")
    eventually(lambda: (tmp_path / "list").exists(), within_s=SEEN_WITHIN_S)
    broken.stop("haproxy")
    consumer = Consumer(bus, f"queue:{topic}", config=ConsumerConfig())
    try:
        consumer.start(require="one", timeout_s=SEEN_WITHIN_S)
        delivery = consumer.receive(SEEN_WITHIN_S)
        assert delivery is not None
        assert delivery.message_id == sent.message_id
        consumer.ack(delivery)
        assert consumer.stats().list_age_s is None  # a cached list is not a fresh one
    finally:
        consumer.stop()


@contextmanager
def _watched(cluster: LocalCluster, bus: BusConfig, topic: str) -> Iterator[Load]:
    """Publish and consume unaffected by the fault: one link each from the first to the last message."""
    register(cluster, f"queue:{topic}")
    with (
        publishing(
            bus, f"queue:{topic}", config=PublisherConfig(confirm_slow_s=NEVER_SLOW_S)
        ) as load,
        consuming(bus, f"queue:{topic}") as work,
    ):
        _wait_some_more(load, SOME)
        # A slow machine may dial twice for one link; from now on there is no dial.
        dials = [publisher.stats().dials for publisher in load.publishers]
        epochs = work.epochs()
        yield load
        load.stop()
        assert work.wait_for(load.confirmed_ids()) == set()
        assert set(work.counts().values()) == {1}
        assert {name: work.epochs()[name] for name in epochs} == epochs
    assert load.links_lost == 0
    assert [stats.dials for stats in load.last_stats] == dials
    assert set(load.outcomes()) == {Outcome.CONFIRMED}


def _in_use(load: Load) -> set[str]:
    return {publisher.stats().broker for publisher in load.publishers}


def _wait_some_more(load: Load, count: int) -> None:
    """Wait until this many publishes that start now are confirmed."""
    now_ns = time.monotonic_ns()
    eventually(lambda: len(load.confirmed(since_ns=now_ns)) >= count, within_s=SEEN_WITHIN_S)


def _wait_without_link(publisher: Publisher) -> None:
    eventually(lambda: publisher.stats().broker == "", within_s=SEEN_WITHIN_S, what="no link")
