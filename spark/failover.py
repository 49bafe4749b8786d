"""What each thing done to the cluster cost: the longest silence around it, per publisher and per broker.

Silence is what `gaps` says: no confirm, or no first delivery, while one was waited for. Repeats are
no deliveries here: they trail behind and would fill it.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark.manifest import Incident

__all__ = ["INCIDENT", "around", "incident_rows"]

# A gap belongs to what happened while it lasted, or so long before its beginning: publishers notice
# a death by a deadline, and a list is fetched in its interval.
FOLLOWS_NS = 5_000_000_000
INCIDENT = "number int, kind string, broker string, from_ns long, to_ns long"


def incident_rows(session: SparkSession, incidents: Sequence[Incident]) -> DataFrame:
    """One row for each, by its place in time; of `INCIDENT`, its broker as at_broker."""
    ordered = sorted(incidents, key=lambda one: one.at_ns)
    rows = [
        (number, one.kind, one.broker, one.at_ns, one.done_ns) for number, one in enumerate(ordered)
    ]
    return session.createDataFrame(rows, INCIDENT).withColumnRenamed("broker", "at_broker")


def around(gaps: DataFrame, dims: Sequence[str], incidents: DataFrame) -> DataFrame:
    """number, kind, at_broker, from_ns, dims, gap_ns, until_ns: the longest of each around each.

    gaps: of `gaps.every`. incidents: of `incident_rows`, a handful.
    """
    began = F.col("until_ns") - F.col("gap_ns")
    during = (F.col("until_ns") >= F.col("from_ns")) & (began <= F.col("to_ns") + FOLLOWS_NS)
    met = gaps.filter(F.col("gap_ns") > 0).join(F.broadcast(incidents), during)
    of = ["number", "kind", "at_broker", "from_ns", *dims]
    longest = met.groupBy(*of).agg(F.max(F.struct("gap_ns", "until_ns")).alias("longest"))
    return longest.select(*of, "longest.gap_ns", "longest.until_ns")
