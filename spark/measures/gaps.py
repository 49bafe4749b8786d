"""Longest silences: time without an answer while one was waited for, answered or not.

In a run, and around each incident, per publisher and per broker: no confirm, or no first
delivery, while one was waited for. Repeats are no deliveries here: they trail behind and would fill it.

One publisher may have all rows of a run. So rows are sorted within pieces of time alone; a row of each piece
says what the pieces before and behind it have.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from messagebus.recording.manifest import FOLLOWS_NS, Incident, in_order

# A task sorts as many rows at once as a group has in so much time.
PIECE_NS = 60_000_000_000
OF_PIECE = ("later_end", "later_first", "later_last", "closed_before")
INCIDENT = "number int, kind string, broker string, from_ns long, to_ns long, last_ns long"


def every(
    rows: DataFrame, dims: Sequence[str], *, start: str, end: str, until_ns: int | None = None
) -> DataFrame:
    """Return dims, until_ns, gap_ns: one row per end, with the silence that it closed.

    rows: each waited from `start` to `end`, in ns, and has all dims; a row without an end waited for the
    next end of its group, or to until_ns, when the run was over (None: it is left out). Every end closes a
    gap; the gap began at the end before it or, where nothing was waiting then, at the first start since.
    Cost: one sort per group and piece of time, and a join with one row for each of these.
    """
    if until_ns is None:
        rows, until_ns = rows.filter(F.col(end).isNotNull()), 0
    at = F.coalesce(end, start)
    piece = F.call_function("div", at, F.lit(PIECE_NS)).alias("piece")
    waits = rows.select(*dims, F.col(start).alias("start"), F.col(end).alias("end"), piece)
    known = waits.join(_pieces(waits, dims, until_ns), [*dims, "piece"])
    # Latest first: the frame "this row and all later ones" then begins at the partition's start, which
    # Spark sums up in one pass; the same frame written forwards costs a pass per row.
    latest_first = Window.partitionBy(*dims, "piece").orderBy(
        F.coalesce("end", "start").desc(), F.col("end").asc_nulls_first()
    )
    not_yet_ended = latest_first.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    next_end = F.least(F.min("end").over(not_yet_ended), "later_end")
    over = F.greatest(F.lit(until_ns), F.max("start").over(not_yet_ended), "later_last")
    closed = known.withColumn("closed_ns", F.coalesce("end", next_end, over))
    before = F.coalesce(F.lead("closed_ns").over(latest_first), "closed_before")
    # The first end has none before it: greatest() and least() skip nulls.
    since = F.greatest(before, F.least(F.min("start").over(not_yet_ended), "later_first"))
    gap = F.greatest(F.col("closed_ns") - since, F.lit(0))
    return closed.select(*dims, F.col("closed_ns").alias("until_ns"), gap.alias("gap_ns"))


def _pieces(waits: DataFrame, dims: Sequence[str], until_ns: int) -> DataFrame:
    """Return dims, piece, and `OF_PIECE`, null where there is none.

    later_end, later_first, later_last: of the pieces behind it the first end, the first and the last start.
    closed_before: when the last row before the piece was closed.
    """
    # Of rows of one time, one without an end is the last.
    last = F.max(F.struct(F.coalesce("end", "start").alias("at"), F.isnull("end").alias("open")))
    each = waits.groupBy(*dims, "piece").agg(
        F.min("end").alias("end"),
        F.min("start").alias("first"),
        F.max("start").alias("start"),
        last.alias("last"),
    )
    backwards = Window.partitionBy(*dims).orderBy(F.col("piece").desc())
    behind = backwards.rowsBetween(Window.unboundedPreceding, -1)
    told = each.select(
        *dims,
        "piece",
        "last",
        F.min("end").over(behind).alias("later_end"),
        F.min("first").over(behind).alias("later_first"),
        F.max("start").over(behind).alias("later_last"),
    )
    over = F.greatest(F.lit(until_ns), "last.at", "later_last")
    closed = F.when(F.col("last.open"), F.coalesce("later_end", over)).otherwise(F.col("last.at"))
    before = F.lead(closed).over(backwards).alias("closed_before")
    return told.select(*dims, "piece", *OF_PIECE[:-1], before)


def longest(
    rows: DataFrame, dims: Sequence[str], *, start: str, end: str, until_ns: int | None = None
) -> DataFrame:
    """Return dims, gap_ns, until_ns: the longest gap of each group."""
    gaps = every(rows, dims, start=start, end=end, until_ns=until_ns)
    longest = gaps.groupBy(*dims).agg(F.max(F.struct("gap_ns", "until_ns")).alias("longest"))
    return longest.select(*dims, "longest.gap_ns", "longest.until_ns")


def incident_rows(session: SparkSession, incidents: Sequence[Incident]) -> DataFrame:
    """Return one row for each incident, by its place in time, as `INCIDENT`; its broker is at_broker.

    last_ns: the latest begin of a wait that belongs to it.
    """
    rows = [
        (number, one.kind, one.broker, one.at_ns, one.ended_ns, last_ns)
        for number, (one, last_ns) in enumerate(in_order(incidents))
    ]
    return session.createDataFrame(rows, INCIDENT).withColumnRenamed("broker", "at_broker")


def around(gaps: DataFrame, dims: Sequence[str], incidents: DataFrame) -> DataFrame:
    """Return the longest gap of each group around each incident: of those that belong to it.

    Columns: number, kind, at_broker, from_ns, dims, gap_ns, until_ns.
    gaps: rows of `every`. incidents: rows of `incident_rows`, a handful.
    """
    began = F.col("until_ns") - F.col("gap_ns")
    during = (F.col("until_ns") >= F.col("from_ns")) & (began <= F.col("last_ns"))
    met = gaps.filter(F.col("gap_ns") > 0).join(F.broadcast(incidents), during)
    of = ["number", "kind", "at_broker", "from_ns", *dims]
    longest = met.groupBy(*of).agg(F.max(F.struct("gap_ns", "until_ns")).alias("longest"))
    return longest.select(*of, "longest.gap_ns", "longest.until_ns")


def before(gaps: DataFrame, dims: Sequence[str], incidents: DataFrame) -> DataFrame:
    """Return number, dims, gap_ns: the longest gap of each group in the `FOLLOWS_NS` before each incident.

    gaps: rows of `every`. incidents: rows of `incident_rows`.
    """
    began = F.col("until_ns") - F.col("gap_ns")
    earlier = (F.col("until_ns") < F.col("from_ns")) & (began >= F.col("from_ns") - FOLLOWS_NS)
    met = gaps.join(F.broadcast(incidents), earlier)
    return met.groupBy("number", *dims).agg(F.max("gap_ns").alias("gap_ns"))


def met(published: DataFrame, incidents: DataFrame) -> DataFrame:
    """Return number, publisher, connected, resent: of each publisher at each incident.

    connected: confirms that it had from the incident's broker in the `FOLLOWS_NS` before. resent: messages
    sent more than once among those that waited for a confirm in the time of the incident. A message without
    a confirm waited to the end.
    """
    confirmed, from_ns = F.col("confirmed_ns"), F.col("from_ns")
    is_its = (F.col("broker") == F.col("at_broker")) & (confirmed < from_ns)
    is_before = is_its & (confirmed >= from_ns - FOLLOWS_NS)
    waited = (F.col("intended_ns") <= F.col("last_ns")) & (
        confirmed.isNull() | (confirmed >= from_ns)
    )
    rows = published.join(F.broadcast(incidents.drop("kind")), is_before | waited)
    return rows.groupBy("number", "publisher").agg(
        F.count_if(is_before).alias("connected"),
        F.count_if(waited & (F.col("attempts") > 1)).alias("resent"),
    )
