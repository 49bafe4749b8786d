"""Answers of DuckDB about a run: sums, percentiles and backlogs, independently of Spark's code.

The audit's part of it is `bench.figures.duckdb_audit`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import duckdb
import pyarrow.compute as pc
import pyarrow.parquet as pq
from hdrh.histogram import HdrHistogram

from bench.figures import duckdb_audit
from bench.figures.duckdb_audit import VERDICTS
from bench.figures.generated_run import WALL_NS

Answer: TypeAlias = list[list[Any]]
Histograms: TypeAlias = Mapping[tuple[str, str], HdrHistogram]
"""(publisher, broker) -> latencies from the intended time to the confirm, in ns."""

SECOND_NS = 1_000_000_000
TOP_NS, DIGITS = 1 << 47, 3
# Grouped by publisher too, like the table behind Spark's sums.
SECONDS = f"""
    SELECT kind, broker, topic, subscription, second, sum(messages), sum(bytes) FROM (
        SELECT 'confirmed' AS kind, broker, topic, '' AS subscription, publisher,
               (confirmed_ns - {WALL_NS}) // {SECOND_NS} AS second,
               count(*) AS messages, sum(size) AS bytes
        FROM published WHERE outcome = 'confirmed' GROUP BY ALL
        UNION ALL
        SELECT 'delivered', broker, topic, subscription, publisher,
               (received_ns - {WALL_NS}) // {SECOND_NS}, count(*), sum(size)
        FROM delivered GROUP BY ALL)
    GROUP BY ALL
"""
# HdrHistogram's index of a value: half a bucket has 1024 values.
BINS = """
    SELECT broker, topic, (bucket << 10) + (value >> bucket) AS bin, count(*) AS n
    FROM (SELECT broker, topic, value, floor(log2((value | 2047)::DOUBLE))::INT - 10 AS bucket
          FROM (SELECT broker, topic, confirmed_ns - intended_ns AS value
                FROM published WHERE outcome = 'confirmed') WHERE value >= 0)
    GROUP BY ALL
"""
# fmt: off
CURVE = (
    0, 10, 25, 50, 75, 90, 95, 97, 98, 99, 99.3, 99.5, 99.7, 99.8, 99.9, 99.95, 99.98, 99.99, 99.999, 100,
)
# fmt: on
REACHED = "min(bin) FILTER (upto >= greatest(floor({}::DOUBLE * total / 100 + 0.5), 1))"
LATENCY = f"""
    SELECT broker, topic, max(total), {", ".join(REACHED.format(each) for each in CURVE)}
    FROM (SELECT broker, topic, bin, sum(n) OVER (PARTITION BY broker, topic ORDER BY bin) AS upto,
                 sum(n) OVER (PARTITION BY broker, topic) AS total
          FROM ({BINS}))
    GROUP BY broker, topic
"""
# The wait from the confirm to the first delivery: from Spark's fates, or from the events alone.
WAITS_OF_FATES = """
    SELECT broker, topic, subscription, confirmed_ns AS came,
           CASE WHEN deliveries > 0 THEN greatest(first_ns, confirmed_ns) END AS gone
    FROM read_parquet(getvariable('lake') || '/fates/*/*/*.parquet') WHERE expected
"""
WAITS = """
    SELECT broker, topic, subscription, confirmed_ns AS came,
           CASE WHEN first_ns IS NOT NULL THEN greatest(first_ns, confirmed_ns) END AS gone
    FROM published CROSS JOIN (SELECT DISTINCT subscription FROM delivered)
    LEFT JOIN (SELECT message_id, topic, subscription, min(received_ns) AS first_ns
               FROM delivered GROUP BY ALL) USING (message_id, topic, subscription)
    WHERE outcome = 'confirmed'
"""
DEPTHS = f"""
    WITH ends AS (SELECT *, coalesce(gone, getvariable('end_ns') + {SECOND_NS}) AS left_ns FROM ({{waits}})),
    moved AS (
        SELECT broker, topic, subscription, (came - {WALL_NS}) // {SECOND_NS} AS second,
               count(*) AS entered, 0 AS gone, NULL AS oldest, NULL AS waited
        FROM ends GROUP BY ALL
        UNION ALL
        SELECT broker, topic, subscription, (left_ns - {WALL_NS}) // {SECOND_NS},
               0, count(*), min(came), max(left_ns - came)
        FROM ends GROUP BY ALL),
    sums AS (
        SELECT broker, topic, subscription, second, sum(entered) AS entered, sum(gone) AS gone,
               min(oldest) AS oldest, max(waited) AS waited
        FROM moved GROUP BY ALL),
    changes AS (
        SELECT broker, topic, subscription, at_ns, sum(change) AS change FROM (
            SELECT broker, topic, subscription, came AS at_ns, 1 AS change FROM ends
            UNION ALL SELECT broker, topic, subscription, left_ns, -1 FROM ends)
        GROUP BY ALL),
    levels AS (
        SELECT *, sum(change) OVER (PARTITION BY broker, topic, subscription ORDER BY at_ns) AS level
        FROM changes),
    peaks AS (
        SELECT broker, topic, subscription, (at_ns - {WALL_NS}) // {SECOND_NS} AS second,
               max(greatest(level, level - change)) AS most
        FROM levels GROUP BY ALL)
    SELECT broker, topic, subscription, second, entered, gone,
           sum(entered - gone) OVER upto AS depth, most,
           greatest({WALL_NS} + (second + 1) * {SECOND_NS} - min(oldest) OVER later, waited, 0) / 1000000
    FROM sums JOIN peaks USING (broker, topic, subscription, second)
    WINDOW upto AS (PARTITION BY broker, topic, subscription ORDER BY second),
           later AS (PARTITION BY broker, topic, subscription ORDER BY second
                     ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING)
    QUALIFY second <= (getvariable('end_ns') - {WALL_NS}) / {SECOND_NS}
"""
QUERIES: Mapping[str, str] = {
    "seconds": SECONDS,
    "bins": BINS,
    "latency": LATENCY,
    "depths": DEPTHS.format(waits=WAITS_OF_FATES),
    "depths_of_events": DEPTHS.format(waits=WAITS),
    "verdicts": VERDICTS,
}


def opened(lake: Path) -> duckdb.DuckDBPyConnection:
    """Open a database with the tables of a lake with one run in it, its path and the end of the run."""
    database = duckdb_audit.opened(lake)
    [manifest] = lake.glob("runs/*/manifest.json")
    end_ns = WALL_NS + json.loads(manifest.read_text())["end_ns"]
    database.execute("SET VARIABLE lake = ?", [str(lake)])
    database.execute(f"SET VARIABLE end_ns = {end_ns}")
    return database


def answer(database: duckdb.DuckDBPyConnection, question: str) -> Answer:
    """Return sorted rows of whole numbers, texts and, for an age, a float."""
    found = database.execute(QUERIES[question]).fetchall()
    rows = [[_plain(value) for value in row] for row in found]
    return sorted(map(_values, rows) if question == "latency" else rows)


def _plain(value: Any) -> Any:
    """Convert a value: sums arrive as 128-bit integers."""
    return value if isinstance(value, str | float) else int(value)


def _values(row: list[Any]) -> list[Any]:
    """Convert bins to HdrHistogram's values for them; for percentile 0 the lowest value of the bin."""
    histogram = HdrHistogram(1, TOP_NS, DIGITS)
    broker, topic, total, *found = row
    lowest, *others = map(histogram.get_value_from_index, found)
    return [broker, topic, total, lowest, *map(histogram.get_highest_equivalent_value, others)]


def fed(lake: Path) -> Histograms:
    """Return histograms of all publishes in a lake with one run, all confirmed."""
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
