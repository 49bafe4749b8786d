"""Promise: a broker that breaks the protocol, falls silent, cancels or closes costs a link and no more.

On the fake broker of tests/support, which does on demand what RabbitMQ does rarely or never. Publishes and
deliveries that are open at that moment have one outcome each, and the clients recover by themselves.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest

from clients.conform.proxies import Proxy
from messagebus import (
    BacklogFull,
    BusConfig,
    Consumer,
    NotReady,
    Outcome,
    Published,
    Publisher,
    PublisherConfig,
    Spool,
)
from messagebus._io.publish import driver as publishing_driver
from messagebus._io.publish import links as publishing_links
from tests.support.eventually import FACTOR, eventually
from tests.support.fake_amqp import FakeRabbit, Manners, fake_rabbit
from tests.support.orders import QUEUE, SUBSCRIPTION, TOPIC, WITHIN_S, taken

INSIST_S = 0.6
OPEN = 50
NEVER_SLOW_S = 3_600
# A heartbeat frame whose last byte is not the one that ends every frame.
BAD_FRAME = b"\x08\x00\x00\x00\x00\x00\x00\x00"
# A frame of no known type.
ODD_FRAME = b"\x09\x00\x01\x00\x00\x00\x00\xce"
# One that claims to be larger than anything agreed.
HUGE_FRAME = b"\x03\x00\x01\xff\xff\xff\xff" + b"x" * 64
BODY_BYTES = 64 * 1024
# A link's limit in flight (16 MiB, messagebus/_io), a backlog of one, and the cost of objects.
MEMORY_MAX_BYTES = 80 * 1024 * 1024


@contextmanager
def consuming(rabbit: FakeRabbit) -> Iterator[Consumer]:
    consumer = Consumer(BusConfig(broker=rabbit.name), TOPIC, subscription=SUBSCRIPTION)
    consumer.start(require="one", timeout_s=WITHIN_S * FACTOR)
    try:
        yield consumer
    finally:
        consumer.stop(timeout_s=0)


@contextmanager
def publishing(
    rabbit: FakeRabbit, config: PublisherConfig | None = None, *, heartbeat_s: int = 10
) -> Iterator[Publisher]:
    publisher = Publisher(BusConfig(broker=rabbit.name, heartbeat_s=heartbeat_s), config)
    publisher.start(require="one", timeout_s=WITHIN_S * FACTOR)
    try:
        yield publisher
    finally:
        publisher.stop(timeout_s=1)


def ends(futures: list[Future[Published]]) -> set[Outcome]:
    return {future.result(WITHIN_S * FACTOR).outcome for future in futures}


@pytest.mark.guarantee("malformed-frames")
@pytest.mark.parametrize("frame", [BAD_FRAME, ODD_FRAME], ids=["end", "type"])
def test_a_frame_that_is_none_ends_the_link_and_clients_come_back(
    rabbit: FakeRabbit, hot_path: str, frame: bytes
) -> None:
    with publishing(rabbit) as publisher, consuming(rabbit) as consumer:
        publisher.send_safe(TOPIC, b"before", timeout_s=WITHIN_S)
        assert taken(consumer).body == b"before"
        rabbit.send_raw(frame)
        rabbit.send_raw(frame)
        eventually(lambda: publisher.stats().links_lost > 0, within_s=WITHIN_S)
        publisher.send_safe(TOPIC, b"after", timeout_s=WITHIN_S)
        assert taken(consumer).body == b"after"


@pytest.mark.guarantee("malformed-frames")
def test_a_frame_larger_than_agreed_ends_the_link(rabbit: FakeRabbit, hot_path: str) -> None:
    with publishing(rabbit) as publisher:
        publisher.send_safe(TOPIC, b"before", timeout_s=WITHIN_S)
        rabbit.send_raw(HUGE_FRAME)
        eventually(lambda: publisher.stats().links_lost > 0, within_s=WITHIN_S)
        publisher.send_safe(TOPIC, b"after", timeout_s=WITHIN_S)


@pytest.mark.guarantee("malformed-frames")
@pytest.mark.parametrize("off_by", [-1, 10, 1 << 40], ids=["longer", "shorter", "endless"])
def test_content_of_another_size_than_announced_ends_the_link_and_no_process(
    rabbit: FakeRabbit, hot_path: str, off_by: int
) -> None:
    with consuming(rabbit) as consumer:
        before = rabbit.accepted
        rabbit.put(QUEUE, b"x" * 100, size=100 + off_by)
        rabbit.put(QUEUE, b"behind it")
        eventually(lambda: rabbit.accepted > before, within_s=WITHIN_S, what="dialled again")
        eventually(lambda: _put_and_received(rabbit, consumer), within_s=WITHIN_S)


def _put_and_received(rabbit: FakeRabbit, consumer: Consumer) -> bool:
    """Return whether a good message comes through; one delivered before came with its bad neighbour."""
    rabbit.on_loop(lambda: rabbit.queues[QUEUE].messages.clear())
    rabbit.put(QUEUE, b"good")
    delivery = consumer.receive(0.5)
    return delivery is not None and delivery.body == b"good"


@pytest.mark.guarantee("malformed-frames")
@pytest.mark.parametrize("channels", [1, 2, 2_047])
def test_the_smallest_frames_and_one_channel_are_enough(hot_path: str, channels: int) -> None:
    body = bytes(range(256)) * 4_000
    with fake_rabbit(manners=Manners(frame_max=4096, channel_max=channels)) as rabbit:
        rabbit.hold(TOPIC)
        rabbit.hold(f"{TOPIC}/{SUBSCRIPTION}")
        with publishing(rabbit) as publisher, consuming(rabbit) as consumer:
            publisher.send_safe(TOPIC, body, timeout_s=WITHIN_S)
            assert taken(consumer).body == body


def test_headers_above_the_agreed_frame_are_refused_with_their_size_and_cost_no_link(
    hot_path: str,
) -> None:
    """A broker hangs up at such a frame; the next link would end at the same message."""
    with fake_rabbit(manners=Manners(frame_max=4096)) as rabbit:
        rabbit.hold(TOPIC)
        rabbit.hold(f"{TOPIC}/{SUBSCRIPTION}")
        with publishing(rabbit) as publisher:
            waits = publisher.submit(TOPIC, b"x", headers={"a": "x" * 5_000})  # before any link
            publisher.send_safe(TOPIC, b"fits", timeout_s=WITHIN_S, headers={"a": "x" * 3_000})
            later = publisher.submit(TOPIC, b"x", headers={"a": "x" * 5_000})
            for end in (waits.result(WITHIN_S), later.result(WITHIN_S)):
                assert end.outcome is Outcome.REFUSED
                assert "4076" in end.reason
            assert publisher.stats().links_lost == 0


def test_headers_of_a_spool_above_the_agreed_frame_cost_no_link_and_no_other_destination(
    hot_path: str, tmp_path: Path
) -> None:
    with fake_rabbit(manners=Manners(frame_max=4096)) as rabbit:
        for topic in (TOPIC, "others"):
            rabbit.hold(topic)
            rabbit.hold(f"{topic}/{SUBSCRIPTION}")
        config = PublisherConfig(spool=Spool(tmp_path, always=True))
        with publishing(rabbit, config) as publisher:
            end = publisher.send_safe(TOPIC, b"x", headers={"a": "x" * 5_000})
            assert end.outcome is Outcome.SPOOLED
            publisher.send_safe("others", b"fits", headers={"a": "x" * 3_000})
            eventually(lambda: publisher.stats().spool_messages == 1, within_s=WITHIN_S)
            eventually(lambda: publisher.stats().spool_failures > 1, within_s=WITHIN_S)
            assert publisher.stats().links_lost == 0
            assert publisher.stats().spool_messages == 1, "another broker may take it"


@pytest.mark.guarantee("malformed-frames")
@pytest.mark.parametrize(("ours", "theirs"), [(0, 60), (10, 0), (0, 0)])
def test_without_heartbeats_messages_flow(ours: int, theirs: int) -> None:
    with fake_rabbit(manners=Manners(heartbeat_s=theirs)) as rabbit:
        rabbit.hold(TOPIC)
        rabbit.hold(f"{TOPIC}/{SUBSCRIPTION}")
        with publishing(rabbit, heartbeat_s=ours) as publisher, consuming(rabbit) as consumer:
            publisher.send_safe(TOPIC, b"x", timeout_s=WITHIN_S)
            assert taken(consumer).body == b"x"


@pytest.mark.guarantee("frozen-or-silent-link")
def test_a_link_that_fell_silent_is_left_at_missed_heartbeats(rabbit: FakeRabbit) -> None:
    config = PublisherConfig(confirm_slow_s=NEVER_SLOW_S)
    with publishing(rabbit, config, heartbeat_s=1) as publisher:
        publisher.send_safe(TOPIC, b"x", timeout_s=WITHIN_S)
        rabbit.mute()
        future = publisher.submit(TOPIC, b"y")
        rabbit.manners.silent_after = ""
        end = future.result(WITHIN_S * FACTOR)
        assert (end.outcome, end.attempts) == (Outcome.CONFIRMED, 2)


@pytest.mark.guarantee("frozen-or-silent-link")
def test_a_line_that_fell_silent_is_left_for_another_broker_before_its_confirms_are_slow(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(publishing_links, "RETIRE_MS", int(INSIST_S * 1000))
    with fake_rabbit() as first, fake_rabbit() as second:
        for rabbit in (first, second):
            rabbit.hold(f"{TOPIC}/{SUBSCRIPTION}")
        line = Proxy(first.name)
        try:
            with Publisher(BusConfig(broker=line.address)) as publisher:
                publisher.send_safe(TOPIC, b"x", timeout_s=WITHIN_S)
                line.target = second.name
                first.mute()
                waiting = publisher.submit(TOPIC, b"y")
                eventually(lambda: publisher.stats().moves, within_s=WITHIN_S)
                assert publisher.send_safe(TOPIC, b"z").broker == second.name
                end = waiting.result(WITHIN_S * FACTOR)
        finally:
            line.close()
    assert (end.outcome, end.attempts, end.broker) == (Outcome.CONFIRMED, 2, second.name)
    assert f"broker silent broker={first.name}" in caplog.text


@pytest.mark.guarantee("frozen-or-silent-link")
def test_without_heartbeats_a_link_that_fell_silent_is_left_for_one_to_the_same_broker(
    rabbit: FakeRabbit, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Publishes sent on a link that retires would wait for its answers.
    monkeypatch.setattr(publishing_links, "RETIRE_MS", 10 * int(WITHIN_S * 1000 * FACTOR))
    config = PublisherConfig(confirm_slow_s=0.2, deadline_s=WITHIN_S)
    with publishing(rabbit, config, heartbeat_s=0) as publisher:
        publisher.send_safe(TOPIC, b"x", timeout_s=WITHIN_S)
        rabbit.mute()
        before = rabbit.accepted
        future = publisher.submit(TOPIC, b"y")
        eventually(lambda: rabbit.accepted > before, within_s=WITHIN_S, what="dialled again")
        rabbit.manners.silent_after = ""
        assert future.result(WITHIN_S * FACTOR).outcome is Outcome.CONFIRMED


@pytest.mark.guarantee("frozen-or-silent-link")
@pytest.mark.parametrize("step", ["connect", "start", "tune", "open"])
def test_silence_in_the_handshake_is_given_up_within_its_time_and_tried_again(
    rabbit: FakeRabbit, step: Literal["connect", "start", "tune", "open"]
) -> None:
    rabbit.manners.silent_after = step
    bus = BusConfig(broker=rabbit.name, dial_timeout_s=0.1, dial_timeout_max_s=0.2)
    with pytest.raises(NotReady):
        Publisher(bus).start(require="one", timeout_s=INSIST_S)
    with pytest.raises(NotReady):
        Consumer(bus, TOPIC, subscription=SUBSCRIPTION).start(require="one", timeout_s=INSIST_S)
    eventually(lambda: not rabbit.clients, within_s=WITHIN_S, what="every socket closed")
    with Publisher(bus) as publisher:
        before = rabbit.accepted
        eventually(lambda: rabbit.accepted > before + 1, within_s=WITHIN_S)
        rabbit.manners.silent_after = ""
        publisher.send_safe(TOPIC, b"x", timeout_s=WITHIN_S)


def closers() -> dict[str, Callable[[FakeRabbit], object]]:
    return {
        "channel": lambda rabbit: rabbit.close_channels(),
        "connection": lambda rabbit: rabbit.close_connections(),
        "reset": lambda rabbit: rabbit.drop_connections(),
    }


@pytest.mark.guarantee("one-outcome-per-publish")
@pytest.mark.parametrize("how", list(closers()))
@pytest.mark.parametrize("retry", [True, False], ids=["retried", "not-retried"])
def test_what_a_closed_link_leaves_open_has_one_outcome(
    rabbit: FakeRabbit, hot_path: str, how: str, retry: bool
) -> None:
    config = PublisherConfig(retry_unknown=retry, confirm_slow_s=NEVER_SLOW_S)
    with publishing(rabbit, config) as publisher:
        publisher.send_safe(TOPIC, b"x", timeout_s=WITHIN_S)
        rabbit.manners.confirms = "never"
        futures = [publisher.submit(TOPIC, b"y") for _ in range(OPEN)]
        eventually(lambda: rabbit.published >= OPEN + 1, within_s=WITHIN_S)
        rabbit.manners.confirms = "multiple"
        closers()[how](rabbit)
        assert ends(futures) == {Outcome.CONFIRMED if retry else Outcome.UNKNOWN}
        assert {f.result().attempts for f in futures} == {2 if retry else 1}
        stored = rabbit.queues[QUEUE].messages
        ids = {each.decoded.message_id for each in stored}
        assert {f.result().message_id for f in futures} <= ids
        assert len(ids) == OPEN + 1, "a copy under another id"


@pytest.mark.guarantee("one-outcome-per-publish")
@pytest.mark.parametrize("confirms", ["single", "reversed", "multiple"])
def test_confirms_in_any_order_and_grouping_settle_what_they_name(
    rabbit: FakeRabbit, hot_path: str, confirms: Literal["single", "reversed", "multiple"]
) -> None:
    rabbit.manners.confirms = confirms
    with publishing(rabbit) as publisher:
        futures = [publisher.submit(TOPIC, b"x") for _ in range(OPEN)]
        assert ends(futures) == {Outcome.CONFIRMED}
        assert publisher.stats().window == 0


@pytest.mark.guarantee("one-outcome-per-publish")
def test_a_refusal_is_the_outcome_of_what_was_refused(rabbit: FakeRabbit, hot_path: str) -> None:
    with publishing(rabbit) as publisher:
        publisher.send_safe(TOPIC, b"x", timeout_s=WITHIN_S)
        rabbit.manners.confirms = "nack"
        assert ends([publisher.submit(TOPIC, b"y") for _ in range(OPEN)]) == {Outcome.REFUSED}
        rabbit.manners.confirms = "multiple"
        assert ends([publisher.submit(TOPIC, b"z") for _ in range(OPEN)]) == {Outcome.CONFIRMED}


@pytest.mark.guarantee("cancel-by-the-server")
def test_a_consumer_that_the_broker_cancels_attaches_again(
    rabbit: FakeRabbit, hot_path: str
) -> None:
    with consuming(rabbit) as consumer:
        for number in range(3):
            eventually(lambda: rabbit.queues[QUEUE].consumers, within_s=WITHIN_S)
            assert rabbit.cancel_consumers(QUEUE) == 1
            rabbit.put(QUEUE, b"%d" % number)
            assert taken(consumer).body == b"%d" % number


@pytest.mark.guarantee("alarm-is-left")
def test_a_blocked_broker_takes_nothing_until_it_is_unblocked_and_deadlines_hold(
    rabbit: FakeRabbit,
) -> None:
    with publishing(rabbit) as publisher:
        publisher.send_safe(TOPIC, b"x", timeout_s=WITHIN_S)
        rabbit.block()
        late = publisher.submit(TOPIC, b"late", timeout_s=0.3)
        patient = publisher.submit(TOPIC, b"patient")
        assert late.result(WITHIN_S * FACTOR).outcome in (Outcome.REFUSED, Outcome.UNKNOWN)
        assert not patient.done()
        rabbit.unblock()
        assert patient.result(WITHIN_S * FACTOR).outcome is Outcome.CONFIRMED


@pytest.mark.guarantee("every-wait-is-bounded")
def test_a_broker_that_reads_nothing_fills_the_backlog_and_no_memory(
    rabbit: FakeRabbit, hot_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So nothing but the socket bounds it: 256 MiB fit into the window.
    monkeypatch.setattr(publishing_driver, "WINDOW_BYTES_MAX", 1 << 40)
    config = PublisherConfig(
        window=4_096,
        backlog_bytes_max=1024 * 1024,
        confirm_slow_s=NEVER_SLOW_S,
        deadline_s=WITHIN_S * FACTOR,
    )
    body = b"x" * BODY_BYTES
    with publishing(rabbit, config, heartbeat_s=0) as publisher:
        publisher.send_safe(TOPIC, b"x", timeout_s=WITHIN_S)
        rabbit.stop_reading()
        tracemalloc.start()
        futures: list[Future[Published]] = []
        with pytest.raises(BacklogFull):
            _submit_for_ever(publisher, body, futures)
        assert tracemalloc.get_traced_memory()[1] < MEMORY_MAX_BYTES
        tracemalloc.stop()
        rabbit.go_on_reading()
        settled = [future.result(WITHIN_S * FACTOR) for future in futures]
    # Publishes in flight are confirmed at last; waiting ones may have passed their deadline meanwhile.
    assert {each.outcome for each in settled} <= {
        Outcome.CONFIRMED,
        Outcome.REFUSED,
        Outcome.UNKNOWN,
    }
    assert len(settled) == len(futures)


def _submit_for_ever(publisher: Publisher, body: bytes, futures: list[Future[Published]]) -> None:
    while True:
        futures.append(publisher.submit(TOPIC, body + b"%d" % len(futures), timeout_s=0.5))


@pytest.mark.guarantee("over-the-brokers-limit")
def test_a_message_over_the_brokers_limit_ends_and_the_publisher_goes_on(
    rabbit: FakeRabbit, hot_path: str
) -> None:
    rabbit.manners.message_bytes_max = 1_000
    with publishing(rabbit, PublisherConfig(attempts_max=3)) as publisher:
        bad = publisher.submit(TOPIC, b"x" * 1_001)
        assert bad.result(WITHIN_S * FACTOR).outcome in (Outcome.REFUSED, Outcome.UNKNOWN)
        assert ends([publisher.submit(TOPIC, b"good") for _ in range(OPEN)]) == {Outcome.CONFIRMED}
    assert {each.body for each in rabbit.queues[QUEUE].messages} == {b"good"}


@pytest.mark.guarantee("over-the-brokers-limit")
def test_a_message_over_the_brokers_limit_says_why_and_costs_those_behind_it_nothing(
    rabbit: FakeRabbit, hot_path: str
) -> None:
    rabbit.manners.message_bytes_max = 1_000
    config = PublisherConfig(deadline_s=WITHIN_S, attempts_max=3)
    with publishing(rabbit, config) as publisher:
        good = [publisher.submit(TOPIC, b"good") for _ in range(OPEN)]
        bad = publisher.submit(TOPIC, b"x" * 1_001)
        good += [publisher.submit(TOPIC, b"good") for _ in range(OPEN)]
        end = bad.result(WITHIN_S * FACTOR)
        assert end.outcome in (Outcome.REFUSED, Outcome.UNKNOWN)
        assert "larger" in end.reason
        assert ends(good) == {Outcome.CONFIRMED}
