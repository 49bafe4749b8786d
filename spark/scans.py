"""Questions that a whole run answers with a few rows, to compare the cost of Spark with other tools.

``python -m spark.scans LAKE RUN`` reads questions from its input, a line each, and answers each with a
line of JSON, in one session: so the caller can measure a question without the start of a JVM. An
answer is a list of rows, of plain values and in order, so that it can be compared with another tool's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark.command import session_for
from spark.lake.ingest import ingested
from spark.lake.places import place_of
from spark.lake.tables import Lake
from spark.measures import audit, backlog, hdr, throughput
from spark.measures.latency import CURVE
from spark.measures.run import Run
from spark.measures.sift import sifted

Answer: TypeAlias = list[Any]

GROUP = ("broker", "topic")
# Accuracy of percentile_approx: its own default, one part in this number of the count.
ACCURACY = 10_000


def seconds(run: Run) -> Answer:
    """Return kind, broker, topic, subscription, second, messages, bytes: sums of the table by publisher."""
    rows = throughput.per_second(
        run.events("published"), run.events("delivered"), run.manifest.start_ns
    )
    return _rows(throughput.windows(rows, 1))


def latency(run: Run) -> Answer:
    """Return broker, topic, total, and the percentiles of `CURVE` from the intended time to the confirm."""
    return _rows(hdr.percentiles(hdr.bins(_latencies(run), GROUP, "value_ns"), GROUP, CURVE))


def approximate(run: Run) -> Answer:
    """Return broker, topic, and about the same percentiles, by Spark's own function."""
    wanted = F.array(*[F.lit(each / 100) for each in CURVE])
    found = F.percentile_approx("value_ns", wanted, ACCURACY)
    return _rows(_latencies(run).groupBy(*GROUP).agg(found.alias("found")))


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
    """Return broker, topic, subscription, second, entered, left, depth, age_ms: rows of `backlog.depths`.

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


def joined(run: Run) -> Answer:
    """Return the same by a full outer join, the obvious way.

    Grouped before it: a plain join counts an id that repeats on both sides several times.
    """
    sent = run.events("published").groupBy("message_id")
    had = run.events("delivered").groupBy("message_id")
    body = F.col("body_hash")
    both = sent.agg(
        F.count(F.lit(1)).alias("sent"),
        F.max("outcome").alias("outcome"),
        F.max(body).alias("body"),
    ).join(
        had.agg(
            F.count(F.lit(1)).alias("had"), F.min(body).alias("low"), F.max(body).alias("high")
        ),
        "message_id",
        "full_outer",
    )
    return _rows(both.groupBy(_verdict().alias("verdict")).agg(F.count(F.lit(1)).alias("n")))


QUESTIONS: Mapping[str, Callable[[Run], Answer]] = {
    each.__name__: each
    for each in (seconds, latency, approximate, bins, percentiles, depths, verdicts, joined)
}


def _latencies(run: Run) -> DataFrame:
    confirmed = run.events("published").filter(F.col("outcome") == "confirmed")
    taken = F.col("confirmed_ns") - F.col("intended_ns")
    return confirmed.select("publisher", *GROUP, taken.alias("value_ns"))


def _verdict() -> Column:
    """Return a verdict as in `audit.VERDICTS`, for one subscription, and without explained repeats."""
    confirmed = F.col("outcome") == "confirmed"
    return (
        F.when(F.col("sent").isNull(), "orphan")
        .when(confirmed & F.col("had").isNull(), "lost")
        .when((F.col("low") != F.col("body")) | (F.col("high") != F.col("body")), "altered")
        .when(F.col("had") > 1, "unexplained")
        .when(confirmed, "ok")
        .when(F.col("had").isNotNull(), "unconfirmed_delivered")
        .otherwise("unconfirmed_absent")
    )


def _rows(found: DataFrame) -> Answer:
    return sorted([*row] for row in found.collect())


def answered(run: Run, questions: Iterable[str]) -> Iterator[str]:
    """Yield a line for each question. Rows that one keeps in memory are dropped before the next."""
    for question in questions:
        yield json.dumps(QUESTIONS[question.strip()](run))
        run.session.catalog.clearCache()


def main(argv: Sequence[str]) -> None:
    """Answer questions from standard input. argv: the lake, and the run in it."""
    root, run_id = argv
    lake = Lake(place_of(root))
    found = ingested(lake, run_id)
    with session_for("scans", found.weight) as session:
        for line in answered(Run(session, lake, found), sys.stdin):
            print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
