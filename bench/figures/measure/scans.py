"""Questions that read a whole run once: their cost in Spark, and in DuckDB on the same files.

The reference for percentiles of confirms are histograms that were fed the raw values, one by one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow.compute as pc
import pyarrow.parquet as pq
from hdrh.histogram import HdrHistogram

from bench.errors import BenchError
from bench.figures.form import Figure, at_least, at_most
from bench.figures.measure.made import lay
from bench.figures.measure.turns import DUCKDB, SPARK, Costs, Words, both
from bench.figures.scene import Group, Scene, repeat_command

__all__ = ["GROUP", "RATIO_MAX", "Histograms", "different", "fed", "scan_figures", "told"]

Histograms: TypeAlias = Mapping[tuple[str, str], HdrHistogram]
"""(publisher, broker) -> latencies from the intended time to the confirm, in ns."""

TOP_NS = 1 << 47
DIGITS = 3


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


NAME = "measure.scans"
MESSAGES = 10_000_000
LEAST = 10_000
SCANS = {
    "seconds": "messages and bytes per publisher, broker, topic and second",
    "latency": "exact percentiles per broker and topic",
}
ALONE = {"approximate": "percentiles by percentile_approx"}
RATIO_MAX = 10.0
APPROXIMATE_MAX = 1.2
CELLS_MIN = 96


def scan_figures(scene: Scene) -> Iterator[Figure]:
    messages = scene.part(MESSAGES, LEAST)
    lake = scene.folder / "lake"
    scene.say(f"laying {messages:,} publishes and as many deliveries")
    lay(lake, messages)
    scene.say("feeding every latency to hdrhistogram")
    reference = fed(lake)
    with both(lake) as asked:
        cells = _compared(asked.spark.ask("percentiles").found, reference)
        asked.agree("bins")
        costs = asked.by_turns(scene, SCANS, ALONE)
    yield Figure(
        id=f"{NAME}.percentiles",
        what=f"Percentiles of {messages:,} latencies that were compared, and are hdrhistogram's",
        value=cells,
        unit="",
        repeat=repeat_command(NAME),
        **at_least(CELLS_MIN, cells),
    )
    yield from told(messages, costs, repeat_command(NAME, scene.repeat))


def _compared(rows: Sequence[Mapping[str, Any]], reference: Histograms) -> int:
    """Return the number of percentiles. Raises BenchError if one differs from the reference."""
    if faults := different(rows, reference):
        raise BenchError(f"{NAME}: {len(faults)} percentiles differ: {faults[0]}")
    return sum(len(row["percentiles"]) for row in rows)


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


def told(messages: int, costs: Costs, repeat: str) -> Iterator[Figure]:
    words = Words(name=NAME, messages=messages, bounded=messages == MESSAGES, repeat=repeat)
    yield from words.costs(costs, SCANS | ALONE)
    for question, what in SCANS.items():
        yield words.ratio(
            question,
            f"{what}: CPU of Spark over DuckDB's",
            costs[SPARK, question],
            costs[DUCKDB, question],
            lambda value: at_most(RATIO_MAX, value, "times"),
        )
    yield words.ratio(
        "approximate",
        "exact percentiles: CPU over that of percentile_approx",
        costs[SPARK, "latency"],
        costs[SPARK, "approximate"],
        lambda value: at_most(APPROXIMATE_MAX, value, "times"),
    )


GROUP = Group(NAME, 0, "no broker", scan_figures)
