"""Usual mistakes of a first day: each gets one line that says what to write instead."""

from __future__ import annotations

import pytest

from messagebus import (
    BusConfig,
    ConfigError,
    Consumer,
    LinkLost,
    NameInvalid,
    count_subscriptions,
    declare,
)
from messagebus.testing import MemoryBus


def test_a_subscription_in_one_text_is_shown_in_two() -> None:
    with pytest.raises(NameInvalid, match=r"say \('orders', subscription='billing'\)"):
        Consumer(BusConfig(), "orders/billing")
    with pytest.raises(NameInvalid, match="or 'queue:jobs' for a queue"):
        Consumer(BusConfig(), "jobs")


async def test_a_mistyped_option_is_shown_as_it_is_spelled() -> None:
    bus = MemoryBus()
    async with bus.async_publisher() as publisher:
        with pytest.raises(TypeError, match="did you mean 'timeout_s'"):
            await publisher.send_safe("orders", b"x", time_out=3)  # type: ignore[call-arg]


def test_a_login_in_the_brokers_address_is_sent_to_its_settings_and_not_shown() -> None:
    with pytest.raises(ConfigError, match="give user, password and vhost as settings") as fault:
        BusConfig(broker="amqp://guest:sesame@mb1:5672/")
    assert "sesame" not in str(fault.value)


def test_a_single_broker_is_said_to_have_no_agents() -> None:
    with pytest.raises(ConfigError, match="a single RabbitMQ has none"):
        count_subscriptions(BusConfig())


def test_an_error_behind_a_blocking_call_is_shown_alone() -> None:
    with pytest.raises(LinkLost) as fault:
        declare(BusConfig(broker="127.0.0.1:1"), ["orders/billing"], timeout_s=1)
    assert fault.value.__context__ is None, "no 'During handling of the above exception'"
