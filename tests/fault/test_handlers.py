"""Promise: no message is lost to a handler when its process, a broker or a queue fails meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import pytest

from bench.faults import call
from messagebus import (
    BusConfig,
    Consumer,
    ConsumerConfig,
    Delivery,
    Message,
    Park,
    Publisher,
    Reject,
    RetryLater,
    declare,
)
from messagebus._io.amqp.batch import BATCH_TYPE, encode_entry
from ops.local.cluster import LocalCluster
from tests.support.eventually import FACTOR, eventually
from tests.support.faults import bus_config, direct, forget, restore
from tests.support.queues import take_raw
from tests.support.raw import Raw, publish_raw
from tests.support.trials.handlers import Trial
from tests.support.trials.handlers_app import OUT, QUEUES

WITHIN_S = 60.0
Ids = dict[str, list[int]]
"""Message id -> the attempts that were seen of it."""


class Running:
    """Consumer whose handler runs in threads, with the attempts that it saw."""

    def __init__(self, bus: BusConfig, topic: str, end: Callable[[Delivery], object]) -> None:
        self.bus, self.topic, self._end = bus, topic, end
        self.seen: Ids = {}
        self._lock = threading.Lock()
        self.consumer: Consumer

    def handle(self, delivery: Delivery) -> object:
        with self._lock:
            self.seen.setdefault(delivery.message_id, []).append(delivery.attempt)
        return self._end(delivery)


@contextmanager
def running(
    bus: BusConfig,
    topic: str,
    end: Callable[[Delivery], object],
    config: ConsumerConfig | None = None,
    **how: Any,
) -> Iterator[Running]:
    made = Running(bus, topic, end)
    with Consumer(bus, topic, subscription="all", config=config) as consumer:
        made.consumer = consumer
        thread = threading.Thread(target=consumer.run, args=(made.handle,), kwargs=how)
        thread.start()
        yield made
        consumer.stop()
        thread.join()


def publish(bus: BusConfig, topic: str, count: int) -> list[str]:
    """Publish and return the ids of the confirmed messages."""
    declare(bus, [f"{topic}/all"])
    with Publisher(bus) as publisher:
        ends = publisher.send_many(topic, [b"x"] * count)
    assert {each.outcome.value for each in ends} == {"confirmed"}
    return [each.message_id for each in ends]


@pytest.mark.guarantee("retry-survives-kills")
def test_a_retry_that_waits_survives_its_consumer_and_a_kill_of_its_broker(
    broken: LocalCluster, topic: str
) -> None:
    bus = direct(broken, "mb1")
    (message_id,) = publish(bus, topic, 1)
    with running(bus, topic, lambda _delivery: RetryLater(after_s=5)) as first:
        eventually(lambda: first.consumer.stats().retried == 1, within_s=WITHIN_S)
    broken.kill("mb1")
    broken.start("mb1")
    with running(bus, topic, lambda _delivery: None) as second:
        eventually(lambda: second.consumer.stats().acked == 1, within_s=WITHIN_S)
    assert first.seen == {message_id: [1]}
    assert second.seen == {message_id: [2]}


@pytest.mark.guarantee("retry-survives-kills")
def test_a_broker_lost_in_the_middle_of_copies_loses_nothing_and_ids_are_kept(
    broken: LocalCluster, topic: str
) -> None:
    """Copies go to mb1, which is killed meanwhile; messages without a copy come again as they were."""
    bus = direct(broken, "mb2")
    ids = publish(bus, topic, 2_000)

    def end(delivery: Delivery) -> object:
        return RetryLater(after_s=0) if delivery.attempt == 1 else None

    config = ConsumerConfig(handed_out_max=2_000, prefetch=200)
    with running(direct(broken, "mb1"), topic, end, config, concurrency=4) as run:
        eventually(lambda: run.consumer.stats().retried >= 100, within_s=WITHIN_S)
        broken.kill("mb1")
        copied = run.consumer.stats().retried
        broken.start("mb1")
        eventually(
            lambda: sum(2 in seen for seen in list(run.seen.values())) == len(ids),
            within_s=2 * WITHIN_S,
            what="every message has its second run",
        )
    assert copied < len(ids), "the kill came too late to show anything"
    assert set(run.seen) == set(ids)
    assert {attempt for seen in run.seen.values() for attempt in seen} == {1, 2}


COPIES = """
import os, sys
from messagebus import BusConfig, Consumer, RetryLater

def handle(delivery):
    if delivery.attempt > 1:
        os.write(1, b"copied\\n")
        return None
    os.write(1, delivery.message_id.encode() + b"\\n")
    return RetryLater(after_s=0)

consumer = Consumer(BusConfig.from_env(os.environ), sys.argv[1], subscription="all")
consumer.start(require="one")
consumer.run(handle, concurrency=4)
"""


@pytest.mark.guarantee("retry-survives-kills")
def test_a_consumer_killed_in_the_middle_of_copies_loses_nothing(
    broken: LocalCluster, topic: str
) -> None:
    """Its copies go to mb1, which no longer takes them; its deliveries came from mb2."""
    bus = direct(broken, "mb2")
    (first,) = publish(bus, topic, 1)
    process = subprocess.Popen(
        [sys.executable, "-c", COPIES, topic],
        env={**os.environ, **broken.client_env(), "MESSAGEBUS_BROKER": broken.node("mb1").broker},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert [process.stdout.readline().strip() for _ in range(2)] == [first, "copied"]
    broken.freeze("mb1")
    with Publisher(bus) as publisher:
        ids = [each.message_id for each in publisher.send_many(topic, [b"x"] * 50)]
    seen = {process.stdout.readline().strip() for _ in ids}
    process.kill()
    process.communicate(timeout=WITHIN_S)
    assert seen == set(ids)
    broken.kill("mb1")  # with whatever was on its way
    broken.start("mb1")
    with running(bus, topic, lambda _delivery: None) as run:
        eventually(lambda: set(run.seen) >= seen, within_s=WITHIN_S)


@pytest.mark.guarantee("batch-is-finished")
def test_a_batch_with_a_part_that_has_no_copy_is_parked_whole(
    broken: LocalCluster, topic: str
) -> None:
    """The batch is another client's: the headers of one entry fill more than a frame."""
    bus, parts = direct(broken, "mb1"), list[bytes]()
    declare(bus, [f"{topic}/all"])
    for message_id, headers in (("done", {}), ("large", {"a": "x" * 125_000}), ("parked", {})):
        properties = pika.BasicProperties(message_id=message_id, headers=headers)
        encode_entry(parts, b"".join(properties.encode()), message_id.encode())
    batch = Message(body=b"".join(parts), content_type=BATCH_TYPE)
    with Publisher(bus) as publisher:
        publisher.send_safe(topic, batch)

    def end(delivery: Delivery) -> object:
        return None if delivery.message_id == "done" else Park("why")

    with running(bus, topic, end) as run:
        eventually(lambda: run.consumer.stats().parked == 2, within_s=WITHIN_S)
        assert run.consumer.stats().acked == 1
    parking = f"mb.park/{topic}/all"
    found = [asyncio.run(take_raw(broken, parking, within_s=WITHIN_S)) for _ in range(2)]
    assert sorted(each.body for each in found) == sorted([b"parked", batch.body])


@contextmanager
def full(cluster: LocalCluster, queue: str) -> Iterator[None]:
    """Bound this queue to no messages, on every broker; what happens then is up to its own arguments."""
    pattern = f"^{queue}$".replace(".", "[.]")
    body = {
        "pattern": pattern,
        "apply-to": "queues",
        "definition": {"max-length": 0},
        "priority": 10,
    }
    path = f"/api/policies/%2F/{quote('full', safe='')}"
    for name in cluster.names:
        with cluster.management(name) as management:
            management.put(path, json=body).raise_for_status()
    try:
        yield
    finally:
        for name in cluster.names:
            with cluster.management(name) as management:
                management.delete(path).raise_for_status()


@pytest.mark.guarantee("full-parking-queue")
def test_a_full_parking_queue_loses_nothing_and_is_told_once(
    broken: LocalCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    bus = direct(broken, "mb1")
    ids = publish(bus, topic, 1)
    with running(bus, topic, lambda _delivery: Park("no")) as run:
        with full(broken, f"mb.park/{topic}/all"), Publisher(bus) as publisher:
            # The broker looks at the length a moment later: some get in.
            while "copies not stored" not in caplog.text:
                ids.append(publisher.send_safe(topic, b"x").message_id)
                assert len(ids) < 200
                time.sleep(0.2)
            ids += [each.message_id for each in publisher.send_many(topic, [b"x"] * 5)]
            eventually(lambda: len(run.seen) == len(ids), within_s=WITHIN_S)
            parked = run.consumer.stats().parked
            time.sleep(3 * FACTOR)
            assert run.consumer.stats().handed_out == len(ids) - parked >= 6
        eventually(lambda: run.consumer.stats().parked == len(ids), within_s=2 * WITHIN_S)
        assert run.consumer.stats().handed_out == 0
    told = [line for line in caplog.messages if line.startswith("copies not stored")]
    assert len(told) == 1
    assert f"queue=mb.park/{topic}/all" in told[0]
    assert "outcome=refused" in told[0]
    assert set(run.seen) == set(ids)


def test_a_strange_x_death_of_a_stranger_stops_no_dead_lettering(
    broken: LocalCluster, topic: str
) -> None:
    """RabbitMQ 3.10 ends that of all queues where it dead-letters such a message."""
    bus = direct(broken, "mb1")
    declare(bus, [f"{topic}/all"])
    broker, user, password = broken.node("mb1").broker, bus.user, bus.password
    strange = pika.BasicProperties(headers={"x-death": ["a"]}, message_id="strange")
    publish_raw(broker, user, password, [Raw(f"mb.topic/{topic}", "", strange, b"x")])
    with running(bus, topic, lambda _delivery: Reject("no")) as run, Publisher(bus) as publisher:
        publisher.send_safe(topic, b"later", deliver_after_s=1, timeout_s=WITHIN_S)
        eventually(lambda: len(run.seen) == 1, within_s=WITHIN_S)
    parking = f"mb.park/{topic}/all"
    found = [asyncio.run(take_raw(broken, parking, within_s=WITHIN_S)) for _ in range(2)]
    assert sorted(each.body for each in found) == [b"later", b"x"]


STUCK = """
import os, sys, time
from messagebus import BusConfig, Consumer

def handle(delivery):
    print(delivery.message_id, flush=True)
    if delivery.body == b"exit":
        os._exit(3)
    time.sleep(600)

consumer = Consumer(BusConfig.from_env(os.environ), sys.argv[1], subscription="all")
consumer.start()
print(consumer.run(handle, grace_s=0.5))
"""


@pytest.mark.guarantee("endless-handler")
def test_ctrl_c_ends_a_process_whose_handler_never_returns_and_its_message_comes_again(
    broken: LocalCluster, topic: str
) -> None:
    bus = direct(broken, "mb1")
    (message_id,) = publish(bus, topic, 1)
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK, topic],
        env={**os.environ, **broken.client_env()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == message_id
    process.send_signal(signal.SIGINT)
    _out, errors = process.communicate(timeout=WITHIN_S)
    assert process.returncode != 0
    assert errors.rstrip().endswith("KeyboardInterrupt")
    with running(bus, topic, lambda _delivery: None) as run:
        eventually(lambda: run.consumer.stats().acked == 1, within_s=WITHIN_S)
    assert run.seen == {message_id: [1]}


@pytest.mark.guarantee("endless-handler", "slow-handler-stops-no-heartbeats")
def test_a_handler_that_never_returns_stops_no_heartbeats(broken: LocalCluster, topic: str) -> None:
    bus = bus_config(broken, heartbeat_s=2)
    publish(bus, topic, 20)
    leave = threading.Event()

    def end(delivery: Delivery) -> None:
        if next(count) == 0:
            leave.wait(WITHIN_S)

    count = iter(range(1_000))
    with running(bus, topic, end, concurrency=2) as run:
        eventually(lambda: run.consumer.stats().acked == 19, within_s=WITHIN_S)
        eventually(lambda: run.consumer.stats().oldest_run_s > 6, within_s=WITHIN_S)
        assert run.consumer.keep_alive()
        assert {each.state for each in run.consumer.stats().brokers.values()} == {"open"}
        leave.set()
        eventually(lambda: run.consumer.stats().acked == 20, within_s=WITHIN_S)
        assert run.consumer.stats().acks_stale == 0


@contextmanager
def consumer_timeout(cluster: LocalCluster, name: str, timeout_s: int) -> Iterator[None]:
    """Set the broker's own timeout; channels that open from now on have it, and are checked each second."""
    _set(cluster, name, "consumer_timeout", timeout_s * 1000)
    _set(cluster, name, "channel_tick_interval", 1_000)
    try:
        yield
    finally:
        _set(cluster, name, "consumer_timeout", 1_800_000)
        _set(cluster, name, "channel_tick_interval", 60_000)


def _set(cluster: LocalCluster, name: str, key: str, value: int) -> None:
    call(cluster, name, f"application:set_env(rabbit, {key}, {value})")


@pytest.mark.guarantee("consumer-timeout")
def test_the_consumer_timeout_strikes_what_a_handler_holds_and_nothing_that_waits(
    broken: LocalCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One handler holds on. First the deliveries behind it are given back, then the broker takes its own."""
    bus = direct(broken, "mb1")
    declare(bus, [f"{topic}/all"])
    leave = threading.Event()

    def end(delivery: Delivery) -> None:
        if delivery.body == b"stuck" and not delivery.redelivered:
            leave.wait(WITHIN_S)

    config = ConsumerConfig(consumer_timeout_s=8)
    with consumer_timeout(broken, "mb1", 8), running(bus, topic, end, config) as run:
        with Publisher(bus) as publisher:
            publisher.send_safe(topic, Message.text("stuck"))
            publisher.send_many(topic, [b"x"] * 10)
        with running(bus, topic, lambda _delivery: None) as other:
            eventually(lambda: run.consumer.stats().handling == 1 or other.seen, within_s=WITHIN_S)
            eventually(lambda: "near the consumer timeout" in caplog.text, within_s=WITHIN_S)
            eventually(lambda: "delivery acknowledgement" in caplog.text, within_s=WITHIN_S)
            eventually(lambda: len(run.seen | other.seen) == 11, within_s=WITHIN_S)
            leave.set()
            eventually(
                lambda: sum(map(len, [*run.seen.values(), *other.seen.values()])) >= 12,
                within_s=WITHIN_S,
            )
            eventually(lambda: run.consumer.stats().acks_stale == 1, within_s=WITHIN_S)
            # Deliveries that waited behind it came once: they had been given back unseen.
            twice = [seen for seen in (run.seen | other.seen).values() if len(seen) > 1]
            assert len(twice) <= 1


@pytest.mark.guarantee("consumer-timeout")
def test_an_idle_consumer_is_not_struck_by_the_consumer_timeout(
    broken: LocalCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    bus = direct(broken, "mb1")
    declare(bus, [f"{topic}/all"])
    config = ConsumerConfig(consumer_timeout_s=4)
    with (
        consumer_timeout(broken, "mb1", 4),
        Consumer(bus, topic, subscription="all", config=config) as consumer,
    ):
        with Publisher(bus) as publisher:
            publisher.send_many(topic, [b"x"] * 10)
        eventually(lambda: consumer.stats().given_back == 10, within_s=WITHIN_S)
        time.sleep(6 * FACTOR)
        assert consumer.keep_alive()
        assert "link lost" not in caplog.text
        for _ in range(10):
            delivery = consumer.receive(WITHIN_S)
            assert delivery is not None
            assert consumer.ack_safe(delivery)


MESSAGES = int(os.environ.get("TESTS_MESSAGES", "2000"))
SEED = int(os.environ.get("TESTS_SEED", "1"))


@pytest.mark.guarantee("run-ends-only-itself")
def test_whatever_handlers_do_none_is_missing_and_none_is_parked_without_its_reason(
    broken: LocalCluster, tmp_path: Path
) -> None:
    """`make trial` is the long form: TESTS_MESSAGES, TESTS_SEED."""
    try:
        verdict = Trial(broken.client_env(), tmp_path / "run", MESSAGES, SEED).run()
    finally:
        restore(broken)
        for queue in (*QUEUES, OUT):
            forget(broken, queue.removeprefix("queue:"))
    assert verdict.faults == [], verdict.lines
