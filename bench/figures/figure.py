"""The form of every figure: value, unit, goal, whether it was met, and the command that repeats it.

Results are files ``bench/results/NAME.json``: ``{"environment": ..., "figures": [...]}``. Tables, in
the terminal and in pages, are made from them. The README gets the most important ones, and the page beside
the results gets all. Any page gets the figures that it names, ``<!-- figure ID -->...<!-- / -->``.
"""

from __future__ import annotations

import dataclasses
import json
import operator
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from bench.errors import InputInvalid
from messagebus.recording.manifest import write_whole
from messagebus.terminal import plural
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


SIGNS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "<": operator.lt,
}


def _meets(goal: str, value: float) -> bool:
    """Return whether a value meets a goal of `at_least`, `at_most` or `below`; True for other goals."""
    sign, _, bound = goal.partition(" ")
    if sign not in SIGNS:
        return True
    return SIGNS[sign](value, float(bound.partition(" ")[0].replace(",", "")))


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


def _goal(sign: str, goal: float, value: float, unit: str = "") -> dict[str, Any]:
    """Return the fields goal and met of a figure."""
    told = f"{sign} {significant(goal)} {unit}".rstrip()
    return {"goal": told, "met": SIGNS[sign](value, goal)}


at_least, at_most, below = (partial(_goal, sign) for sign in (">=", "<=", "<"))


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


BEGIN, END = "<!-- figures -->", "<!-- /figures -->"
NAMED = re.compile(r"(<!-- figure (\S+) -->).*?(<!-- / -->)", re.DOTALL)
ALL = "README.md"
# The rows in this order, met or not.
FIRST = {
    "client.publish.w1000.send_many.rate": "Safe publishes of 1 KB, one process, one broker",
    "client.publish.w1000.send_many.ratio_perf_test": "... times Java PerfTest's",
    "client.publish.w1000.send_many.cpu_us": "... CPU of a message in the client",
    "client.consume.rate": "Received and acked one by one, 1 KB, one process",
    "client.consume.ratio_perf_test": "... times Java PerfTest's",
    "client.consume.cpu_us": "... CPU of a message in the client",
    "client.batch.publish.50x200.rate": "Safe publishes of 200 bytes, 50 in a batch",
    "measure.latency_matrix.1024.confirm_p50_ms": "Publish to confirm at 3,000/s of 1 KB, median",
    "measure.latency_matrix.1024.confirm_p99.9_ms": "... 99.9 %",
    "measure.seed_s2.n3_w50.confirmed_ratio": "50 publishers, 50 consumers, 3 nodes: times a native cluster",
    "client.gap.kill_s": "A broker is killed: longest time of its publishers without a confirm",
    "client.gap.freeze_s": "A broker freezes: the same",
    "client.gap.lost": "Confirmed messages lost in 200 such events",
    "ops.add.attach_s": "A broker is added: until all consumers are attached",
    "ops.restart.gap_s": "All brokers restarted in turn: longest time without a confirm, above a quiet one's",
    "ops.lost": "Confirmed messages lost in all operations",
    "ops.failover.serving_s": "A host loses power: until its mirrored broker serves again",
    "client.mesh.consumer_mb": "Memory of a consumer process, 50 consumers on 64 brokers",
    "measure.overhead.message_us": "What `bench` itself adds to a message, both ends",
    "measure.audit.10m.ratio": "Audit of 10 + 10 million rows by Spark: times DuckDB's CPU",
}
ABOUT_ALL = """# All figures

Made by `python -m bench readme` from the files beside it, which also name the machine, its load and
the versions.
In brackets: the least and the greatest of the samples.
"""


def read_results(folder: Path) -> list[Results]:
    """Read all results of a folder. Raises InputInvalid when there are none."""
    found = [Results.load(path) for path in sorted(folder.glob("*.json"))]
    if not found:
        raise InputInvalid(f"{folder}: no results; `python -m bench figures` measures them")
    return found


def update(readme: Path, results: Path, pages: Iterable[Path] = ()) -> int:
    """Replace the figures between the markers of the README and other pages; write ALL beside the results.

    Returns the number of files of results. Raises InputInvalid when there are no results, no markers in the
    README, or for a figure that no results have.
    """
    found = read_results(results)
    text = readme.read_text()
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise InputInvalid(f"{readme}: no {BEGIN} ... {END} in it")
    known = {name: figure for name, (figure, _) in newest(found).items()}
    written = {page: named(page.read_text(), known) for page in pages}
    written[readme] = named(f"{head}{BEGIN}\n{in_short(found)}\n{END}{tail}", known)
    written[results / ALL] = f"{ABOUT_ALL}\n{markdown(found)}\n"
    for page, content in written.items():
        page.write_text(content)
    return len(found)


def named(text: str, known: Mapping[str, Figure]) -> str:
    """Return the page with the current values of the figures that it names. Raises InputInvalid."""
    if unknown := {each[2] for each in NAMED.finditer(text)} - known.keys():
        raise InputInvalid(f"no results have {', '.join(sorted(unknown))}")
    return NAMED.sub(lambda each: f"{each[1]}{value(known[each[2]])}{each[3]}", text)


def in_short(results: Sequence[Results]) -> str:
    """Return the table of the most important figures, and the number of met goals."""
    known = newest(results)
    rows = [
        f"| {words}{known[name][0].remarks} | {value(known[name][0])} | {goal(known[name][0])} |"
        for name, words in FIRST.items()
        if name in known
    ]
    judged = [figure for figure, _ in known.values() if figure.goal]
    met = sum(figure.met is not False for figure in judged)
    return "\n".join(
        [
            "| | value | goal |",
            "|---|---|---|",
            *rows,
            "",
            f"Of {plural(len(judged), 'figure')} that {'has' if len(judged) == 1 else 'have'} a goal {met} "
            f"meet{'s' * (met == 1)} it: [all figures](bench/results/README.md).",
        ]
    )
