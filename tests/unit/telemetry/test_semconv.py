from messagebus.destination import Queue, Subscription, Topic
from messagebus.errors import Refused
from messagebus.telemetry import semconv

TOPIC = Topic("orders")


def test_a_topic_is_its_exchange_and_a_subscription_its_queue_too() -> None:
    assert semconv.publishing_place(TOPIC) == semconv.Place("mb.topic/orders", "orders")
    assert semconv.consuming_place(Subscription(TOPIC, "billing")) == semconv.Place(
        "mb.topic/orders:mb.sub/orders/billing", "orders/billing"
    )


def test_a_queue_is_published_to_through_its_exchange() -> None:
    jobs = Queue("jobs")
    assert semconv.publishing_place(jobs) == semconv.Place("mb.to/jobs", "queue:jobs")
    assert semconv.consuming_place(jobs) == semconv.Place("mb.to/jobs:mb.queue/jobs", "queue:jobs")


def test_a_name_that_nobody_else_has_is_no_label() -> None:
    place = semconv.consuming_place(Subscription.ephemeral("orders"))
    assert place.template == "orders/(expiring)"
    assert place.attributes()[semconv.TEMPORARY] is True
    assert place.metric_attributes() == {
        semconv.SYSTEM: "rabbitmq",
        semconv.TEMPLATE: "orders/(expiring)",
    }


def test_an_error_is_its_class() -> None:
    assert semconv.error_type(ValueError()) == "ValueError"
    assert semconv.error_type(Refused("1", "no")) == "messagebus.errors.Refused"
