"""Numbers from outside, and each entrance that reads some."""

from __future__ import annotations

import json
import math
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus import MessageInvalid, Options, PublisherConfig
from messagebus._io.publish.publishes import _delay_ms
from messagebus.envelope import read_envelope
from messagebus.numbers import read_number, read_whole
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
        for name in ("delay_s", "expires_s"):
            line = json.dumps({"destination": "orders", "body": "x", name: value}).encode()
            for read in (read_line, read_envelope):
                with pytest.raises(MessageInvalid):
                    read(line)
        options: Options = {"deliver_after_s": value}
        with pytest.raises(MessageInvalid):
            _delay_ms(options)
        with pytest.raises(MessageInvalid):
            _delay_ms({"deliver_at": value})


def test_a_time_that_is_none_is_refused_by_a_publisher() -> None:
    with MemoryBus().publisher(PublisherConfig()) as publisher:
        for at in (math.nan, -math.inf, math.inf, True, "soon"):
            with pytest.raises(MessageInvalid, match="deliver_at"):
                publisher.send_safe("orders", b"x", deliver_at=at)  # type: ignore[arg-type]
        with pytest.raises(MessageInvalid, match="time zone"):
            publisher.send_safe("orders", b"x", deliver_at=datetime(2027, 1, 1))
