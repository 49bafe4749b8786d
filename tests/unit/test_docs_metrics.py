"""The page of metrics against the code: a row for each metric, and each alert in the rows of its metrics."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from messagebus.core.deliveries import Receipt
from messagebus.destination import Queue
from messagebus.message import Delivery, Message
from messagebus.services.agent.web.metrics import COUNTERS, GAUGES, Figure
from messagebus.services.agent.web.metrics import Metrics as AgentMetrics
from messagebus.services.gateway.metrics import Metrics as GatewayMetrics
from messagebus.services.monitor.api import FIGURES, text_of
from messagebus.stats import (
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
from messagebus.worker.health import scraped

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "metrics.md"
ALERTS = ROOT / "ops" / "monitoring" / "alerts.yml"
AGENT = ROOT / "messagebus" / "services" / "agent"
ROW = re.compile(
    r"^\| `(?P<name>\w+)(?:\{(?P<labels>.*?)\})?` \| (?P<type>\w+), (?P<unit>.*?) \| (?P<meaning>.*?)"
    r" \| (?P<alarming>.*?) \|$",
    re.M,
)
UNITS = {"_seconds": "s", "_seconds_left": "s", "_bytes": "bytes"}


def rows(heading: str = "") -> dict[str, dict[str, str]]:
    """Return the rows of the page, or of one section, by the name of their metric."""
    text = PAGE.read_text()
    if heading:
        text = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = [row.groupdict(default="") for row in ROW.finditer(text)]
    assert len(found) == len({row["name"] for row in found}), "a metric has two rows"
    return {row["name"]: row for row in found}


def shown(text: str) -> dict[str, tuple[str, list[str], str]]:
    """Return the metrics of a scrape as rows have them: name -> type, labels, meaning."""
    found = {}
    for family in text_string_to_metric_families(text):
        if family.name.endswith("_created"):
            continue
        assert family.samples, family.name
        total = "_total" if family.type == "counter" else ""
        labels = sorted(label for label in family.samples[0].labels if label != "le")
        found[family.name + total] = (family.type, labels, family.documentation)
    return found


def agent() -> str:
    names = [*GAUGES, *COUNTERS]
    figures = [Figure(name, 1, "mb.q" if name.startswith("queue_") else "") for name in names]
    return AgentMetrics("mb1:5672", lambda: figures).text().decode()


def gateway() -> str:
    pulls = SimpleNamespace(leases=(), expired=0, buffered=0, buffered_oldest_s=0.0)
    metrics = GatewayMetrics(cast(Any, pulls))
    metrics.ended("/v1/topics", 200)
    metrics.outcome("confirmed")
    metrics.pushes.labels("orders/billing", "200").inc()
    return generate_latest(metrics.registry).decode()


def monitor() -> str:
    return text_of(dict.fromkeys(FIGURES, 1.0))


@dataclasses.dataclass
class Client:
    kind: type
    status: Status = Status.RUNNING

    def stats(self) -> Any:
        """Return statistics in which every number is there."""
        values: dict[str, Any] = {
            field.name: "ok" if field.type == "str" else 1
            for field in dataclasses.fields(self.kind)
        }
        if self.kind is ConsumerStats:
            values["brokers"] = {"mb1:5672": BrokerStats(state="open", delivered=1, owed=1)}
        return self.kind(**values)


def clients() -> str:
    registry = CollectorRegistry()
    metrics = ClientMetrics(registry)
    watched = [Client(kind) for kind in (PublisherStats, ConsumerStats, RelayStats)]
    for client in watched:
        metrics.watch(cast(Any, client), "shop")
    return generate_latest(registry).decode()


def messages() -> str:
    registry = CollectorRegistry()
    hooks = PrometheusHooks(registry)
    message = Message(body=b"x", message_id="1")
    delivery = Delivery(message, Receipt("mb1:5672", 1, 1), Queue("jobs"))
    hooks.publishing("orders", message)
    hooks.published("orders", message, Published("1", Outcome.CONFIRMED, Durability.FSYNC))
    with hooks.handling(delivery):
        pass
    hooks.handled(delivery, "ack", None)
    hooks.deduplicated(delivery, "duplicate")
    return generate_latest(registry).decode()


def worker() -> str:
    return scraped({"worker 1": None})[1].decode()


SECTIONS = {
    "Agent": agent,
    "Gateway": gateway,
    "Monitor": monitor,
    "Publishers, consumers and relays": clients,
    "Messages": messages,
    "Worker": worker,
}


@pytest.mark.parametrize("heading", SECTIONS)
def test_every_metric_has_its_row_with_type_labels_and_help(heading: str) -> None:
    told = {
        name: (row["type"], sorted(re.findall(r"\w+", row["labels"])), row["meaning"])
        for name, row in rows(heading).items()
    }
    assert told == shown(SECTIONS[heading]())


def test_every_row_belongs_to_a_section_and_has_its_unit() -> None:
    assert rows().keys() == {name for heading in SECTIONS for name in rows(heading)}
    for name, row in rows().items():
        ends = (unit for end, unit in UNITS.items() if name.removesuffix("_total").endswith(end))
        assert row["unit"] == next(ends, row["unit"]) != "", name
        assert (row["unit"] == "0 or 1") == row["meaning"].startswith("1 "), name


def test_the_agent_shows_the_metrics_that_are_declared_and_no_others() -> None:
    texts = "".join(path.read_text() for path in AGENT.rglob("*.py"))
    assert {*re.findall(r'yield Figure\("(\w+)"', texts)} == GAUGES.keys() | COUNTERS.keys()


def series_of(texts: Iterable[str]) -> set[str]:
    return {name for text in texts for name in re.findall(r"\bmessagebus_\w+", text)}


def test_every_alert_is_named_in_the_rows_of_its_metrics() -> None:
    alerts = ALERTS.read_text().split("- alert: ")[1:]
    assert len(alerts) > 20
    missing = [
        (alert.split()[0], name)
        for alert in alerts
        for name in series_of([alert.partition("expr:")[2].partition("labels:")[0]])
        if f"[{alert.split()[0]}](../OPERATIONS.md#" not in rows()[name]["alarming"]
        and (alert.split()[0], name) not in COMPARED
    ]
    assert missing == []


# An alert names these only to leave out what is no alarm.
COMPARED = {("GateShut", "messagebus_agent_linked")}


def test_dashboards_and_rules_ask_for_metrics_that_there_are() -> None:
    folder = ROOT / "ops" / "monitoring"
    texts = [path.read_text() for path in [*folder.glob("*.yml"), *folder.glob("*.py")]]
    names = {re.sub(r"_(bucket|sum|count)$", "", name) for name in series_of(texts)}
    groups = {name for name in names if name.endswith("_")}  # `messagebus_agent_*` in a comment
    assert names - groups - rows().keys() == set()
