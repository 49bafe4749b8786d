"""The audit of a run, answered by DuckDB: an oracle for Spark's, and the cost of one machine without Spark.

Its source is the table of faults in docs/MEASURING.md, not Spark's code: the two share no faults. Its
repeats are all without an explanation, as those of the generated run are.
``python -m bench.figures.duckdb_audit LAKE`` prints the answer as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import duckdb

THREADS, MEMORY = 2, "4GB"
# More than that before it was sent: docs/MEASURING.md.
EARLY_NS = 1_000_000_000
# "confirmed" is the first of the outcomes by the alphabet.
FATES = """
    SELECT message_id, min(outcome) AS outcome, max(p_body) AS p_body, count(outcome) AS sent,
           count(received_ns) AS had, min(d_body) AS low, max(d_body) AS high,
           count(*) FILTER (outcome = 'confirmed') AS confirms, min(p_body) <> max(p_body) AS differs,
           count(*) FILTER (outcome IN ('refused', 'unroutable')) AS turned_away,
           sum(attempts) AS attempts, min(sent_ns) AS sent_ns, min(intended_ns) AS intended_ns,
           min(received_ns) AS came_ns
    FROM (
        SELECT message_id, outcome, attempts, sent_ns, intended_ns, body_hash AS p_body,
               NULL AS d_body, NULL AS received_ns
        FROM published
        UNION ALL
        SELECT message_id, NULL, NULL, NULL, NULL, NULL, body_hash, received_ns FROM delivered
    )
    GROUP BY message_id
"""
VERDICTS = f"""
    SELECT CASE WHEN sent = 0 THEN 'orphan'
                WHEN confirms > 1 OR differs THEN 'reused'
                WHEN outcome = 'confirmed' AND had = 0 THEN 'lost'
                WHEN low <> p_body OR high <> p_body THEN 'altered'
                WHEN had > 0 AND turned_away = attempts THEN 'refused_delivered'
                WHEN came_ns < (CASE attempts WHEN 1 THEN sent_ns ELSE intended_ns END) - {EARLY_NS}
                THEN 'early'
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


def opened(lake: Path) -> duckdb.DuckDBPyConnection:
    """Open a database with the tables ``published`` and ``delivered`` of a lake with one run in it."""
    database = duckdb.connect()
    database.execute(f"SET threads = {THREADS}; SET memory_limit = '{MEMORY}'")
    database.execute(f"SET temp_directory = '{lake}/duckdb'")
    for kind in ("published", "delivered"):
        database.execute(
            f"CREATE VIEW {kind} AS SELECT * FROM read_parquet('{lake}/{kind}/*/*/*/*.parquet')"
        )
    return database


def audit(database: duckdb.DuckDBPyConnection) -> dict[str, Any]:
    """Return verdict -> messages, and the ids of late ones."""
    late = [row[0].lower() for row in database.execute(LATE).fetchall()]
    return {"verdicts": dict(database.execute(VERDICTS).fetchall()), "late": sorted(late)}


if __name__ == "__main__":
    with opened(Path(sys.argv[1])) as connection:
        print(json.dumps(audit(connection)))
