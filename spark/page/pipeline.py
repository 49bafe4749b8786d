"""The way from the events of a run to its tables and the numbers of the whole report.

Rows stay in Spark. The driver gets counts per broker, publisher, subscription and window
of time.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from spark.measures import audit, gaps, hdr, latency, order, throughput
from spark.measures.run import Run

__all__ = ["CURVE", "Numbers", "Rows", "collect"]

Rows: TypeAlias = list[dict[str, Any]]

# Window of the stored bins. Fine windows hardly compress: a broker's second has about as many bins as values.
BIN_WINDOW_S = 10
# Windows on a chart's time axis, at most; each of whole seconds.
WINDOWS_MAX = 150
# fmt: off
CURVE = (
    0, 10, 25, 50, 75, 90, 95, 97, 98, 99, 99.3, 99.5, 99.7, 99.8, 99.9, 99.95, 99.98, 99.99, 99.999, 100,
)
# fmt: on
TIMELINE = (50, 99, 100)
SUSPECTS_MAX = 50
# A report waits for the driver's planning as much as for its cores: two are made at a time.
AT_ONCE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """Numbers of a report, as plain rows; the transforms define the columns.

    negative: measure -> values below 0. backwards, errors: of `latency.below`, by measure. window_s:
    width of the windows of `timeline` and `latency_timeline`. span_s: length of the run. rows: by name
    distinct_ids, totals, brokers, publishers, publisher_gaps, broker_gaps, timeline, latency,
    latency_timeline, out_of_order, and, where there are any, repeats and suspects.
    """

    negative: dict[str, int]
    window_s: int
    rows: Mapping[str, Rows]
    span_s: float | None = None
    backwards: Mapping[str, int] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)


def collect(run: Run) -> Numbers:
    """Write the tables, return the numbers."""
    return _Collector(run).collect()


class _Collector:
    def __init__(self, run: Run) -> None:
        self._run = run
        self._start_ns = run.manifest.start_ns
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._found: dict[str, Future[Rows]] = {}
        self._negative = Observation()

    def collect(self) -> Numbers:
        with self._pool:
            published, delivered = self._run.events("published"), self._run.events("delivered")
            made = self._pool.submit(self._run.fates)
            seconds = self._run.keep(
                "throughput", throughput.per_second(published, delivered, self._start_ns)
            )
            self._ask_publishes(published, delivered)
            window_s = self._ask_seconds(seconds)
            fates = made.result()
            self._ask_fates(fates)
            self._ask_latency(latency.samples(published, fates), window_s)
            self._ask_particulars(fates)
            rows = {name: found.result() for name, found in self._found.items()}
        seen = self._negative.get

        def of(name: str) -> dict[str, int]:
            return {measure: seen[f"{measure} {name}"] for measure in latency.MEASURES}

        return Numbers(
            negative=of("below"),
            backwards=of("backwards"),
            errors=of("error_ns"),
            window_s=window_s,
            span_s=self._run.span_s,
            rows=rows,
        )

    def _ask_publishes(self, published: DataFrame, delivered: DataFrame) -> None:
        ids = published.select("message_id").union(delivered.select("message_id"))
        self._ask("distinct_ids", ids.agg(F.count_distinct("message_id").alias("ids")))
        self._ask("publishers", throughput.publishers(published))
        waiting = {"start": "intended_ns", "end": "confirmed_ns"}
        until_ns = self._run.until_ns
        self._ask(
            "publisher_gaps", gaps.longest(published, ["publisher"], **waiting, until_ns=until_ns)
        )

    def _ask_seconds(self, seconds: DataFrame) -> int:
        [last] = seconds.agg(F.max("second")).first() or (0,)
        window_s = 1 + int(max(self._run.span_s, (last or 0) + 1) - 1) // WINDOWS_MAX
        self._ask("timeline", throughput.windows(seconds, window_s))
        self._ask("brokers", throughput.totals(seconds, ["broker"]))
        return window_s

    def _ask_fates(self, fates: DataFrame) -> None:
        self._ask("totals", audit.totals(fates))
        self._ask("out_of_order", self._late(fates).groupBy().count())
        firsts = audit.first_deliveries(fates)
        dims, waiting = (
            ["topic", "subscription", "broker"],
            {"start": "waiting_ns", "end": "first_ns"},
        )
        until_ns = self._run.until_ns
        self._ask("broker_gaps", gaps.longest(firsts, dims, **waiting, until_ns=until_ns))

    def _late(self, fates: DataFrame) -> DataFrame:
        arrivals, published = order.arrivals(fates), self._run.events("published")
        return order.out_of_order(
            order.by_time(arrivals, published, order.renumbered(published))
            if order.out_of_order(arrivals).limit(1).count()
            else arrivals
        )

    def _ask_particulars(self, fates: DataFrame) -> None:
        """Collect rows that only a run with repeats or faults has."""
        totals = self._found["totals"].result()
        if any(row[why] for row in totals for why in audit.REPEATS):
            self._ask("repeats", audit.repeats(fates))
        if any(row["verdict"] in audit.FAULTS for row in totals):
            self._ask("suspects", audit.suspects(fates).limit(SUSPECTS_MAX))

    def _ask_latency(self, samples: DataFrame, window_s: int) -> None:
        below = [
            value.alias(f"{measure} {name}")
            for measure in latency.MEASURES
            for name, value in latency.below(measure).items()
        ]
        windows = samples.observe(self._negative, *below).withColumn(
            "window", throughput.window("at_ns", self._start_ns, BIN_WINDOW_S)
        )
        dims = ["date", "measure", "broker", "subscription", "window"]
        bins = self._run.keep("latency_bins", hdr.bins(windows, dims, "value_ns"))
        scopes = ["measure", "scope", "name"]
        self._ask("latency", hdr.percentiles(latency.scoped(bins), scopes, CURVE))
        measures = samples.filter(F.col("measure").isin(latency.CONFIRM, latency.END_TO_END))
        fine = measures.withColumn("window", throughput.window("at_ns", self._start_ns, window_s))
        dims = ["measure", "window"]
        timeline = hdr.percentiles(hdr.bins(fine, dims, "value_ns"), dims, TIMELINE)
        self._ask("latency_timeline", timeline)

    def _ask(self, name: str, rows: DataFrame) -> None:
        self._found[name] = self._pool.submit(_collected, rows)


def _collected(rows: DataFrame) -> Rows:
    return [row.asDict(recursive=True) for row in rows.collect()]
