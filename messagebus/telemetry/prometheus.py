"""Prometheus: the statistics of clients, and histograms of messages. Needs `messagebus-rabbitmq[prometheus]`.

    clients = ClientMetrics()                       # registers itself
    clients.watch(publisher, "orders-api")          # anything with stats(): publishers, consumers, apps
    hooks = [PrometheusHooks()]                     # durations, sizes, answers
    prometheus_client.start_http_server(9100)

Names and units are Prometheus' own: ``messagebus_publisher_messages_total``, ``..._seconds``, ``..._bytes``.
docs/reference/metrics.md lists all of them. Labels are names of clients, destinations, subscriptions and
brokers, and words from short lists, never ids or keys. Each label has a limited number of values; further
ones are counted as ``other``.
"""

from __future__ import annotations

import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from messagebus.errors import Stopped
from messagebus.hooks import Hooks
from messagebus.message import Delivery, Message
from messagebus.stats import AppStats, ConsumerStats, Published, PublisherStats, RelayStats, Status

__all__ = ["ClientMetrics", "PrometheusHooks", "collected"]

# Different values of one label, then "other".
CLIENTS_MAX = 100
BROKERS_MAX = 100
DESTINATIONS_MAX = 100
OTHER = "other"
# A client of asyncio is read from the scraping thread while its loop runs on: a collision is rare,
# and a second one in a row rarer.
READ_TRIES = 3
DURATIONS_S = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
)

_Kind = Literal["counter", "gauge", "oldest"]


class Watched(Protocol):
    """Client with statistics: a publisher, consumer, relay or app."""

    @property
    def status(self) -> Status: ...

    def stats(self) -> PublisherStats | ConsumerStats | RelayStats | AppStats: ...


@dataclass(frozen=True, slots=True)
class _Figure:
    """Number in a client's statistics. kind: "oldest" is a gauge of which the largest value counts."""

    stat: str
    name: str
    help: str
    kind: _Kind = "counter"
    labels: Mapping[str, str] = field(default_factory=dict)


_ENDS = "Publishes by outcome."
_PUBLISHER = (
    *(
        _Figure(word, "publisher_messages", _ENDS, labels={"outcome": word})
        for word in ("confirmed", "refused", "unroutable", "unknown", "spooled", "unconfirmed")
    ),
    _Figure("redundant", "publisher_redundant_messages", "Messages confirmed by two brokers."),
    _Figure(
        "downgraded",
        "publisher_downgraded_messages",
        "Messages for two brokers that only one confirmed.",
    ),
    _Figure("retried", "publisher_retries", "Sends after the first send of a message."),
    _Figure(
        "backlog", "publisher_backlog_messages", "Messages accepted and not yet sent.", "gauge"
    ),
    _Figure("window", "publisher_window_messages", "Messages sent and not yet confirmed.", "gauge"),
    _Figure(
        "settling",
        "publisher_settling_destinations",
        "Destinations whose queues are not on disk yet.",
        "gauge",
    ),
    _Figure("dials", "publisher_dials", "Connections that the publisher tried to open."),
    _Figure("moves", "publisher_moves", "Planned moves to another broker."),
    _Figure("links_lost", "publisher_links_lost", "Connections that ended unexpectedly."),
    _Figure(
        "last_confirm_age_s",
        "publisher_last_confirm_age_seconds",
        "Time since a broker last answered a publish.",
        "oldest",
    ),
    _Figure(
        "list_age_s",
        "publisher_list_age_seconds",
        "Time since the last valid consumer list.",
        "oldest",
    ),
    _Figure("list_faults", "publisher_list_faults", "Answers that were not a valid consumer list."),
    _Figure("spool_messages", "publisher_spool_messages", "Messages in the disk spool.", "gauge"),
    _Figure("spool_bytes", "publisher_spool_bytes", "Size of the files of the spool.", "gauge"),
    _Figure(
        "spool_oldest_s",
        "publisher_spool_oldest_seconds",
        "Age of the oldest message in the spool.",
        "oldest",
    ),
    _Figure(
        "replayed", "publisher_replayed_messages", "Messages of the spool that a broker confirmed."
    ),
    _Figure(
        "spool_failures", "publisher_spool_failures", "Sends from the spool that a broker refused."
    ),
    _Figure("spool_damaged", "publisher_spool_damaged", "Damaged places in files of the spool."),
)
_ANSWERS = "Deliveries by answer."
_CONSUMER = (
    _Figure("acked", "consumer_answers", _ANSWERS, labels={"answer": "ack"}),
    _Figure("nacked", "consumer_answers", _ANSWERS, labels={"answer": "nack"}),
    _Figure("retried", "consumer_answers", _ANSWERS, labels={"answer": "retry"}),
    _Figure("parked", "consumer_answers", _ANSWERS, labels={"answer": "park"}),
    _Figure("dropped", "consumer_answers", _ANSWERS, labels={"answer": "drop"}),
    _Figure(
        "acks_stale",
        "consumer_stale_answers",
        "Answers after the connection of their delivery had ended.",
    ),
    _Figure(
        "given_back",
        "consumer_given_back_messages",
        "Deliveries returned unhandled before the consumer timeout.",
    ),
    _Figure(
        "batches_damaged",
        "consumer_damaged_batches",
        "Batches that could not be read and were parked.",
    ),
    _Figure(
        "buffered",
        "consumer_buffered_messages",
        "Deliveries received and not yet handed out.",
        "gauge",
    ),
    _Figure(
        "handed_out",
        "consumer_handed_out_messages",
        "Deliveries handed out and not yet answered.",
        "gauge",
    ),
    _Figure("handling", "consumer_handling_messages", "Runs of handlers in progress.", "gauge"),
    _Figure(
        "overrunning",
        "consumer_overrunning_messages",
        "Runs of handlers that exceed their time limit.",
        "gauge",
    ),
    _Figure(
        "oldest_run_s",
        "consumer_oldest_run_seconds",
        "Duration of the longest run in progress.",
        "oldest",
    ),
    _Figure("failed", "consumer_failed_runs", "Runs of handlers that failed."),
    _Figure("duplicates", "consumer_duplicates", "Deliveries acked without a run: duplicates."),
    _Figure(
        "deferred", "consumer_deferred", "Deliveries that waited for another run of their message."
    ),
    _Figure(
        "dedup_too_old",
        "consumer_dedup_too_old",
        "Deliveries older than the records of deduplication.",
    ),
    _Figure(
        "undeduplicated",
        "consumer_undeduplicated",
        "Runs without deduplication: no store, or no message id.",
    ),
    _Figure(
        "store_away_s",
        "consumer_store_away_seconds",
        "Time without an answer of the store of deduplication.",
        "oldest",
    ),
    _Figure(
        "store_s",
        "consumer_store_call_seconds",
        "Mean duration of the last calls of the store.",
        "oldest",
    ),
    _Figure(
        "order_waiting",
        "consumer_order_waiting",
        "Deliveries that wait behind others of their key.",
        "gauge",
    ),
    _Figure(
        "order_gaps",
        "consumer_order_gaps",
        "Parked deliveries that later ones of their key passed.",
    ),
    _Figure(
        "keys_resting",
        "consumer_keys_resting",
        "Keys that wait for the next run of a failed delivery.",
        "gauge",
    ),
    _Figure(
        "keys_parked",
        "consumer_keys_parked",
        "Keys whose deliveries are parked until a redrive.",
        "gauge",
    ),
    _Figure(
        "keys_stopped", "consumer_keys_stopped", "Keys that stopped after a failed run.", "gauge"
    ),
    _Figure(
        "list_generation",
        "consumer_list_generation",
        "Generation of the consumer list in use.",
        "oldest",
    ),
    _Figure(
        "list_age_s",
        "consumer_list_age_seconds",
        "Time since the last valid consumer list.",
        "oldest",
    ),
    _Figure("list_faults", "consumer_list_faults", "Answers that were not a valid consumer list."),
)


# Figures of the whole table are the same in each of its relays: the largest counts, not their sum.
_RELAY = (
    _Figure("published", "relay_published_rows", "Rows that a broker confirmed."),
    _Figure("failed", "relay_failures", "Publishes of rows that were refused or unroutable."),
    _Figure("parked", "relay_parked_rows", "Rows that failed too often and were parked."),
    _Figure("database_faults", "relay_database_faults", "Calls of the database that failed."),
    _Figure("held", "relay_held_rows", "Rows in the memory of the relay.", "gauge"),
    _Figure("in_flight", "relay_in_flight_rows", "Rows published and not yet confirmed.", "gauge"),
    _Figure("shards", "relay_shards", "Parts of the outbox that this relay has, of 16.", "gauge"),
    _Figure("rows_waiting", "outbox_waiting_rows", "Rows added and not yet published.", "oldest"),
    _Figure(
        "rows_retrying", "outbox_retrying_rows", "Waiting rows that have failed before.", "oldest"
    ),
    _Figure("rows_parked", "outbox_parked_rows", "Rows that are parked.", "oldest"),
    _Figure("oldest_s", "outbox_oldest_row_seconds", "Age of the oldest waiting row.", "oldest"),
)


# Names made by `Subscription.ephemeral`.
_EPHEMERAL = re.compile(r"(?<=/)ephemeral-[0-9a-f]{32}\Z")


class _Bounded:
    """Values of one label: the first ones up to a limit, and "other". Any thread may ask.

    All ephemeral subscriptions of a topic are one: their names never come again, and would leave no room
    for those that last.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()
        self._lock = threading.Lock()

    def value(self, text: str) -> str:
        if text in self._known:
            return text
        text = _EPHEMERAL.sub("(ephemeral)", text)
        with self._lock:
            if text in self._known:
                return text
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(text)
        return text


_Labels = tuple[tuple[str, str], ...]


class _Sums:
    """Figures of all clients of one name, put together: counters and gauges add up."""

    def __init__(self) -> None:
        self._families: dict[str, tuple[_Kind, str, dict[_Labels, float]]] = {}

    def add(self, kind: _Kind, name: str, text: str, value: float, **labels: str) -> None:
        self._add(kind, name, text, tuple(labels.items()), value)

    def _add(self, kind: _Kind, name: str, text: str, key: _Labels, value: float) -> None:
        _, _, samples = self._families.setdefault(name, (kind, text, {}))
        if kind == "oldest":
            samples[key] = max(samples.get(key, value), value)
        else:
            samples[key] = samples.get(key, 0) + value

    def add_all(self, other: _Sums, *kinds: _Kind) -> None:
        """Add all figures of these kinds from another."""
        for kind, name, text, key, value in other.figures():
            if kind in kinds:
                self._add(kind, name, text, key, value)

    def figures(self) -> Iterator[tuple[_Kind, str, str, _Labels, float]]:
        for name, (kind, text, samples) in self._families.items():
            for key, value in samples.items():
                yield kind, name, text, key, value

    def families(self) -> Iterator[Metric]:
        for name, (kind, text, samples) in self._families.items():
            make = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
            names = [label for label, _ in next(iter(samples))]
            family = make(f"messagebus_{name}", text, labels=names)
            for key, value in samples.items():
                family.add_metric([label for _, label in key], value)
            yield family


class _Counters:
    """Counters of one client that never fall: they keep its counts from before each time it began anew at 0.

    An app does so when it is started again.
    """

    def __init__(self) -> None:
        # Name and labels -> the help, the count before the last start, the count since.
        self._known: dict[tuple[str, _Labels], tuple[str, float, float]] = {}

    def update(self, now: _Sums) -> None:
        for kind, name, text, key, value in now.figures():
            if kind == "counter":
                _, before, last = self._known.get((name, key), (text, 0.0, 0.0))
                self._known[name, key] = (text, before + (last if value < last else 0), value)

    def add(self, other: _Counters) -> None:
        for (name, key), (text, before, last) in other._known.items():
            _, ours, _ = self._known.get((name, key), (text, 0.0, 0.0))
            self._known[name, key] = (text, ours + before + last, 0.0)

    def add_to(self, sums: _Sums) -> None:
        for (name, key), (text, before, last) in self._known.items():
            sums.add("counter", name, text, before + last, **dict(key))


class _Watch:
    """Client that is shown, and its counts."""

    __slots__ = ("client", "counters", "name")

    def __init__(self, client: weakref.ref[Watched], name: str) -> None:
        self.client, self.name = client, name
        self.counters = _Counters()


_collecting: ContextVar[list[ClientMetrics] | None]
_collecting = ContextVar("messagebus_collecting", default=None)


@contextmanager
def collected() -> Iterator[list[ClientMetrics]]:
    """Note which objects are collected meanwhile, in this thread."""
    found: list[ClientMetrics] = []
    token = _collecting.set(found)
    try:
        yield found
    finally:
        _collecting.reset(token)


class ClientMetrics(Collector):
    """Collector that reads `stats()` of clients at each scrape. One per registry; any thread may call.

    registry: where it registers itself; None: nowhere. clients_max, brokers_max: the largest number of values
    of the labels ``client`` and ``broker``.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = REGISTRY,
        *,
        clients_max: int = CLIENTS_MAX,
        brokers_max: int = BROKERS_MAX,
    ) -> None:
        self._clients = _Bounded(clients_max)
        self._brokers = _Bounded(brokers_max)
        self._lock = threading.Lock()
        self._watched: list[_Watch] = []
        self._gone: dict[str, _Counters] = {}
        """Label of the name -> last counts of clients that are gone.

        Shown while another client of that name lives, so that their sum never falls.
        """
        if registry is not None:
            registry.register(self)

    def watch(self, client: Watched, name: str) -> None:
        """Export the statistics of a client for as long as the client exists. name: the label ``client``.

        Clients of one name are added up. The counts of a client that no longer exists stay, while another
        client of its name exists. The consumers of an app are labelled with their subscriptions, its
        publisher with `name`.
        """
        with self._lock:
            self._watched.append(_Watch(weakref.ref(client), name))

    def watches(self, client: Watched) -> bool:
        """Return whether this client is exported already."""
        with self._lock:
            return any(each.client() is client for each in self._watched)

    def describe(self) -> list[Metric]:
        """Return nothing in advance: otherwise the registry would collect once while there is no client."""
        return []

    def collect(self) -> Iterator[Metric]:
        if (collecting := _collecting.get()) is not None:
            collecting.append(self)
        with self._lock:
            return self._collected().families()

    def _collected(self) -> _Sums:
        sums, living = _Sums(), []
        for watch in self._watched:
            client = watch.client()
            if client is None:
                label = self._clients.value(watch.name)
                self._gone.setdefault(label, _Counters()).add(watch.counters)
                continue
            living.append(watch)
            found = _Sums()
            self._add(found, client, watch.name)
            watch.counters.update(found)
            sums.add_all(found, "gauge", "oldest")
            watch.counters.add_to(sums)
        self._watched = living
        for label in {self._clients.value(watch.name) for watch in living} & self._gone.keys():
            self._gone[label].add_to(sums)
        return sums

    def _add(self, sums: _Sums, client: Watched, name: str) -> None:
        label = self._clients.value(name)
        is_running = client.status is Status.RUNNING
        sums.add("gauge", "clients_running", "Clients that are running.", is_running, client=label)
        stats = _read(client.stats)
        if isinstance(stats, PublisherStats):
            self._add_publisher(sums, stats, label)
        elif isinstance(stats, ConsumerStats):
            self._add_consumer(sums, stats, label)
        elif isinstance(stats, RelayStats):
            _add_figures(sums, _RELAY, stats, label)
        elif isinstance(stats, AppStats):
            for subscription, each in stats.consumers.items():
                self._add_consumer(sums, each, self._clients.value(subscription))
            self._add_publisher(sums, stats.publisher, label)
            if stats.relay is not None:
                _add_figures(sums, _RELAY, stats.relay, label)

    def _add_publisher(self, sums: _Sums, stats: PublisherStats, client: str) -> None:
        _add_figures(sums, _PUBLISHER, stats, client)
        text = "Publishers that have a connection to a broker that accepts publishes."
        sums.add("gauge", "publisher_connected", text, bool(stats.broker), client=client)

    def _add_consumer(self, sums: _Sums, stats: ConsumerStats, client: str) -> None:
        _add_figures(sums, _CONSUMER, stats, client)
        for broker, each in stats.brokers.items():
            labels = {"client": client, "broker": self._brokers.value(broker)}
            text = "Messages received."
            sums.add("counter", "consumer_deliveries", text, each.delivered, **labels)
            text = "Deliveries without an answer, handed out or not."
            sums.add("gauge", "consumer_owed_messages", text, each.owed, **labels)
            text = "Open connections to the broker."
            sums.add("gauge", "consumer_links_open", text, each.state == "open", **labels)


def _read(stats: Callable[[], Any]) -> Any:
    """Return the statistics; None where the client has not started or its loop is in the way."""
    for _ in range(READ_TRIES):
        try:
            return stats()
        except Stopped:
            return None
        except RuntimeError:  # a mapping changed while it was read
            continue
    return None


def _add_figures(sums: _Sums, figures: tuple[_Figure, ...], stats: object, client: str) -> None:
    for figure in figures:
        value = getattr(stats, figure.stat, None)
        if value is not None:
            sums.add(
                figure.kind,
                figure.name,
                figure.help,
                value,
                client=client,
                **figure.labels,
            )


class PrometheusHooks(Hooks):
    """Hooks that count and time messages. One for each registry, for all clients; any thread may call.

    registry: where it registers its metrics. destinations_max: the largest number of values of the labels
    ``destination`` and ``subscription``, each. buckets_s: upper bounds of the histograms, in seconds.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = REGISTRY,
        *,
        destinations_max: int = DESTINATIONS_MAX,
        buckets_s: tuple[float, ...] = DURATIONS_S,
    ) -> None:
        self._destinations = _Bounded(destinations_max)
        self._subscriptions = _Bounded(destinations_max)
        self._publish_s = Histogram(
            "messagebus_publish_duration_seconds",
            "Time from the call of a publish to its outcome.",
            ["destination", "outcome"],
            registry=registry,
            buckets=buckets_s,
        )
        self._published_bytes = Counter(
            "messagebus_published_bytes",
            "Size of the published bodies.",
            ["destination"],
            registry=registry,
        )
        self._handling_s = Histogram(
            "messagebus_handling_duration_seconds",
            "Duration of a run of a handler.",
            ["subscription", "result"],
            registry=registry,
            buckets=buckets_s,
        )
        self._handled = Counter(
            "messagebus_handled_messages",
            "Deliveries of handlers by answer.",
            ["subscription", "answer"],
            registry=registry,
        )
        self._handled_bytes = Counter(
            "messagebus_handled_bytes",
            "Size of the bodies of handled deliveries.",
            ["subscription"],
            registry=registry,
        )
        self._deduplicated = Counter(
            "messagebus_deduplicated_messages",
            "Deliveries that no handler received, by reason.",
            ["subscription", "verdict"],
            registry=registry,
        )
        # The metric of each pair of labels, found once: the library's own look-up takes twice as long.
        self._known: dict[tuple[object, str, str], Any] = {}
        self._open: dict[int, tuple[Message, float]] = {}

    def publishing(self, destination: str, message: Message) -> Message:
        if (
            id(message) in self._open
        ):  # one object that is published twice at once: the first is timed
            return message
        self._open[id(message)] = (message, time.perf_counter())
        return message

    def published(self, destination: str, message: Message, published: Published) -> None:
        _, start_s = self._open.pop(id(message), (None, None))
        if start_s is not None:
            took_s = time.perf_counter() - start_s
            self._of(self._publish_s, destination, published.outcome.value).observe(took_s)
        self._of(self._published_bytes, destination).inc(len(message.body))

    def handling(self, delivery: Delivery) -> AbstractContextManager[None]:
        return _Timed(self, delivery)

    def handling_many(self, deliveries: Sequence[Delivery]) -> AbstractContextManager[None]:
        return _Timed(self, deliveries[0])  # one run

    def handled(self, delivery: Delivery, answer: str, error: BaseException | None) -> None:
        subscription = str(delivery.source)
        self._of(self._handled, subscription, answer).inc()
        self._of(self._handled_bytes, subscription).inc(len(delivery.body))

    def deduplicated(self, delivery: Delivery, verdict: str) -> None:
        self._of(self._deduplicated, str(delivery.source), verdict).inc()

    def _of(self, metric: Counter | Histogram, name: str, word: str = "") -> Any:
        found = self._known.get((metric, name, word))
        if found is None:
            is_publish = metric in (self._publish_s, self._published_bytes)
            label = (self._destinations if is_publish else self._subscriptions).value(name)
            found = metric.labels(label, word) if word else metric.labels(label)
            if label == name:  # a label that stands for several names is not remembered
                self._known[metric, name, word] = found
        return found


class _Timed:
    __slots__ = ("_delivery", "_hooks", "_start_s")

    def __init__(self, hooks: PrometheusHooks, delivery: Delivery) -> None:
        self._hooks, self._delivery = hooks, delivery

    def __enter__(self) -> None:
        self._start_s = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        took_s = time.perf_counter() - self._start_s
        result = "ok" if kind is None else "error"
        hooks = self._hooks
        hooks._of(hooks._handling_s, str(self._delivery.source), result).observe(took_s)
