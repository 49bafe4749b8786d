"""Answers of Spark about a whole run with a few rows, so that DuckDB's answer can be held against it.

An answer is a list of rows of plain values, in order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark.measures import audit, backlog, hdr, throughput
from spark.measures.latency import CURVE
from spark.measures.run import Run
from spark.measures.sift import sifted

Answer: TypeAlias = list[Any]

GROUP = ("broker", "topic")


def seconds(run: Run) -> Answer:
    """Return kind, broker, topic, subscription, second, messages, bytes: sums of the table by publisher."""
    rows = throughput.per_second(
        run.events("published"), run.events("delivered"), run.manifest.start_ns
    )
    found = rows.groupBy("kind", "broker", "topic", "subscription", "second").agg(
        F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes")
    )
    return _rows(found)


def latency(run: Run) -> Answer:
    """Return broker, topic, total, and the percentiles of `CURVE` from the intended time to the confirm."""
    return _rows(hdr.percentiles(hdr.bins(_latencies(run), GROUP, "value_ns"), GROUP, CURVE))


def bins(run: Run) -> Answer:
    """Return broker, topic, bin, n: the bins of `latency`."""
    return _rows(hdr.bins(_latencies(run), GROUP, "value_ns"))


def percentiles(run: Run) -> Answer:
    """Return publisher, broker, total, percentiles (of `CURVE` -> value)."""
    dims = ["publisher", "broker"]
    found = hdr.percentiles(hdr.bins(_latencies(run), dims, "value_ns"), dims, CURVE).collect()
    return [
        {
            **{name: row[name] for name in (*dims, "total")},
            "percentiles": {f"{each:g}": row[hdr.name(each)] for each in CURVE},
        }
        for row in found
    ]


def depths(run: Run) -> Answer:
    """Return broker, topic, subscription, second, entered, left, depth, most, age_ms: of `backlog.depths`.

    Made from the fates in the lake, which are computed first where it has none.
    """
    manifest = run.manifest
    waits = backlog.waits(run.fates())
    end_ns = manifest.end_ns or manifest.start_ns
    return _rows(backlog.depths(waits, manifest.start_ns, end_ns).drop("oldest_ms"))


def verdicts(run: Run) -> Answer:
    """Return verdict, messages: the audit's verdicts on every message."""
    judged = sifted(run)
    totals = judged.counts().unionByName(audit.totals(judged.fates))
    told = totals.filter(F.col("of") == "verdict").groupBy("verdict")
    return _rows(told.agg(F.sum("messages").alias("messages")))


QUESTIONS: Mapping[str, Callable[[Run], Answer]] = {
    each.__name__: each for each in (seconds, latency, bins, percentiles, depths, verdicts)
}


def _latencies(run: Run) -> DataFrame:
    confirmed = run.events("published").filter(F.col("outcome") == "confirmed")
    taken = F.col("confirmed_ns") - F.col("intended_ns")
    return confirmed.select("publisher", *GROUP, taken.alias("value_ns"))


def _rows(found: DataFrame) -> Answer:
    return sorted([*row] for row in found.collect())


def answered(run: Run, question: str) -> Answer:
    """Answer a question, and drop the rows that it has kept in memory."""
    found: Answer = json.loads(json.dumps(QUESTIONS[question](run)))
    run.session.catalog.clearCache()
    return found


def rows_read(session: SparkSession) -> dict[int, int]:
    """Return stage -> the rows that it has read of files, of the last thousand, by Spark's own record."""
    context: Any = session.sparkContext
    gateway = context._gateway
    store, none = context._jsc.sc().statusStore(), gateway.new_array(gateway.jvm.double, 0)
    stages = store.stageList(None, False, False, none, gateway.jvm.java.util.ArrayList())
    every = map(stages.apply, range(stages.size()))
    return {stage.stageId(): stage.inputRecords() for stage in every}
