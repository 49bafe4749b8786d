"""Numbers from outside, and each entrance that reads some."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus import (
    Batching,
    BusConfig,
    ConfigError,
    Consumer,
    ConsumerConfig,
    MessageInvalid,
    NameInvalid,
    PublisherConfig,
    RelayConfig,
    Replay,
    RetryPolicy,
    Spool,
    Topic,
)
from messagebus._io.publish.calls import _delay_ms
from messagebus.admin import purge_parked, read_parked, redrive_parked
from messagebus.envelope import read_envelope
from messagebus.numbers import read_number, read_whole
from messagebus.recording.recorder import Recorder
from messagebus.services.gateway.problems import Problem, seconds
from messagebus.services.gateway.publishing import read_line
from messagebus.services.gateway.reading import read_count, read_seconds
from messagebus.testing import MemoryBus

LOW, HIGH = -5, 1_000
NONE: list[Any] = [
    *(math.nan, math.inf, -math.inf, 1e308, True, False, None, [], {}, b"1", 10**400),
    *(
        "",
        " ",
        "x",
        "1_0",
        "0x1",
        "1 ",
        " 1",
        "+-1",
        "--1",
        "\N{ARABIC-INDIC DIGIT ONE}",
        "9" * 5_000,
    ),
    *("nan", "inf", "-inf", "1e999", "1" * 41, "\N{SUPERSCRIPT TWO}"),
]


@given(st.integers() | st.integers(LOW, HIGH))
def test_a_whole_number_is_read_from_a_number_or_its_digits_within_its_range(number: int) -> None:
    for value in (number, str(number)):
        if LOW <= number <= HIGH:
            assert read_whole(value, LOW, HIGH) == number
            assert read_number(value, LOW, HIGH) == number
        else:
            with pytest.raises(ValueError, match="a whole number from -5 to 1,000 wanted"):
                read_whole(value, LOW, HIGH)
            with pytest.raises(ValueError, match="a number from -5 to 1,000 wanted"):
                read_number(value, LOW, HIGH)


@given(st.floats())
def test_a_number_is_read_within_its_range(number: float) -> None:
    for value in (number, repr(number)):
        if LOW <= number <= HIGH and len(repr(number)) <= 40:
            assert read_number(value, LOW, HIGH) == number
        elif not LOW <= number <= HIGH:
            with pytest.raises(ValueError, match="wanted"):
                read_number(value, LOW, HIGH)
    with pytest.raises(ValueError, match="wanted"):
        read_whole(number, LOW, HIGH)


@pytest.mark.parametrize("value", NONE, ids=lambda value: repr(value)[:20])
def test_what_is_no_number_of_the_range_is_a_plain_error_at_each_entrance(value: Any) -> None:
    with pytest.raises(ValueError, match="wanted"):
        read_whole(value, LOW, HIGH)
    with pytest.raises(ValueError, match="wanted"):
        read_number(value, LOW, HIGH)
    with pytest.raises(Problem):
        read_count({"n": value}, "n", 1, 1, 9)
    with pytest.raises(Problem):
        read_seconds({"s": value}, "s", 1, 0, 9)
    if isinstance(value, str):
        with pytest.raises(Problem):
            seconds(value, "mb-delay-s", 0, 9)
    if not isinstance(value, bytes | None | int) or isinstance(value, bool):
        for name in ("delay_s", "ttl_s"):
            line = json.dumps({"destination": "orders", "body": "x", name: value}).encode()
            for read in (read_line, read_envelope):
                with pytest.raises(MessageInvalid):
                    read(line)
        with pytest.raises(MessageInvalid):
            _delay_ms({"deliver_after_s": value})
        with pytest.raises(MessageInvalid):
            _delay_ms({"deliver_at": value})


def test_a_time_that_is_none_is_refused_by_a_publisher() -> None:
    with MemoryBus().publisher(PublisherConfig()) as publisher:
        for at in (math.nan, -math.inf, math.inf, True, "soon"):
            with pytest.raises(MessageInvalid, match="deliver_at"):
                publisher.send_safe("orders", b"x", deliver_at=at)  # type: ignore[arg-type]
        with pytest.raises(MessageInvalid, match="time zone"):
            publisher.send_safe("orders", b"x", deliver_at=datetime(2027, 1, 1))


BUS = BusConfig()
# Each public call that takes a count. The first ones may be asked for none.
ZERO_IS_NONE: dict[str, Callable[[Any], object]] = {
    "read_parked": lambda count: read_parked(BUS, "orders/a", count_max=count),
    "redrive_parked": lambda count: redrive_parked(BUS, "orders/a", count_max=count),
    "purge_parked": lambda count: purge_parked(BUS, "orders/a", count_max=count),
    "refuse_next": lambda count: MemoryBus().refuse_next("orders", count),
    "duplicate_next": lambda count: MemoryBus().duplicate_next("orders", count),
    "reply_lost": lambda count: MemoryBus().store.reply_lost(count),
    "Topic": lambda count: Topic("orders", partitions=count),
}
ONE_AT_LEAST: dict[str, Callable[[Any], object]] = {
    "Batching.count_max": lambda count: Batching(count_max=count),
    "Batching.bytes_max": lambda count: Batching(bytes_max=count),
    "Spool.bytes_max": lambda count: Spool("x", bytes_max=count),
    "Spool.messages_max": lambda count: Spool("x", messages_max=count),
    "window": lambda count: PublisherConfig(window=count),
    "backlog_messages_max": lambda count: PublisherConfig(backlog_messages_max=count),
    "backlog_bytes_max": lambda count: PublisherConfig(backlog_bytes_max=count),
    "publish attempts_max": lambda count: PublisherConfig(attempts_max=count),
    "handed_out_max": lambda count: ConsumerConfig(handed_out_max=count),
    "prefetch": lambda count: ConsumerConfig(prefetch=count),
    "RetryPolicy": lambda count: RetryPolicy(attempts_max=count),
    "RelayConfig.batch": lambda count: RelayConfig(batch=count),
    "RelayConfig.held_max": lambda count: RelayConfig(held_max=count),
    "Replay": lambda count: Replay(BUS, "orders", prefetch=count),
    "Recorder": lambda count: Recorder("x", run_id="run", rows_max=count),
}


@pytest.mark.parametrize("call", [*ZERO_IS_NONE, *ONE_AT_LEAST])
def test_a_count_that_is_none_is_refused_before_anything_is_done(call: str) -> None:
    counts: list[Any] = [-1, True, 1.5, "1", math.nan]
    if call in ONE_AT_LEAST:
        counts.append(0)
    for count in counts:
        with pytest.raises((ConfigError, NameInvalid)):
            (ZERO_IS_NONE | ONE_AT_LEAST)[call](count)


async def test_receive_many_takes_no_more_than_it_is_asked_for() -> None:
    bus = MemoryBus()
    bus.declare("orders/a")
    async with bus.async_publisher() as publisher:
        await publisher.send_many("orders", [b"1", b"2"])
    async with bus.async_consumer("orders", subscription="a") as consumer:
        assert await consumer.receive_many(0, timeout_s=60) == []
        for count in (-1, True, 1.5, "1"):
            with pytest.raises(
                ConfigError, match=f"count_max {count!r}: a whole number, 0 or more"
            ):
                await consumer.receive_many(count)  # type: ignore[arg-type]
        assert len(await consumer.receive_many(1)) == 1
    assert bus.waiting("orders", "a") == 2


def test_receive_many_of_a_thread_takes_no_more_than_it_is_asked_for() -> None:
    bus = MemoryBus()
    bus.declare("orders/a")
    with bus.publisher() as publisher:
        publisher.send_many("orders", [b"1", b"2"])
    consumer: Consumer
    with bus.consumer("orders", subscription="a") as consumer:
        assert consumer.receive_many(0, timeout_s=60) == []
        for count in (-1, True, 1.5, "1"):
            with pytest.raises(
                ConfigError, match=f"count_max {count!r}: a whole number, 0 or more"
            ):
                consumer.receive_many(count)  # type: ignore[arg-type]
        assert len(consumer.receive_many(1)) == 1
        assert consumer.stop(0) == 1
    assert bus.waiting("orders", "a") == 2
    bus.close()
