from __future__ import annotations

from pyspark.sql import SparkSession

from spark import failover, gaps
from spark.manifest import Incident

SECOND = 1_000_000_000


def test_the_gap_around_an_incident_is_its_own(session: SparkSession) -> None:
    spans = [
        ("p1", 0, 1 * SECOND),
        ("p1", 1 * SECOND, 2 * SECOND),
        # Frozen for three seconds.
        ("p1", 2 * SECOND, 5 * SECOND),
        ("p1", 5 * SECOND, 6 * SECOND),
        ("p2", 2 * SECOND, int(2.5 * SECOND)),
        ("p1", 60 * SECOND, 69 * SECOND),
    ]
    every = gaps.every(
        session.createDataFrame(spans, "publisher string, begin long, done long"),
        ["publisher"],
        start="begin",
        end="done",
    )
    incidents = failover.incident_rows(
        session,
        [
            Incident("start", "mb1", 40 * SECOND, 41 * SECOND),
            Incident("kill", "mb1", 2 * SECOND, 2 * SECOND),
        ],
    )
    found = failover.around(every, ["publisher"], incidents).collect()
    assert {(row.number, row.kind, row.publisher, row.gap_ns) for row in found} == {
        (0, "kill", "p1", 3 * SECOND),
        (0, "kill", "p2", SECOND // 2),
    }


def test_no_incidents_have_no_gaps(session: SparkSession) -> None:
    every = session.createDataFrame([("p1", 5, 5)], "publisher string, until_ns long, gap_ns long")
    incidents = failover.incident_rows(session, [])
    assert failover.around(every, ["publisher"], incidents).count() == 0
