"""The gateway's metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from messagebus.services.gateway.pulling import Pulls

PREFIX = "messagebus_gateway"


class Metrics(Collector):
    """Counters of requests, and what the pulls hold when they are asked."""

    def __init__(self, pulls: Pulls) -> None:
        self.registry = CollectorRegistry()
        self._pulls = pulls
        self.requests = Counter(
            f"{PREFIX}_requests",
            "Requests by route and status.",
            ["route", "status"],
            registry=self.registry,
        )
        self.outcomes = Counter(
            f"{PREFIX}_outcomes", "Publishes by outcome.", ["outcome"], registry=self.registry
        )
        self.deliveries = Counter(
            f"{PREFIX}_deliveries",
            "Deliveries handed to callers, each with a lease.",
            registry=self.registry,
        )
        self.pushes = Counter(
            f"{PREFIX}_pushes",
            "Requests to webhooks by the status of the answer.",
            ["subscription", "status"],
            registry=self.registry,
        )
        self.in_flight = 0
        """Requests under way."""
        self._counters: dict[tuple[object, ...], Counter] = {}
        self.registry.register(self)

    def ended(self, route: str, status: int) -> None:
        """Count a request. Labels are looked up once: it takes longer than counting."""
        self._of(self.requests, route, status).inc()

    def outcome(self, outcome: str, count: int = 1) -> None:
        """Count ends of publishes."""
        self._of(self.outcomes, outcome).inc(count)

    def _of(self, counter: Counter, *labels: object) -> Counter:
        found = self._counters.get(labels)
        if found is None:
            found = self._counters[labels] = counter.labels(*labels)
        return found

    def collect(self) -> Iterable[Metric]:
        """Return what is held now; Prometheus' call."""
        pulls = self._pulls
        for name, what, value in (
            ("in_flight", "Requests in progress.", self.in_flight),
            ("leases", "Deliveries handed to callers and not yet answered.", len(pulls.leases)),
            ("buffered", "Deliveries fetched and not yet handed out.", pulls.buffered),
            ("buffered_oldest_seconds", "Age of the oldest of them.", pulls.buffered_oldest_s),
        ):
            yield GaugeMetricFamily(f"{PREFIX}_{name}", what, value)
        text = "Leases that ended without an answer of the caller."
        yield CounterMetricFamily(f"{PREFIX}_leases_expired", text, pulls.expired)
