"""Every verdict and every reason for a repeat, on rows written out."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from messagebus.recording.events import DELIVERED, PUBLISHED
from messagebus.recording.manifest import Manifest
from spark.measures import audit
from spark.measures.audit import ACK_UNPROVEN_NS, COUNTS, KILL_NOTICED_NS, TROUBLES
from tests.support.literal_events import (
    KILL_NS,
    OTHER_BODY,
    RUN,
    SECOND,
    ddl,
    delivery,
    publish,
)
from tests.unit.spark.conftest import Planted


def fates(
    session: SparkSession,
    published: list[dict[str, Any]],
    delivered: list[dict[str, Any]],
    manifest: Manifest = RUN,
) -> DataFrame:
    return audit.fates(
        session.createDataFrame(published, ddl(PUBLISHED)),
        session.createDataFrame(delivered, ddl(DELIVERED)),
        manifest,
    )


def both(message: str, **changed: Any) -> list[dict[str, Any]]:
    return [delivery(message, "audit", **changed), delivery(message, "billing", **changed)]


UNKNOWN: dict[str, Any] = {"outcome": "unknown", "confirmed_ns": None}
REFUSED: dict[str, Any] = {"outcome": "refused", "confirmed_ns": None}


def test_every_message_has_the_one_verdict_that_it_deserves(session: SparkSession) -> None:
    late = dataclasses.replace(RUN, grace_ns=10 * SECOND)
    in_grace = {"confirmed_ns": 195 * SECOND}
    published = {
        "ok": [publish("ok")],
        "lost": [publish("lost")],
        "pending": [publish("pending", **in_grace)],
        "altered": [publish("altered")],
        "doubled": [publish("doubled", attempts=2)],
        "unexplained": [publish("unexplained")],
        "unexpected": [publish("unexpected", topic="elsewhere")],
        "reused": [publish("reused"), publish("reused", body_hash=OTHER_BODY)],
        "twice": [publish("twice"), publish("twice", publisher="p2")],
        "topics": [publish("topics"), publish("topics", topic="nobody", **UNKNOWN)],
        "again": [publish("again", **UNKNOWN), publish("again")],
        "refused, came": [publish("refused, came", **REFUSED)],
        "refused at last": [publish("refused at last", attempts=2, **REFUSED)],
        "early": [publish("early", sent_ns=7 * SECOND)],
        "early, of several": [publish("early, of several", attempts=2, sent_ns=7 * SECOND)],
        "refused": [publish("refused", outcome="refused", confirmed_ns=None)],
        "unknown": [publish("unknown", outcome="unknown", confirmed_ns=None)],
        "no-topic": [publish("no-topic", topic="nobody")],
    }
    delivered = [
        *both("ok"),
        delivery("lost", "audit"),
        delivery("pending", "audit"),
        *[delivery("altered", "audit"), delivery("altered", size=6)],
        *[*both("doubled"), delivery("doubled", broker="mb2", received_ns=4 * SECOND)],
        *[*both("unexplained"), delivery("unexplained", received_ns=4 * SECOND)],
        delivery("unexpected"),
        *both("twice"),
        *both("topics"),
        delivery("refused, came"),
        delivery("refused at last"),
        *both("early"),
        *both("early, of several"),
        *both("reused"),
        *both("again"),
        delivery("unknown"),
        delivery("orphan"),
    ]
    every = [row for rows in published.values() for row in rows]
    rows = fates(session, every, delivered, late).filter("ordinal = 0").collect()
    assert {bytes(row.message_id).decode(): row.verdict for row in rows} == {
        "ok": "ok",
        "lost": "lost",
        "pending": "pending",
        "altered": "altered",
        "doubled": "doubled",
        "unexplained": "unexplained",
        "unexpected": "unexpected",
        "reused": "reused",
        "twice": "reused",
        "topics": "reused",
        "again": "ok",
        "refused, came": "refused_delivered",
        "refused at last": "unconfirmed_delivered",
        "early": "early",
        "early, of several": "ok",
        "refused": "unconfirmed_absent",
        "unknown": "unconfirmed_delivered",
        "no-topic": "ok",
        "orphan": "orphan",
    }
    assert len(rows) == len({row.message_id for row in rows}) == 19


STALE: dict[str, Any] = {"ack": "stale", "acknowledged_ns": None}
UNANSWERED: dict[str, Any] = {"ack": "none", "acknowledged_ns": None}
BEFORE: dict[str, Any] = {"received_ns": KILL_NS - SECOND}
AFTER: dict[str, Any] = {"received_ns": KILL_NS + 10 * SECOND}
ON_MB2 = {"broker": "mb2"}


# Attempts of the publish, first delivery, second one -> why there was a second.
REPEATED: list[tuple[int, dict[str, Any], dict[str, Any], str]] = [
    (2, {}, {"received_ns": 4 * SECOND}, "unknown"),
    (2, STALE, AFTER, "owed"),
    (2, BEFORE, AFTER, "acked_without_proof"),
    (1, {"received_ns": KILL_NS - ACK_UNPROVEN_NS - 2}, AFTER, "unexplained"),
    (1, STALE, {"received_ns": 4 * SECOND}, "owed"),
    (1, UNANSWERED, AFTER, "owed"),
    (1, STALE, AFTER | ON_MB2, "unexplained"),
    (1, BEFORE, AFTER, "acked_without_proof"),
    (1, BEFORE | {"acknowledged_ns": None}, AFTER, "acked_without_proof"),
    (1, {"received_ns": KILL_NS + KILL_NOTICED_NS - 1}, AFTER, "acked_without_proof"),
    (1, {"received_ns": KILL_NS + KILL_NOTICED_NS}, AFTER, "unexplained"),
    (1, BEFORE, {"received_ns": KILL_NS - 1}, "unexplained"),
    (1, BEFORE, AFTER | ON_MB2, "unexplained"),
    (1, BEFORE | ON_MB2, AFTER | ON_MB2, "unexplained"),
    (1, {}, {"received_ns": 4 * SECOND}, "unexplained"),
]


def test_a_repeat_has_the_first_reason_that_applies(session: SparkSession) -> None:
    published, delivered = [], []
    expected = {}
    for number, (attempts, first, again, why) in enumerate(REPEATED):
        name = f"m{number}"
        published.append(publish(name, attempts=attempts))
        # Written latest first: the order is that of receipt.
        delivered += [delivery(name, **again), delivery(name, **first), delivery(name, "audit")]
        expected[name] = [(again.get("broker", "mb1"), why)]
    rows = fates(session, published, delivered).filter("subscription = 'billing'").collect()
    found = {bytes(row.message_id).decode(): list(map(tuple, row.repeats)) for row in rows}
    assert found == expected


def test_repeats_are_counted_by_broker_and_reason(session: SparkSession) -> None:
    published = [publish("a"), publish("b"), publish("c", attempts=2)]
    delivered = [
        row for name in "ab" for row in (delivery(name, **BEFORE), delivery(name, **AFTER))
    ]
    delivered += [delivery("c"), delivery("c", **AFTER | ON_MB2)]
    found = audit.repeats(fates(session, published, delivered)).collect()
    assert {(row.topic, row.subscription, row.broker, row.why, row.repeats) for row in found} == {
        ("orders", "billing", "mb1", "acked_without_proof", 2),
        ("orders", "billing", "mb2", "unknown", 1),
    }


def test_each_reason_explains_one_repeat(session: SparkSession) -> None:
    """A message that was not acked comes again once; of two copies one comes beside the other, once."""
    owed = [
        delivery("owed", **STALE),
        delivery("owed", received_ns=5 * SECOND),
        delivery("owed", received_ns=6 * SECOND),
    ]
    copies = [delivery("copies", received_ns=(3 + n) * SECOND) for n in range(11)]
    # The other copy, from elsewhere, is not mistaken for what was owed here.
    mixed = [
        delivery("mixed", **STALE),
        delivery("mixed", received_ns=5 * SECOND),
        delivery("mixed", received_ns=6 * SECOND, **ON_MB2),
    ]
    published = [publish("owed"), publish("copies", attempts=2), publish("mixed", attempts=2)]
    rows = fates(session, published, [*owed, *copies, *mixed]).filter("subscription = 'billing'")
    found = {
        bytes(row.message_id).decode(): [why for _, why in row.repeats] for row in rows.collect()
    }
    assert found == {
        "owed": ["owed", "unexplained"],
        "copies": ["unknown", *["unexplained"] * 9],
        "mixed": ["owed", "unknown"],
    }


def counts(totals: list[Row], of: str) -> dict[tuple[Any, ...], dict[str, int]]:
    """Return the counts above 0 of the rows of `audit.totals` that are about publishers, and so on."""
    dims = audit.TOTALS[of]
    return {
        tuple(row[dim] for dim in dims): {name: row[name] for name in COUNTS if row[name]}
        for row in totals
        if row["of"] == of
    }


def test_totals_count_pairs_messages_and_deliveries(session: SparkSession) -> None:
    published = [
        publish("a"),
        publish("b", broker="mb2", publisher="p2"),
        publish("c", attempts=2),
        publish("d", outcome="unknown", confirmed_ns=None, broker=""),
        publish("e", topic="nobody"),
    ]
    delivered = [
        *both("a", broker="mb1"),
        delivery("b", "audit", broker="mb2", body_hash=OTHER_BODY),
        *both("c"),
        delivery("c", received_ns=9 * SECOND),
        delivery("d", "audit"),
        delivery("x"),
    ]
    rows = audit.totals(fates(session, published, delivered)).collect()
    assert counts(rows, "subscription") == {
        ("orders", "audit"): {
            "messages": 4,
            "expected": 3,
            "delivered": 3,
            "deliveries": 4,
            "altered": 1,
            "unconfirmed_delivered": 1,
        },
        ("orders", "billing"): {
            "messages": 1,
            "expected": 3,
            "delivered": 2,
            "deliveries": 4,
            "lost": 1,
            "unknown": 1,
            "unconfirmed_absent": 1,
            "orphan_deliveries": 1,
        },
    }
    lost = {who: n.get("lost", 0) for who, n in counts(rows, "publisher").items()}
    assert lost == {("p1",): 0, ("p2",): 1, (None,): 0}
    assert counts(rows, "broker")[("mb2",)]["lost"] == 1
    messages = {key: n["messages"] for key, n in counts(rows, "verdict").items()}
    assert messages == {
        ("ok", "confirmed"): 2,
        ("lost", "confirmed"): 1,
        ("doubled", "confirmed"): 1,
        ("unconfirmed_delivered", "unknown"): 1,
        ("orphan", None): 1,
    }


def test_a_subscription_that_got_nothing_is_missed(session: SparkSession) -> None:
    rows = audit.totals(fates(session, [publish("a")], [delivery("a", "audit")])).collect()
    assert counts(rows, "subscription")[("orders", "billing")]["lost"] == 1


def test_suspects_are_the_pairs_at_fault_and_no_others(session: SparkSession) -> None:
    published = [*map(publish, "abcdr"), publish("r", size=6)]
    delivered = [
        *[row for name in "acr" for row in both(name)],
        delivery("b", "audit"),
        delivery("c", "audit", received_ns=4 * SECOND),
        *(delivery("d", "audit"), delivery("d", body_hash=OTHER_BODY)),
        delivery("x", "audit"),
    ]
    found = audit.suspects(fates(session, published, delivered)).collect()
    assert {(row.verdict, row.message_id, row.subscription, row.deliveries) for row in found} == {
        ("lost", b"b".hex(), "billing", 0),
        ("unexplained", b"c".hex(), "audit", 2),
        ("altered", b"d".hex(), "billing", 1),
        ("orphan", b"x".hex(), "audit", 1),
        ("reused", b"r".hex(), "audit", 1),
        ("reused", b"r".hex(), "billing", 1),
    }


def test_what_never_came_waits_where_it_was_confirmed(session: SparkSession) -> None:
    found = audit.first_deliveries(fates(session, [publish("a")], [])).collect()
    assert {(row.subscription, row.broker, row.waiting_ns, row.first_ns) for row in found} == {
        ("audit", "mb1", 2 * SECOND, None),
        ("billing", "mb1", 2 * SECOND, None),
    }


def test_first_deliveries_wait_from_the_confirm_of_their_broker(session: SparkSession) -> None:
    delivered = [delivery("a", "audit"), delivery("a", broker="mb2"), delivery("x")]
    found = audit.first_deliveries(fates(session, [publish("a")], delivered)).collect()
    assert {(row.subscription, row.broker, row.waiting_ns, row.first_ns) for row in found} == {
        ("audit", "mb1", 2 * SECOND, 3 * SECOND),
        ("billing", "mb2", 3 * SECOND, 3 * SECOND),
    }


def test_a_run_without_topics_expects_nothing(session: SparkSession) -> None:
    none = dataclasses.replace(RUN, topics={}, incidents=())
    row = fates(session, [publish("a")], [], none).first()
    assert row is not None
    assert (row.verdict, row.subscription, row.ordinal) == ("ok", None, 0)


def test_plain_messages_are_judged_as_all_others_would_be(
    planted_run: Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The short way for them is taken, and gives the same rows."""
    run = planted_run.run
    published, delivered = run.events("published"), run.events("delivered")

    def rows() -> list[Row]:
        found = audit.fates(published, delivered, run.manifest)
        return found.orderBy("message_id", "subscription").drop("ordinal").collect()

    short = rows()
    monkeypatch.setattr(audit, "_is_plain", lambda _manifest: F.lit(False))
    assert rows() == short


def test_each_trouble_is_counted_in_the_window_in_which_it_was_sent(session: SparkSession) -> None:
    later = {"intended_ns": 25 * SECOND, "sent_ns": 25 * SECOND}
    published = [
        publish("fine"),
        publish("lost"),
        publish("altered"),
        publish("again"),
        publish("twice", attempts=2, confirmed_ns=26 * SECOND, **later),
        publish("refused", outcome="refused", confirmed_ns=None, **later),
    ]
    delivered = [
        *both("fine"),
        delivery("lost", "audit"),
        *both("altered", body_hash=OTHER_BODY),
        *both("again"),
        delivery("again", received_ns=4 * SECOND),
        *both("twice", received_ns=27 * SECOND),
        delivery("twice", received_ns=28 * SECOND),
        delivery("orphan", received_ns=29 * SECOND),
    ]
    fates = audit.fates(
        session.createDataFrame(published, ddl(PUBLISHED)),
        session.createDataFrame(delivered, ddl(DELIVERED)),
        RUN,
    )
    found = {row["at"]: row for row in audit.over_time(fates, RUN.start_ns, 10).collect()}
    assert {
        at: {name: row[name] for name in TROUBLES if row[name]} for at, row in found.items()
    } == {
        0: {"lost": 1, "altered": 2, "unexplained": 1},
        20: {"explained": 1, "strange": 1, "unconfirmed": 1},
    }
