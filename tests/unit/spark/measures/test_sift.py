"""A sifted run: its odd messages, and that nothing is counted otherwise than by looking at every message."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from messagebus.recording.events import DELIVERED, PUBLISHED
from messagebus.recording.manifest import Manifest
from spark.measures import audit, order, sift
from spark.measures.run import Run
from spark.measures.sift import NO_PARTIAL, Sifted, held, sifted
from tests.support.literal_events import OTHER_BODY, RUN, SECOND, ddl, delivery, publish
from tests.unit.spark.conftest import Planted

Rows = list[dict[str, Any]]
THREE = dataclasses.replace(RUN, topics={"orders": ("audit", "billing", "crm"), "quiet": ()})


def events(session: SparkSession, published: Rows, delivered: Rows) -> tuple[DataFrame, DataFrame]:
    return (
        session.createDataFrame(published, ddl(PUBLISHED)),
        session.createDataFrame(delivered, ddl(DELIVERED)),
    )


def odd_ids(
    session: SparkSession, published: Rows, delivered: Rows, manifest: Manifest = THREE
) -> set[str]:
    rows = events(session, published, delivered)
    odd = sift.odd(*rows, manifest, origins=True)
    ids = [sift.only(each, odd).select("message_id") for each in rows]
    return {bytes(row.message_id).decode() for row in ids[0].union(ids[1]).collect()}


def had_by_all(message: str, **changed: Any) -> Rows:
    return [delivery(message, name, **changed) for name in THREE.topics["orders"]]


def test_a_message_is_plain_when_all_is_as_it_should_be(session: SparkSession) -> None:
    again: dict[str, Any] = {"received_ns": 9 * SECOND, "redelivered": 1}
    published = {
        "plain": publish("plain"),
        "quiet": publish("quiet", topic="quiet"),
        "lost": publish("lost"),
        "absent": publish("absent", outcome="unknown", confirmed_ns=None),
        "twice": publish("twice", attempts=2),
        "doubled": publish("doubled"),
        "instead": publish("instead"),
        "altered": publish("altered"),
        "unknown": publish("unknown", outcome="unknown", confirmed_ns=None),
        "foreign": publish("foreign", topic="elsewhere"),
        # Two of one bit and a redelivered one: as many rows as there should be.
        "undone": publish("undone"),
        "renumbered": publish("renumbered"),
    }
    delivered = [
        *had_by_all("plain"),
        *had_by_all("lost")[:2],
        *had_by_all("twice"),
        *[*had_by_all("doubled"), delivery("doubled", "crm", **again)],
        *[*had_by_all("instead")[:2], delivery("instead", "audit")],
        *[*had_by_all("altered")[:2], delivery("altered", "crm", body_hash=OTHER_BODY)],
        *had_by_all("unknown"),
        *[delivery("undone", "crm"), delivery("undone", "crm"), delivery("undone", **again)],
        *[*had_by_all("renumbered")[:2], delivery("renumbered", "crm", sequence=7)],
        delivery("orphan", **again),
    ]
    odd = odd_ids(session, list(published.values()), delivered)
    assert set(published) - odd == {"plain", "quiet"}
    assert "orphan" in odd


def test_more_subscriptions_than_a_number_has_bits_are_looked_at_one_by_one(
    session: SparkSession,
) -> None:
    names = tuple(f"s{n}" for n in range(sift.SUBSCRIPTIONS_MAX + 1))
    many = dataclasses.replace(RUN, topics={"orders": names})
    had = [delivery("a", name) for name in names]
    assert odd_ids(session, [publish("a")], had, many) == {"a"}


def test_messages_that_share_a_digest_are_told_apart(
    session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = [publish("a"), publish("b")]
    delivered = [*had_by_all("a")[:2], delivery("b", "crm")]
    assert odd_ids(session, published, delivered) == {"a", "b"}
    # Together they have as many rows and subscriptions as one plain message.
    monkeypatch.setattr(sift, "_message", lambda: F.lit(1).cast("long").alias("message"))
    monkeypatch.setattr(sift, "_message_of", lambda _rows: F.lit(1).cast("long"))
    assert odd_ids(session, published[:1], [*had_by_all("a")[:2], delivery("b", "crm")]) == {
        "a",
        "b",
    }


def test_counts_are_those_of_looking_at_every_message(
    session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = events(session, *random_events(random.Random(1)))
    odd = sift.odd(*rows, THREE, origins=True)
    sent, had = (sift.only(each, odd) for each in rows)
    plain = sift.counts(sift.plain(rows[0], sent), THREE)
    parts = plain.unionByName(audit.totals(audit.fates(sent, had, THREE)))
    dims = [name for name in parts.columns if name not in audit.COUNTS]
    summed = parts.groupBy(*dims).agg(*[F.sum(name).alias(name) for name in audit.COUNTS])
    monkeypatch.setattr(audit, "_is_plain", lambda _manifest: F.lit(False))
    whole = audit.totals(audit.fates(*rows, THREE))
    assert 0 < sent.count() < rows[0].count()
    assert {tuple(row) for row in summed.collect()} == {tuple(row) for row in whole.collect()}


def random_events(chance: random.Random) -> tuple[Rows, Rows]:
    published, delivered = [], []
    for number in range(300):
        name = f"m{number}"
        who = {"publisher": chance.choice("pq"), "broker": chance.choice("ab")}
        strange = chance.random() < 0.3
        outcome = chance.choice(("confirmed", "unknown")) if strange else "confirmed"
        attempts = chance.choice((1, 2)) if strange else 1
        published.append(publish(name, outcome=outcome, attempts=attempts, **who))
        for row in had_by_all(name, publisher=who["publisher"]):
            copies = chance.choice((0, 1, 2)) if strange and chance.random() < 0.5 else 1
            delivered += [row | {"received_ns": (3 + copy) * SECOND} for copy in range(copies)]
    return published, delivered


def test_without_headers_the_publish_says_whose_message_it_is(session: SparkSession) -> None:
    nameless = {"publisher": None, "sequence": None}
    published, delivered = events(
        session, [publish("a", sequence=5)], [delivery("a", "audit", **nameless)]
    )
    assert not sift.has_origins(delivered)
    [row] = sift.arrivals(published, delivered, origins=False).collect()
    assert (row.publisher, row.sequence, row.first_consumer) == ("p1", 5, "c1")
    assert sift.odd(published, delivered, RUN, origins=False).count() == 1


def verdicts(fates: DataFrame) -> dict[str, int]:
    rows = fates.filter("ordinal = 0").groupBy("verdict").count().collect()
    return {row["verdict"]: row["count"] for row in rows}


@pytest.fixture(scope="module")
def found(planted_run: Planted) -> Sifted:
    return sifted(planted_run.run)


def test_odd_messages_have_the_fates_that_they_have_among_all(found: Sifted) -> None:
    run, whole = found.run, found.run.fates()
    assert verdicts(found.fates) == {
        verdict: count for verdict, count in verdicts(whole).items() if verdict != "ok"
    }
    plain = found.counts().filter("of = 'verdict'").agg(F.sum("messages")).first()
    assert plain is not None
    assert plain[0] == verdicts(whole)["ok"]
    assert run.session.conf.get(NO_PARTIAL) == "false"


def test_all_arrivals_are_judged(found: Sifted) -> None:
    arrivals, every = found.arrivals(), order.arrivals(found.run.fates())
    assert arrivals.columns == every.columns
    assert arrivals.exceptAll(every).isEmpty()
    assert every.exceptAll(arrivals).isEmpty()


def test_what_is_held_is_the_same_rows(planted_run: Planted) -> None:
    run: Run = planted_run.run
    rows = run.session.range(5)
    assert held(rows).count() == 5
