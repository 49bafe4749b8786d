"""The form of every figure: value, unit, goal, whether it was met, and the command that repeats it.

Results are files ``bench/results/NAME.json``: ``{"environment": ..., "figures": [...]}``. Tables, in
the terminal and in the README, are made from them.
"""

from __future__ import annotations

import dataclasses
import json
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from bench.errors import InputInvalid
from messagebus.recording.manifest import write_whole
from reports.text import significant


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure. id: for example ``way.publish.ratio``. what: its description.

    goal, met: "" and None without a goal. samples: one per repetition, in order, if the value is their
    median or their worst. A goal is met only if each sample meets it. busy: a note that the machine had
    other work; set by `newest`, not stored.
    """

    id: str
    what: str
    value: float
    unit: str
    repeat: str
    goal: str = ""
    met: bool | None = None
    samples: tuple[float, ...] = ()
    busy: str = ""

    def __post_init__(self) -> None:
        if self.met and not all(_meets(self.goal, each) for each in self.samples):
            object.__setattr__(self, "met", False)

    @property
    def is_unsure(self) -> bool:
        """True if the value meets the goal but some repetition does not."""
        return self.met is False and _meets(self.goal, self.value)

    @property
    def remarks(self) -> str:
        """Additions to its description: the part of the workload that ran, and the machine's load."""
        found = re.search(r"--part (\d+)", self.repeat)
        part = f"1/{found[1]} of the run (--part {found[1]})" if found else ""
        return "".join(f", {each}" for each in (part, self.busy) if each)

    def as_json(self) -> dict[str, Any]:
        """Return the figure for JSON, without samples if there are none."""
        dropped = {"busy"} if self.samples else {"busy", "samples"}
        return {k: v for k, v in dataclasses.asdict(self).items() if k not in dropped}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Figure:
        """Make a figure from JSON. Raises TypeError for anything else."""
        return cls(**{"what": "", **found, "samples": tuple(found.get("samples", ()))})


def _meets(goal: str, value: float) -> bool:
    """Return whether a value meets a goal of `at_least`, `at_most` or `below`; True for other goals."""
    found = re.match(r"(>=|<=|<) ([\d.,]+)", goal)
    if not found:
        return True
    bound = float(found[2].replace(",", ""))
    return {">=": value >= bound, "<=": value <= bound, "<": value < bound}[found[1]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """One file of results. environment: where, when and on what it was measured."""

    name: str
    environment: dict[str, Any]
    figures: tuple[Figure, ...]

    def busy(self, figure: str) -> str:
        """Return a note if, before the figure's group, more processes wanted to run than there are cores."""
        groups = self.environment.get("groups", {})
        group = max(
            (each for each in groups if figure.startswith(_plain_id(each))), key=len, default=""
        )
        environment = groups.get(group, self.environment)
        load, cores = environment.get("load_before", [0])[0], environment.get("cores", 1)
        return f"load {load:g} on {cores} cores before" if load > cores else ""

    def save(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        figures = [figure.as_json() for figure in self.figures]
        as_json = {"environment": self.environment, "figures": figures}
        write_whole(path, json.dumps(as_json, indent=1) + "\n")
        return path

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read a file of results. Raises InputInvalid for any other file."""
        try:
            found = json.loads(path.read_text())
            figures = tuple(Figure.from_json(figure) for figure in found["figures"])
            return cls(name=path.stem, environment=dict(found["environment"]), figures=figures)
        except OSError as fault:
            raise InputInvalid(f"{path}: cannot read: {fault.strerror}") from fault
        except (ValueError, KeyError, TypeError) as fault:
            raise InputInvalid(f"{path}: not a file of results: {fault}") from fault


def _plain_id(group: str) -> str:
    """Return the beginning of its figures' ids: ``measure.seed-s1`` has ``measure.seed_s1...``."""
    return group.replace("-", "_")


Wanted = tuple[Callable[..., dict[str, Any]], float] | None
"""A goal: `at_least`, `at_most` or `below`, and its bound; None for a figure without one."""


@dataclass(frozen=True, slots=True)
class Maker:
    """A maker of figures. name: the beginning of their ids. repeat: the command that repeats them."""

    name: str
    repeat: str

    def __call__(
        self,
        id: str,
        what: str,
        values: float | Sequence[float],
        unit: str,
        goal: Wanted = None,
        of: Callable[[Sequence[float]], float] = statistics.median,
    ) -> Figure:
        """Make a figure of a value, or of one of each repetition. of: chooses the figure's among them."""
        samples = () if isinstance(values, int | float) else tuple(values)
        value = values if isinstance(values, int | float) else of(samples)
        wanted = goal[0](goal[1], value, unit) if goal else {}
        return Figure(
            id=f"{self.name}.{id}",
            what=what,
            value=value,
            unit=unit,
            repeat=self.repeat,
            samples=samples,
            **wanted,
        )


def at_least(goal: float, value: float, unit: str = "") -> dict[str, Any]:
    """Return the fields goal and met of a figure that must not be lower."""
    return {"goal": f">= {significant(goal)}{' ' if unit else ''}{unit}", "met": value >= goal}


def below(goal: float, value: float, unit: str = "") -> dict[str, Any]:
    """Return the fields goal and met of a figure that must be lower."""
    return {"goal": f"< {significant(goal)}{' ' if unit else ''}{unit}", "met": value < goal}


def at_most(goal: float, value: float, unit: str = "") -> dict[str, Any]:
    """Return the fields goal and met of a figure that must not be higher."""
    return {"goal": f"<= {significant(goal)}{' ' if unit else ''}{unit}", "met": value <= goal}


def figures_table(figures: Iterable[Figure]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    for column in ("figure", "value", "goal", "met"):
        table.add_column(column, justify="right" if column == "value" else "left", no_wrap=True)
    for figure in figures:
        table.add_row(figure.id, value(figure), figure.goal, _met(figure))
    return table


def value(figure: Figure) -> str:
    """Format the value with the range of its samples."""
    told = f"{significant(figure.value)} {figure.unit}".rstrip()
    if len(figure.samples) < 2:
        return told
    return f"{told} ({significant(min(figure.samples))} to {significant(max(figure.samples))})"


def _met(figure: Figure) -> Text:
    if figure.met is None:
        return Text("")
    return Text("yes", style="green") if figure.met else Text("NO", style="bold red")


def markdown(results: Sequence[Results]) -> str:
    """Return a table of all figures, each from the newest file that has it."""
    lines = ["| figure | value | goal | measured by |", "|---|---|---|---|"]
    for name, (figure, file) in sorted(newest(results).items()):
        what = f"{figure.what}{figure.remarks} (`{name}`) | {value(figure)} | {goal(figure)}"
        lines.append(f"| {what} | `{figure.repeat}` → `{file}.json` |")
    return "\n".join(lines)


def newest(results: Sequence[Results]) -> dict[str, tuple[Figure, str]]:
    """Return id -> its figure, and the name of the newest results that have it."""
    return {
        figure.id: (dataclasses.replace(figure, busy=each.busy(figure.id)), each.name)
        for each in sorted(results, key=lambda one: str(one.environment.get("at", "")))
        for figure in each.figures
    }


def goal(figure: Figure) -> str:
    """Format the goal for a table in Markdown."""
    if figure.met is not False:
        return figure.goal
    return f"{figure.goal} (**not met{' by every repetition' if figure.is_unsure else ''}**)"
