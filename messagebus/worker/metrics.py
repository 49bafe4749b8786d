"""What a worker shows at /metrics, alone or for several processes, where prometheus-client is installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace

import httpx

from messagebus.app import App

__all__ = ["Metrics", "merged", "metrics_of", "scraped"]

Metrics = Callable[[], tuple[str, bytes]]
"""Content type and text of one scrape."""

CLIENT = "worker"
SCRAPE_TIMEOUT_S = 4.0


def metrics_of(app: App) -> Metrics | None:
    """All that the application registers, and its subscriptions unless it shows them itself.

    None: prometheus-client is not installed.
    """
    try:
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

        from messagebus.telemetry.prometheus import ClientMetrics
    except ImportError:
        return None
    ours = CollectorRegistry()
    clients = ClientMetrics(ours)
    clients.watch(app, CLIENT)

    def scrape() -> tuple[str, bytes]:
        theirs = generate_latest()
        more = b"" if b"\nmessagebus_clients_running" in theirs else generate_latest(ours)
        return CONTENT_TYPE_LATEST, theirs + more

    return scrape


def scraped(ports: Mapping[str, int]) -> tuple[str, bytes]:
    """What the health servers at these ports of this machine show, merged.

    ports: by name of the process. Raises httpx.HTTPError.
    """
    shown: dict[str, str] = {}
    with httpx.Client(timeout=SCRAPE_TIMEOUT_S, trust_env=False) as http:
        for name, port in ports.items():
            answer = http.get(f"http://127.0.0.1:{port}/metrics")
            shown[name] = answer.raise_for_status().text
    return merged(shown)


def merged(scrapes: Mapping[str, str]) -> tuple[str, bytes]:
    """Scrapes of several processes as one, each sample with a label that names its process.

    scrapes: what each process shows, by its name.
    """
    from prometheus_client import CONTENT_TYPE_LATEST, Metric, generate_latest
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[str, Metric] = {}
    for name, text in scrapes.items():
        for family in text_string_to_metric_families(text):
            metric = found.setdefault(
                family.name, Metric(family.name, family.documentation, family.type)
            )
            metric.samples += [
                sample._replace(labels={**sample.labels, "process": name})
                for sample in family.samples
            ]
    every = SimpleNamespace(collect=lambda: iter(found.values()))
    return CONTENT_TYPE_LATEST, generate_latest(every)
