"""Promise: messages confirmed with durability fsync are there after a kill -9.

Those confirmed with durability page-cache are, too, even of a new queue.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from urllib.parse import quote

import httpx
import pytest

from messagebus import (
    BusConfig,
    Consumer,
    Durability,
    Outcome,
    Published,
    Publisher,
    Queue,
    Subscription,
    Topic,
    declare,
)
from ops.local.cluster import LocalCluster
from ops.local.process import KILL_WITHIN_S, send, wait_gone
from tests.support.eventually import eventually
from tests.support.faults import bus_config, direct, register
from tests.support.load import drain
from tests.support.raw import publish_to_young_queue

log = logging.getLogger(__name__)

MESSAGES = 100
START_WITHIN_S = 60.0
PUBLISH_EVERY_S = 0.001
# The control has lost everything in every run so far; the broker writes names every half second.
CONTROL_RUNS = 3
# A queue that is there shows its messages by then.
RECOVERED_WITHIN_S = 6.0
ASKED_S = 2.0
DEADLINE_S = 60.0
DELETED_WITHIN_S = 60.0


@pytest.mark.guarantee("settled-before-confirmed")
def test_a_queue_declared_a_moment_before_the_kill_keeps_every_confirmed_message(
    broken: LocalCluster, topic: str
) -> None:
    with Publisher(direct(broken, "mb1")) as publisher:
        assert register(broken, f"queue:{topic}")["complete"]
        declared = time.monotonic()
        published = publisher.send_many(Queue(topic, create=True), [b"young"] * MESSAGES)
        broken.kill("mb1")
        log.info("killed %.3f s after the declaration", time.monotonic() - declared)
    promised = _promised_by(published, broken.node("mb1").broker)
    assert len(promised) == MESSAGES
    _restart(broken)
    got = drain(bus_config(broken), f"queue:{topic}", expected=promised)
    assert promised - got.keys() == set()


@pytest.mark.guarantee("confirmed-survives-a-kill")
def test_the_first_send_safe_to_a_new_queue_survives_a_kill_at_its_return(
    broken: LocalCluster, topic: str
) -> None:
    with Publisher(direct(broken, "mb1")) as publisher:
        published = publisher.send_safe(Queue(topic, create=True), b"first")
        broken.kill("mb1")
    promised = _promised_by([published], broken.node("mb1").broker)
    assert len(promised) == 1
    _restart(broken)
    got = drain(bus_config(broken), f"queue:{topic}", expected=promised)
    assert promised - got.keys() == set()


@pytest.mark.guarantee("unsettled-is-never-fsync")
def test_the_first_send_safe_after_start_of_a_new_subscription_survives_a_kill_at_its_return(
    broken: LocalCluster, topic: str
) -> None:
    bus = direct(broken, "mb1")
    consumer = Consumer(bus, topic, subscription="billing")
    with Publisher(bus) as publisher:
        consumer.start(timeout_s=START_WITHIN_S)
        assert consumer.registered
        published = publisher.send_safe(topic, b"first")
        broken.kill("mb1")
        consumer.stop(timeout_s=0)
    promised = _promised_by([published], broken.node("mb1").broker)
    assert len(promised) == 1
    _restart(broken)
    got = drain(bus_config(broken), topic, "billing", expected=promised)
    assert promised - got.keys() == set()


@pytest.mark.guarantee("settled-before-confirmed", "unsettled-is-never-fsync")
def test_the_first_confirm_while_its_subscription_is_being_created_survives_a_kill(
    broken: LocalCluster, topic: str
) -> None:
    """No confirm may come from a queue that is declared and not settled yet."""
    register(broken, topic)
    published: list[Published] = []
    killed, stopping = threading.Event(), threading.Event()
    process = broken.process_of("mb1")
    assert process is not None
    with Publisher(direct(broken, "mb1")) as publisher:

        def note(future: Future[Published]) -> None:
            published.append(future.result())
            if published[-1].outcome is Outcome.CONFIRMED and not killed.is_set():
                send(process, signal.SIGKILL)
                killed.set()

        def publish() -> None:
            while not stopping.wait(PUBLISH_EVERY_S):
                publisher.submit(topic, b"x").add_done_callback(note)

        threads = [
            threading.Thread(target=publish),
            threading.Thread(target=register, args=(broken, f"{topic}/billing")),
        ]
        for thread in threads:
            thread.start()
        assert killed.wait(START_WITHIN_S)
        wait_gone([process], within_s=KILL_WITHIN_S)
        stopping.set()
        for thread in threads:
            thread.join()
        publisher.stop(timeout_s=0)
    promised = _promised_by(published, broken.node("mb1").broker)
    log.info("%d confirmed before the kill", len(promised))
    assert promised
    _restart(broken)
    got = drain(bus_config(broken), topic, "billing", expected=promised)
    assert promised - got.keys() == set()


@pytest.mark.guarantee("settled-before-confirmed")
def test_control_without_settling_the_same_kill_loses_confirmed_messages(
    broken: LocalCluster, topic: str
) -> None:
    lost = 0
    for run in range(CONTROL_RUNS):
        lost += _lost_without_settling(broken, f"control-{topic}-{run}")
        if lost:
            break
    assert lost > 0


def test_a_queue_that_lost_its_name_with_a_kill_keeps_no_gate_shut_and_takes_messages_again(
    broken: LocalCluster, topic: str
) -> None:
    """An application's own queue, declared by hand a moment before the kill, comes back empty, and leads."""
    queue = f"by-hand-{topic}"
    assert _publish_by_hand(broken, queue) == MESSAGES
    broken.kill("mb1")
    _restart(broken)
    assert _publish_by_hand(broken, queue) == MESSAGES
    _delete(broken, queue)


def _lost_without_settling(cluster: LocalCluster, queue: str) -> int:
    confirmed = _publish_by_hand(cluster, queue)
    cluster.kill("mb1")
    assert confirmed == MESSAGES
    _restart(cluster)
    found = _most_found(cluster, queue)
    _delete(cluster, queue)
    log.info("control: %d of %d confirmed messages lost", confirmed - found, confirmed)
    return confirmed - found


def _publish_by_hand(cluster: LocalCluster, queue: str) -> int:
    broker = cluster.node("mb1").broker
    return publish_to_young_queue(
        broker, "admin", cluster.admin_password, queue=queue, count=MESSAGES
    )


def _delete(cluster: LocalCluster, queue: str) -> None:
    with cluster.management("mb1") as management:
        path = f"/api/queues/%2F/{quote(queue, safe='')}"
        management.delete(path, timeout=DELETED_WITHIN_S).raise_for_status()


def _most_found(cluster: LocalCluster, queue: str) -> int:
    """Return the highest count that the broker shows within RECOVERED_WITHIN_S: it starts from 0."""
    counts = [0]

    def all_there() -> bool:
        with cluster.management("mb1") as management, contextlib.suppress(httpx.HTTPError):
            answer = management.get(f"/api/queues/%2F/{quote(queue, safe='')}", timeout=ASKED_S)
            if answer.is_success:
                counts.append(int(answer.json().get("messages", 0)))
        return max(counts) >= MESSAGES

    with contextlib.suppress(AssertionError):
        eventually(all_there, within_s=RECOVERED_WITHIN_S)
    return max(counts)


def _promised_by(published: Iterable[Published], broker: str) -> set[str]:
    """Return the ids that this broker confirmed with the highest promise."""
    return {
        each.message_id
        for each in published
        if each.outcome is Outcome.CONFIRMED
        and each.durability is Durability.FSYNC
        and each.broker == broker
    }


def _restart(cluster: LocalCluster) -> None:
    cluster.start("mb1")
    cluster.wait_ready()


@pytest.mark.guarantee("durability-by-name")
@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_a_confirm_of_page_cache_survives_a_kill_of_the_broker_at_once(
    broken: LocalCluster, topic: str, kind: str
) -> None:
    """Classic queues are not settled: nothing waits between their declaration and the kill."""
    weak = Topic(topic, Durability.PAGE_CACHE)
    bus, own = bus_config(broken), Queue(topic, Durability.PAGE_CACHE)
    with Publisher(direct(broken, "mb1")) as publisher:
        declare(bus, [own] if kind == "queue" else [weak, Subscription(weak, "all")])
        published = publisher.send_many(own if kind == "queue" else weak, [b"x"] * MESSAGES)
        broken.kill("mb1")
    promised = {
        each.message_id
        for each in published
        if each.outcome is Outcome.CONFIRMED and each.broker == broken.node("mb1").broker
    }
    assert promised
    broken.start("mb1")
    broken.wait_ready()
    assert promised - taken(bus, own if kind == "queue" else weak, len(promised)) == set()


def taken(bus: BusConfig, destination: Topic | Queue, count: int) -> set[str]:
    """Receive until this many different ids have come; return them."""
    ids = set[str]()
    name = "all" if isinstance(destination, Topic) else ""
    with Consumer(bus, destination, subscription=name) as consumer:
        while len(ids) < count:
            delivery = consumer.receive(DEADLINE_S)
            assert delivery is not None
            ids.add(delivery.message.message_id)
            consumer.ack(delivery)
    return ids
