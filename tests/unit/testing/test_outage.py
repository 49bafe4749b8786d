"""A client that reaches no broker says so: once when that begins, once a minute, once when it ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from messagebus import AsyncConsumer, AsyncPublisher, LinkLost, LoginRefused, Refused
from messagebus._io import wire
from messagebus._io.amqp.link import Link
from messagebus._io.publish import dialing
from messagebus._io.wire import OUTAGE_LOGGED_EVERY_MS, Outage
from messagebus.clock import LogLimit
from messagebus.errors import ChannelRefused
from messagebus.testing import MemoryBus, links
from tests.support.eventually import eventually_async

WITHIN_S = 60.0
log = logging.getLogger("messagebus.test")


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    made = MemoryBus()
    made.declare("orders/a")
    yield made
    made.close()


def lines(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [each for each in caplog.messages if words in each]


@pytest.mark.parametrize("kind", ["publisher", "consumer"])
async def test_a_client_without_any_broker_says_so_once_and_once_when_it_ends(
    bus: MemoryBus, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    caplog.set_level(logging.INFO)
    bus.stop_brokers()
    client: AsyncPublisher | AsyncConsumer
    client = (
        bus.async_publisher()
        if kind == "publisher"
        else bus.async_consumer("orders", subscription="a")
    )
    await client.start()
    if isinstance(client, AsyncPublisher):
        assert client._drivers is not None
        outage = client._drivers.own.links.dialer.outage
    else:
        assert client._driver is not None
        outage = client._driver.links.outage
    await eventually_async(lambda: outage._dials > 3, within_s=WITHIN_S)
    assert len(lines(caplog, "no answer yet from broker=")) == 1
    assert len(caplog.messages) == len(set(caplog.messages)), "no line comes twice"
    bus.start_brokers()
    await eventually_async(lambda: lines(caplog, "reconnected"), within_s=WITHIN_S)
    bus.lose_connection()
    await eventually_async(lambda: len(lines(caplog, "link lost")) == 1, within_s=WITHIN_S)
    await client.stop(0)
    assert len(lines(caplog, "reconnected")) == 1


def test_a_broker_that_lacks_a_queue_in_the_making_is_no_outage(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1_000]
    monkeypatch.setattr(wire, "monotonic_ms", lambda: clock[0])
    outage = Outage(log)
    absent = ChannelRefused("b1", 404, "no queue")
    outage.dial_failed("b1", absent)
    clock[0] += wire.ABSENT_LOGGED_AFTER_MS - 1
    outage.dial_failed("b1", absent)
    outage.over("b1")
    assert caplog.messages == []
    for _ in range(2):
        outage.dial_failed("b1", absent)
        clock[0] += wire.ABSENT_LOGGED_AFTER_MS
    assert [each.split("for_s=")[1] for each in caplog.messages] == [
        f"10 dials=2 reason='b1: 404 no queue' docs={absent.docs}"
    ]


async def test_a_consumer_whose_subscription_is_being_created_warns_of_nothing(
    bus: MemoryBus, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    created, register = asyncio.Event(), links._MemoryTopology.register

    async def late(*args: Any, **options: Any) -> Any:
        await created.wait()
        return await register(*args, **options)

    monkeypatch.setattr(links._MemoryTopology, "register", late)
    async with bus.async_consumer("orders", subscription="new") as consumer:
        driver = consumer._driver
        assert driver is not None
        await eventually_async(lambda: driver.links.outage._dials > 1, within_s=WITHIN_S)
        created.set()
        await eventually_async(consumer.keep_alive, within_s=WITHIN_S)
    assert lines(caplog, "broker is reached") == []


def test_a_long_outage_is_told_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1_000]
    monkeypatch.setattr(wire, "monotonic_ms", lambda: clock[0])
    outage = Outage(log)
    outage.over("b1")
    assert caplog.messages == []
    why = "reason='no answer in time' docs=docs/reference/errors.md#linklost"
    for _ in range(130):
        outage.dial_failed("b1", TimeoutError())
        clock[0] += 1_000
    assert [each.split("for_s=")[1] for each in caplog.messages] == [
        f"0 dials=1 {why}",
        f"60 dials=61 {why}",
        f"120 dials=121 {why}",
    ]
    outage.over("b1")
    assert "after_s=130" in caplog.messages[-1]
    outage.dial_failed("b1", TimeoutError())
    assert caplog.messages[-1].endswith(f"for_s=0 dials=1 {why}")
    assert OUTAGE_LOGGED_EVERY_MS == 60_000


async def test_a_publish_that_found_no_link_names_the_refused_login(
    bus: MemoryBus, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = iter([LoginRefused("b1", "ACCESS_REFUSED - Login was refused")])

    async def dial(*_: Any, **__: Any) -> Link:
        raise next(faults, LinkLost("b1", "no answer in time"))

    monkeypatch.setattr(links.MemoryWire, "dial", dial)
    monkeypatch.setattr(dialing, "_refusals", LogLimit(0))
    async with bus.async_publisher() as publisher:
        assert publisher._drivers is not None
        route = publisher._drivers.own.links.route
        await eventually_async(lambda: route.dials > 2, within_s=WITHIN_S)
        with pytest.raises(Refused, match="; login refused: b1: ACCESS_REFUSED"):
            await publisher.send_safe("orders", b"x", timeout_s=0.01)
    assert "login refused broker=b1" in caplog.messages[0], "not that nobody is reached"
