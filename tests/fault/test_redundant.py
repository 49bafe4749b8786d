"""Promise: what two brokers confirmed lies on both, in the same bytes, and outlives the disk of either."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections import defaultdict

import pytest

from messagebus import BusConfig, Outcome, Publisher, PublisherConfig, Unknown
from messagebus._io.amqp.frames import Arrived
from messagebus._io.amqp.link import Credentials, dial
from messagebus._io.amqp.properties import read_message_id
from messagebus.broker import Broker
from ops.local.cluster import LocalCluster
from tests.support.eventually import FACTOR, eventually, eventually_async
from tests.support.faults import direct, operators_drain, register, write_list
from tests.support.load import Load, drain, publishing

log = logging.getLogger(__name__)

WITHIN_S = 60.0
SOON_S = 3.0
# leastconn gives one of three in turn: some of them would go to the broker that is away.
STARTS = 3


def redundant(
    topic: str, *, redundancy: str = "required", lifetime_s: int = 600
) -> PublisherConfig:
    return PublisherConfig(
        redundant=(topic,), redundancy=redundancy, connection_lifetime_s=lifetime_s
    )


def wait_confirmed(load: Load, count: int) -> None:
    """Wait until so many of the publishes that start from now on are confirmed."""
    since_ns = time.monotonic_ns()
    eventually(lambda: len(load.confirmed(since_ns=since_ns)) >= count, within_s=WITHIN_S)


@pytest.mark.guarantee("redundant-survives-a-lost-disk")
def test_what_two_brokers_confirmed_outlives_the_disk_of_one_and_what_one_confirmed_does_not(
    broken: LocalCluster, bus: BusConfig, topic: str
) -> None:
    plain = f"{topic}-plain"
    register(broken, f"{topic}/all", f"{plain}/all")
    with (
        publishing(bus, plain, publishers=2) as control,
        publishing(bus, topic, publishers=3, config=redundant(topic, lifetime_s=2)) as load,
    ):
        wait_confirmed(load, 600)
        eventually(lambda: control.confirmed_by(broken.node("mb1").broker), within_s=WITHIN_S)
        broken.kill("mb1")
        shutil.rmtree(broken.node("mb1").data_dir)
        wait_confirmed(load, 300)
    assert load.left_open == 0
    assert {len(set(sent.published.brokers)) for sent in load.confirmed()} == {2}
    broken.start("mb1")
    broken.wait_ready()
    promised = load.confirmed_ids()
    log.info("%s, by %d links lost", load.outcomes(), load.links_lost)
    got = drain(bus, topic, "all", expected=promised)
    assert promised - got.keys() == set()
    lost = control.confirmed_ids() - drain(bus, plain, "all", expected=[]).keys()
    log.info("control: %d of %d lost", len(lost), len(control.confirmed()))
    assert lost


@pytest.mark.guarantee("two-copies-two-brokers")
def test_two_copies_are_on_two_brokers_through_any_move_and_are_the_same_bytes(
    broken: LocalCluster, bus: BusConfig, topic: str
) -> None:
    register(broken, f"{topic}/all")
    with publishing(bus, topic, publishers=3, config=redundant(topic, lifetime_s=1)) as load:
        wait_confirmed(load, 200)
        write_list(broken, broken.names, draining=["mb2"])
        wait_confirmed(load, 200)
        write_list(broken, ["mb1", "mb3"])
        wait_confirmed(load, 200)
        write_list(broken, broken.names)
        operators_drain(broken, "mb3", True)
        wait_confirmed(load, 200)
        operators_drain(broken, "mb3", False)
        broken.kill("mb1")
        wait_confirmed(load, 200)
        broken.start("mb1")
        broken.freeze("mb2")
        wait_confirmed(load, 100)
        broken.thaw("mb2")
        wait_confirmed(load, 100)
    assert load.left_open == 0
    log.info("%s", load.outcomes())
    broken.wait_ready()
    found = asyncio.run(stored(broken, f"mb.sub/{topic}/all"))
    for sent in load.confirmed():
        one, two = sent.published.brokers
        copies = found[sent.published.message_id]
        assert {one, two} <= copies.keys(), sent
        assert len({*copies.values()}) == 1, "copies differ"
    assert load.confirmed()


async def stored(cluster: LocalCluster, queue: str) -> dict[str, dict[str, tuple[bytes, bytes]]]:
    """Return message id -> broker -> properties and body, as they lie in this queue of all brokers."""
    found: dict[str, dict[str, tuple[bytes, bytes]]] = defaultdict(dict)
    for name in cluster.names:
        broker = cluster.node(name).broker
        for _, _, properties, body in await _read(cluster, Broker.parse(broker), queue):
            found[read_message_id(properties)][broker] = properties, body
    return found


async def _read(cluster: LocalCluster, broker: Broker, queue: str) -> list[Arrived]:
    """Take all that a queue holds."""
    credentials = Credentials(user="admin", password=cluster.admin_password)
    link = await dial(broker, credentials, timeout_ms=5_000)
    count = (await link.call("queue_declare", queue=queue, passive=True)).message_count
    found: list[Arrived] = []

    def arrived(contents: list[Arrived]) -> None:
        """Keep and ack deliveries: a quorum queue has 2,000 under way to a consumer at most."""
        found.extend(contents)
        link.transport.ack(contents[-1][0], True)
        link.transport.flush()

    link.transport.on_contents = arrived
    await link.call("basic_consume", queue=queue, on_message_callback=link.transport.pika_content)
    await eventually_async(lambda: len(found) >= count, within_s=WITHIN_S, what=f"{count} messages")
    await link.close()
    return found


@pytest.mark.guarantee("two-distinct-brokers")
@pytest.mark.parametrize("fault", ["frozen", "killed"])
def test_redundant_publishes_find_the_two_other_brokers_while_one_is_away(
    broken: LocalCluster, bus: BusConfig, topic: str, fault: str
) -> None:
    register(broken, f"{topic}/all")
    away = broken.freeze if fault == "frozen" else broken.kill
    away("mb1")
    others = {broken.node("mb2").broker, broken.node("mb3").broker}
    for _ in range(STARTS):
        with Publisher(bus, redundant(topic)) as publisher:
            found = publisher.send_safe(topic, b"x", timeout_s=WITHIN_S * FACTOR)
        assert found.outcome is Outcome.CONFIRMED
        assert set(found.brokers) == others


@pytest.mark.guarantee("every-wait-is-bounded")
def test_a_redundant_publish_ends_at_its_deadline_while_two_of_three_brokers_are_frozen(
    broken: LocalCluster, bus: BusConfig, topic: str
) -> None:
    register(broken, f"{topic}/all")
    with Publisher(bus, redundant(topic)) as publisher:
        assert len(set(publisher.send_safe(topic, b"x", timeout_s=WITHIN_S).brokers)) == 2
        broken.freeze("mb1")
        broken.freeze("mb2")
        left = broken.node("mb3").broker
        eventually(lambda: publisher.stats().broker == left, within_s=WITHIN_S)
        ended = publisher.submit(topic, b"x", timeout_s=SOON_S).result(WITHIN_S * FACTOR)
    assert (ended.outcome, ended.brokers) == (Outcome.UNKNOWN, (left,))


@pytest.mark.guarantee("two-copies-two-brokers", "one-broker-left")
def test_with_one_broker_left_two_are_waited_for_and_one_does_where_two_are_preferred(
    broken: LocalCluster, bus: BusConfig, topic: str
) -> None:
    register(broken, f"{topic}/all")
    with Publisher(bus, redundant(topic)) as publisher:
        whole = publisher.send_safe(topic, b"x", timeout_s=WITHIN_S)
        assert len(set(whole.brokers)) == 2
        for name in ("mb2", "mb3"):
            broken.kill(name)
        left = broken.node("mb1").broker
        eventually(lambda: publisher.stats().broker == left, within_s=WITHIN_S)
        with pytest.raises(Unknown, match=f"stored on 1 of 2 brokers: {left}"):
            publisher.send_safe(topic, b"x", timeout_s=SOON_S)
        one = publisher.send_safe(topic, b"x", redundant="preferred", timeout_s=WITHIN_S)
        assert (one.outcome, one.brokers) == (Outcome.CONFIRMED, (left,))
        plain = publisher.send_safe(topic, b"x", redundant=False, timeout_s=WITHIN_S)
        assert plain.brokers == (left,)
        assert publisher.stats().downgraded == 1
        waiting = publisher.submit(topic, b"x", timeout_s=WITHIN_S * FACTOR)
        broken.start("mb2")
        assert set(waiting.result().brokers) == {left, broken.node("mb2").broker}


@pytest.mark.guarantee("two-copies-two-brokers")
def test_where_the_balancer_gives_one_broker_only_the_second_is_found_by_its_name(
    broken: LocalCluster, topic: str
) -> None:
    register(broken, f"{topic}/all")
    only = broken.node("mb1").broker
    with Publisher(direct(broken, "mb1"), redundant(topic)) as publisher:
        found = publisher.send_safe(topic, b"x", timeout_s=WITHIN_S)
    assert found.broker == only
    assert len(set(found.brokers)) == 2


@pytest.mark.guarantee("no-direct-publish-past-a-shut-gate")
def test_no_broker_with_a_shut_gate_is_gone_to_by_its_name(
    broken: LocalCluster, topic: str
) -> None:
    register(broken, f"{topic}/all")
    broken.kill("mb3")
    broken.kill("mb2", agent=True)
    broken.kill("mb2")
    broken.start("mb2")
    with Publisher(direct(broken, "mb1"), redundant(topic)) as publisher:
        with pytest.raises(Unknown, match="stored on 1 of 2 brokers"):
            publisher.send_safe(topic, b"x", timeout_s=SOON_S * FACTOR)
        waiting = publisher.submit(topic, b"y", timeout_s=WITHIN_S * FACTOR)
        broken.start("mb2", agent=True)
        assert broken.node("mb2").broker in waiting.result().brokers
