"""messagebus.topology: what must exist on every broker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus.destination import Queue, Subscription, Topic
from messagebus.errors import NameInvalid
from messagebus.topology import BORN, Binding, Exchange, declarations, parse_wanted

BILLING = Subscription(Topic("orders"), "billing")


def test_a_topic_is_an_exchange() -> None:
    wanted = declarations(Topic("orders"), born=3)
    assert wanted.exchanges == (Exchange(name="mb.topic/orders", type="fanout", durable=True),)
    assert (wanted.queues, wanted.bindings) == ((), ())


def test_a_subscription_is_a_bound_queue_with_its_parking() -> None:
    wanted = declarations(BILLING, born=3)
    assert [exchange.name for exchange in wanted.exchanges] == ["mb.topic/orders"]
    assert [queue.name for queue in wanted.queues] == [
        "mb.park/orders/billing",
        "mb.sub/orders/billing",
    ]
    assert wanted.bindings == (Binding(exchange="mb.topic/orders", queue="mb.sub/orders/billing"),)


def test_a_queue_is_bound_to_an_exchange_of_its_own() -> None:
    wanted = declarations(Queue("jobs"))
    assert wanted.bindings == (Binding(exchange="mb.queue/jobs", queue="mb.queue/jobs"),)
    assert [exchange.name for exchange in wanted.exchanges] == ["mb.queue/jobs"]


@pytest.mark.parametrize("wanted", [BILLING, Queue("jobs")])
def test_every_queue_is_a_quorum_queue_that_knows_its_number(wanted: Subscription | Queue) -> None:
    for queue in declarations(wanted, born=3).queues:
        assert queue.arguments["x-queue-type"] == "quorum"
        assert queue.arguments[BORN] == 3


@pytest.mark.parametrize("wanted", [BILLING, Queue("jobs")])
def test_the_queue_dead_letters_at_least_once_to_its_parking(wanted: Subscription | Queue) -> None:
    parking, queue = declarations(wanted).queues
    assert queue.arguments["x-dead-letter-routing-key"] == parking.name == wanted.parking_queue
    assert queue.arguments["x-dead-letter-strategy"] == "at-least-once"
    assert queue.arguments["x-overflow"] == "reject-publish"
    limit = queue.arguments["x-delivery-limit"]
    assert isinstance(limit, int)
    assert 1_000_000 < limit < 1 << 31


def test_without_an_agent_there_is_no_number() -> None:
    assert all(BORN not in queue.arguments for queue in declarations(BILLING).queues)


@pytest.mark.parametrize("wanted", [Topic("orders"), BILLING, Queue("jobs")])
def test_what_is_written_is_read_again(wanted: Topic | Subscription | Queue) -> None:
    assert parse_wanted(str(wanted)) == wanted


@pytest.mark.parametrize("text", ["orders/", "/billing", "a/b/c", "queue:jobs/x", "", "/"])
def test_what_names_nothing_is_refused(text: str) -> None:
    with pytest.raises(NameInvalid):
        parse_wanted(text)


@given(st.text("abj.:/queuetopicms-_ ", max_size=30))
def test_of_any_text_only_name_invalid_escapes(text: str) -> None:
    try:
        wanted = parse_wanted(text)
    except NameInvalid:
        return
    assert parse_wanted(str(wanted)) == wanted
