"""The form of every figure: value, unit, goal, whether it was met, and the command that repeats it.

Results are files ``bench/results/NAME.json``: ``{"environment": ..., "figures": [...]}``. Tables, in
the terminal and in the README, are made from them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from bench.errors import InputInvalid
from bench.manifest import write_atomically

__all__ = ["Figure", "Results", "at_least", "below", "figures_table", "markdown", "plain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """id: ``way.publish.ratio``. what: in words. goal: "" and met: None where nothing is promised."""

    id: str
    what: str
    value: float
    unit: str
    repeat: str
    goal: str = ""
    met: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """One file. environment: where, when and on what it was measured."""

    name: str
    environment: dict[str, Any]
    figures: tuple[Figure, ...]

    def save(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        figures = [dataclasses.asdict(figure) for figure in self.figures]
        as_json = {"environment": self.environment, "figures": figures}
        write_atomically(path, json.dumps(as_json, indent=1) + "\n")
        return path

    @classmethod
    def load(cls, path: Path) -> Results:
        """Raises InputInvalid for a file that is no results."""
        try:
            found = json.loads(path.read_text())
            figures = tuple(Figure(**{"what": "", **figure}) for figure in found["figures"])
            return cls(name=path.stem, environment=dict(found["environment"]), figures=figures)
        except OSError as fault:
            raise InputInvalid(f"{path}: cannot read: {fault.strerror}") from fault
        except (ValueError, KeyError, TypeError) as fault:
            raise InputInvalid(f"{path}: not a file of results: {fault}") from fault


def at_least(goal: float, value: float, unit: str = "") -> dict[str, Any]:
    """Fields goal and met of a figure that must not be lower."""
    return {"goal": f">= {plain(goal)}{' ' if unit else ''}{unit}", "met": value >= goal}


def below(goal: float, value: float, unit: str = "") -> dict[str, Any]:
    """Fields goal and met of a figure that must be lower."""
    return {"goal": f"< {plain(goal)}{' ' if unit else ''}{unit}", "met": value < goal}


def plain(value: float) -> str:
    """Three digits that say something."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def figures_table(figures: Iterable[Figure]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    for column in ("figure", "value", "goal", "met"):
        table.add_column(column, justify="right" if column == "value" else "left", no_wrap=True)
    for figure in figures:
        value = f"{plain(figure.value)} {figure.unit}".rstrip()
        table.add_row(figure.id, value, figure.goal, _met(figure))
    return table


def _met(figure: Figure) -> Text:
    if figure.met is None:
        return Text("")
    return Text("yes", style="green") if figure.met else Text("NO", style="bold red")


def markdown(results: Sequence[Results]) -> str:
    """The table of the README; each figure from the newest file that has it."""
    newest: dict[str, tuple[Figure, str]] = {}
    for each in sorted(results, key=lambda one: str(one.environment.get("at", ""))):
        for figure in each.figures:
            newest[figure.id] = (figure, each.name)
    lines = ["| figure | value | goal | measured by |", "|---|---|---|---|"]
    for name in sorted(newest):
        figure, file = newest[name]
        goal = figure.goal + ("" if figure.met is not False else " (**not met**)")
        value = f"{plain(figure.value)} {figure.unit}".rstrip()
        what = f"{figure.what} (`{name}`)"
        lines.append(f"| {what} | {value} | {goal} | `{figure.repeat}` → `{file}.json` |")
    return "\n".join(lines)
