"""_io.amqp.copy_headers: the broker's changes of a message, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from messagebus._io.amqp.copy_headers import counted, dead_lettered, read_ttl_ms
from messagebus._io.amqp.properties import decode, encode, read_headers
from messagebus.message import Message

HEADERS: dict[str, Any] = {"a": 1, "b": "é", "c": [1, {"d": None}], "e": True, "f": b"\xff"}
FULL = Message(
    body=b"",
    content_type="text/x",
    headers=HEADERS,
    key="k",
    priority=3,
    correlation_id="c",
    reply_to="r",
    type="t",
)
NOT_READABLE = b"\x20\x00\x00\x00\x00\x05"


@pytest.mark.parametrize("message", [FULL, Message(body=b"")])
def test_a_count_is_one_header_more(message: Message) -> None:
    raw = encode(message, "id", 17)
    again = decode(counted(counted(raw, 1), 2), b"")
    assert dict(again.headers) == {**message.headers, "x-delivery-count": 2}
    assert (again.message_id, again.key, again.type) == ("id", message.key, message.type)


def test_a_dead_letter_says_why_and_from_where_and_lives_for_ever() -> None:
    raw = encode(Message(body=b"", headers={"a": 1}, ttl_ms=500, key="k"), "id", 17)
    dead = dead_lettered(counted(raw, 3), reason="expired", queue="q", exchange="e", key="r")
    found, headers = decode(dead, b""), dict(read_headers(dead))
    assert headers.pop("mb-key") == "k"
    (death,) = headers.pop("x-death")
    assert headers == {
        "a": 1,
        "x-first-death-exchange": "e",
        "x-first-death-queue": "q",
        "x-first-death-reason": "expired",
    }
    assert death.pop("time")
    assert death == {
        "count": 1,
        "reason": "expired",
        "queue": "q",
        "exchange": "e",
        "routing-keys": ["r"],
        "original-expiration": "500",
    }
    assert (found.key, found.ttl_ms, found.message_id) == ("k", None, "id")


def test_a_second_death_of_the_same_kind_is_counted_and_another_comes_first() -> None:
    raw = encode(Message(body=b""), "id", 17)
    for queue, reason in (("q", "expired"), ("q", "expired"), ("p", "rejected")):
        raw = dead_lettered(raw, reason=reason, queue=queue, exchange="e", key="r")
    headers = read_headers(raw)
    deaths = [(each["queue"], each["reason"], each["count"]) for each in headers["x-death"]]
    assert deaths == [("p", "rejected", 1), ("q", "expired", 2)]
    assert headers["x-first-death-queue"] == "q"


@pytest.mark.parametrize(("ttl_ms", "found"), [(None, None), (0, 0), (1_500, 1_500)])
def test_the_time_to_live_is_read(ttl_ms: int | None, found: int | None) -> None:
    assert read_ttl_ms(encode(Message(body=b"", ttl_ms=ttl_ms), "id", 17)) == found


def test_what_cannot_be_read_passes_unchanged() -> None:
    assert counted(NOT_READABLE, 1) == NOT_READABLE
    dead = dead_lettered(NOT_READABLE, reason="rejected", queue="q", exchange="e", key="r")
    assert dead == NOT_READABLE
    assert read_ttl_ms(b"\x01\x00\x05ab") is None
