"""Promise: every publish ends in exactly one outcome, whatever its broker does; unknown is visible."""

from __future__ import annotations

import logging
import time
from collections import Counter
from concurrent.futures import Future
from typing import Literal

import pytest

from bench.faults import alarm
from messagebus import (
    BusConfig,
    Outcome,
    Published,
    Publisher,
    PublisherConfig,
    Queue,
)
from messagebus._io.publish import links as publishing_links
from ops.local.cluster import LocalCluster
from tests.support.eventually import FACTOR, eventually
from tests.support.faults import direct, metric, register
from tests.support.load import consuming, created, drain, publishing

log = logging.getLogger(__name__)

OPEN = 50
# Messages that came before the open ones, to have a link.
WARM_UPS = 2
READY_WITHIN_S = 60.0
STOP_S = 1.0
# leastconn gives one of three in turn: some of them would go to the frozen broker.
STARTS = 6
DEADLINE_S = 1.5
# Higher than any wait here: the broker is not left for being slow.
NEVER_SLOW_S = 600


@pytest.mark.guarantee("one-outcome-per-publish")
def test_what_a_lost_link_leaves_open_is_unknown_when_it_is_not_to_be_sent_again(
    broken: LocalCluster, topic: str
) -> None:
    config = PublisherConfig(retry_unknown=False, confirm_slow_s=NEVER_SLOW_S)
    ends: Counter[str] = Counter()
    with Publisher(direct(broken, "mb1"), config) as publisher:
        futures, _ = _leave_open(broken, publisher, f"queue:{topic}")
        for future in futures:
            future.add_done_callback(lambda done: ends.update([done.result().message_id]))
        broken.kill("mb1")
        published = [future.result(READY_WITHIN_S * FACTOR) for future in futures]
        assert {each.outcome for each in published} == {Outcome.UNKNOWN}
        assert {each.attempts for each in published} == {1}
        assert publisher.stats().unknown == OPEN
    assert ends == dict.fromkeys(ends, 1)
    assert len(ends) == OPEN


@pytest.mark.guarantee("one-outcome-per-publish")
def test_what_a_lost_link_leaves_open_is_sent_again_to_another_broker_under_the_same_id(
    broken: LocalCluster, bus: BusConfig, topic: str
) -> None:
    config = PublisherConfig(confirm_slow_s=NEVER_SLOW_S)
    with Publisher(bus, config) as publisher:
        publisher.send_safe(Queue(topic, create=True), b"x")
        futures, name = _leave_open(broken, publisher, f"queue:{topic}")
        frozen = broken.node(name).broker
        broken.kill(name)
        published = [future.result(READY_WITHIN_S * FACTOR) for future in futures]
    assert {each.outcome for each in published} == {Outcome.CONFIRMED}
    assert {each.attempts for each in published} == {2}
    assert frozen not in {each.broker for each in published}
    ids = {each.message_id for each in published}
    assert len(ids) == OPEN
    broken.start(name)
    got = drain(bus, f"queue:{topic}", expected=ids)
    assert ids - got.keys() == set()
    assert len(got) <= OPEN + WARM_UPS, "a copy under another id"


@pytest.mark.guarantee("every-wait-is-bounded")
def test_a_deadline_ends_what_a_frozen_broker_does_not_answer(
    broken: LocalCluster, topic: str
) -> None:
    config = PublisherConfig(deadline_s=DEADLINE_S, confirm_slow_s=NEVER_SLOW_S)
    with Publisher(direct(broken, "mb1"), config) as publisher:
        began = time.monotonic()
        futures, _ = _leave_open(broken, publisher, f"queue:{topic}")
        published = [future.result(READY_WITHIN_S * FACTOR) for future in futures]
        took_s = time.monotonic() - began
        broken.thaw("mb1")
    assert {each.outcome for each in published} == {Outcome.UNKNOWN}
    assert {each.reason for each in published} == {"deadline passed"}
    assert took_s > DEADLINE_S / 2


@pytest.mark.guarantee("exit-settles-or-says")
def test_stop_ends_in_time_and_says_how_much_a_frozen_broker_left_unknown(
    broken: LocalCluster, topic: str
) -> None:
    publisher = Publisher(direct(broken, "mb1"), PublisherConfig(confirm_slow_s=NEVER_SLOW_S))
    publisher.start(require="one", timeout_s=READY_WITHIN_S)
    futures, _ = _leave_open(broken, publisher, f"queue:{topic}")
    began = time.monotonic()
    assert publisher.stop(timeout_s=STOP_S) == OPEN
    log.info("stop(%.1f) took %.2f s", STOP_S, time.monotonic() - began)
    assert time.monotonic() - began < STOP_S + READY_WITHIN_S
    assert {future.result(timeout=0).outcome for future in futures} == {Outcome.UNKNOWN}
    broken.thaw("mb1")


@pytest.mark.guarantee("alarm-is-left", "consuming-link-never-publishes")
@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_a_broker_in_alarm_is_left_and_its_consumers_go_on_acking(
    broken: LocalCluster,
    bus: BusConfig,
    topic: str,
    kind: Literal["memory", "disk"],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What it has not read goes elsewhere, however long other retiring links wait for answers.
    monkeypatch.setattr(publishing_links, "RETIRE_MS", 1 << 40)
    backlog = _publish(broken, f"queue:{topic}", "mb1", 3 * OPEN)
    first = broken.node("mb1").broker
    try:
        with publishing(bus, f"queue:{topic}", config=PublisherConfig()) as load:
            eventually(lambda: load.confirmed_by(first) > 0, within_s=READY_WITHIN_S)
            alarm(broken, "mb1", on=True, kind=kind)
            began = time.monotonic()
            eventually(
                lambda: first not in {p.stats().broker for p in load.publishers},
                within_s=READY_WITHIN_S,
                what="all publishers left",
            )
            log.info("left after %.2f s", time.monotonic() - began)
            left_ns = time.monotonic_ns()
            with consuming(bus, f"queue:{topic}") as work:
                assert work.wait_for(backlog) == set()
                eventually(
                    lambda: _ready_on(broken, "mb1", f"mb.queue/{topic}") == 0,
                    within_s=READY_WITHIN_S,
                    what="the acks have arrived",
                )
                eventually(
                    lambda: metric(broken, "mb1", "alarm") == 1,
                    within_s=READY_WITHIN_S,
                    what="the agent knows of the alarm",
                )
                assert load.confirmed_by(first, since_ns=left_ns) == 0
                load.stop()
                assert work.wait_for(load.confirmed_ids()) == set()
    finally:
        alarm(broken, "mb1", on=False, kind=kind)
    assert set(load.outcomes()) == {Outcome.CONFIRMED}


@pytest.mark.guarantee("one-broker-delays-no-other", "frozen-or-silent-link")
def test_publishers_leave_a_frozen_broker_for_its_silence_and_every_publish_ends(
    broken: LocalCluster, bus: BusConfig, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with publishing(bus, f"queue:{topic}", config=PublisherConfig()) as load:
        eventually(lambda: len(load.sent) > 100, within_s=READY_WITHIN_S)
        frozen = load.publishers[0].stats().broker
        broken.freeze(broken.name_of(frozen))
        frozen_ns = time.monotonic_ns()
        for publisher in load.publishers:
            _wait_elsewhere(publisher, frozen)
        assert f"broker silent broker={frozen}" in caplog.text, "before its confirms are slow"
        eventually(lambda: len(load.confirmed(since_ns=frozen_ns)) > 100, within_s=READY_WITHIN_S)
        broken.thaw(broken.name_of(frozen))
    assert load.left_open == 0
    assert set(load.outcomes()) == {Outcome.CONFIRMED}


def test_a_publisher_that_starts_while_a_broker_is_frozen_is_served_by_another(
    broken: LocalCluster, bus: BusConfig, topic: str
) -> None:
    with Publisher(bus) as publisher:
        publisher.send_safe(Queue(topic, create=True), b"before")
    broken.freeze("mb3")
    for _ in range(STARTS):
        with Publisher(bus) as publisher:
            published = publisher.send_safe(
                Queue(topic, create=True), b"x", timeout_s=READY_WITHIN_S
            )
        assert published.broker != broken.node("mb3").broker


def _leave_open(
    cluster: LocalCluster, publisher: Publisher, destination: str
) -> tuple[list[Future[Published]], str]:
    """Freeze the publisher's broker and publish OPEN messages that it does not answer; return its name."""
    publisher.send_safe(created(destination), b"x")
    # A balancer that took another one for down may have cut the link to it until now.
    name = cluster.name_of(publisher.stats().broker)
    cluster.freeze(name)
    futures = [publisher.submit(destination, b"x") for _ in range(OPEN)]
    eventually(lambda: publisher.stats().window == OPEN, within_s=READY_WITHIN_S)
    return futures, name


def _publish(cluster: LocalCluster, destination: str, name: str, count: int) -> set[str]:
    register(cluster, destination)
    with Publisher(direct(cluster, name)) as publisher:
        return {each.message_id for each in publisher.send_many(destination, [b"x"] * count)}


def _ready_on(cluster: LocalCluster, name: str, queue: str) -> int:
    """Count messages that the broker holds, answered or not."""
    with cluster.management(name) as management:
        queues = management.get("/api/queues/%2F?columns=name,messages").raise_for_status().json()
    return next(int(each.get("messages", 0)) for each in queues if each["name"] == queue)


def _wait_elsewhere(publisher: Publisher, broker: str) -> None:
    eventually(
        lambda: publisher.stats().broker not in ("", broker),
        within_s=READY_WITHIN_S,
        what="a link to another broker",
    )
