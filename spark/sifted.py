"""A run, or a day of it, sifted: its plain messages as counts, the fates of its odd ones as rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark import audit, order, sift
from spark.lake import DATE
from spark.run import Run

__all__ = ["Sifted", "held", "sifted"]

ODD_FATES = "odd_fates"
# Rows of a few numbers that every task can hold, as a hash table.
BROADCAST_MAX = 2_000_000
NO_PARTIAL = "spark.sql.execution.bypassPartialAggregation"


@dataclass(frozen=True, slots=True)
class Sifted:
    """published, delivered: of the whole run, whatever day is asked about. odd: digests, of `sift.odd`.

    odd_published: the publishes of odd messages. every_fate: of `audit.fates`, of odd messages; kept.
    """

    run: Run
    published: DataFrame
    delivered: DataFrame
    odd: DataFrame
    odd_published: DataFrame
    origins: bool
    every_fate: DataFrame

    @property
    def fates(self) -> DataFrame:
        """Of the run, or of the messages that were published on its day."""
        return self._of_day(self.every_fate)

    def counts(self) -> DataFrame:
        """Of `audit.totals`, of plain messages."""
        own = [self._of_day(rows) for rows in (self.published, self.odd_published)]
        return sift.counts(sift.plain(*own), self.run.manifest)

    def arrivals(self) -> DataFrame:
        """`order.ARRIVAL`: of plain messages, which all are judged, and of odd ones.

        Of all days: those of others may have come before.
        """
        came = sift.without(self.delivered, self.odd)
        plain = sift.arrivals(self.published, came, origins=self.origins)
        return plain.unionByName(order.arrivals(self.every_fate))

    def late(self) -> DataFrame:
        """Of `order.out_of_order`; of a day, what came late on it."""
        arrivals = self.arrivals()
        streams = held(order.shaken(arrivals))
        doubtful = order.of_streams(arrivals, streams)
        if not streams.isEmpty():
            doubtful = order.by_time(doubtful, self.published, order.renumbered(self.published))
        return self._of_day(order.out_of_order(doubtful))

    def _of_day(self, rows: DataFrame) -> DataFrame:
        return rows.filter(F.col(DATE) == self.run.day) if self.run.day else rows


def sifted(run: Run) -> Sifted:
    """Read all events once, and those of odd messages once more.

    Of a day too: what was confirmed on it may have been delivered on any other.
    """
    whole = run.whole
    published, delivered = whole.events("published"), whole.events("delivered")
    origins = sift.has_origins(delivered)
    with _no_partial_aggregation(run.session):
        odd = held(sift.odd(published, delivered, run.manifest, origins=origins))
    odd_published = sift.only(published, odd).persist()
    fates = audit.fates(odd_published, sift.only(delivered, odd), run.manifest)
    kept = whole.keep(ODD_FATES, fates)
    return Sifted(run, published, delivered, odd, odd_published, origins, kept)


def held(rows: DataFrame) -> DataFrame:
    """Rows that are computed once and for all; a few of them are given to every task."""
    kept = rows.persist()
    return F.broadcast(kept) if kept.count() <= BROADCAST_MAX else kept


@contextmanager
def _no_partial_aggregation(session: SparkSession) -> Iterator[None]:
    """Of ids that hardly ever repeat in a task it costs 10 to 25 % of the CPU, and saves nothing."""
    session.conf.set(NO_PARTIAL, "true")
    try:
        yield
    finally:
        session.conf.unset(NO_PARTIAL)
