from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus.telemetry.jsonlog import TEXT_CHARS_MAX, plain_error, plain_text, plain_trace

PASSWORD = "hunter2-of-the-bus"


@pytest.mark.parametrize(
    "text",
    [
        "cannot reach amqp://bus:{}@mb1:5672/vhost",
        "https://user:{}@host/path?x=1",
        "login failed password={}",
        "PASSWORD = '{}' is wrong",
        'settings: {{"db_password": "{}", "host": "x"}}',
        "passwd:{};host=x",
        "Authorization: Bearer {}",
        "authorization=Basic {}",
        "MESSAGEBUS_TOKEN={}",
        "api-key: {}, next",
        "client_secret=>{}",
        "{{'secret': '{}'}}",
    ],
)
def test_what_looks_like_a_password_is_hidden(text: str) -> None:
    shown = plain_text(text.format(PASSWORD))
    assert PASSWORD not in shown
    assert "***" in shown


@pytest.mark.parametrize(
    "text",
    ["no room for 10 bytes", "key 'orders' not found", "see https://host:8080/path", "a: b", ""],
)
def test_other_texts_are_left_as_they_are(text: str) -> None:
    assert plain_text(text) == text


@given(st.text(max_size=5000), st.integers(min_value=10, max_value=2000))
def test_no_text_is_longer_than_asked(text: str, most: int) -> None:
    assert len(plain_text(text, most)) <= most


def test_ten_megabytes_cost_no_more_than_one_page() -> None:
    before = time.process_time()
    shown = plain_text("x" * 10_000_000)
    assert shown == "x" * (TEXT_CHARS_MAX - 3) + "..."
    hostile = "password=" * 1_000_000 + "://" * 1_000_000 + "a-" * 1_000_000
    plain_text(hostile)
    plain_text("-" * 100_000)
    assert time.process_time() - before < 5


def test_a_password_at_the_edge_of_what_is_read_is_not_shown() -> None:
    for shift in range(60):
        text = "x" * (TEXT_CHARS_MAX - 30 + shift) + f" amqp://u:{PASSWORD}@h"
        assert PASSWORD[:8] not in plain_text(text)


class Mute(Exception):
    def __str__(self) -> str:
        raise OSError("no text")


def test_an_exception_whose_text_fails_is_told_all_the_same() -> None:
    assert plain_error(Mute()) == "(its text fails: OSError)"
    assert plain_error(ValueError("password=abc")) == "password=***"


def test_a_traceback_is_bounded() -> None:
    def fall(depth: int) -> None:
        if not depth:
            raise ValueError("deep")
        fall(depth - 1)

    try:
        fall(500)
    except ValueError as error:
        shown = plain_trace(error)
    assert "in fall" in shown
    assert len(shown) <= 8 * 1024
    assert plain_trace(ValueError("never raised")) == ""
