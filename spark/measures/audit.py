"""The fate of every message, by one group-by of publishes and deliveries over the message id.

A join would count an id that repeats on both sides several times; a group cannot. Loss is judged per
(message, subscription): expected are all subscriptions that the manifest names for the topic of a
confirmed message.

A repeat is a delivery of a pair after its first. Its reason is the first that applies:

owed                  the delivery before it by that broker had no answer when its link ended
acked_without_proof   that one was acked, and its broker was killed soon after and before the repeat:
                      AMQP confirms no acks, so the broker may never have applied it
unknown               another copy of the message may be stored, and came; each copy comes once
unexplained           none of these: a fault
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from messagebus.recording.manifest import Manifest
from spark.measures.throughput import whole, window

REPEATS = ("unknown", "owed", "acked_without_proof", "unexplained")
# A message that is published again after an unknown outcome counts as its best outcome: the first.
OUTCOME_ORDER = ("confirmed", "spooled", "unknown", "refused", "unroutable")
# A spooled message is sent later, by whichever process; again after each crash before its cursor was written.
SPOOLED_COPIES = 1_000
# Verdicts on a message; the first that applies. Every message has exactly one.
VERDICTS = (
    "orphan",
    "reused",
    "lost",
    "altered",
    "unexpected",
    "refused_delivered",
    "early",
    "unexplained",
    "pending",
    "doubled",
    "ok",
    "unconfirmed_delivered",
    "unconfirmed_absent",
)
FAULTS = VERDICTS[: VERDICTS.index("pending")]
# Verdicts on the whole message: none of its pairs is better than another.
OF_MESSAGE = ("orphan", "reused", "refused_delivered", "early")
# Outcomes after which a broker has said that it stores no copy.
TURNED_AWAY = ("refused", "unroutable")
# A client writes acks into a dead broker's socket until it hears of the death.
KILL_NOTICED_NS = 1_000_000_000
# A broker applies acks within milliseconds, one with a slow disk within seconds; not an hour later.
ACK_UNPROVEN_NS = 60_000_000_000
# Clocks of hosts may differ by this much here; smaller negative times are the latency report's subject.
EARLY_NS = 1_000_000_000

OF_PUBLISH = (
    *("publisher", "broker", "key", "sequence", "outcome"),
    *("intended_ns", "sent_ns", "confirmed_ns"),
)
OF_PAIR = (
    *("expected", "lost", "pending", "unexpected", "deliveries", "altered", "repeats"),
    *("first_ns", "first_broker", "first_consumer", "first_redelivered"),
)

# Columns of `fates`, as the lake keeps them.
FATES = (
    "message_id binary, ordinal int, date string, verdict string, attempts long, topic string, "
    "subscription string, publisher string, broker string, key string, sequence long, outcome string, "
    "intended_ns long, sent_ns long, confirmed_ns long, expected boolean, lost boolean, pending boolean, "
    "unexpected boolean, deliveries int, altered int, repeats array<struct<broker:string,why:string>>, "
    "first_ns long, first_broker string, first_consumer string, first_redelivered int, since string, "
    "until string"
)
# Subject of counts -> its columns.
TOTALS = {
    "subscription": ("topic", "subscription"),
    "publisher": ("publisher",),
    "broker": ("broker",),
    "verdict": ("verdict", "outcome"),
}
COUNTS = (
    "messages",
    "expected",
    "delivered",
    "deliveries",
    "lost",
    "pending",
    "altered",
    *REPEATS,
    "unconfirmed_delivered",
    "unconfirmed_absent",
    "orphan_deliveries",
    "unexpected",
)

# Name in `events.FAULTS` -> its count here; and the faults that are verdicts, whose messages are counted.
COUNTED = {
    "lost": "lost",
    "altered": "altered",
    "unexplained": "unexplained",
    "orphan": "orphan_deliveries",
    "unexpected": "unexpected",
}
JUDGED = ("reused", "refused_delivered", "early")
# Counts of `over_time` -> their names in words.
TROUBLES = {
    "lost": "lost",
    "altered": "altered",
    "unexplained": "again, unexplained",
    "explained": "again, explained",
    "strange": "never published",
    "unconfirmed": "not confirmed",
}


def fates(published: DataFrame, delivered: DataFrame, manifest: Manifest) -> DataFrame:
    """Return one row per message and subscription that should have had it, or had it.

    Columns: message_id, ordinal (0-based within the message; one without any subscription has one
    row, of null subscription), date (of the publish, of the delivery for an orphan), verdict (of the
    message), attempts (of all its publishes), topic, subscription; of the publish, null for an
    orphan: `OF_PUBLISH`; of the pair: `OF_PAIR`; since, until: the first and the last day with a row of the
    message. pending: not delivered yet, by the manifest's grace.
    altered: deliveries. repeats: array of broker, why. first_...: of the first delivery.
    """
    messages = _grouped(published, delivered)
    paired = messages.withColumn("plain", _is_plain(manifest))
    # The value of an `otherwise` is computed for few messages, and is most of the work of judging one.
    every = F.transform(_pairs(manifest), lambda pair: _judged(pair, manifest))
    judged = paired.withColumn("pairs", F.when(F.col("plain"), _plain_pairs()).otherwise(every))
    verdict = F.when(F.col("plain"), "ok").otherwise(_verdict()).alias("verdict")
    exploded = judged.select(
        "message_id",
        *("date", "attempts", "since", "until"),
        verdict,
        "best",
        F.posexplode_outer("pairs"),
    )
    return exploded.select(
        "message_id",
        F.coalesce("pos", F.lit(0)).alias("ordinal"),
        "date",
        "verdict",
        "attempts",
        F.coalesce("col.topic", "best.topic").alias("topic"),
        "col.subscription",
        *[f"best.{name}" for name in OF_PUBLISH],
        *[f"col.{name}" for name in OF_PAIR],
        "since",
        "until",
    )


def totals(fates: DataFrame) -> DataFrame:
    """Count by each of `TOTALS` at once: of (which), its dims (the others null), `COUNTS`.

    messages: each once. expected, delivered, lost, pending: pairs of confirmed messages. altered:
    pairs with a delivery whose size or body is not the published one. deliveries, orphan_deliveries
    and the reasons of repeats: deliveries. unexpected: pairs that the manifest does not name.
    """
    confirmed = F.col("outcome") == "confirmed"
    known = F.col("outcome").isNotNull()
    came = F.col("deliveries") > 0
    columns = [column for dims in TOTALS.values() for column in dims]
    # As grouping sets, which PySpark 3.5 does not have.
    none = F.lit(None).cast("string")
    sets = [
        F.struct(
            F.lit(name).alias("of"),
            *[(F.col(each) if each in dims else none).alias(each) for each in columns],
        )
        for name, dims in TOTALS.items()
    ]
    needed = ("ordinal", "expected", "deliveries", "lost", "pending", "altered", "unexpected")
    spread = fates.select(
        *needed,
        "repeats",
        confirmed.alias("confirmed"),
        known.alias("known"),
        came.alias("came"),
        F.inline(F.array(*sets)),
    )
    confirmed, known, came = (F.col(name) for name in ("confirmed", "known", "came"))
    counted = spread.groupBy("of", *columns).agg(
        F.count_if(F.col("ordinal") == 0).alias("messages"),
        F.count_if(F.col("expected")).alias("expected"),
        F.count_if(F.col("expected") & came).alias("delivered"),
        F.coalesce(F.sum("deliveries"), F.lit(0)).alias("deliveries"),
        F.count_if("lost").alias("lost"),
        F.count_if("pending").alias("pending"),
        F.count_if(F.col("altered") > 0).alias("altered"),
        *[_repeats_of(why).alias(why) for why in REPEATS],
        F.count_if(known & ~confirmed & came).alias("unconfirmed_delivered"),
        F.count_if(known & ~confirmed & ~came).alias("unconfirmed_absent"),
        F.coalesce(F.sum(F.when(~known, F.col("deliveries"))), F.lit(0)).alias("orphan_deliveries"),
        F.count_if("unexpected").alias("unexpected"),
    )
    no_subscription = (F.col("of") == "subscription") & F.col("subscription").isNull()
    return counted.filter(~no_subscription).select("of", *columns, *COUNTS)


def repeats(fates: DataFrame) -> DataFrame:
    """Count repeats: topic, subscription, broker (that delivered again), why, repeats."""
    some = fates.filter(F.size("repeats") > 0)
    each = some.select("topic", "subscription", F.explode("repeats").alias("again"))
    return each.groupBy("topic", "subscription", "again.broker", "again.why").agg(
        F.count(F.lit(1)).alias("repeats")
    )


def suspects(fates: DataFrame) -> DataFrame:
    """Return the pairs at fault of messages whose verdict is one of `FAULTS`, to be looked up in logs.

    Where the fault is the message's own (it was reused, or never to be delivered), all its pairs. Ids
    as hex text.
    """
    is_unexplained = F.exists("repeats", lambda one: one.why == "unexplained")
    faults = [F.col("lost"), F.col("altered") > 0, F.col("unexpected"), is_unexplained]
    at_fault = F.coalesce(reduce(Column.__or__, faults), F.lit(False))
    of_message = F.col("verdict").isin(*OF_MESSAGE)
    return fates.filter(F.col("verdict").isin(*FAULTS) & (of_message | at_fault)).select(
        "verdict",
        F.lower(F.hex("message_id")).alias("message_id"),
        "topic",
        "subscription",
        "publisher",
        "broker",
        "deliveries",
        "first_broker",
    )


def first_deliveries(fates: DataFrame) -> DataFrame:
    """Return topic, subscription, broker, waiting_ns (stored there, if known), first_ns (null: never).

    Repeats are left out: they trail behind and would fill a silence. A copy that an unconfirmed
    attempt left on another broker has no time of storing: it counts from its receipt.
    """
    came = F.col("deliveries") > 0
    stored_there = ~came | (F.col("first_broker") == F.col("broker"))
    waiting = F.when(stored_there, F.col("confirmed_ns")).otherwise(F.col("first_ns"))
    return fates.filter("expected").select(
        "topic",
        "subscription",
        F.when(came, F.col("first_broker")).otherwise(F.col("broker")).alias("broker"),
        waiting.alias("waiting_ns"),
        F.when(came, F.col("first_ns")).alias("first_ns"),
    )


def over_time(fates: DataFrame, start_ns: int, width_s: int) -> DataFrame:
    """Return at, and the counts of `TROUBLES`. fates: rows of `fates`.

    at: first second, since the start of the run, of the window of `width_s` with the intended time of a
    message; for a message that was never published, the time of its receipt. strange, unexplained,
    explained: deliveries; unconfirmed: messages; the others: pairs of a message and a subscription.
    """
    known = F.col("outcome").isNotNull()
    rows = fates.withColumn("when_ns", F.coalesce("intended_ns", "first_ns"))
    at = whole("second", width_s).alias("at")
    seconds = rows.withColumn("second", window("when_ns", start_ns, 1))
    counts = [
        F.count_if("lost").alias("lost"),
        F.count_if(F.col("altered") > 0).alias("altered"),
        _sum(_repeats(unexplained=True)).alias("unexplained"),
        _sum(_repeats(unexplained=False)).alias("explained"),
        _sum(F.when(~known, F.col("deliveries"))).alias("strange"),
        F.count_if(known & (F.col("outcome") != "confirmed") & (F.col("ordinal") == 0)).alias(
            "unconfirmed"
        ),
    ]
    return seconds.filter(F.col("second").isNotNull()).groupBy(at).agg(*counts)


def _grouped(published: DataFrame, delivered: DataFrame) -> DataFrame:
    """Group to message_id, best (publish), attempts, copies, reused, since_ns, date, since, until, had.

    copies: number that brokers may have stored. reused: confirmed twice, or of several bodies or topics under
    one id. since_ns: before that no delivery can have come. since, until: the days of its rows. The only
    shuffle. `had` holds a message's deliveries of all subscriptions, a handful.
    """
    order = F.array(*map(F.lit, OUTCOME_ORDER))
    rank = F.call_function("array_position", order, F.col("outcome")).alias("rank")
    sent = F.struct(
        rank,
        *("confirmed_ns", "intended_ns", "topic", "outcome", "attempts"),
        *("publisher", "broker", "key", "sequence", "sent_ns", "date", "size", "body_hash"),
    )
    had = F.struct(
        *("received_ns", "topic", "subscription", "broker", "ack", "acknowledged_ns"),
        *("consumer", "redelivered", "date", "size", "body_hash"),
    )
    nothing = F.lit(None)
    rows = published.select("message_id", sent.alias("sent"), nothing.alias("had")).unionByName(
        delivered.select("message_id", nothing.alias("sent"), had.alias("had"))
    )
    sent_out = F.col("sent.attempts")
    turned_away = F.col("sent.outcome").isin(*TURNED_AWAY).cast("int")
    from_spool = (F.col("sent.outcome") == "spooled").cast("int") * SPOOLED_COPIES
    several = [
        F.min(f"sent.{name}") != F.max(f"sent.{name}") for name in ("body_hash", "size", "topic")
    ]
    confirms = F.count_if(F.col("sent.outcome") == "confirmed")
    attempts = F.sum(sent_out)
    return rows.groupBy("message_id").agg(
        F.min("sent").alias("best"),
        attempts.alias("attempts"),
        F.sum(F.greatest(sent_out - turned_away + from_spool, F.lit(0))).alias("copies"),
        reduce(Column.__or__, several, confirms > 1).alias("reused"),
        F.when(attempts == 1, F.min("sent.sent_ns"))
        .otherwise(F.min("sent.intended_ns"))
        .alias("since_ns"),
        F.coalesce(F.min("sent.date"), F.min("had.date")).alias("date"),
        F.least(F.min("sent.date"), F.min("had.date")).alias("since"),
        F.greatest(F.max("sent.date"), F.max("had.date")).alias("until"),
        F.collect_list("had").alias("had"),
    )


def _is_plain(manifest: Manifest) -> Column:
    """Return whether a message was confirmed at its first sending, and came once and unchanged everywhere."""
    named = F.lit(None).cast("array<string>")
    for topic, names in manifest.topics.items():
        each = F.array(*[F.lit(name) for name in sorted(names)]).cast("array<string>")
        named = F.when(F.col("best.topic") == topic, each).otherwise(named)
    same = [
        F.array_distinct(f"had.{name}") == F.array(f"best.{name}")
        for name in ("topic", "size", "body_hash")
    ]
    plain = [
        F.col("best.outcome") == "confirmed",
        F.col("attempts") == 1,
        ~F.col("reused"),
        ~_is_early(),
        F.sort_array("had.subscription") == named,
        *same,
    ]
    return F.coalesce(reduce(Column.__and__, plain), F.lit(False))


def _plain_pairs() -> Column:
    """Return the result of `_judged` for the pairs of a plain message."""
    no, none, repeats = (
        F.lit(False),
        F.lit(0),
        F.array().cast("array<struct<broker:string,why:string>>"),
    )
    return F.transform(
        "had",
        lambda one: F.struct(
            one.topic.alias("topic"),
            one.subscription.alias("subscription"),
            F.lit(True).alias("expected"),
            no.alias("lost"),
            no.alias("pending"),
            no.alias("unexpected"),
            F.lit(1).alias("deliveries"),
            none.alias("altered"),
            repeats.alias("repeats"),
            one.received_ns.alias("first_ns"),
            one.broker.alias("first_broker"),
            one.consumer.alias("first_consumer"),
            one.redelivered.alias("first_redelivered"),
        ),
    )


def _pairs(manifest: Manifest) -> Column:
    """Return an array of topic, subscription, should (by the manifest), mine (its deliveries by time)."""
    named = [
        F.struct(F.lit(topic).alias("topic"), F.lit(name).alias("subscription"))
        for topic, name in manifest.pairs
    ]
    no_pairs = F.array().cast("array<struct<topic:string,subscription:string>>")
    every = F.array(*named) if named else no_pairs
    should = F.filter(every, lambda pair: pair.topic == F.col("best.topic"))
    came = F.transform("had", lambda one: F.struct(one.topic, one.subscription))
    both = F.array_union(F.coalesce(should, no_pairs), came)
    return F.transform(
        both,
        lambda pair: F.struct(
            pair.topic.alias("topic"),
            pair.subscription.alias("subscription"),
            F.coalesce(F.array_contains(should, pair), F.lit(False)).alias("should"),
            F.array_sort(
                F.filter(
                    "had",
                    lambda one: (one.topic == pair.topic) & (one.subscription == pair.subscription),
                )
            ).alias("mine"),
        ),
    )


def _judged(pair: Column, manifest: Manifest) -> Column:
    mine = pair.mine
    confirmed = F.coalesce(F.col("best.outcome") == "confirmed", F.lit(False))
    altered = F.filter(
        mine,
        lambda one: (
            (one["size"] != F.col("best.size")) | (one.body_hash != F.col("best.body_hash"))
        ),
    )
    known = F.transform(
        F.slice(mine, 2, F.size(mine)),
        lambda one, position: F.struct(
            one.broker.alias("broker"),
            _why(one, F.slice(mine, F.lit(1), position + 1), manifest).alias("why"),
        ),
    )
    again = F.transform(
        known,
        lambda one, position: F.struct(
            one.broker.alias("broker"),
            F.coalesce(one.why, _of_a_copy(F.slice(known, F.lit(1), position + 1))).alias("why"),
        ),
    )
    first = F.get(mine, F.lit(0))
    missing = pair.should & confirmed & (F.size(mine) == 0)
    in_grace = F.lit(False)
    if manifest.last_owed_ns is not None:
        in_grace = F.col("best.confirmed_ns") > manifest.last_owed_ns
    return F.struct(
        pair.topic.alias("topic"),
        pair.subscription.alias("subscription"),
        (pair.should & confirmed).alias("expected"),
        (missing & ~in_grace).alias("lost"),
        (missing & in_grace).alias("pending"),
        (~pair.should & F.col("best").isNotNull()).alias("unexpected"),
        F.size(mine).alias("deliveries"),
        F.size(altered).alias("altered"),
        again.alias("repeats"),
        first.received_ns.alias("first_ns"),
        first.broker.alias("first_broker"),
        first.consumer.alias("first_consumer"),
        first.redelivered.alias("first_redelivered"),
    )


def _why(one: Column, earlier: Column, manifest: Manifest) -> Column:
    """Return owed or acked_without_proof; null for neither."""
    same = F.filter(earlier, lambda e: e.broker == one.broker)
    last = F.get(same, F.size(same) - 1)
    acked_ns = F.coalesce(last.acknowledged_ns, last.received_ns)
    unproven = [
        (one.broker == broker)
        & (one.received_ns > at_ns)
        & acked_ns.between(at_ns - ACK_UNPROVEN_NS, at_ns + KILL_NOTICED_NS)
        for broker, at_ns in manifest.kills
    ]
    return F.when(last.ack != "acked", "owed").when(
        reduce(Column.__or__, unproven, F.lit(False)), "acked_without_proof"
    )


def _of_a_copy(upto: Column) -> Column:
    """Return unknown while copies are left for a repeat, else unexplained.

    upto: the repeats of its pair, up to and with this one.
    """
    number = F.size(F.filter(upto, lambda one: one.why.isNull()))
    return F.when(number < F.coalesce("copies", F.lit(0)), "unknown").otherwise("unexplained")


def _is_early() -> Column:
    first_ns = F.array_min(F.col("had.received_ns"))
    return F.coalesce(first_ns < F.col("since_ns") - EARLY_NS, F.lit(False))


def _verdict() -> Column:
    lost = F.exists("pairs", lambda pair: pair.lost)
    pending = F.exists("pairs", lambda pair: pair.pending)
    altered = F.exists("pairs", lambda pair: pair.altered > 0)
    unexpected = F.exists("pairs", lambda pair: pair.unexpected)
    came = F.exists("pairs", lambda pair: pair.deliveries > 0)
    doubled = F.exists("pairs", lambda pair: F.size(pair.repeats) > 0)
    unexplained = F.exists(
        "pairs", lambda pair: F.exists(pair.repeats, lambda one: one.why == "unexplained")
    )
    confirmed = F.col("best.outcome") == "confirmed"
    turned_away = F.col("best.outcome").isin(*TURNED_AWAY) & (F.col("copies") == 0)
    return (
        F.when(F.col("best").isNull(), "orphan")
        .when(F.col("reused"), "reused")
        .when(lost, "lost")
        .when(altered, "altered")
        .when(unexpected, "unexpected")
        .when(turned_away & came, "refused_delivered")
        .when(_is_early(), "early")
        .when(unexplained, "unexplained")
        .when(pending, "pending")
        .when(confirmed & doubled, "doubled")
        .when(confirmed, "ok")
        .when(came, "unconfirmed_delivered")
        .otherwise("unconfirmed_absent")
    )


def _repeats_of(why: str) -> Column:
    repeats = F.sum(F.size(F.filter("repeats", lambda one: one.why == why)))
    return F.coalesce(repeats, F.lit(0))


def _repeats(*, unexplained: bool) -> Column:
    return F.size(
        F.filter(
            F.coalesce("repeats", F.array().cast("array<struct<broker:string,why:string>>")),
            lambda one: (one.why == "unexplained") == F.lit(unexplained),
        )
    )


def _sum(column: Column) -> Column:
    return F.coalesce(F.sum(column), F.lit(0))
