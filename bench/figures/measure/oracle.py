"""The audit and the questions of ``spark/scans.py``, answered by DuckDB on the same files: equal rows.

It is an oracle, and a measure of one machine without Spark. It is written independently of Spark's code, so
that they share no faults. ``python -m bench.figures.measure.oracle LAKE`` reads questions from its input,
a line each, and answers each with a line of JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import duckdb
from hdrh.histogram import HdrHistogram

from bench.figures.measure.made import WALL_NS

Answer: TypeAlias = list[list[Any]]

THREADS, MEMORY = 2, "4GB"
SECOND_NS = 1_000_000_000
FATES = """
    SELECT message_id, max(outcome) AS outcome, max(p_body) AS p_body, count(outcome) AS sent,
           count(received_ns) AS had, min(d_body) AS low, max(d_body) AS high
    FROM (
        SELECT message_id, outcome, body_hash AS p_body, NULL AS d_body, NULL AS received_ns
        FROM published
        UNION ALL
        SELECT message_id, NULL, NULL, body_hash, received_ns FROM delivered
    )
    GROUP BY message_id
"""
VERDICTS = f"""
    SELECT CASE WHEN sent = 0 THEN 'orphan'
                WHEN outcome = 'confirmed' AND had = 0 THEN 'lost'
                WHEN low <> p_body OR high <> p_body THEN 'altered'
                WHEN had > 1 THEN 'unexplained'
                WHEN outcome = 'confirmed' THEN 'ok'
                WHEN had > 0 THEN 'unconfirmed_delivered'
                ELSE 'unconfirmed_absent' END AS verdict, count(*) AS messages
    FROM ({FATES})
    GROUP BY verdict
"""
# A repeat brings no new sequence, so all deliveries may be in the window. That is cheaper than to number
# the copies of every message first.
LATE = """
    WITH late AS (
        SELECT message_id, received_ns FROM (
            SELECT message_id, received_ns, sequence, max(sequence) OVER (
                PARTITION BY topic, subscription, consumer, broker, publisher
                ORDER BY received_ns, sequence ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS high
            FROM delivered)
        WHERE sequence < high)
    SELECT hex(message_id) FROM late
    WHERE message_id IN (SELECT message_id FROM published)
      AND received_ns = (SELECT min(received_ns) FROM delivered WHERE message_id = late.message_id)
"""


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


def opened(lake: Path) -> duckdb.DuckDBPyConnection:
    """Open a database with the tables of a lake with one run in it, its path and the end of the run."""
    database = duckdb.connect()
    database.execute(f"SET threads = {THREADS}; SET memory_limit = '{MEMORY}'")
    database.execute(f"SET temp_directory = '{lake}/duckdb'")
    for kind in ("published", "delivered"):
        database.execute(
            f"CREATE VIEW {kind} AS SELECT * FROM read_parquet('{lake}/{kind}/*/*/*/*.parquet')"
        )
    [manifest] = lake.glob("runs/*/manifest.json")
    end_ns = WALL_NS + json.loads(manifest.read_text())["end_ns"]
    database.execute("SET VARIABLE lake = ?", [str(lake)])
    database.execute(f"SET VARIABLE end_ns = {end_ns}")
    return database


def audit(database: duckdb.DuckDBPyConnection) -> dict[str, Any]:
    """Return verdict -> messages, and the ids of late ones."""
    late = [row[0].lower() for row in database.execute(LATE).fetchall()]
    return {"verdicts": dict(database.execute(VERDICTS).fetchall()), "late": sorted(late)}


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


if __name__ == "__main__":
    with opened(Path(sys.argv[1])) as connection:
        for line in sys.stdin:
            found = audit(connection) if line == "audit\n" else answer(connection, line.strip())
            print(json.dumps(found), flush=True)
