"""messagebus.topology: the declarations of every broker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus.destination import DELAY_STEPS_MS, Delay, Queue, Subscription, Topic
from messagebus.errors import NameInvalid
from messagebus.stats import Durability
from messagebus.topology import (
    BORN,
    LADDER,
    Binding,
    Exchange,
    Options,
    Wanted,
    declarations,
    differences,
    options_of,
    parse_wanted,
    read_item,
    segment_declarations,
    to_item,
    with_options,
)

BILLING = Subscription(Topic("orders"), "billing")
BAD_DELAYS = [
    "delay:",
    "delay:1500",
    "delay:01000",
    "delay:-1000",
    "delay:1e3",
    "delay:" + "9" * 40,
]
WEAK = [Durability.PAGE_CACHE, Durability.NONE]


def test_a_topic_is_an_exchange() -> None:
    wanted = declarations(Topic("orders"), born=3)
    own = Exchange(name="mb.topic/orders", type="fanout", durable=True)
    assert wanted.exchanges == (own,)
    assert (wanted.queues, wanted.bindings) == ((), ())
    assert not wanted.needs_settling


def test_a_subscription_is_a_bound_queue_with_its_parking() -> None:
    wanted = declarations(BILLING, born=3)
    assert [exchange.name for exchange in wanted.exchanges] == ["mb.topic/orders"]
    assert [queue.name for queue in wanted.queues] == [
        "mb.park/orders/billing",
        "mb.sub/orders/billing",
    ]
    queue = "mb.sub/orders/billing"
    assert wanted.bindings == (
        Binding(exchange="mb.topic/orders", queue=queue),
        Binding(exchange="mb.out", queue=queue, routing_key="mb.topic/orders"),
        Binding(exchange="mb.out", queue=queue, routing_key=queue),
    )
    assert wanted.needs_settling


def test_a_queue_is_bound_to_an_exchange_of_its_own() -> None:
    wanted, name = declarations(Queue("jobs")), "mb.queue/jobs"
    assert wanted.bindings == (
        Binding(exchange="mb.to/jobs", queue=name),
        Binding(exchange="mb.out", queue=name, routing_key="mb.to/jobs"),
        Binding(exchange="mb.out", queue=name, routing_key=name),
    )
    assert wanted.exchanges == (Exchange(name="mb.to/jobs"),)


def test_what_is_due_goes_to_queues_alone_and_whatever_has_none_is_kept() -> None:
    due = {exchange.name: exchange for exchange in LADDER.exchanges}
    assert due["mb.due"].arguments == {"alternate-exchange": "mb.out"}
    assert due["mb.out"].arguments == {"alternate-exchange": "mb.undelivered"}
    assert LADDER.bindings == (Binding(exchange="mb.undelivered", queue="mb.park/mb.due"),)
    (queue,) = LADDER.queues
    assert queue.arguments == {
        "x-queue-type": "quorum",
        "x-delivery-limit": 1_000_000_000,
        "x-overflow": "reject-publish",
    }


def test_the_way_of_the_undelivered_goes_with_the_life_of_the_broker() -> None:
    """So a message that is due while the broker still reads its bindings waits in its step."""
    lasting = {exchange.name: exchange.durable for exchange in LADDER.exchanges}
    assert lasting == {"mb.due": True, "mb.out": True, "mb.undelivered": False}


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


@pytest.mark.parametrize("durability", Durability)
def test_what_is_stored_parked_or_delayed_is_never_dropped_whatever_policy_bounds_its_queue(
    durability: Durability,
) -> None:
    """A policy sets `max-length` alone; RabbitMQ then drops the oldest, unless an argument says otherwise."""
    topic = Topic("t", durability)
    sources = (
        Queue("jobs", durability),
        Subscription(topic, "s"),
        Subscription(topic, "live", expires_s=60),
        Delay(1_000),
    )
    queues = [queue for source in sources for queue in declarations(source).queues]
    for queue in (*queues, *LADDER.queues):
        assert queue.arguments["x-overflow"] == "reject-publish"


def test_without_an_agent_there_is_no_number() -> None:
    assert all(BORN not in queue.arguments for queue in declarations(BILLING).queues)


@pytest.mark.parametrize("durability", WEAK)
def test_below_fsync_queues_are_classic_and_dead_letter_plainly(durability: Durability) -> None:
    for source in (Queue("jobs", durability), Subscription(Topic("orders", durability), "billing")):
        wanted = declarations(source, born=3)
        parking, queue = wanted.queues
        assert parking.arguments == {
            "x-queue-type": "classic",
            "x-overflow": "reject-publish",
            BORN: 3,
        }
        assert queue.arguments == {
            "x-queue-type": "classic",
            "x-overflow": "reject-publish",
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": parking.name,
            BORN: 3,
        }
        assert not wanted.needs_settling


def test_single_active_is_an_argument_of_the_queue_and_not_of_its_parking() -> None:
    parking, queue = declarations(Subscription(Topic("t"), "s", single_active=True)).queues
    assert queue.arguments["x-single-active-consumer"] is True
    assert "x-single-active-consumer" not in parking.arguments
    _parking, queue = declarations(Queue("jobs", single_active=True)).queues
    assert queue.arguments["x-single-active-consumer"] is True


@pytest.mark.parametrize("durability", Durability)
def test_an_expiring_subscription_leaves_nothing_behind(durability: Durability) -> None:
    (queue,) = declarations(Subscription(Topic("t", durability), "s", expires_s=60)).queues
    assert queue.arguments["x-expires"] == 60_000
    assert "x-dead-letter-exchange" not in queue.arguments


def test_a_delay_is_a_queue_that_lets_go_of_everything_in_time_and_by_name() -> None:
    wanted = declarations(Delay(60_000), born=3)
    (queue,) = wanted.queues
    assert wanted.exchanges == (Exchange(name="mb.delay/60000"),)
    assert wanted.bindings == (Binding(exchange="mb.delay/60000", queue="mb.delay/60000"),)
    assert queue.name == "mb.delay/60000"
    assert queue.arguments == {
        "x-queue-type": "quorum",
        "x-message-ttl": 60_000,
        "x-dead-letter-exchange": "mb.due",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
        BORN: 3,
    }


@pytest.mark.parametrize("wanted", [Topic("orders"), BILLING, Queue("jobs"), Delay(1_000)])
def test_what_is_written_is_read_again(wanted: Wanted) -> None:
    assert parse_wanted(str(wanted)) == wanted


@pytest.mark.parametrize(
    "text", ["orders/", "/billing", "a/b/c", "queue:jobs/x", "", "/", *BAD_DELAYS]
)
def test_what_names_nothing_is_refused(text: str) -> None:
    with pytest.raises(NameInvalid):
        parse_wanted(text)


@given(st.text("abj.:/queuetopicms-_ dly01", max_size=30))
def test_of_any_text_only_name_invalid_escapes(text: str) -> None:
    try:
        wanted = parse_wanted(text)
    except NameInvalid:
        return
    assert parse_wanted(str(wanted)) == wanted


durabilities = st.sampled_from(Durability)
everything = st.one_of(
    st.builds(Topic, st.just("orders"), durabilities, mqtt=st.none() | st.booleans()),
    st.builds(
        Queue, st.just("jobs"), durabilities, single_active=st.booleans(), plain=st.booleans()
    ),
    st.builds(
        Subscription,
        st.builds(Topic, st.just("orders"), durabilities),
        st.just("billing"),
        single_active=st.booleans(),
        expires_s=st.integers(0, 4_294_967),
        plain=st.booleans(),
    ),
    st.builds(Delay, st.sampled_from(DELAY_STEPS_MS)),
)


@given(everything)
def test_items_and_options_are_read_again_as_they_were_written(wanted: Wanted) -> None:
    for read in (read_item(to_item(wanted)), with_options(str(wanted), options_of(wanted))):
        assert read == wanted
        assert declarations(read, born=1) == declarations(wanted, born=1)
        assert options_of(read) == options_of(wanted)


def test_mqtt_leads_to_a_topic_under_its_name_where_it_is_on() -> None:
    (way,) = declarations(Topic("doors.front", mqtt=True)).bindings
    ends = {"destination": "mb.topic/doors.front", "source": "amq.topic"}
    assert way.call() == ("exchange_bind", {**ends, "routing_key": "doors.front"})
    assert not any(declarations(Topic("orders", mqtt=each)).bindings for each in (False, None))


def test_an_item_is_a_name_unless_something_else_is_asked() -> None:
    assert to_item(BILLING) == "orders/billing"
    weak = Queue("jobs", Durability.PAGE_CACHE)
    assert to_item(weak) == {"name": "queue:jobs", "durability": "page-cache"}


@pytest.mark.parametrize(
    "item",
    [
        7,
        None,
        {},
        {"name": 7},
        {"name": "queue:jobs", "durability": "paper"},
        {"name": "queue:jobs", "durability": 1},
        {"name": "queue:jobs", "single_active": 1},
        {"name": "orders", "expires_s": 5},
        {"name": "orders", "plain": True},
        {"name": "orders", "mqtt": 1},
        {"name": "orders", "mqtt": True, "partitions": 4},
        {"name": "orders/b", "mqtt": True},
        {"name": "queue:jobs", "mqtt": False},
        {"name": "stream:orders", "mqtt": True},
        {"name": "orders/b", "plain": 1},
        {"name": "orders/b", "expires_s": -1},
        {"name": "orders/b", "expires_s": True},
        {"name": "orders/b", "expires_s": 2**32},
        {"name": "orders/b", "single_active": 1},
        {"name": "orders/b", "colour": "red"},
        {"name": "delay:1000", "durability": "none"},
    ],
)
def test_an_item_that_makes_no_sense_is_refused(item: object) -> None:
    with pytest.raises(NameInvalid):
        read_item(item)


@pytest.mark.parametrize(
    ("wanted", "options", "told"),
    [
        (Queue("jobs"), {}, ""),
        (
            Queue("jobs"),
            {"durability": "page-cache"},
            "queue:jobs: durability is wanted fsync and exists page-cache",
        ),
        (
            Queue("jobs", Durability.NONE),
            {},
            "queue:jobs: durability is wanted none and exists fsync",
        ),
        (Queue("jobs", Durability.NONE), {"durability": "page-cache"}, ""),
        (
            Topic("orders"),
            {"durability": "none"},
            "orders: durability is wanted fsync and exists none",
        ),
        (BILLING, {"plain": True}, ""),
        (Topic("orders", mqtt=True), {"mqtt": False}, ""),
        (
            Subscription(Topic("orders"), "billing", plain=True),
            {},
            "orders/billing: plain is wanted True and exists False",
        ),
        (BILLING, {"durability": "none", "single_active": True, "expires_s": 5}, ""),
        (
            Subscription(Topic("orders"), "billing", single_active=True, expires_s=9),
            {"expires_s": 5},
            "orders/billing: single_active is wanted True and exists False,"
            " expires_s is wanted 9 and exists 5",
        ),
    ],
)
def test_a_difference_names_both_values(wanted: Wanted, options: Options, told: str) -> None:
    assert differences(wanted, options) == told


@given(everything)
def test_nothing_differs_from_itself(wanted: Wanted) -> None:
    assert differences(wanted, options_of(wanted)) == ""


# Delivery limit.
LIMITED: list[Subscription | Queue] = [
    Subscription(Topic("orders"), "billing", delivery_limit=3),
    Queue("jobs", delivery_limit=3),
]


@pytest.mark.parametrize("wanted", LIMITED)
def test_a_delivery_limit_is_the_queues_own_and_its_parking_queue_keeps_for_ever(
    wanted: Subscription | Queue,
) -> None:
    parking, queue = declarations(wanted).queues
    assert queue.arguments["x-delivery-limit"] == 3
    assert parking.arguments["x-delivery-limit"] == 1_000_000_000
    assert with_options(str(wanted), options_of(wanted)) == wanted
    assert options_of(with_options(str(wanted), options_of(wanted))) == {"delivery_limit": 3}


def test_a_delivery_limit_is_taken_as_it_is_or_told_where_it_differs() -> None:
    exists = {"delivery_limit": 3}
    for wanted in (BILLING, Queue("jobs"), *LIMITED):
        assert differences(wanted, exists) == ""
    assert differences(Queue("jobs", delivery_limit=4), exists) == (
        "queue:jobs: delivery_limit is wanted 4 and exists 3"
    )
    assert "exists 0" in differences(LIMITED[0], {})


def test_only_quorum_queues_have_a_delivery_limit() -> None:
    parking, queue = declarations(Queue("jobs", Durability.PAGE_CACHE)).queues
    assert "x-delivery-limit" not in {*parking.arguments, *queue.arguments}
    with pytest.raises(NameInvalid, match="delivery_limit needs durability fsync, not page-cache"):
        Queue("jobs", Durability.PAGE_CACHE, delivery_limit=3)
    with pytest.raises(NameInvalid, match="a whole number"):
        Subscription(Topic("orders"), "billing", delivery_limit=-1)


def test_a_subscription_with_a_time_to_live_parks_what_waits_too_long_and_parks_it_for_ever() -> (
    None
):
    for topic in (Topic("orders"), Topic("clicks", durability=Durability.PAGE_CACHE)):
        wanted = Subscription(topic, "reports", ttl_s=90)
        parking, queue = declarations(wanted).queues
        assert queue.arguments["x-message-ttl"] == 90_000
        assert queue.arguments["x-dead-letter-routing-key"] == parking.name
        assert "x-message-ttl" not in parking.arguments
    parts = Subscription(Topic("parts", partitions=4), "reports", ttl_s=90)
    segment = segment_declarations(parts, "3.1").queues[-1]
    assert segment.arguments["x-message-ttl"] == 90_000


def test_a_time_to_live_that_would_drop_or_makes_no_sense_is_refused() -> None:
    with pytest.raises(NameInvalid, match="no parking queue"):
        Subscription(Topic("orders"), "reports", ttl_s=90, expires_s=300)
    for ttl_s in (-1, 0.5, True, 4_294_968):
        with pytest.raises(NameInvalid, match="whole seconds, 0 to 4294967"):
            Subscription(Topic("orders"), "reports", ttl_s=ttl_s)  # type: ignore[arg-type]
    with pytest.raises(NameInvalid, match="only a subscription has ttl_s"):
        with_options("orders", {"ttl_s": 90})
    assert with_options("orders/reports", {"ttl_s": 90}) == Subscription(Topic("orders"), "reports")
    told = differences(Subscription(Topic("orders"), "reports", ttl_s=90), {})
    assert told == "orders/reports: ttl_s is wanted 90 and exists 0"


def test_a_topic_is_compressed_only_where_it_is_declared_so_and_not_with_partitions() -> None:
    wanted = Topic("orders", deflate=True)
    assert options_of(wanted) == {"deflate": True}
    assert options_of(Topic("orders")) == {}
    assert with_options("orders", {"deflate": True}) == wanted
    assert declarations(wanted) == declarations(Topic("orders"))
    assert differences(wanted, {}) == "orders: deflate is wanted True and exists False"
    assert differences(Topic("orders"), {"deflate": True}) == ""
    with pytest.raises(NameInvalid, match="only a topic has deflate"):
        with_options("orders/billing", {"deflate": True})
    with pytest.raises(NameInvalid, match="False with partitions"):
        Topic("orders", partitions=4, deflate=True)
    with pytest.raises(NameInvalid, match="deflate 1"):
        Topic("orders", deflate=1)  # type: ignore[arg-type]
