"""Answers to health checks of a worker, served by `messagebus.http.probes`.

| path | 200 | 503 |
|---|---|---|
| /ready | attached to brokers, not stopping, no store of deduplication awaited for 30 s | else |
| /live | the loop turns, or the application is still imported | it has not turned for LIVE_S |
| /metrics | Prometheus text | 404 without prometheus-client: which extra to install |
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from importlib.util import find_spec
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx

from messagebus.app import App
from messagebus.http.probes import TEXT, Answer, Ask
from messagebus.worker.pulse import LIVE_S, Look, Pulse

JSON = "application/json"
NO_METRICS = Answer(
    404,
    TEXT,
    b"prometheus_client is not installed: pip install 'messagebus-rabbitmq[prometheus]'\n",
)


def answer_of(pulse: Pulse, metrics: Metrics | None = None) -> Ask:
    """Return the answers of one worker."""

    def ask(path: str) -> Answer:
        if path == "/metrics" and metrics is not None:
            return Answer(200, *metrics())
        age_s, look = pulse.age_s, pulse.look
        # The import of an application may take any time: its start is watched by /ready.
        turns = age_s < LIVE_S or not pulse.begun
        return respond(path, look, None if turns else f"no turn for {age_s:.1f} s")

    return ask


def relay_answers(relay: AsyncRelay) -> Ask:
    """Return the answers of a relay of an outbox: ready while database and brokers answer it."""
    metrics = metrics_of(relay, "relay")

    def ask(path: str) -> Answer:
        if path == "/metrics" and metrics is not None:
            return Answer(200, *metrics())
        faults = relay.faults()
        return respond(path, {"ready": not faults, "faults": faults}, None)

    return ask


def respond(path: str, look: Look, stuck: str | None) -> Answer:
    """Answer a request for this path. stuck: why the app is not live; None: it is live."""
    match path:
        case "/ready":
            ready = bool(look["ready"]) and stuck is None
            return _as_json(200 if ready else 503, {**look, "ready": ready})
        case "/live":
            return _as_json(200 if stuck is None else 503, {"live": stuck is None, "why": stuck})
        case "/metrics" if find_spec("prometheus_client") is None:
            return NO_METRICS
        case _:
            return Answer(404, TEXT, b"/ready, /live, /metrics\n")


def _as_json(code: int, value: Any) -> Answer:
    return Answer(code, JSON, json.dumps(value, default=str).encode() + b"\n")


if TYPE_CHECKING:
    from prometheus_client import Metric

    from messagebus.outbox.relay import AsyncRelay

__all__ = ["Metrics", "merged", "metrics_of", "scraped"]

log = logging.getLogger("messagebus.worker")

Metrics = Callable[[], tuple[str, bytes]]
"""Content type and text of one scrape."""

CLIENT = "worker"
PROCESS, UP = "process", "messagebus_worker_up"
# Part of Prometheus' own 10 s for a scrape; a process that has not answered by then is left out.
SCRAPE_TIMEOUT_S = 4.0
SCRAPES_AT_ONCE = 32


def metrics_of(app: App | AsyncRelay, name: str = CLIENT) -> Metrics | None:
    """Return all metrics that the application registers, and its subscriptions' unless it shows them itself.

    None: prometheus-client is not installed.
    """
    try:
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

        from messagebus.telemetry.prometheus import ClientMetrics, collected
    except ImportError:
        return None
    ours = CollectorRegistry()
    ClientMetrics(ours).watch(app, name)

    def scrape() -> tuple[str, bytes]:
        with collected() as theirs:
            shown = generate_latest()
        if not theirs:
            return CONTENT_TYPE_LATEST, shown + generate_latest(ours)
        if not any(each.watches(app) for each in theirs):
            # Ours beside theirs would give the same families a second time.
            theirs[0].watch(app, name)
            shown = generate_latest()
        return CONTENT_TYPE_LATEST, shown

    return scrape


def scraped(ports: Mapping[str, int | None]) -> tuple[str, bytes]:
    """Return the merged metrics of the health servers at these ports of this machine.

    ports: process name -> port; None: it has none yet. A server that does not answer in time, or with
    something else, is left out, and its `messagebus_worker_up` is 0; it costs the others nothing.
    """
    shown: dict[str, list[Metric]] = {}
    # Without certificates: reading them takes longer than all the rest.
    http = httpx.Client(timeout=SCRAPE_TIMEOUT_S, trust_env=False, verify=False)
    asking = ThreadPoolExecutor(SCRAPES_AT_ONCE, "messagebus-scrape")
    try:
        asked = {
            asking.submit(_scrape, http, port): name
            for name, port in ports.items()
            if port is not None
        }
        for done in wait(asked, SCRAPE_TIMEOUT_S).done:
            try:
                shown[asked[done]] = done.result()
            except (httpx.HTTPError, ValueError) as fault:
                log.info("no metrics of process=%r error=%s", asked[done], type(fault).__name__)
    finally:
        asking.shutdown(wait=False, cancel_futures=True)
        http.close()
    kind, text = _together(shown)
    up = [f'{UP}{{{PROCESS}="{name}"}} {float(name in shown)}' for name in ports]
    lines = (f"# HELP {UP} 1 if the process answered with its metrics.", f"# TYPE {UP} gauge", *up)
    return kind, text + "".join(f"{line}\n" for line in lines).encode()


def _scrape(http: httpx.Client, port: int) -> list[Metric]:
    return _read(http.get(f"http://127.0.0.1:{port}/metrics").raise_for_status().text)


def merged(scrapes: Mapping[str, str]) -> tuple[str, bytes]:
    """Merge scrapes of several processes; a label of each sample names its process.

    scrapes: process name -> its scrape. A label of that name of the application's own becomes
    ``exported_process``, as in Prometheus itself. Raises ValueError for an invalid scrape.
    """
    return _together({name: _read(text) for name, text in scrapes.items()})


def _read(text: str) -> list[Metric]:
    from prometheus_client.parser import text_string_to_metric_families

    return list(text_string_to_metric_families(text))


def _together(shown: Mapping[str, list[Metric]]) -> tuple[str, bytes]:
    from prometheus_client import CONTENT_TYPE_LATEST, Metric, generate_latest

    found: dict[str, Metric] = {}
    for name, families in shown.items():
        for family in families:
            metric = found.setdefault(
                family.name, Metric(family.name, family.documentation, family.type)
            )
            metric.samples += [
                sample._replace(labels={**_exported(sample.labels), PROCESS: name})
                for sample in family.samples
            ]
    every = SimpleNamespace(collect=lambda: iter(found.values()))
    return CONTENT_TYPE_LATEST, generate_latest(every)


def _exported(labels: Mapping[str, str]) -> Mapping[str, str]:
    """Rename a label `PROCESS` of the application's own to a name that is free."""
    if PROCESS not in labels:
        return labels
    name = f"exported_{PROCESS}"
    while name in labels:
        name = f"exported_{name}"
    return {name if label == PROCESS else label: value for label, value in labels.items()}
