"""A line on which bytes still move is slow, but neither its broker nor its link is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from clients.conform.proxies import Proxy
from messagebus import (
    BusConfig,
    Durability,
    Outcome,
    Published,
    Publisher,
    PublisherConfig,
    Queue,
    Topic,
)
from messagebus._io.amqp import link
from messagebus._io.consume.copies import Copies, Original, Stored
from messagebus._io.publish import links
from messagebus._io.publish.driver import PublishDriver
from messagebus.clock import monotonic_ms
from messagebus.testing import MemoryBus
from tests.support.eventually import eventually, eventually_async
from tests.support.fake_amqp import FakeRabbit, fake_rabbit

# More than the buffers of both kernels hold, so that the line is seen.
BODY = bytes(16 << 20)
BYTES_PER_S = 4 << 20
# A small part of the time that the body needs.
SLOW_MS = RETIRE_MS = 1_000
WITHIN_S = 120.0
CONFIRMED = Published("m", Outcome.CONFIRMED, Durability.FSYNC, "mb1:5672", 1, 0, 0, "")


@contextmanager
def behind_a_slow_line(topic: Topic) -> Iterator[tuple[FakeRabbit, BusConfig]]:
    with fake_rabbit() as rabbit:
        rabbit.hold(str(topic))
        rabbit.declare("read", exchange=topic.exchange)
        proxy = Proxy(rabbit.name, bytes_per_s=BYTES_PER_S)
        try:
            yield rabbit, BusConfig(broker=proxy.address, dial_timeout_s=60)
        finally:
            proxy.close()


@pytest.mark.guarantee("names-and-slow-lines")
def test_a_message_that_needs_long_for_its_line_goes_over_it_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with behind_a_slow_line(Topic("orders")) as (rabbit, bus):
        with Publisher(bus, PublisherConfig(confirm_slow_s=SLOW_MS / 1000)) as publisher:
            publisher.send_safe("orders", b"first")
            end = publisher.send_safe("orders", BODY, timeout_s=WITHIN_S)
            dials = publisher.stats().dials
        assert (end.outcome, end.attempts, rabbit.published) == (Outcome.CONFIRMED, 1, 2)
    assert dials == 1, "no other broker is looked for"
    assert "broker slow" not in caplog.text


@pytest.mark.guarantee("names-and-slow-lines")
def test_a_link_that_is_replaced_may_finish_what_is_on_its_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "RETIRE_MS", RETIRE_MS)
    with behind_a_slow_line(Topic("orders")) as (rabbit, bus):
        with Publisher(bus) as publisher:
            publisher.send_safe("orders", b"first")
            future = publisher.submit("orders", BODY, timeout_s=WITHIN_S)
            eventually(lambda: publisher.stats().window, within_s=WITHIN_S)
            publisher.refresh_connection()
            end = future.result(WITHIN_S)
            assert publisher.stats().moves == 1
        assert (end.outcome, end.attempts, rabbit.published) == (Outcome.CONFIRMED, 1, 2)


def test_a_stop_lets_a_slow_line_take_what_needs_no_confirm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link, "CLOSE_TIMEOUT_MS", SLOW_MS)
    topic = Topic("orders", durability=Durability.NONE)
    with behind_a_slow_line(topic) as (rabbit, bus):
        publisher = Publisher(bus)
        publisher.start(require="one", timeout_s=WITHIN_S)
        publisher.send(topic, b"first")
        eventually(lambda: rabbit.published == 1, within_s=WITHIN_S)
        publisher.send(topic, BODY)
        publisher.stop(WITHIN_S)
        assert rabbit.published == 2


async def test_a_slow_broker_that_answers_now_and_then_is_not_logged_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bus = MemoryBus()
    bus.declare("orders/a")
    async with bus.async_publisher(
        config=PublisherConfig(confirm_slow_s=SLOW_MS / 1000)
    ) as publisher:
        await publisher.send_safe("orders", b"first")
        bus.freeze()
        assert publisher._drivers is not None
        used = publisher._drivers.own
        for number in range(5):
            await publisher.submit("orders", b"slow")
            await asyncio.sleep(0)
            used.links.leave_if_slow(monotonic_ms() + 2 * SLOW_MS)
            used.answered(used.links.route.current or 0, number + 2, False, True)
        bus.thaw()
    bus.close()
    assert caplog.text.count("broker slow") == 1


@pytest.mark.parametrize("late", [False, True])
async def test_brokers_that_are_all_slow_are_not_left_again_and_again(
    caplog: pytest.LogCaptureFixture, late: bool
) -> None:
    """A confirm of the next broker says that not all are slow, unless it comes late, too."""
    bus = MemoryBus(brokers=2)
    bus.declare("orders/a")
    async with bus.async_publisher(PublisherConfig(confirm_slow_s=SLOW_MS / 1000)) as publisher:
        await publisher.send_safe("orders", b"first")
        assert publisher._drivers is not None
        used = publisher._drivers.own.links
        bus.slow(1)

        async def left_as_slow() -> int:
            """Leave the current broker, if it is left for a publish without an answer."""
            await publisher.submit("orders", b"slow")
            await asyncio.sleep(0)
            now = monotonic_ms() + 2 * SLOW_MS
            used.leave_if_slow(now)
            used.perform(used.route.tick(now))
            return now

        slow_ms = await left_as_slow()
        await eventually_async(lambda: publisher.stats().moves == 1, within_s=WITHIN_S)
        await publisher.submit("orders", b"slow, too")
        await asyncio.sleep(0)
        used.answers(used.route.current or 0, slow_ms if late else monotonic_ms())
        await left_as_slow()
        bus.slow(0)
        bus.advance(1)
    bus.close()
    assert caplog.text.count("broker slow") == (1 if late else 2)


async def test_a_copy_has_the_time_that_its_body_needs_on_a_slow_line() -> None:
    """A copy that ends before it is stored is tried again permanently, and its original is never answered."""
    times_ms: dict[int, int] = {}

    class Memory:
        def submit_encoded(self, *given: Any) -> None:
            _target, body, _id, _properties, times_ms[len(body)], waiter = given
            waiter.set_result(CONFIRMED)

    driver = SimpleNamespace(memory=Memory(), start=lambda: None)
    copies = Copies(cast(PublishDriver, driver), Queue("jobs"))
    for size in (0, 16 << 20):
        original = Original(properties=b"\0\0", body=bytes(size), entry=False, stamp_ms=0)
        assert await copies.again(original, {}, lambda: True) is Stored.STORED
    added_ms = times_ms[16 << 20] - times_ms[0]
    assert (16 << 20) / added_ms < 500, "bytes a millisecond: the line may be slower than 0.5 MB/s"
