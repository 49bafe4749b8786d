"""The questions of ``spark/scans.py``, answered by DuckDB on the same files: the rows must be equal.

``python -m bench.figures.measure.duck_scans LAKE`` reads questions from its input, a line each, and
answers each with a line of JSON. It is written independently of Spark's code, so that they share no faults.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import duckdb
from hdrh.histogram import HdrHistogram

from bench.figures.measure.duck import VERDICTS, opened
from bench.figures.measure.made import WALL_NS

__all__ = ["answer", "ready"]

Answer: TypeAlias = list[list[Any]]

SECOND_NS = 1_000_000_000
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
        FROM moved GROUP BY ALL)
    SELECT broker, topic, subscription, second, entered, gone,
           sum(entered - gone) OVER upto AS depth,
           greatest({WALL_NS} + (second + 1) * {SECOND_NS} - min(oldest) OVER later, waited, 0) / 1000000
    FROM sums
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


def ready(lake: Path) -> duckdb.DuckDBPyConnection:
    """Open a database that knows the path of the lake, and the end of its only run."""
    database = opened(str(lake))
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
    histogram = HdrHistogram(1, 1 << 47, 3)
    broker, topic, total, *found = row
    lowest, *others = map(histogram.get_value_from_index, found)
    return [broker, topic, total, lowest, *map(histogram.get_highest_equivalent_value, others)]


def main(lake: str) -> None:
    with ready(Path(lake)) as database:
        for line in sys.stdin:
            print(json.dumps(answer(database, line.strip())), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
