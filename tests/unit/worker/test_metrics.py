"""The contents of /metrics."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from prometheus_client import REGISTRY

from messagebus import App
from messagebus.http.probes import Answer, ProbeServer
from messagebus.telemetry.prometheus import ClientMetrics
from messagebus.testing import MemoryBus
from messagebus.worker.health import merged, metrics_of
from messagebus.worker.health import scraped as scraped_from


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


def test_a_label_of_the_applications_own_is_kept_under_another_name() -> None:
    text = '# TYPE x gauge\nx{process="a",exported_process="b"} 1.0\nx{process="c"} 2.0\n'
    _, shown = merged({"worker 1": text})
    samples = sorted(line for line in shown.decode().splitlines() if not line.startswith("#"))
    assert samples == [
        'x{exported_exported_process="a",exported_process="b",process="worker 1"} 1.0',
        'x{exported_process="c",process="worker 1"} 2.0',
    ]


def test_an_application_that_watches_something_else_still_shows_the_app(
    of_application: ClientMetrics,
) -> None:
    side = MemoryBus().publisher()
    of_application.watch(side, "side")
    text = scraped(App())
    for client in (b"side", b"worker"):
        assert b'messagebus_clients_running{client="%s"} 0.0' % client in text
    assert text.count(b"# TYPE messagebus_clients_running") == 1


async def test_the_apps_own_publisher_is_shown() -> None:
    app = App()
    app.use(MemoryBus())

    @app.subscriber("queue:jobs")
    async def work(text: str) -> None: ...

    async with app:
        await app.publish("queue:jobs", "x")
        text = scraped(app)
    assert b'messagebus_publisher_messages_total{client="worker",outcome="confirmed"} 1.0' in text
    assert b'messagebus_consumer_links_open{broker="memory-1:5672",client="queue:jobs"} 1.0' in text


@pytest.mark.guarantee("counters-never-fall")
def test_one_process_that_shows_nothing_is_left_out_and_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("messagebus.worker.health.SCRAPE_TIMEOUT_S", 2.0)

    def shows(text: bytes) -> ProbeServer:
        return ProbeServer(("127.0.0.1", 0), lambda path: Answer(200, "text/plain", text))

    good, nonsense = shows(b"# TYPE x gauge\nx 1.0\n"), shows(b"x{ 1 1 1\n")
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        socket.create_server(("127.0.0.1", 0)) as gone,
    ):
        ports = {
            "worker 1": good.port,
            "worker 2": nonsense.port,
            "worker 3": int(silent.getsockname()[1]),
            "worker 4": int(gone.getsockname()[1]),
            "worker 5": None,
        }
        gone.close()
        _, text = scraped_from(ports)
    for server in (good, nonsense):
        server.close()
    shown = dict(line.rsplit(" ", 1) for line in text.decode().splitlines() if line[0] != "#")
    up = {f"worker {number}": "1.0" if number == 1 else "0.0" for number in range(1, 6)}
    assert shown == {
        'x{process="worker 1"}': "1.0",
        **{f'messagebus_worker_up{{process="{name}"}}': value for name, value in up.items()},
    }
