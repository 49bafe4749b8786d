"""Usual mistakes of a first day: each gets one line that says what to write instead."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from messagebus import (
    App,
    AsyncConsumer,
    AsyncPublisher,
    AsyncReplay,
    BusConfig,
    ConfigError,
    Consumer,
    ConsumerConfig,
    LinkLost,
    NameInvalid,
    Publisher,
    PublisherConfig,
    Replay,
    Stopped,
    declare,
)
from messagebus import publisher as publisher_module
from messagebus.admin import count_subscriptions, read_parked
from messagebus.clock import LogLimit
from messagebus.testing import MemoryBus


def test_a_subscription_in_one_text_is_shown_in_two() -> None:
    with pytest.raises(NameInvalid, match=r"say \('orders', subscription='billing'\)"):
        Consumer(BusConfig(), "orders/billing")
    with pytest.raises(NameInvalid, match="or 'queue:jobs' for a queue"):
        Consumer(BusConfig(), "jobs")


def test_a_single_broker_is_said_to_have_no_agents() -> None:
    with pytest.raises(ConfigError, match="a single RabbitMQ has none"):
        count_subscriptions(BusConfig())


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (None, "not NoneType; receive returns None when no message came in time"),
        ("x", "not str"),
        ([], "not list; answer each of them by a call of its own"),
    ],
)
async def test_an_answer_to_what_is_no_delivery_is_one_line(given: Any, told: str) -> None:
    bus = MemoryBus()
    bus.declare("orders/billing")
    answers: dict[str, dict[str, Any]] = {
        **{"ack": {}, "nack": {}, "ack_safe": {}},
        **{"retry": {"after_s": 1}, "park": {"reason": "x"}},
    }
    async with bus.async_consumer("orders", subscription="billing") as consumer:
        for name, options in answers.items():
            with pytest.raises(TypeError, match=told) as fault:
                await getattr(consumer, name)(given, **options)
            assert fault.value.__suppress_context__
    with bus.consumer("orders", subscription="billing") as blocking:
        for name, options in answers.items():
            with pytest.raises(TypeError, match=told):
                getattr(blocking, name)(given, **options)


def test_a_client_that_was_not_started_says_how_it_is_started() -> None:
    bus = MemoryBus()
    uses: list[Callable[[], object]] = [
        bus.publisher().stats,
        bus.consumer("orders", subscription="billing").receive_immediate,
        bus.async_publisher().stats,
        bus.async_consumer("orders", subscription="billing").stats,
    ]
    for use in uses:
        with pytest.raises(Stopped, match=r"was not started: call start\(\), or use it by"):
            use()


def test_an_error_behind_a_blocking_call_is_shown_alone() -> None:
    with pytest.raises(LinkLost) as fault:
        declare(BusConfig(broker="127.0.0.1:1"), ["orders/billing"], timeout_s=1)
    assert fault.value.__context__ is None, "no 'During handling of the above exception'"


@pytest.mark.parametrize(
    "use",
    [
        Publisher,
        AsyncPublisher,
        App,
        lambda bus: Consumer(bus, "orders", subscription="billing"),
        lambda bus: AsyncConsumer(bus, "orders", subscription="billing"),
        lambda bus: Replay(bus, "orders"),
        lambda bus: AsyncReplay(bus, "orders"),
        lambda bus: declare(bus, ["orders/billing"]),
        lambda bus: read_parked(bus, "orders/billing"),
    ],
)
def test_what_is_no_bus_is_named_at_once_and_its_value_is_not_shown(
    use: Callable[[Any], object],
) -> None:
    with pytest.raises(ConfigError, match=r"not MemoryBus: .*bus\.replay\(\)"):
        use(MemoryBus())
    with pytest.raises(ConfigError, match=r"a BusConfig or None, not str: BusConfig\(broker="):
        use("amqp://guest:hidden@localhost:5672/")
    with pytest.raises(ConfigError) as fault:
        use("amqp://guest:hidden@localhost:5672/")
    assert "hidden" not in str(fault.value)


@pytest.mark.parametrize("bus", [BusConfig(), None])
def test_the_settings_of_another_client_are_named_at_once(bus: BusConfig | None) -> None:
    consuming: Any = ConsumerConfig()
    publishing: Any = PublisherConfig()
    with pytest.raises(ConfigError, match="config: a PublisherConfig or None, not ConsumerConfig"):
        Publisher(bus, consuming)
    with pytest.raises(ConfigError, match="config: a ConsumerConfig or None, not PublisherConfig"):
        Consumer(bus, "orders", subscription="billing", config=publishing)
    with pytest.raises(ConfigError, match="config: a ConsumerConfig or None, not dict"):
        AsyncConsumer(bus, "orders", subscription="billing", config={})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="config: a PublisherConfig or None, not str"):
        AsyncPublisher(bus, "")  # type: ignore[arg-type]


async def test_a_call_that_waits_in_a_coroutine_is_named_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module, "_waits_in_a_loop", LogLimit(60_000))
    bus = MemoryBus()
    bus.declare("orders/billing")
    with bus.publisher() as publisher:
        for _ in range(3):
            publisher.send_safe("orders", b"x")
        await asyncio.to_thread(publisher.send_safe, "orders", b"x")
    bus.close()
    warned = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert [each.partition(":")[0] for each in warned] == [
        "a call that waits stops the event loop of this thread"
    ]
