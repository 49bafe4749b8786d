"""Questions that read a whole run once: what they cost Spark, and DuckDB on the same files.

Two processes, asked by turns, each with two threads and 4 GB; their answers must be equal, row by row.
The first round, in which code is compiled, does not count, nor does the start of a process.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from bench.errors import BenchError
from bench.figures.form import Figure, Goal, at_least, at_most, median_of, no_goal
from bench.figures.measure.asked import Asked, asking
from bench.figures.measure.audit import millions
from bench.figures.measure.fed import Histograms, fed
from bench.figures.measure.laid import lay
from bench.figures.measure.made import RUN_ID
from bench.figures.scene import Group, Scene, repeat_command

__all__ = ["GROUP", "different", "scan_figures", "told"]

NAME = "measure.scans"
MESSAGES = 10_000_000
LEAST = 10_000
# What both are asked, and in what words.
SCANS = {
    "seconds": "messages and bytes per broker, topic and second",
    "latency": "exact percentiles per broker and topic",
    "depths": "backlog per broker and second, of fates",
}
# What is compared with these. The audit has no goal beside DuckDB's here: `measure.audit` has it.
OTHERS = {
    "approximate": "percentiles by percentile_approx",
    "verdicts": "fate of every message",
    "joined": "the same by a full outer join",
}
ALL = SCANS | OTHERS
# Asked once, for the answer.
COMPARED = {"bins": "bins", "depths": "depths_of_events"}
RATIO_MAX = 10.0
APPROXIMATE_MAX = 1.2
JOIN_MIN = 1.4
CELLS_MIN = 96

Costs: TypeAlias = dict[tuple[str, str], list[float]]
"""(who, question) -> CPU seconds of each round that counts."""


def scan_figures(scene: Scene) -> Iterator[Figure]:
    messages = scene.part(MESSAGES, LEAST)
    lake = scene.folder / "lake"
    scene.say(f"laying {messages:,} publishes and as many deliveries")
    lay(lake, messages)
    scene.say("feeding every latency to hdrhistogram")
    reference = fed(lake)
    with (
        asking([sys.executable, "-m", "spark.scans", str(lake), RUN_ID]) as spark,
        asking([sys.executable, "-m", "bench.figures.measure.duck_scans", str(lake)]) as duck,
    ):
        cells = _percentiles(spark, reference)
        _compare(spark, duck)
        costs = _rounds(scene, spark, duck)
    yield Figure(
        id=f"{NAME}.percentiles",
        what=f"Percentiles per publisher and broker that equal hdrhistogram's, of {cells:,}",
        value=cells,
        unit="",
        repeat=repeat_command(NAME),
        **at_least(CELLS_MIN, cells),
    )
    yield from told(messages, costs, repeat_command(NAME, scene.repeat))


def _percentiles(spark: Asked, reference: Histograms) -> int:
    """How many were compared. Raises BenchError for one that differs."""
    rows = spark.ask("percentiles").found
    if faults := different(rows, reference):
        raise BenchError(f"{NAME}: {len(faults)} percentiles differ: {faults[0]}")
    return sum(len(row["percentiles"]) for row in rows)


def different(rows: Sequence[Mapping[str, Any]], reference: Histograms) -> list[str]:
    """Where percentiles are not those of the histograms, in words; a group that is missing, too."""
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


def _compare(spark: Asked, duck: Asked) -> None:
    """What is asked once. The first question about fates makes them."""
    for ours, theirs in COMPARED.items():
        _agreed(ours, spark.ask(ours).found, duck.ask(theirs).found)


def _agreed(question: str, ours: Any, theirs: Any) -> None:
    if ours != theirs:
        first = next((pair for pair in zip(ours, theirs, strict=False) if pair[0] != pair[1]), "")
        counts = f"{len(ours):,} and {len(theirs):,} rows"
        raise BenchError(f"{NAME}: Spark and DuckDB differ about {question}: {counts}: {first}")


def _rounds(scene: Scene, spark: Asked, duck: Asked) -> Costs:
    costs: Costs = defaultdict(list)
    for number in range(scene.repeat + 1):
        scene.say(
            f"round {number} of {scene.repeat}" + ("" if number else ", which does not count")
        )
        found: dict[tuple[str, str], Any] = {}
        for question in ALL:
            both = [("spark", spark), ("duckdb", duck)]
            for who, asked in both if number % 2 else reversed(both):
                if who == "duckdb" and question in ("approximate", "joined"):
                    continue
                answer = asked.ask(question)
                found[who, question] = answer.found
                if number:
                    costs[who, question].append(answer.cpu_s)
        for question in (*SCANS, "verdicts"):
            _agreed(question, found["spark", question], found["duckdb", question])
        _agreed("verdicts", found["spark", "verdicts"], found["spark", "joined"])
    return costs


def told(
    messages: int, costs: Mapping[tuple[str, str], Sequence[float]], repeat: str
) -> Iterator[Figure]:
    """CPU of each, and their ratios round by round; goals are for `MESSAGES`."""
    rows = millions(messages)
    for (who, question), used in costs.items():
        name = {"spark": "Spark", "duckdb": "DuckDB"}[who]
        yield median_of(
            used,
            id=f"{NAME}.{question}.{who}.cpu_s",
            what=f"{name}, {rows} rows, {ALL[question]}: CPU time",
            unit="s",
            repeat=repeat,
        )

    def ratio(id: str, what: str, of: tuple[str, str], over: tuple[str, str], goal: Goal) -> Figure:
        return median_of(
            [one / other for one, other in zip(costs[of], costs[over], strict=True)],
            id=f"{NAME}.{id}",
            what=f"{rows} rows, {what}",
            unit="times",
            repeat=repeat,
            goal=goal if messages == MESSAGES else no_goal,
        )

    for question, what in SCANS.items():
        yield ratio(
            f"{question}.ratio",
            f"{what}: CPU of Spark over DuckDB's",
            ("spark", question),
            ("duckdb", question),
            lambda value: at_most(RATIO_MAX, value, "times"),
        )
    yield ratio(
        "approximate.ratio",
        "exact percentiles: CPU over that of percentile_approx",
        ("spark", "latency"),
        ("spark", "approximate"),
        lambda value: at_most(APPROXIMATE_MAX, value, "times"),
    )
    yield ratio(
        "joined.ratio",
        "fates by a full outer join: CPU over that of the audit",
        ("spark", "joined"),
        ("spark", "verdicts"),
        lambda value: at_least(JOIN_MIN, value, "times"),
    )


GROUP = Group(NAME, 0, "no broker", scan_figures)
