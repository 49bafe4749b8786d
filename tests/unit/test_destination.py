"""messagebus.destination: names, and their forms inside a broker."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus.destination import (
    DELAY_STEPS_MS,
    EPHEMERAL_EXPIRES_S,
    NAME_BYTES_MAX,
    Delay,
    Queue,
    Subscription,
    Topic,
    check_name,
    delay_step,
    parse_destination,
)
from messagebus.errors import MessageInvalid, NameInvalid
from messagebus.stats import Durability

names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,30}", fullmatch=True).filter(
    lambda name: not name.startswith(("amq.", "mb.", "jms.topic.", "jms.queue."))
)


def test_names_inside_a_broker() -> None:
    topic, queue = Topic("orders"), Queue("jobs")
    subscription = Subscription(topic, "billing")
    assert topic.exchange == "mb.topic/orders"
    assert (queue.exchange, queue.amqp_queue) == ("mb.to/jobs", "mb.queue/jobs")
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


def test_the_name_alone_makes_two_of_them_the_same() -> None:
    weak = Topic("orders", durability=Durability.NONE)
    assert weak == Topic("orders")
    assert len({weak, Topic("orders")}) == 1
    assert Queue("jobs", durability=Durability.PAGE_CACHE) == Queue("jobs")
    assert Subscription(weak, "b", single_active=True, expires_s=5) == Subscription(
        Topic("orders"), "b"
    )


def test_durability_is_one_of_three_and_a_subscription_has_its_topics() -> None:
    assert Topic("orders").durability is Queue("jobs").durability is Durability.FSYNC
    assert Subscription(Topic("orders", Durability.NONE), "b").durability is Durability.NONE
    for kind in (Topic, Queue):
        with pytest.raises(NameInvalid, match=r"Durability\.FSYNC"):
            kind("orders", durability="fsync")  # type: ignore[arg-type]


@pytest.mark.parametrize("expires_s", [-1, 1.5, True, 2**32, "5"])
def test_expiry_is_whole_seconds_that_a_broker_can_count(expires_s: object) -> None:
    with pytest.raises(NameInvalid):
        Subscription(Topic("orders"), "b", expires_s=expires_s)  # type: ignore[arg-type]


def test_single_active_is_yes_or_no() -> None:
    with pytest.raises(NameInvalid):
        Subscription(Topic("orders"), "b", single_active=1)  # type: ignore[arg-type]


def test_an_ephemeral_subscription_has_a_name_of_its_own_and_expires() -> None:
    one, other = Subscription.ephemeral("orders"), Subscription.ephemeral(Topic("orders"))
    assert one != other
    assert one.topic == Topic("orders")
    assert one.expires_s == EPHEMERAL_EXPIRES_S
    assert Subscription.ephemeral("orders", expires_s=5).expires_s == 5
    assert one.goes_with_consumer
    with pytest.raises(NameInvalid, match="expires_s"):
        Subscription(Topic("orders"), "billing", goes_with_consumer=True)
    with pytest.raises(NameInvalid):
        Subscription.ephemeral("queue:jobs")


def test_the_ladder_goes_from_a_second_to_a_week() -> None:
    assert DELAY_STEPS_MS[0] == 1_000
    assert DELAY_STEPS_MS[-1] == 7 * 24 * 3_600_000
    assert list(DELAY_STEPS_MS) == sorted(set(DELAY_STEPS_MS))


@given(st.integers(0, DELAY_STEPS_MS[-1]))
def test_a_delay_is_rounded_up_to_the_next_step(delay_ms: int) -> None:
    step = delay_step(delay_ms)
    assert step.ms == min(each for each in DELAY_STEPS_MS if each >= delay_ms)
    assert str(step) == f"delay:{step.ms}"
    assert step.exchange == step.amqp_queue == f"mb.delay/{step.ms}"


def test_more_than_the_last_step_is_too_much() -> None:
    with pytest.raises(MessageInvalid, match="7 days"):
        delay_step(DELAY_STEPS_MS[-1] + 1)


def test_only_steps_of_the_ladder_exist() -> None:
    with pytest.raises(NameInvalid):
        Delay(1_500)


def test_a_queue_is_made_by_a_publish_only_where_that_is_asked_for() -> None:
    assert not Queue("jobs").create
    assert Queue("jobs", create=True) == Queue("jobs")
    assert parse_destination("queue:jobs") == Queue("jobs")
    with pytest.raises(NameInvalid, match="create 'yes': True or False"):
        Queue("jobs", create="yes")  # type: ignore[arg-type]


def test_a_subscription_of_no_topic_is_told() -> None:
    nothing: Any = "orders"
    with pytest.raises(NameInvalid, match=r"topic 'orders': a Topic wanted"):
        Subscription(nothing, "billing")
