"""messagebus.destination: names, and what they are called inside a broker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus.destination import (
    NAME_BYTES_MAX,
    Queue,
    Subscription,
    Topic,
    check_name,
    parse_destination,
)
from messagebus.errors import NameInvalid

names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,30}", fullmatch=True).filter(
    lambda name: not name.startswith(("amq.", "mb.", "jms.topic.", "jms.queue."))
)


def test_names_inside_a_broker() -> None:
    topic, queue = Topic("orders"), Queue("jobs")
    subscription = Subscription(topic, "billing")
    assert topic.exchange == "mb.topic/orders"
    assert (queue.exchange, queue.amqp_queue) == ("mb.queue/jobs", "mb.queue/jobs")
    assert subscription.amqp_queue == "mb.sub/orders/billing"
    assert subscription.parking_queue == "mb.park/orders/billing"
    assert queue.parking_queue == "mb.park/jobs"


@pytest.mark.parametrize(
    ("text", "destination"),
    [
        ("orders", Topic("orders")),
        ("topic:orders", Topic("orders")),
        ("queue:jobs", Queue("jobs")),
        ("jms.topic.orders", Topic("orders")),
        ("jms.queue.jobs.v2", Queue("jobs.v2")),
        ("queue", Topic("queue")),
    ],
)
def test_spellings(text: str, destination: Topic | Queue) -> None:
    assert parse_destination(text) == destination


@pytest.mark.parametrize(
    "name",
    [
        *("", " ", ".x", "-x", "a b", "a/b", "a:b", "ü", "a\n", "a\x00", "*", "#"),
        *("amq.x", "mb.x", "jms.queue.x", "jms.topic.x", "x" * (NAME_BYTES_MAX + 1)),
    ],
)
def test_a_name_that_may_not_be_is_refused(name: str) -> None:
    for kind in (Topic, Queue, lambda name: Subscription(Topic("t"), name)):
        with pytest.raises(NameInvalid):
            kind(name)


def test_a_name_is_a_text() -> None:
    with pytest.raises(NameInvalid):
        Topic(7)  # type: ignore[arg-type]


@given(names, names)
def test_every_name_fits_into_amqp_and_names_one_thing(one: str, other: str) -> None:
    subscription = Subscription(Topic(one), other)
    called = [
        subscription.amqp_queue,
        subscription.parking_queue,
        Queue(one).amqp_queue,
        Queue(one).parking_queue,
        Topic(one).exchange,
    ]
    assert len(set(called)) == len(called)
    assert all(len(name.encode()) <= 255 for name in called)


def test_the_longest_names_fit_into_amqp() -> None:
    longest = "x" * NAME_BYTES_MAX
    assert len(Subscription(Topic(longest), longest).parking_queue.encode()) <= 255


@given(names)
def test_what_is_written_is_read_again(name: str) -> None:
    for destination in (Topic(name), Queue(name)):
        assert parse_destination(str(destination)) == destination


@given(st.text(max_size=150))
def test_of_any_text_only_name_invalid_escapes(text: str) -> None:
    try:
        destination = parse_destination(text)
    except NameInvalid:
        return
    assert parse_destination(str(destination)) == destination
    assert check_name("any", destination.name) == destination.name
