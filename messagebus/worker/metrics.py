"""What a worker shows at /metrics, where prometheus-client is installed."""

from __future__ import annotations

from collections.abc import Callable

from messagebus.app import App

__all__ = ["Metrics", "metrics_of"]

Metrics = Callable[[], tuple[str, bytes]]
"""Content type and text of one scrape."""

CLIENT = "worker"


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
