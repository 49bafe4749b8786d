"""Grafana dashboards as JSON, made of a table of panels; every query is run against Prometheus by a test.

    python -m ops dashboards /etc/grafana/provisioning/dashboards

The queries use the metrics of agents, balancers and clients, and the recording rules of ``records.yml``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from inventory.files import write_whole
from messagebus.terminal import say

SCHEMA = 38  # Grafana 10
COLUMNS = 24
HEIGHT = 8
SOURCE = {"type": "prometheus", "uid": "${source}"}
QUEUES = r'queue=~"mb\\.(sub|queue)/$queue"'
PARKED = r'queue=~"mb\\.park/$queue"'
BROKERS = 'proxy="mb_brokers"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel. queries: (PromQL, legend). unit: Grafana's word. wide: of 24 columns. kind: Grafana's."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    wide: int = 12
    kind: str = "timeseries"
    says: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One dashboard. name: of its file, and its uid."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    has_queue: bool = False


def _one(title: str, query: str, unit: str = "short", says: str = "") -> Panel:
    return Panel(title=title, queries=((query, ""),), unit=unit, wide=4, kind="stat", says=says)


BOARDS = (
    Board(
        name="messagebus-bus",
        title="messagebus: the bus",
        panels=(
            _one("Brokers that take publishes", "messagebus:ready:ratio", "percentunit"),
            _one("Agents that answer", "messagebus:agents:ratio", "percentunit",
                 "Figures are of these alone."),
            _one("Waiting", "sum(messagebus:waiting:sum)"),
            _one("Oldest message", "max(messagebus:oldest_seconds:max)", "s"),
            _one("Parked", "sum(messagebus:parked:sum)"),
            _one("Clients behind the list", "sum(messagebus_agent_clients_behind)"),
            Panel(title="Oldest message, the ten worst", unit="s",
                  queries=(("topk(10, messagebus:oldest_seconds:max)", "{{queue}}"),)),
            Panel(title="Waiting, the ten largest",
                  queries=(("topk(10, messagebus:waiting:sum)", "{{queue}}"),)),
            Panel(title="Publishes by outcome", unit="ops",
                  queries=(("messagebus:published:rate5m", "{{outcome}}"),),
                  says="Of publishers that show their metrics. unknown may be stored or not."),
            Panel(title="Answers of consumers", unit="ops",
                  queries=(("messagebus:answers:rate5m", "{{answer}}"),)),
            Panel(title="Connections of publishers by broker",
                  queries=((f"sum by (server) (haproxy_server_current_sessions{{{BROKERS}}})",
                            "{{server}}"),)),
            Panel(title="Room until the disk alarm", unit="bytes",
                  queries=(("messagebus_agent_disk_free_bytes - messagebus_agent_disk_limit_bytes",
                            "{{broker}}"),)),
            Panel(title="Memory of its limit", unit="percentunit",
                  queries=(("messagebus_agent_memory_used_bytes / messagebus_agent_memory_limit_bytes",
                            "{{broker}}"),)),
            Panel(title="State by broker", kind="state-timeline",
                  queries=(("messagebus_agent_ready + 2 * messagebus_agent_draining"
                            " + 4 * messagebus_agent_alarm", "{{broker}}"),),
                  says="1: takes publishes. 2: drained. 4: in alarm. 0: none of it."),
        ),
    ),
    Board(
        name="messagebus-subscription",
        title="messagebus: subscriptions and queues",
        has_queue=True,
        panels=(
            Panel(title="Age of the oldest message", unit="s",
                  queries=((f"messagebus_agent_queue_oldest_age_seconds{{{QUEUES}}}",
                            "{{queue}} on {{broker}}"),)),
            Panel(title="Waiting",
                  queries=((f"messagebus_agent_queue_messages{{{QUEUES}}}",
                            "{{queue}} on {{broker}}"),)),
            Panel(title="Consumers",
                  queries=((f"messagebus_agent_queue_consumers{{{QUEUES}}}",
                            "{{queue}} on {{broker}}"),)),
            Panel(title="Parked",
                  queries=((f"messagebus_agent_queue_messages{{{PARKED}}}",
                            "{{queue}} on {{broker}}"),)),
            Panel(title="Seconds until empty, at the rate of the last ten minutes", unit="s",
                  queries=((f"sum by (queue) (messagebus_agent_queue_messages{{{QUEUES}}}) / clamp_min("
                            f"-sum by (queue) (deriv(messagebus_agent_queue_messages{{{QUEUES}}}[10m]))"
                            ", 0.001)", "{{queue}}"),)),
            Panel(title="Failed runs of handlers", unit="ops",
                  queries=(("sum by (instance) (rate(messagebus_consumer_failed_runs_total[5m]))",
                            "{{instance}}"),)),
        ),
    ),
    Board(
        name="messagebus-clients",
        title="messagebus: clients",
        panels=(
            Panel(title="Backlog of publishers",
                  queries=(("messagebus_publisher_backlog_messages", "{{instance}}"),),
                  says="Accepted and not yet sent."),
            Panel(title="Since the last confirm", unit="s",
                  queries=(("messagebus_publisher_last_confirm_age_seconds", "{{instance}}"),)),
            Panel(title="Unknown and refused publishes", unit="ops",
                  queries=(('sum by (instance, outcome) (rate(messagebus_publisher_messages_total'
                            '{outcome=~"unknown|refused|unroutable"}[5m]))',
                            "{{instance}} {{outcome}}"),)),
            Panel(title="Links lost", unit="ops",
                  queries=(("rate(messagebus_publisher_links_lost_total[5m])", "{{instance}}"),)),
            Panel(title="Age of the list", unit="s",
                  queries=(("messagebus_consumer_list_age_seconds", "{{instance}} consumer"),
                           ("messagebus_publisher_list_age_seconds", "{{instance}} publisher"))),
            Panel(title="Handlers at work",
                  queries=(("messagebus_consumer_handling_messages", "{{instance}}"),)),
            Panel(title="Oldest run", unit="s",
                  queries=(("messagebus_consumer_oldest_run_seconds", "{{instance}}"),)),
            Panel(title="In the disk spool",
                  queries=(("messagebus_publisher_spool_messages", "{{instance}}"),)),
        ),
    ),
)  # fmt: skip


def queries(board: Board, **variables: str) -> Iterator[tuple[str, str]]:
    """Yield (panel, PromQL) of a dashboard, with its variables replaced: queue="orders/billing"."""
    for panel in board.panels:
        for query, _ in panel.queries:
            yield panel.title, re.sub(r"\$(\w+)", lambda found: variables[found[1]], query)


def rendered(board: Board) -> str:
    """Return a dashboard as Grafana imports it."""
    panels, x, y = [], 0, 0
    for number, panel in enumerate(board.panels, start=1):
        if x + panel.wide > COLUMNS:
            x, y = 0, y + HEIGHT
        panels.append(_panel(panel, number, {"x": x, "y": y, "w": panel.wide, "h": HEIGHT}))
        x += panel.wide
    variables = [
        {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    ]
    if board.has_queue:
        variables.append(
            {
                **{"name": "queue", "label": "Subscription or queue", "type": "query"},
                **{"datasource": SOURCE, "includeAll": True, "allValue": ".*", "refresh": 2},  # type: ignore[dict-item]
                "query": "label_values(messagebus_agent_queue_messages, queue)",
                "regex": r"mb\.(?:sub|queue)/(.*)",
            }
        )
    made = {
        **{"uid": board.name, "title": board.title, "tags": ["messagebus"]},
        **{"schemaVersion": SCHEMA, "editable": True, "refresh": "30s", "timezone": "browser"},
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": variables},
        "panels": panels,
    }
    return json.dumps(made, indent=1) + "\n"


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + i), "expr": query, "legendFormat": legend, "datasource": SOURCE}
        for i, (query, legend) in enumerate(panel.queries)
    ]
    return {
        **{"id": number, "type": panel.kind, "title": panel.title, "description": panel.says},
        **{"gridPos": place, "datasource": SOURCE, "targets": targets},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
    }


@click.command("dashboards", short_help="Write dashboards for Grafana.")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def command(folder: Path) -> None:
    """Write the dashboards for Grafana into FOLDER, one file of JSON each.

    \b
    Example:
      python -m ops dashboards /var/lib/grafana/dashboards
    """
    folder.mkdir(parents=True, exist_ok=True)
    for board in BOARDS:
        path = folder / f"{board.name}.json"
        write_whole(path, rendered(board), mode=0o644)
        say(str(path))
