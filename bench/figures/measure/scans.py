"""Questions that read a whole run: their cost in Spark, and in DuckDB on the same files, with equal answers.

Two processes with two threads and 4 GB each are asked by turns. Their start does not count, nor does the
first round, in which code is compiled. There are three groups:

scans     sums and percentiles of all rows. The reference for percentiles of confirms are histograms that
          were fed the raw values, one by one.
backlog   the backlog of every second. Spark makes the fates once a run, for several jobs; that has a figure
          of its own. DuckDB answers from the same fates for the ratio, and from the events to check them.
join      the audit beside a full outer join, the obvious query: the same fates for more CPU time.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow.compute as pc
import pyarrow.parquet as pq
from hdrh.histogram import HdrHistogram

from bench.errors import BenchError
from bench.figures.form import Figure, Maker, Wanted, at_least, at_most
from bench.figures.measure.audit import millions
from bench.figures.measure.made import RUN_ID, lay
from bench.figures.measure.watched import Asked, asking
from bench.figures.scene import Group, Scene, repeat_command

SPARK, DUCKDB = "spark", "duckdb"
NAMES = {SPARK: "Spark", DUCKDB: "DuckDB"}
MESSAGES, LEAST = 10_000_000, 10_000
RATIO_MAX, APPROXIMATE_MAX, JOIN_MIN = 10.0, 1.2, 1.4
CELLS_MIN = 96
TOP_NS, DIGITS = 1 << 47, 3

Asking: TypeAlias = tuple[str, str]
"""(who, question)."""
Costs: TypeAlias = Mapping[Asking, Sequence[float]]
"""CPU seconds of each round that counts."""
Histograms: TypeAlias = Mapping[tuple[str, str], HdrHistogram]
"""(publisher, broker) -> latencies from the intended time to the confirm, in ns."""


@dataclass(frozen=True, slots=True)
class Both:
    """The two running processes, made by `both`."""

    spark: Asked
    duckdb: Asked

    def agree(self, question: str, other: str = "") -> tuple[float, float]:
        """Ask once and compare the answers; return the costs. other: DuckDB's name of the question."""
        ours, theirs = self.spark.ask(question), self.duckdb.ask(other or question)
        agreed(question, ours.found, theirs.found)
        return ours.cpu_s, theirs.cpu_s

    def by_turns(self, scene: Scene, questions: Iterable[str], alone: Iterable[str] = ()) -> Costs:
        """Ask the questions by turns, as often as the scene repeats. alone: questions to Spark only.

        Raises BenchError where answers differ.
        """
        costs: dict[Asking, list[float]] = defaultdict(list)
        asked: list[tuple[str, tuple[str, ...]]] = [(each, (SPARK, DUCKDB)) for each in questions]
        asked += [(each, (SPARK,)) for each in alone]
        for number in range(scene.repeat + 1):
            scene.say(f"round {number} of {scene.repeat}" + ("" if number else ", not counted"))
            for question, names in asked:
                # The first one alternates.
                answers = {
                    who: getattr(self, who).ask(question)
                    for who in (names if number % 2 else reversed(names))
                }
                if DUCKDB in answers:
                    agreed(question, answers[SPARK].found, answers[DUCKDB].found)
                for who, answer in answers.items() if number else ():
                    costs[who, question].append(answer.cpu_s)
        return costs


@contextmanager
def both(lake: Path) -> Iterator[Both]:
    """Start both on a lake written by `lay`, and end them on exit."""
    with (
        asking([sys.executable, "-m", "spark.scans", str(lake), RUN_ID]) as spark,
        asking([sys.executable, "-m", "bench.figures.measure.oracle", str(lake)]) as duckdb,
    ):
        yield Both(spark, duckdb)


def agreed(question: str, ours: Any, theirs: Any) -> None:
    """Check that two answers are equal. Raises BenchError with the first rows that differ."""
    if ours != theirs:
        first = next((pair for pair in zip(ours, theirs, strict=False) if pair[0] != pair[1]), "")
        counts = f"{len(ours):,} and {len(theirs):,} rows"
        raise BenchError(f"Spark and DuckDB differ about {question}: {counts}: {first}")


@dataclass(frozen=True, slots=True)
class Questions:
    """The questions of a group. name: beginning of the figures' ids.

    what: question -> its description. asked: of both; alone: of Spark. ratios: id -> its description, the
    costs that are divided, and its goal, which applies at `MESSAGES`. first: asks what comes once before, and
    returns its costs.
    """

    name: str
    what: Mapping[str, str]
    asked: Sequence[str]
    alone: Sequence[str] = ()
    ratios: Mapping[str, tuple[str, Asking, Asking, Wanted]] = field(default_factory=dict)
    first: Callable[[Both, Path], Costs] = lambda _asked, _lake: {}

    def measure(self, scene: Scene) -> Iterator[Figure]:
        messages = scene.part(MESSAGES, LEAST)
        lake = scene.folder / "lake"
        scene.say(f"laying {messages:,} publishes and as many deliveries")
        lay(lake, messages)
        with both(lake) as asked:
            once = self.first(asked, lake)
            costs = asked.by_turns(scene, self.asked, self.alone)
        repeat = repeat_command(self.name, scene.repeat)
        yield from self.told(messages, {**once, **costs}, repeat)

    def told(self, messages: int, costs: Costs, repeat: str) -> Iterator[Figure]:
        """Make a figure of each cost, and of the median of each ratio over all rounds."""
        make, rows = Maker(self.name, repeat), f"{millions(messages)} rows"
        for (who, question), used in costs.items():
            if who == CELLS:
                yield _cells(int(used[0]), messages)
                continue
            what = f"{NAMES[who]}, {rows}, {self.what[question]}: CPU time"
            yield make(f"{question}.{who}.cpu_s", what, used, "s")
        for id, (what, used_by, over, goal) in self.ratios.items():
            pairs = zip(costs[used_by], costs[over], strict=True)
            ratios = [one / other for one, other in pairs]
            wanted = goal if messages == MESSAGES else None
            yield make(f"{id}.ratio", f"{rows}, {what}", ratios, "times", wanted)


CELLS = "cells"


def _over_duckdb(question: str, what: str) -> tuple[str, Asking, Asking, Wanted]:
    words = f"{what}: CPU of Spark over DuckDB's"
    return words, (SPARK, question), (DUCKDB, question), (at_most, RATIO_MAX)


def fed(lake: Path) -> Histograms:
    """Return histograms of all publishes in a lake with one run, all confirmed. Cost: 3 us a publish."""
    found: Histograms = defaultdict(lambda: HdrHistogram(1, TOP_NS, DIGITS))
    for path in sorted((lake / "published").rglob("*.parquet/*.parquet")):
        columns = ["publisher", "broker", "intended_ns", "confirmed_ns"]
        rows = pq.ParquetFile(path).read(columns)
        taken = pc.subtract(rows["confirmed_ns"], rows["intended_ns"]).to_pylist()
        names = zip(rows["publisher"].to_pylist(), rows["broker"].to_pylist(), strict=True)
        for name, value in zip(names, taken, strict=True):
            found[name].record_value(value)
    return found


def different(rows: Sequence[Mapping[str, Any]], reference: Histograms) -> list[str]:
    """Describe the percentiles that differ from those of the histograms, and missing groups."""
    faults = [] if len(rows) == len(reference) else [f"{len(rows)} groups of {len(reference)}"]
    for row in rows:
        histogram = reference[row["publisher"], row["broker"]]
        faults += [
            f"{row['publisher']} at {row['broker']}: p{percentile} is {value}"
            for percentile, value in row["percentiles"].items()
            if value != histogram.get_value_at_percentile(float(percentile))
        ]
        if row["total"] != histogram.get_total_count():
            faults.append(f"{row['publisher']} at {row['broker']}: {row['total']} values")
    return faults


def _percentiles(asked: Both, lake: Path) -> Costs:
    """Compare all percentiles with the reference; return their number. Raises BenchError if one differs."""
    rows = asked.spark.ask("percentiles").found
    if faults := different(rows, fed(lake)):
        raise BenchError(f"{SCANS.name}: {len(faults)} percentiles differ: {faults[0]}")
    asked.agree("bins")
    return {(CELLS, "percentiles"): [float(sum(len(row["percentiles"]) for row in rows))]}


def _cells(count: int, messages: int) -> Figure:
    what = f"Percentiles of {messages:,} latencies that were compared, and are hdrhistogram's"
    make = Maker(SCANS.name, repeat_command(SCANS.name))
    return make("percentiles", what, count, "", (at_least, CELLS_MIN))


def _fates(asked: Both, _lake: Path) -> Costs:
    """Make the fates of all messages, and check them by the events."""
    ours, theirs = asked.agree("depths", "depths_of_events")
    return {(SPARK, "fates"): [ours], (DUCKDB, "depths_of_events"): [theirs]}


def _joined(asked: Both, _lake: Path) -> Costs:
    asked.agree("joined", "verdicts")
    return {}


SECONDS = "messages and bytes per publisher, broker, topic and second"
PERCENTILES = "exact percentiles per broker and topic"
DEPTHS = "backlog per broker and second, of fates"
SCANS = Questions(
    "measure.scans",
    {
        "seconds": SECONDS,
        "latency": PERCENTILES,
        "approximate": "percentiles by percentile_approx",
    },
    asked=("seconds", "latency"),
    alone=("approximate",),
    ratios={
        "seconds": _over_duckdb("seconds", SECONDS),
        "latency": _over_duckdb("latency", PERCENTILES),
        "approximate": (
            "exact percentiles: CPU over that of percentile_approx",
            (SPARK, "latency"),
            (SPARK, "approximate"),
            (at_most, APPROXIMATE_MAX),
        ),
    },
    first=_percentiles,
)
BACKLOG = Questions(
    "measure.backlog",
    {
        "depths": DEPTHS,
        "depths_of_events": "the same of events",
        "fates": "fates of all messages made and kept, and the backlog of them once",
    },
    asked=("depths",),
    ratios={"depths": _over_duckdb("depths", DEPTHS)},
    first=_fates,
)
JOIN = Questions(
    "measure.join",
    {
        "verdicts": "fate of every message",
        "joined": "the same by a full outer join of two groupings",
    },
    asked=("verdicts",),
    alone=("joined",),
    ratios={
        "joined": (
            "fates by a full outer join: CPU over that of the audit",
            (SPARK, "joined"),
            (SPARK, "verdicts"),
            (at_least, JOIN_MIN),
        )
    },
    first=_joined,
)
GROUPS = tuple(
    Group(each.name, 0, "no broker", partial(Questions.measure, each))
    for each in (SCANS, BACKLOG, JOIN)
)
