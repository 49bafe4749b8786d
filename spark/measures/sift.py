"""Separation of the messages that are as they should be from those that must be looked at.

Nearly every message is *plain*: confirmed at its first sending, and each subscription of its topic had it
once, for the first time, unchanged. Sums of a few numbers show that, in one shuffle of three of them a
row; `audit.fates`, which finds the fate of any message, costs five times as much. So only
the others are judged by it, the *odd* ones.

A message is represented by 64 bits of a digest of its id. Two messages that share them look like one that was
altered: they are odd, and told apart by their ids. Alterations are seen by 64 bits of a digest, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from messagebus.recording.manifest import Manifest
from spark.lake.tables import DATE
from spark.measures import audit, order
from spark.measures.audit import COUNTS, EARLY_NS, TOTALS
from spark.measures.order import ARRIVAL
from spark.measures.run import Run

# A message's subscriptions are bits of one number. Topics with more have no plain messages.
SUBSCRIPTIONS_MAX = 32
# In place of its bit, for a delivery that makes its message odd: all bits together cannot undo it.
ODD = -(1 << 37)
# A time above all others.
FAR_NS = 1 << 62
# Columns that a publisher may send to its consumers in headers.
ORIGIN = ("publisher", "sequence", "key")
COUNTED = ("topic", "publisher", "broker")
PAIR_COUNTS = ("expected", "delivered", "deliveries")
NAMES = [column for dims in TOTALS.values() for column in dims]
ODD_FATES = "odd_fates"
# Rows of a few numbers that fit into every task as a hash table.
BROADCAST_MAX = 2_000_000
NO_PARTIAL = "spark.sql.execution.bypassPartialAggregation"


def has_origins(delivered: DataFrame) -> bool:
    """Return whether every delivery names its publisher, sequence and key.

    Nearly free: files of Parquet know the number of nulls of a column.
    """
    return delivered.filter(F.col("sequence").isNull()).isEmpty()


def odd(
    published: DataFrame, delivered: DataFrame, manifest: Manifest, *, origins: bool
) -> DataFrame:
    """Return message: the digests of ids that are not plain. origins: result of `has_origins`.

    Cost: one shuffle. Partial aggregation before it would only cost: hardly an id repeats in a task.
    """
    columns = ["topic", "size", "body_hash", *(ORIGIN if origins else ()), "message_id"]
    content = F.xxhash64(*columns).alias("content")
    none = F.lit(0).cast("long")
    # One column for both times, to shuffle less: its lowest is the publish's, its highest the
    # earliest delivery's.
    sent_at, came_at = -F.col("sent_ns"), FAR_NS - (F.col("received_ns") + EARLY_NS)
    sent = published.select(
        *(_message(), content, _owed(manifest).alias("owed"), none.alias("had")),
        sent_at.alias("at"),
    )
    had = delivered.select(
        *(_message(), content, none.alias("owed"), _had(manifest).alias("had")), came_at.alias("at")
    )
    found = (
        sent.unionAll(had)
        .groupBy("message")
        .agg(
            F.count(F.lit(1)).alias("rows"),
            F.max("owed").alias("owed"),
            F.sum("had").alias("had"),
            F.min("content").alias("low"),
            F.max("content").alias("high"),
            F.min("at").alias("sent_at"),
            F.max("at").alias("came_at"),
        )
    )
    # Numbers of n different bits add up to n bits, and fewer numbers do not: with one row more than bits
    # there is one publish, and one delivery for each bit.
    is_plain = (
        (F.col("owed") == F.col("had"))
        & (F.col("rows") == F.bit_count("owed") + 1)
        & (F.col("low") == F.col("high"))
        & (FAR_NS - F.col("came_at") >= -F.col("sent_at"))
    )
    return found.filter(~is_plain).select("message")


def only(rows: DataFrame, odd: DataFrame) -> DataFrame:
    """Return the rows of events that are about odd messages."""
    return rows.join(odd, _message_of(rows) == odd["message"], "left_semi")


def without(rows: DataFrame, odd: DataFrame) -> DataFrame:
    """Return the rows of events that are about plain messages."""
    return rows.join(odd, _message_of(rows) == odd["message"], "left_anti")


def plain(published: DataFrame, odd_published: DataFrame) -> DataFrame:
    """Return topic, publisher, broker, messages of plain messages, each of which was published once."""
    every = published.select(*COUNTED, F.lit(1).alias("n"))
    others = odd_published.select(*COUNTED, F.lit(-1).alias("n"))
    counts = every.unionAll(others).groupBy(*COUNTED).agg(F.sum("n").alias("messages"))
    return counts.filter(F.col("messages") > 0)


def counts(plain: DataFrame, manifest: Manifest) -> DataFrame:
    """Return `audit.totals` of plain messages: every pair is expected, and was delivered once.

    plain: rows of this module's `plain`.
    """
    names = [
        (F.col("topic") == topic, _texts(sorted(names))) for topic, names in manifest.topics.items()
    ]
    had = plain.withColumn("names", _first_that_holds(names, otherwise=_texts([])))
    messages = F.col("messages")
    pairs = messages * F.size("names")
    each = F.transform(
        "names",
        # A message is counted once, at the first of its subscriptions.
        lambda name, position: _count(
            F.when(position == 0, messages).otherwise(0),
            messages,
            of=F.lit("subscription"),
            topic=F.col("topic"),
            subscription=name,
        ),
    )
    others = F.array(
        _count(messages, pairs, of=F.lit("publisher"), publisher=F.col("publisher")),
        _count(messages, pairs, of=F.lit("broker"), broker=F.col("broker")),
        _count(
            messages, pairs, of=F.lit("verdict"), verdict=F.lit("ok"), outcome=F.lit("confirmed")
        ),
    )
    return had.select(F.inline(F.concat(each, others)))


def arrivals(published: DataFrame, delivered: DataFrame, *, origins: bool) -> DataFrame:
    """Return the columns of `order.ARRIVAL`, of deliveries of plain messages.

    origins: result of `has_origins`.
    Cost: without origins a join, to learn the publisher of each message from its publish.
    """
    known = delivered
    if not origins:
        sent = published.select("message_id", *ORIGIN)
        known = delivered.drop(*ORIGIN).join(sent, "message_id", "inner")
    named = {"first_consumer": "consumer", "first_broker": "broker", "first_ns": "received_ns"}
    return known.select(*[F.col(named.get(name, name)).alias(name) for name in ARRIVAL])


@dataclass(frozen=True, slots=True)
class Sifted:
    """The events of a whole run, sifted. odd: digests, of `odd`.

    odd_published: the publishes of odd messages. fates: `audit.fates` of odd messages; kept.
    """

    run: Run
    published: DataFrame
    delivered: DataFrame
    odd: DataFrame
    odd_published: DataFrame
    origins: bool
    fates: DataFrame

    def counts(self) -> DataFrame:
        """Return `audit.totals` of plain messages."""
        return counts(plain(self.published, self.odd_published), self.run.manifest)

    def arrivals(self) -> DataFrame:
        """Return `order.ARRIVAL`: of plain messages, which all are judged, and of odd ones."""
        came = without(self.delivered, self.odd)
        plain = arrivals(self.published, came, origins=self.origins)
        return plain.unionByName(order.arrivals(self.fates))

    def late(self) -> DataFrame:
        """Return `order.out_of_order`."""
        return late(self.arrivals(), self.published)


@dataclass(frozen=True, slots=True)
class Unsifted:
    """The fates of all messages, in place of `Sifted`: for a report that needs them anyway, and for a day,
    whose fates are kept.
    """

    run: Run
    fates: DataFrame

    def counts(self) -> DataFrame:
        """Return no rows: there are no messages beside the fates."""
        return audit.totals(self.fates).limit(0)

    def late(self) -> DataFrame:
        """Return `order.out_of_order`; for a day, the late messages of that day."""
        run = self.run
        if run.day is None:
            return late(order.arrivals(self.fates), run.events("published"))
        arrivals = order.arrivals(run.fates_around())
        return late(arrivals, run.whole.events("published")).filter(F.col(DATE) == run.day)


def late(arrivals: DataFrame, published: DataFrame) -> DataFrame:
    """Return `order.out_of_order`. Cost: only streams with a late message are sorted whole."""
    streams = held(order.shaken(arrivals))
    doubtful = order.of_streams(arrivals, streams)
    if not streams.isEmpty():
        doubtful = order.by_time(doubtful, published, order.renumbered(published))
    return order.out_of_order(doubtful)


def sifted(run: Run) -> Sifted:
    """Read all events of a whole run once, and those of odd messages once more."""
    published, delivered = run.events("published"), run.events("delivered")
    origins = has_origins(delivered)
    with _no_partial_aggregation(run.session):
        odd_ids = held(odd(published, delivered, run.manifest, origins=origins))
    odd_published = only(published, odd_ids).persist()
    fates = audit.fates(odd_published, only(delivered, odd_ids), run.manifest)
    kept = run.keep(ODD_FATES, fates)
    return Sifted(run, published, delivered, odd_ids, odd_published, origins, kept)


def held(rows: DataFrame) -> DataFrame:
    """Compute rows once; a small number of them is sent to every task."""
    kept = rows.persist()
    return F.broadcast(kept) if kept.count() <= BROADCAST_MAX else kept


def _message() -> Column:
    return F.xxhash64("message_id").alias("message")


def _message_of(rows: DataFrame) -> Column:
    return F.xxhash64(rows["message_id"])


def _owed(manifest: Manifest) -> Column:
    """Return all bits of the topic's subscriptions; -1 if no delivery can make this message plain."""
    sent_once = (F.col("outcome") == "confirmed") & (F.col("attempts") == 1)
    bits = [
        (sent_once & (F.col("topic") == topic), F.lit((1 << len(names)) - 1).cast("long"))
        for topic, names in manifest.topics.items()
        if len(names) <= SUBSCRIPTIONS_MAX
    ]
    return _first_that_holds(bits, otherwise=F.lit(-1).cast("long"))


def _had(manifest: Manifest) -> Column:
    """Return the bit of the delivery's subscription, if it came for the first time; else `ODD`."""
    bits = [
        (
            (F.col("redelivered") == 0)
            & (F.col("subscription") == name)
            & (F.col("topic") == topic),
            F.lit(1 << bit).cast("long"),
        )
        for topic, names in manifest.topics.items()
        if len(names) <= SUBSCRIPTIONS_MAX
        for bit, name in enumerate(sorted(names))
    ]
    return _first_that_holds(bits, otherwise=F.lit(ODD).cast("long"))


def _first_that_holds(cases: Iterable[tuple[Column, Column]], *, otherwise: Column) -> Column:
    found = otherwise
    for holds, value in cases:
        found = F.when(holds, value).otherwise(found)
    return found


def _count(messages: Column, pairs: Column, **dims: Column) -> Column:
    """Make one row of `audit.totals`; the dims that are not given are null."""
    none, nothing = F.lit(None).cast("string"), F.lit(0).cast("long")
    known = {"messages": messages} | dict.fromkeys(PAIR_COUNTS, pairs)
    return F.struct(
        dims["of"].alias("of"),
        *[dims.get(name, none).alias(name) for name in NAMES],
        *[known.get(name, nothing).cast("long").alias(name) for name in COUNTS],
    )


def _texts(names: Iterable[str]) -> Column:
    return F.array(*map(F.lit, names)).cast("array<string>")


@contextmanager
def _no_partial_aggregation(session: SparkSession) -> Iterator[None]:
    """Turn partial aggregation off. Where ids hardly ever repeat in a task it costs 10 to 25 % of the CPU."""
    session.conf.set(NO_PARTIAL, "true")
    try:
        yield
    finally:
        session.conf.unset(NO_PARTIAL)
