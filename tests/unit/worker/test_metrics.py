"""What is shown at /metrics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client import REGISTRY

from messagebus import App
from messagebus.telemetry.prometheus import ClientMetrics
from messagebus.worker.metrics import merged, metrics_of


@pytest.fixture
def of_application() -> Iterator[ClientMetrics]:
    """An application that shows its clients by itself."""
    made = ClientMetrics()
    yield made
    REGISTRY.unregister(made)


def scraped(app: App) -> bytes:
    metrics = metrics_of(app)
    assert metrics is not None
    kind, text = metrics()
    assert kind.startswith("text/plain")
    return text


def test_the_app_and_all_that_is_registered_are_shown() -> None:
    app = App()
    text = scraped(app)
    assert b"python_info" in text
    assert b'messagebus_clients_running{client="worker"} 0.0' in text


def test_an_application_that_shows_itself_is_not_shown_twice(of_application: ClientMetrics) -> None:
    app = App()
    of_application.watch(app, "mine")
    text = scraped(app)
    assert text.count(b"# TYPE messagebus_clients_running") == 1
    assert b'client="mine"' in text


def test_samples_of_several_processes_are_told_apart_and_each_family_is_described_once() -> None:
    text = (
        '# HELP runs_total Of handlers.\n# TYPE runs_total counter\nruns_total{answer="ack"} %d.0\n'
    )
    kind, shown = merged({"worker 1": text % 3, "worker 2": text % 4})
    assert kind.startswith("text/plain")
    assert shown.decode().splitlines() == [
        "# HELP runs_total Of handlers.",
        "# TYPE runs_total counter",
        'runs_total{answer="ack",process="worker 1"} 3.0',
        'runs_total{answer="ack",process="worker 2"} 4.0',
    ]
