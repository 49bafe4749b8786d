"""messagebus.outgoing: an application's requests are checked before anything is accepted."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from messagebus.destination import Queue, Topic
from messagebus.errors import ConfigError, MessageInvalid, NameInvalid
from messagebus.message import BODY_BYTES_MAX, Message
from messagebus.outgoing import Outgoing, whole_timeout_ms
from messagebus.stats import Durability


def read(payload: Any = b"x", destination: Any = "orders", **options: Any) -> Any:
    return Outgoing().read(destination, payload, options)  # type: ignore[arg-type]


def test_bytes_are_nothing_but_a_body() -> None:
    target, body, message = read(b"x", "queue:jobs")
    assert (target.destination, target.content_type) == ("mb.to/jobs", "application/octet-stream")
    assert (body, message) == (b"x", None)


@pytest.mark.parametrize("seconds", [-1, -0.001, float("nan"), float("inf")])
def test_a_time_that_nobody_can_wait_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigError, match=f"timeout_s {seconds}: seconds, 0 or more"):
        whole_timeout_ms(seconds)
    assert whole_timeout_ms(1.5) == 1500


def test_a_text_is_nothing_but_a_body_of_its_content_type() -> None:
    target, body, message = read("ü")
    assert (target.content_type, body, message) == (
        "text/plain; charset=utf-8",
        "ü".encode(),
        None,
    )


def test_a_message_that_says_more_is_kept_as_it_is() -> None:
    given = Message(body=b"x", key="k")
    assert read(given)[2] is given


def test_options_are_put_into_the_message_and_the_caller_s_stays_as_it_was() -> None:
    given = Message(body=b"x", key="k", headers={"a": 1})
    _, _, message = read(given, headers={"b": 2}, priority=3, ttl_s=1.5, correlation_id="c")
    assert (message.key, message.headers, message.priority) == ("k", {"b": 2}, 3)
    assert (message.ttl_ms, message.correlation_id) == (1500, "c")
    assert (given.headers, given.priority) == ({"a": 1}, None)


@pytest.mark.parametrize(
    ("options", "destination"),
    [
        ({"deliver_after_s": 0.2}, "mb.delay/1000 mb.topic/orders"),
        ({"deliver_after_s": 61}, "mb.delay/120000 mb.topic/orders"),
        ({"deliver_after_s": 0}, "mb.topic/orders"),
        ({"deliver_at": 0}, "mb.topic/orders"),
        ({"deliver_at": datetime(2000, 1, 1, tzinfo=UTC)}, "mb.topic/orders"),
    ],
)
def test_a_delay_is_rounded_up_to_a_step_and_the_past_is_now(
    options: dict[str, Any], destination: str
) -> None:
    assert read(**options)[0].destination == destination


def test_a_time_of_delivery_is_a_delay_from_now() -> None:
    in_a_minute = datetime.now(UTC) + timedelta(seconds=59)
    assert read(deliver_at=in_a_minute)[0].destination.startswith("mb.delay/60000 ")
    assert read(deliver_at=time.time() + 59)[0].destination.startswith("mb.delay/60000 ")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"deliver_after_s": -1}, "0 or more"),
        ({"deliver_after_s": float("nan")}, "0 or more"),
        ({"deliver_after_s": "soon"}, "a number of seconds"),
        ({"deliver_after_s": 30 * 86400}, "at most"),
        ({"deliver_at": datetime(2100, 1, 1)}, "time zone"),
        ({"deliver_after_s": 1, "deliver_at": 1}, "only one"),
        ({"ttl_s": True}, "a number of seconds"),
        ({"priority": 10}, "priority"),
        ({"headers": {"mb-x": 1}}, "mb-"),
    ],
)
def test_what_makes_no_sense_is_refused_and_told(options: dict[str, Any], told: str) -> None:
    with pytest.raises(MessageInvalid, match=told):
        read(**options)


def test_an_option_that_nobody_knows_is_refused() -> None:
    with pytest.raises(TypeError, match="prio"):
        read(prio=1)


def test_a_body_over_the_limit_and_a_name_that_is_not_allowed_are_refused() -> None:
    with pytest.raises(MessageInvalid, match="at most"):
        read(b"x" * (BODY_BYTES_MAX + 1))
    with pytest.raises(NameInvalid):
        read(destination="not a name")


def test_durability_belongs_to_the_destination_not_to_its_name_alone() -> None:
    outgoing = Outgoing()
    kept = outgoing.read(Queue("jobs"), b"x", {})[0]
    cached = outgoing.read(Queue("jobs", Durability.PAGE_CACHE), b"x", {})[0]
    none = outgoing.read(Topic("jobs", Durability.NONE), b"x", {})[0]
    assert [each.durability for each in (kept, cached, none)] == [
        Durability.FSYNC,
        Durability.PAGE_CACHE,
        Durability.NONE,
    ]
    assert [each.confirms for each in (kept, cached, none)] == [True, True, False]


def test_shapes_are_made_once() -> None:
    outgoing = Outgoing()
    assert outgoing.read("orders", b"x", {})[0] is outgoing.read("orders", b"y", {})[0]
    assert outgoing.read("orders", "x", {})[0] is outgoing.read("orders", "y", {})[0]


@pytest.mark.parametrize("nowhere", [17, None, b"orders"])
@pytest.mark.parametrize("payload", [b"x", "text"])
def test_a_destination_that_is_none_is_told(nowhere: Any, payload: Any) -> None:
    with pytest.raises(NameInvalid, match=r"destination .*: a name, Topic or Queue wanted"):
        read(payload, nowhere)
