"""A figure: value, unit, range, goal, whether it was met, and the command that repeats it."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from reports.text import significant

# Digits of a number that is kept: more than any page shows, and than any measurement is worth.
DIGITS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure. id: for example ``client.publish.w50.rate``. what: its description.

    goal, met: "" and None without a goal. between: the least and the greatest value of all repetitions; empty
    after a single one. A goal is met only if both meet it. samples: one per repetition, in order; only in the
    file of the measurement itself.
    """

    id: str
    what: str
    value: float
    unit: str
    repeat: str
    goal: str = ""
    met: bool | None = None
    between: tuple[float, ...] = ()
    samples: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.samples) > 1 and not self.between:
            object.__setattr__(self, "between", (min(self.samples), max(self.samples)))
        if self.met and not all(_meets(self.goal, each) for each in self.between):
            object.__setattr__(self, "met", False)

    @property
    def is_unsure(self) -> bool:
        """True if the value meets the goal but some repetition does not."""
        return self.met is False and _meets(self.goal, self.value)

    def as_json(self) -> dict[str, Any]:
        """Return the figure for JSON, without its command, its samples, and what it has not."""
        found: dict[str, Any] = {"id": self.id, "what": self.what, "value": _short(self.value)}
        if self.between:
            found["between"] = [_short(each) for each in self.between]
        found["unit"] = self.unit
        return found | ({"goal": self.goal, "met": self.met} if self.goal else {})

    @classmethod
    def from_json(cls, values: dict[str, Any], repeat: str) -> Figure:
        """Make a figure from JSON. Raises TypeError for anything else."""
        return cls(**{**values, "between": tuple(values.get("between", ())), "repeat": repeat})

    def __str__(self) -> str:
        """Return the value with its unit and its range."""
        value = f"{significant(self.value)} {self.unit}".rstrip()
        if not self.between:
            return value
        return f"{value} ({' to '.join(map(significant, self.between))})"


def _short(value: float) -> float:
    shorter = float(f"{value:.{DIGITS}g}")
    return int(shorter) if shorter.is_integer() else shorter


SIGNS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "<": operator.lt,
}


def _meets(goal: str, value: float) -> bool:
    """Return whether a value meets a goal of `at_least`, `at_most` or `below`."""
    sign, _, bound = goal.partition(" ")
    return SIGNS[sign](value, float(bound.partition(" ")[0].replace(",", "")))


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


def _goal(sign: str, goal: float, value: float, unit: str = "") -> dict[str, Any]:
    """Return the fields goal and met of a figure."""
    words = f"{sign} {significant(goal)} {unit}".rstrip()
    return {"goal": words, "met": SIGNS[sign](value, goal)}


at_least, at_most, below = (partial(_goal, sign) for sign in (">=", "<=", "<"))


def figures_table(figures: Iterable[Figure]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    for column in ("figure", "value", "goal", "met"):
        table.add_column(column, justify="right" if column == "value" else "left", no_wrap=True)
    for figure in figures:
        table.add_row(figure.id, str(figure), figure.goal, _met(figure))
    return table


def _met(figure: Figure) -> Text:
    if figure.met is None:
        return Text("")
    return Text("yes", style="green") if figure.met else Text("NO", style="bold red")
