from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from messagebus._io.hooks import HookChain
from messagebus._io.publish.targets import Targets
from messagebus.core.deliveries import Receipt
from messagebus.destination import Queue, Source, Subscription, Topic
from messagebus.errors import Stopped
from messagebus.message import Delivery, Message
from messagebus.stats import (
    AppStats,
    BrokerStats,
    ConsumerStats,
    Durability,
    Outcome,
    Published,
    PublisherStats,
    RelayStats,
    Status,
)
from messagebus.telemetry.prometheus import ClientMetrics, PrometheusHooks

PUBLISHER = PublisherStats(
    confirmed=7, refused=1, unroutable=2, unknown=3, unconfirmed=4, retried=5, backlog=6, window=8,
    settling=0, broker="mb1:5672", dials=9, moves=10, links_lost=11, last_confirm_age_s=1.5,
    list_age_s=None, list_faults=0,
)  # fmt: skip


def consumer_stats(**fields: Any) -> ConsumerStats:
    values: dict[str, Any] = {
        "brokers": {
            "mb1:5672": BrokerStats(state="open", delivered=5, owed=2),
            "mb2:5672": BrokerStats(state="dialling", delivered=1, owed=0),
        },
        "delivered": 6, "acked": 3, "nacked": 1, "acks_stale": 1, "batches_damaged": 0,
        "buffered": 1, "handed_out": 1, "list_generation": 17, "list_age_s": 0.25, "list_faults": 0,
    }  # fmt: skip
    return ConsumerStats(**{**values, **fields})


class Client:
    def __init__(self, stats: Any, status: Status = Status.RUNNING) -> None:
        self.status = status
        self._stats: Callable[[], Any] = stats if callable(stats) else lambda: stats

    def stats(self) -> Any:
        return self._stats()


class Page:
    """Contents of a registry, read back by the reference parser and checked against the conventions."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

    def samples(self) -> list[Sample]:
        text = generate_latest(self.registry).decode()
        families = list(text_string_to_metric_families(text))
        names = [family.name for family in families]
        assert len(names) == len(set(names)), "a family comes twice"
        for family in families:
            assert re.fullmatch(r"messagebus(_[a-z]+)+", family.name), family.name
            assert family.documentation.endswith("."), family.name
            assert family.type in ("counter", "gauge", "histogram"), family.name
            for sample in family.samples:
                if family.type == "counter":
                    assert sample.name.endswith(("_total", "_created")), sample.name
                if family.type == "gauge":
                    assert not sample.name.endswith(("_total", "_count", "_sum")), sample.name
                assert not re.search("(_ms|_milliseconds|_kb)(_|$)", sample.name), sample.name
                assert set(sample.labels) <= {
                    "client", "broker", "outcome", "answer", "destination", "subscription",
                    "result", "le",
                }  # fmt: skip
        return [sample for family in families for sample in family.samples]

    def value(self, name: str, **labels: str) -> float | None:
        found = [s.value for s in self.samples() if s.name == name and s.labels == labels]
        assert len(found) <= 1
        return found[0] if found else None


@pytest.fixture
def page() -> Page:
    return Page()


def test_a_publisher_is_shown_whole(page: Page) -> None:
    clients = ClientMetrics(page.registry)
    clients.watch(client := Client(PUBLISHER), "api")
    at = {"client": "api"}
    ends = {
        word: page.value("messagebus_publisher_messages_total", **at, outcome=word)
        for word in ("confirmed", "refused", "unroutable", "unknown", "spooled", "unconfirmed")
    }
    assert list(ends.values()) == [7, 1, 2, 3, 0, 4]
    assert page.value("messagebus_publisher_spool_messages", **at) == 0
    assert page.value("messagebus_publisher_backlog_messages", **at) == 6
    assert page.value("messagebus_publisher_links_lost_total", **at) == 11
    assert page.value("messagebus_publisher_last_confirm_age_seconds", **at) == 1.5
    assert page.value("messagebus_publisher_list_age_seconds", **at) is None
    assert page.value("messagebus_publisher_connected", **at) == 1
    assert page.value("messagebus_clients_running", **at) == 1
    del client
    assert page.samples() == []


def test_a_consumer_is_shown_by_broker(page: Page) -> None:
    clients = ClientMetrics(page.registry)
    client = Client(consumer_stats(retried=4, parked=2, handling=3, oldest_run_s=9.5, failed=6))
    clients.watch(client, "billing")
    at = {"client": "billing"}
    assert page.value("messagebus_consumer_deliveries_total", **at, broker="mb1:5672") == 5
    assert page.value("messagebus_consumer_owed_messages", **at, broker="mb1:5672") == 2
    assert page.value("messagebus_consumer_links_open", **at, broker="mb1:5672") == 1
    assert page.value("messagebus_consumer_links_open", **at, broker="mb2:5672") == 0
    assert page.value("messagebus_consumer_answers_total", **at, answer="ack") == 3
    assert page.value("messagebus_consumer_answers_total", **at, answer="park") == 2
    assert page.value("messagebus_consumer_list_generation", **at) == 17
    assert page.value("messagebus_consumer_list_age_seconds", **at) == 0.25
    assert page.value("messagebus_consumer_oldest_run_seconds", **at) == 9.5
    assert page.value("messagebus_consumer_failed_runs_total", **at) == 6


def test_every_number_of_the_statistics_is_shown(page: Page) -> None:
    from messagebus.telemetry import prometheus

    shown = {figure.stat for figure in prometheus._PUBLISHER} | {"broker", "spool_fault"}
    assert shown == set(PublisherStats.__dataclass_fields__)
    shown = {figure.stat for figure in prometheus._CONSUMER}
    shown |= {"brokers", "delivered", "dedup_state"}  # the last one is told by the time it is away
    assert shown >= set(ConsumerStats.__dataclass_fields__)


def test_every_number_of_a_relay_is_shown() -> None:
    from messagebus.telemetry import prometheus

    assert {figure.stat for figure in prometheus._RELAY} == set(RelayStats.__dataclass_fields__)


def test_an_app_is_shown_by_its_subscriptions(page: Page) -> None:
    clients = ClientMetrics(page.registry)
    consumers = {"orders/billing": consumer_stats(), "queue:jobs": consumer_stats(acked=9)}
    app = Client(AppStats(consumers=consumers, publisher=PUBLISHER))
    clients.watch(app, "app")
    acks = [
        page.value("messagebus_consumer_answers_total", client=name, answer="ack")
        for name in ("orders/billing", "queue:jobs")
    ]
    assert acks == [3, 9]


def test_clients_of_one_name_are_added_up_and_the_oldest_counts(page: Page) -> None:
    clients = ClientMetrics(page.registry)
    two = [Client(PUBLISHER), Client(PUBLISHER, Status.STOPPED)]
    for client in two:
        clients.watch(client, "api")
    assert page.value("messagebus_publisher_dials_total", client="api") == 18
    assert page.value("messagebus_publisher_last_confirm_age_seconds", client="api") == 1.5
    assert page.value("messagebus_clients_running", client="api") == 1


def test_values_of_labels_are_bounded_and_nothing_is_lost(page: Page) -> None:
    clients = ClientMetrics(page.registry, clients_max=2, brokers_max=3)
    brokers = {f"b{n}:1": BrokerStats(state="open", delivered=1, owed=0) for n in range(10)}
    held = [Client(consumer_stats(brokers=brokers)) for _ in range(5)]
    for number, client in enumerate(held):
        clients.watch(client, f"c{number}")
    found = [s for s in page.samples() if s.name == "messagebus_consumer_deliveries_total"]
    assert sum(sample.value for sample in found) == 50
    assert {sample.labels["client"] for sample in found} == {"c0", "c1", "other"}
    assert {sample.labels["broker"] for sample in found} == {"b0:1", "b1:1", "b2:1", "other"}


def test_a_client_that_has_not_started_is_only_not_running(page: Page) -> None:
    def stopped() -> Any:
        raise Stopped("not started")

    clients = ClientMetrics(page.registry)
    clients.watch(client := Client(stopped, Status.INITIALIZED), "api")
    assert [(s.name, s.value) for s in page.samples()] == [("messagebus_clients_running", 0)]
    assert client


def test_a_client_that_changes_while_it_is_read_is_read_again(page: Page) -> None:
    tries: list[int] = []

    def changing() -> Any:
        tries.append(1)
        if len(tries) < 3:
            raise RuntimeError("dictionary changed size during iteration")
        return consumer_stats()

    clients = ClientMetrics(page.registry)
    clients.watch(client := Client(changing), "c")
    assert page.value("messagebus_consumer_answers_total", client="c", answer="ack") == 3
    assert client


# Hooks.
def publish(
    hooks: PrometheusHooks, destination: str = "orders", outcome: Outcome = Outcome.CONFIRMED
) -> None:
    chain = HookChain([hooks])
    message, watched = chain.publishing(Targets().plain(destination), b"12345", None, None)
    watched.set_result(Published(message.message_id, outcome, Durability.FSYNC))


def handle(hooks: PrometheusHooks, answer: str, source: Source, error: Exception | None) -> None:
    delivery = Delivery(Message(body=b"123", message_id="1"), Receipt("b:1", 1, 1), source)
    chain = HookChain([hooks])
    try:
        with chain.handling(delivery):
            if error is not None:
                raise error
    except ValueError:
        pass
    chain.handled(delivery, answer, error)


def test_publishes_are_timed_by_destination_and_outcome(page: Page) -> None:
    hooks = PrometheusHooks(page.registry)
    publish(hooks)
    publish(hooks)
    publish(hooks, outcome=Outcome.REFUSED)
    publish(hooks, "queue:jobs")
    name = "messagebus_publish_duration_seconds"
    assert page.value(f"{name}_count", destination="orders", outcome="confirmed") == 2
    assert page.value(f"{name}_count", destination="orders", outcome="refused") == 1
    assert (
        page.value(f"{name}_bucket", destination="queue:jobs", outcome="confirmed", le="+Inf") == 1
    )
    assert page.value("messagebus_published_bytes_total", destination="orders") == 15
    assert hooks._open == {}


def test_runs_are_timed_and_answers_counted(page: Page) -> None:
    hooks = PrometheusHooks(page.registry)
    billing = Subscription(Topic("orders"), "billing")
    handle(hooks, "ack", billing, None)
    handle(hooks, "park", billing, ValueError())
    handle(hooks, "ack", Queue("jobs"), None)
    at = {"subscription": "orders/billing"}
    name = "messagebus_handling_duration_seconds_count"
    assert page.value(name, **at, result="ok") == 1
    assert page.value(name, **at, result="error") == 1
    assert page.value("messagebus_handled_messages_total", **at, answer="park") == 1
    assert page.value("messagebus_handled_bytes_total", **at) == 6
    assert page.value("messagebus_handled_bytes_total", subscription="queue:jobs") == 3


def test_destinations_are_bounded(page: Page) -> None:
    hooks = PrometheusHooks(page.registry, destinations_max=2)
    for number in range(5):
        publish(hooks, f"t{number}")
    name = "messagebus_published_bytes_total"
    found = {s.labels["destination"]: s.value for s in page.samples() if s.name == name}
    assert found == {"t0": 5, "t1": 5, "other": 15}
    assert len(hooks._known) == 4


def test_ephemeral_subscriptions_leave_room_for_those_that_last(page: Page) -> None:
    hooks = PrometheusHooks(page.registry, destinations_max=2)
    for _ in range(5):
        handle(hooks, "ack", Subscription.ephemeral("orders"), None)
    handle(hooks, "ack", Subscription(Topic("orders"), "billing"), None)
    name = "messagebus_handled_messages_total"
    found = {s.labels["subscription"]: s.value for s in page.samples() if s.name == name}
    assert found == {"orders/(ephemeral)": 5, "orders/billing": 1}
    assert not [key for key in hooks._known if "ephemeral" in key[1]]


def test_one_object_that_is_published_twice_at_once_leaves_nothing_behind(page: Page) -> None:
    hooks = PrometheusHooks(page.registry)
    message = Message(body=b"x", message_id="1")
    end = Published("1", Outcome.CONFIRMED, Durability.FSYNC)
    assert hooks.publishing("orders", message) is hooks.publishing("orders", message)
    hooks.published("orders", message, end)
    hooks.published("orders", message, end)
    assert hooks._open == {}
    assert page.value("messagebus_published_bytes_total", destination="orders") == 2


@pytest.mark.guarantee("counters-never-fall")
def test_counters_never_fall_when_a_client_of_that_name_goes(page: Page) -> None:
    clients = ClientMetrics(page.registry)
    clients.watch(first := Client(PUBLISHER), "api")
    clients.watch(second := Client(PUBLISHER), "api")

    def confirmed() -> float | None:
        return page.value("messagebus_publisher_messages_total", client="api", outcome="confirmed")

    assert confirmed() == 14
    del first
    assert confirmed() == 14
    assert page.value("messagebus_publisher_backlog_messages", client="api") == 6
    del second
    assert confirmed() is None
    clients.watch(third := Client(PUBLISHER), "api")
    assert confirmed() == 21
    assert third.status is not None


def test_counters_never_fall_when_an_app_is_started_again(page: Page) -> None:
    clients = ClientMetrics(page.registry)
    told = {"orders/billing": consumer_stats()}
    client = Client(lambda: AppStats(consumers=told, publisher=PUBLISHER))
    clients.watch(client, "shop")

    def acked() -> float | None:
        return page.value(
            "messagebus_consumer_answers_total", client="orders/billing", answer="ack"
        )

    assert acked() == 3
    told.clear()
    assert acked() == 3
    told["orders/billing"] = consumer_stats(acked=1)
    assert acked() == 4
