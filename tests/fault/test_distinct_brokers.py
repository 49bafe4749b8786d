"""Promise: links to distinct brokers are found although one is frozen or dead, in a bounded time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

import pytest

from messagebus import BusConfig, LinkLost, Outcome, Publisher, PublisherConfig, Queue
from messagebus._io.amqp.dialer import Target, dial_distinct
from messagebus._io.amqp.link import Credentials
from messagebus.broker import Broker
from ops.local.cluster import LocalCluster
from tests.support.eventually import FACTOR, eventually
from tests.support.load import publishing

log = logging.getLogger(__name__)

DIAL_TIMEOUT_MS = 500
# On top of the dialer's own bounds: two loaded cores take that to notice.
SLACK_S = 2.0 * FACTOR
ANSWERED_WITHIN_S = 60.0
# leastconn gives one of three in turn: some of them would go to the frozen broker.
STARTS = 6


@pytest.mark.guarantee("two-distinct-brokers")
@pytest.mark.parametrize("fault", ["frozen", "killed"])
def test_two_distinct_brokers_out_of_three_are_found_while_one_is_away(
    broken: LocalCluster, fault: str
) -> None:
    _take_away(broken, "mb1", fault)
    began = time.monotonic()
    links, dials = asyncio.run(_two_of(broken, ["mb1", "mb2", "mb3"]))
    took_s = time.monotonic() - began
    log.info("%s: %d dials, %.3f s", fault, dials, took_s)
    assert set(links) == {broken.node("mb2").broker, broken.node("mb3").broker}
    assert dials <= 3
    assert took_s < 3 * DIAL_TIMEOUT_MS / 1000 + SLACK_S


@pytest.mark.guarantee("every-wait-is-bounded")
def test_too_few_distinct_brokers_are_told_within_the_bound(broken: LocalCluster) -> None:
    broken.freeze("mb1")
    broken.freeze("mb2")
    began = time.monotonic()
    with pytest.raises(LinkLost, match="1 of 2"):
        asyncio.run(_two_of(broken, ["mb1", "mb2", "mb3"]))
    assert time.monotonic() - began < 3 * DIAL_TIMEOUT_MS / 1000 + SLACK_S


def test_one_broker_under_two_names_is_not_two_brokers(broken: LocalCluster) -> None:
    node = broken.node("mb1")
    address = Broker.parse(node.broker)
    alias = Target(address, "mb9.example:5672")
    targets = [Target.named(address), alias]
    with pytest.raises(LinkLost, match="1 of 2"):
        asyncio.run(_dial(broken, targets))


@pytest.mark.guarantee("one-broker-delays-no-other", "frozen-or-silent-link")
def test_publishers_leave_a_frozen_broker_and_every_publish_ends(
    broken: LocalCluster, bus: BusConfig, topic: str
) -> None:
    with publishing(bus, f"queue:{topic}", config=PublisherConfig()) as load:
        eventually(lambda: len(load.sent) > 100, within_s=ANSWERED_WITHIN_S)
        frozen = load.publishers[0].stats().broker
        broken.freeze(broken.name_of(frozen))
        frozen_ns = time.monotonic_ns()
        for publisher in load.publishers:
            _wait_elsewhere(publisher, frozen)
        eventually(
            lambda: len(load.confirmed(since_ns=frozen_ns)) > 100, within_s=ANSWERED_WITHIN_S
        )
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
                Queue(topic, create=True), b"x", timeout_s=ANSWERED_WITHIN_S
            )
        assert published.broker != broken.node("mb3").broker


def _take_away(cluster: LocalCluster, name: str, fault: str) -> None:
    if fault == "frozen":
        cluster.freeze(name)
    else:
        cluster.kill(name)


async def _two_of(cluster: LocalCluster, names: Sequence[str]) -> tuple[list[str], int]:
    """Return the names of the brokers found, and how many dials that took."""
    targets = [Target.named(Broker.parse(cluster.node(name).broker)) for name in names]
    return await _dial(cluster, targets)


async def _dial(cluster: LocalCluster, targets: Sequence[Target]) -> tuple[list[str], int]:
    credentials = Credentials(user="bus", password=cluster.password, client_id="distinct")
    dialed = await dial_distinct(targets, 2, credentials, timeout_ms=DIAL_TIMEOUT_MS)
    for link in dialed.links:
        await link.close()
    return [link.broker for link in dialed.links], dialed.dials


def _wait_elsewhere(publisher: Publisher, broker: str) -> None:
    eventually(
        lambda: publisher.stats().broker not in ("", broker),
        within_s=ANSWERED_WITHIN_S,
        what="a link to another broker",
    )
