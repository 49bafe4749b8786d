"""Grafana dashboards as JSON, made of the panels in dashboards.toml. A test runs each query by Prometheus.

python -m ops dashboards /etc/grafana/provisioning/dashboards
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from messagebus.files import write_whole
from messagebus.terminal import say

SCHEMA = 38  # Grafana 10
COLUMNS = 24
HEIGHT = 8
SOURCE = {"type": "prometheus", "uid": "${source}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel. queries: (PromQL, legend). unit: Grafana's word. wide: of 24 columns. kind: Grafana's."""

    title: str
    queries: Sequence[Sequence[str]]
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


def _boards() -> tuple[Board, ...]:
    """Read the table beside this file."""
    read = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["boards"]
    return tuple(
        Board(**{**each, "panels": tuple(Panel(**panel) for panel in each["panels"])})
        for each in read
    )


BOARDS = _boards()


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
