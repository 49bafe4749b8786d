"""`messagebus parked`: input from a shell, and the form of its output."""

from __future__ import annotations

from dataclasses import replace

import click
import pytest

from messagebus.admin.parked import ParkedCount, ParkedMessage
from messagebus.commands.options import Duration, iso
from messagebus_tools import parked

MESSAGE = ParkedMessage(
    name="orders/billing",
    broker="mb1:5672",
    message_id="m",
    key="",
    reason="timeout",
    exception="",
    attempts=None,
    first_ms=None,
    parked_ms=1_700_000_000_123,
    redriven=0,
    headers={},
    content_type="text/plain",
    body=b"hello",
    body_bytes=5,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("1.5m", 90), ("2h", 7_200), ("7d", 604_800)],
)
def test_durations_have_a_unit(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "h", "-1s", "5x", "1e3", "1 h"])
def test_what_is_no_duration_is_told(text: str) -> None:
    with pytest.raises(click.BadParameter, match="such as 90s"):
        Duration().convert(text, None, None)


def test_a_message_is_told_with_what_it_says() -> None:
    assert parked._lines(MESSAGE) == [
        "m",
        "  in         orders/billing on mb1:5672",
        "  reason     timeout",
        "  attempts   ?",
        "  first      ?",
        "  parked     2023-11-14T22:13:20.123+00:00",
        "  body       text/plain 5 bytes: hello",
    ]
    more = replace(MESSAGE, redriven=2, attempts=3, headers={f"h{n}": n for n in range(30)})
    lines = parked._lines(more)
    assert "  attempts   3, redriven 2 times before" in lines
    assert "  header     and 10 more" in lines


@pytest.mark.parametrize(
    ("body", "body_bytes", "shown"),
    [
        (b"a\x1bb", 3, "a\\x1bb"),
        (b"\xff\x00", 2, "hex ff00"),
        (b"\xff" * 300, 300, "hex " + "ff" * 100 + "..."),
        ("é" * 150, 9_000, "é" * 150 + "..."),
        (b"x" * 300, 300, "x" * 200 + "..."),
        ("é".encode()[:1], 2, "..."),
        (b"", 0, ""),
    ],
)
def test_a_body_is_shown_as_far_as_it_is_bounded(
    body: bytes | str, body_bytes: int, shown: str
) -> None:
    raw = body.encode() if isinstance(body, str) else body
    assert parked._body(replace(MESSAGE, body=raw, body_bytes=body_bytes)) == shown


def test_the_most_frequent_reasons_are_told() -> None:
    reasons = {"a": 5, "b": 4, "c\x1b": 3, "d": 2, "e": 1}
    count = ParkedCount(name="n", broker="b", count=15, reasons=reasons, unseen=3)
    assert parked._reasons(count) == "a: 5; b: 4; c\\x1b: 3; others: 3"
    assert parked._many(count) == "15+3?"


@pytest.mark.parametrize(
    ("age_ms", "told"),
    [(-5, "0s"), (119_000, "119s"), (120_000, "2m"), (7_200_000, "2h"), (172_800_000, "2d")],
)
def test_ages_are_short(age_ms: int, told: str) -> None:
    assert parked._age(1_000_000_000, 1_000_000_000 + age_ms) == told


def test_a_time_that_no_calendar_has_is_none() -> None:
    assert iso(1 << 62) is None
    assert parked._age(None, 0) == "?"
