"""The audit against a naive one that follows the definitions word by word, and against planted faults."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.audit import KILL_NOTICED_NS, Audit, audit, longest_gap
from bench.harness.outcomes import Gap
from bench.rows import Events, Row
from messagebus.recording.files import Anchor
from messagebus.recording.manifest import Incident, LeftOut, Manifest
from tests.support.examples import examples

S = 1_000_000_000
NAMES = ("billing", "audit")
MANIFEST = Manifest(
    run_id="r",
    topics={"t": NAMES},
    brokers=("b1", "b2"),
    start_ns=0,
    end_ns=1000 * S,
    anchor=Anchor("h", "c", 0),
    incidents=(Incident(kind="kill", broker="b1", at_ns=50 * S, done_ns=50 * S),),
    complete=True,
)


def published(number: int, **fields: Any) -> Row:
    row = {
        "run_id": "r",
        "message_id": f"{number:032x}",
        "topic": "t",
        "broker": "b1",
        "publisher": "p1",
        "sequence": number,
        "key": "",
        "size": 3,
        "body_hash": f"{number:032x}",
        "outcome": "confirmed",
        "attempts": 1,
        "intended_ns": number * S,
        "sent_ns": number * S,
        "confirmed_ns": number * S + 1,
        **fields,
    }
    if row["outcome"] != "confirmed":
        del row["confirmed_ns"]
    return row


def delivered(number: int, subscription: str, **fields: Any) -> Row:
    return {
        "run_id": "r",
        "message_id": f"{number:032x}",
        "topic": "t",
        "subscription": subscription,
        "broker": "b1",
        "consumer": "c1",
        "size": 3,
        "body_hash": f"{number:032x}",
        "redelivered": 0,
        "ack": "acked",
        "received_ns": number * S + 2,
        "acknowledged_ns": number * S + 3,
        **fields,
    }


def whole_run(count: int = 10) -> Events:
    """Return the events of a run without a fault."""
    events = Events()
    events.published = [published(number) for number in range(count)]
    events.delivered = [
        delivered(number, name) for number, name in itertools.product(range(count), NAMES)
    ]
    return events


def doubled(result: Audit) -> dict[str, int]:
    return {kind: result.doubled(kind) for kind in result.subscriptions[0].doubled}


NONE = {"unknown": 0, "owed": 0, "acked_without_proof": 0, "unexplained": 0}


def test_a_run_without_a_fault_holds() -> None:
    result = audit(MANIFEST, whole_run())
    assert result.holds
    assert (result.published, result.confirmed) == (10, 10)
    assert [each.expected for each in result.subscriptions] == [10, 10]
    assert result.total("delivered") == result.total("deliveries") == 20
    assert doubled(result) == NONE
    assert result.brokers["b1"].confirmed == 10
    assert result.brokers["b2"].confirmed == 0


def test_a_message_missing_in_one_of_two_subscriptions_is_lost_there() -> None:
    events = whole_run()
    events.delivered = [
        row
        for row in events.delivered
        if (row["message_id"], row["subscription"]) != (f"{3:032x}", "audit")
    ]
    result = audit(MANIFEST, events)
    assert [each.lost for each in result.subscriptions] == [0, 1]
    assert result.lost_ids == [f"{3:032x}"]
    assert result.brokers["b1"].lost == 1
    assert result.faults == ["1 confirmed and never delivered"]


def test_what_was_confirmed_within_the_grace_is_pending_not_lost() -> None:
    events = whole_run()
    events.delivered = [row for row in events.delivered if int(row["message_id"], 16) < 7]
    result = audit(replace(MANIFEST, end_ns=10 * S, grace_ns=1 * S + S // 2), events)
    assert [(each.lost, each.pending) for each in result.subscriptions] == [(2, 1), (2, 1)]
    assert result.lost_ids[:2] == [f"{7:032x}", f"{8:032x}"]


def test_a_delivery_that_nobody_published_is_an_orphan() -> None:
    events = whole_run()
    events.delivered.append(delivered(99, "audit"))
    assert audit(MANIFEST, events).faults == ["1 delivered and never published"]
    events.delivered.append(delivered(99, "audit", received_ns=60 * S))
    assert audit(MANIFEST, events).counts == {"orphan": 2, "unexplained": 1}


def test_a_message_of_another_topic_is_unexpected_here() -> None:
    events = whole_run()
    events.published[3] = published(3, topic="u")
    result = audit(replace(MANIFEST, topics={"t": NAMES, "u": ("all",)}), events)
    assert result.counts == {"lost": 1, "unexpected": 2}
    assert [each.expected for each in result.subscriptions] == [9, 9, 1]
    assert [each.unexpected for each in result.subscriptions] == [1, 1, 0]


def test_a_line_that_was_not_understood_is_a_fault() -> None:
    events = whole_run()
    events.bad["not JSON"] = 2
    assert audit(MANIFEST, events).faults == ["2 lines not understood"]


def test_a_run_that_did_not_end_does_not_hold() -> None:
    result = audit(replace(MANIFEST, complete=False, end_ns=None), whole_run())
    assert result.faults == ["the run did not end in order"]


@pytest.mark.parametrize("outcome", ["unknown", "refused", "unroutable"])
def test_what_was_not_confirmed_is_not_expected_and_is_told(outcome: str) -> None:
    events = whole_run()
    # Sent twice: one copy may be stored, however the other ended.
    events.published[3] = published(3, outcome=outcome, attempts=2)
    events.delivered = [
        row
        for row in events.delivered
        if (row["message_id"], row["subscription"]) != (f"{3:032x}", "audit")
    ]
    result = audit(MANIFEST, events)
    assert result.counts == {"unconfirmed": 1}
    assert result.faults == ["1 published without a confirm"]
    assert [each.unconfirmed for each in result.subscriptions] == [1, 0]
    assert [each.expected for each in result.subscriptions] == [9, 9]
    allowed = audit(MANIFEST, events, allow=["unconfirmed"])
    assert allowed.holds
    assert allowed.put_up_with == ["1 published without a confirm"]


@pytest.mark.parametrize(
    ("attempts", "first", "repeat", "kind"),
    [
        (2, {}, {}, "unknown"),
        (2, {"ack": "stale"}, {}, "owed"),
        (1, {"ack": "stale"}, {}, "owed"),
        (1, {"ack": "none", "acknowledged_ns": None}, {}, "owed"),
        (1, {"ack": "stale", "broker": "b2"}, {}, "unexplained"),
        (1, {}, {"received_ns": 60 * S}, "acked_without_proof"),
        # Acked into the socket of the dead broker, before the death was noticed.
        (
            1,
            {"acknowledged_ns": 50 * S + KILL_NOTICED_NS},
            {"received_ns": 60 * S},
            "acked_without_proof",
        ),
        (1, {"acknowledged_ns": 52 * S}, {"received_ns": 60 * S}, "unexplained"),
        # Acked long before the kill: the broker had all the time to apply it.
        (1, {"acknowledged_ns": -11 * S}, {"received_ns": 60 * S}, "unexplained"),
        (1, {}, {"received_ns": 49 * S}, "unexplained"),
        (1, {}, {"received_ns": 60 * S, "broker": "b2"}, "unexplained"),
        (1, {"broker": "b2"}, {"received_ns": 60 * S, "broker": "b2"}, "unexplained"),
        (1, {"broker": "b2"}, {"received_ns": 60 * S}, "unexplained"),
    ],
)
def test_why_a_message_came_twice(
    attempts: int, first: dict[str, Any], repeat: dict[str, Any], kind: str
) -> None:
    events = whole_run()
    events.published[3] = published(3, attempts=attempts)
    place = 2 * 3
    assert events.delivered[place]["message_id"] == f"{3:032x}"
    events.delivered[place] |= first
    # The order of rows in the files says nothing: arrival decides.
    events.delivered.insert(0, delivered(3, "billing", **{"received_ns": 4 * S, **repeat}))
    result = audit(MANIFEST, events)
    assert doubled(result) == {**NONE, kind: 1}
    assert result.holds == (kind != "unexplained")
    assert result.total("deliveries") == 21
    assert result.total("delivered") == 20


def naive(manifest: Manifest, events: Events) -> dict[str, Any]:
    """Audit by the definitions, one after the other, without any index."""
    counts: dict[str, Any] = {"lost": 0, "expected": 0, "altered": 0, "orphans": 0, **NONE}
    ids = {row["message_id"] for row in [*events.published, *events.delivered]}
    for subscription, message_id in itertools.product(NAMES, ids):
        sent = [row for row in events.published if row["message_id"] == message_id]
        came = sorted(
            (
                row
                for row in events.delivered
                if row["message_id"] == message_id and row["subscription"] == subscription
            ),
            key=lambda row: row["received_ns"],
        )
        if sent and sent[0]["outcome"] == "confirmed":
            counts["expected"] += 1
            counts["lost"] += not came
        counts["orphans"] += 0 if sent else len(came)
        counts["altered"] += bool(sent) and any(
            (row["size"], row["body_hash"]) != (sent[0]["size"], sent[0]["body_hash"])
            for row in came
        )
        spare = sent[0]["attempts"] - 1 if sent else 0
        for place, row in enumerate(came[1:], start=1):
            same = [earlier for earlier in came[:place] if earlier["broker"] == row["broker"]]
            if same and same[-1]["ack"] in ("stale", "none"):
                kind = "owed"
            elif same and any(
                incident.kind == "kill"
                and incident.broker == row["broker"]
                and -60 * S <= same[-1]["acknowledged_ns"] - incident.at_ns <= KILL_NOTICED_NS
                and incident.at_ns < row["received_ns"]
                for incident in manifest.incidents
            ):
                kind = "acked_without_proof"
            elif spare > 0:
                kind, spare = "unknown", spare - 1
            else:
                kind = "unexplained"
            counts[kind] += 1
    return counts


_rows = st.builds(
    lambda number, name, broker, ack, received, digest: delivered(
        number,
        name,
        broker=broker,
        ack=ack,
        received_ns=received * S,
        acknowledged_ns=None if ack == "none" else received * S + 1,
        body_hash=f"{digest or number:032x}",
    ),
    st.integers(0, 5),
    st.sampled_from(NAMES),
    st.sampled_from(["b1", "b2"]),
    st.sampled_from(["acked", "acked", "stale", "none"]),
    st.integers(45, 55),
    st.sampled_from([0, 0, 0, 9]),
)


@settings(max_examples=examples(300))
@given(
    st.lists(
        st.tuples(st.sampled_from(["confirmed", "confirmed", "unknown"]), st.integers(1, 2)),
        max_size=5,
    ),
    st.lists(_rows, max_size=12, unique_by=lambda row: (row["received_ns"], row["message_id"])),
)
def test_it_counts_what_a_naive_audit_counts(
    messages: list[tuple[str, int]], deliveries: list[Row]
) -> None:
    events = Events(
        published=[
            published(number, outcome=outcome, attempts=attempts)
            for number, (outcome, attempts) in enumerate(messages)
        ],
        delivered=deliveries,
    )
    result = audit(MANIFEST, events)
    ours = {name: result.total(name) for name in ("lost", "expected", "altered", "orphans")}
    assert {**ours, **doubled(result)} == naive(MANIFEST, events)
    assert result.total("deliveries") == len(deliveries)


def spans_to_rows(spans: list[tuple[int, int]]) -> list[Row]:
    return [published(0, intended_ns=start, confirmed_ns=end) for start, end in spans]


@pytest.mark.parametrize(
    ("spans", "gap"),
    [
        ([], Gap()),
        ([(0, 5)], Gap(5, 0)),
        # Nothing was open between 1 and 9: no silence there.
        ([(0, 1), (9, 10)], Gap(1, 0)),
        ([(0, 1), (1, 8), (7, 9)], Gap(7, 1)),
        # One message waits while others are confirmed: there are answers, so it is no silence.
        ([(0, 10), (1, 3), (2, 6)], Gap(4, 6)),
        # A publisher that was held back: intended long before it was sent.
        ([(0, 1), (2, 9), (2, 9)], Gap(7, 2)),
    ],
)
def test_a_gap_is_silence_while_something_is_waited_for(
    spans: list[tuple[int, int]], gap: Gap
) -> None:
    assert longest_gap(spans_to_rows(spans), 100) == gap


END = 45
_spans = st.tuples(st.integers(0, 30), st.one_of(st.none(), st.integers(0, 10)))


@given(st.lists(_spans, max_size=8), st.integers(0, 20), st.integers(20, END))
def test_a_gap_is_what_a_look_at_every_instant_finds(
    spans: list[tuple[int, int | None]], from_ns: int, until_ns: int
) -> None:
    """Oracle: instant by instant, is something open, and was there a confirm? None: never confirmed."""
    rows, confirms = [], {start + took for start, took in spans if took is not None}
    for start, took in spans:
        end = None if took is None else start + took
        outcome = "unknown" if end is None else "confirmed"
        rows.append(published(0, intended_ns=start, confirmed_ns=end, outcome=outcome))
    # A message without a confirm waits for the next confirm of any other.
    ends = [
        min((at for at in confirms if at >= start), default=END) if took is None else start + took
        for start, took in spans
    ]
    waits = [(start, end) for (start, _), end in zip(spans, ends, strict=True)]
    longest = run = 0
    for instant in range(from_ns, until_ns):
        # The step from `instant` to the next one is silent when something is open all through it.
        if any(start <= instant < end for start, end in waits):
            run += 1
        else:
            run = 0
        longest = max(longest, run)
        if instant + 1 in confirms:
            run = 0
    assert longest_gap(rows, until_ns, from_ns).length_ns == longest


def copies(count: int) -> list[Row]:
    """Return deliveries of message 3 to billing besides its first, a second apart."""
    return [delivered(3, "billing", received_ns=(10 + n) * S) for n in range(count)]


def changed(number: int, **fields: Any) -> Events:
    events = whole_run()
    events.published[number] = published(number, **fields)
    return events


def added(*rows: Row, **published_rows: Row) -> Events:
    events = whole_run()
    events.delivered += rows
    events.published += published_rows.values()
    return events


def without(*numbers: int) -> Events:
    """Return a run in which nobody got these messages."""
    events = whole_run()
    gone = {f"{number:032x}" for number in numbers}
    events.delivered = [row for row in events.delivered if row["message_id"] not in gone]
    return events


def unread() -> Events:
    events = whole_run()
    events.unread.append("delivered-c2.ndjson.gz")
    return events


PLANTED: dict[str, tuple[Events, dict[str, Any], dict[str, int]]] = {
    "sent twice, delivered eleven times": (
        Events(published=changed(3, attempts=2).published, delivered=added(*copies(10)).delivered),
        {},
        {"unexplained": 9},
    ),
    "confirmed by two publishers, delivered once": (
        added(other=published(3, publisher="p2")),
        {},
        {"reused": 1},
    ),
    "confirmed to two topics": (
        added(other=published(3, topic="u")),
        {"topics": {"t": NAMES, "u": ("all",)}},
        {"reused": 1},
    ),
    "published again after an unknown outcome": (
        added(other=published(3, outcome="unknown")),
        {},
        {"unconfirmed": 1},
    ),
    "refused, and delivered": (
        changed(3, outcome="refused"),
        {},
        {"refused_delivered": 1, "unconfirmed": 1},
    ),
    "unroutable, and delivered": (
        changed(3, outcome="unroutable"),
        {},
        {"refused_delivered": 1, "unconfirmed": 1},
    ),
    "delivered an hour before": (
        changed(3, sent_ns=3600 * S, intended_ns=3600 * S),
        {},
        {"early": 1},
    ),
    "delivered before it was sent again": (
        changed(3, sent_ns=3600 * S, attempts=2),
        {},
        {},
    ),
    "nothing came, and the grace is longer than the run": (
        without(*range(10)),
        {"end_ns": 10 * S, "grace_ns": 11 * S},
        {"pending": 20},
    ),
    "a later one came before": (
        added(
            delivered(10, "billing", received_ns=5 * S),
            other=published(10, sent_ns=S, intended_ns=S),
        ),
        {"topics": {"t": NAMES[:1]}},
        {"late": 5},
    ),
    "a process that began anew, with numbers that it had given before": (
        Events(
            published=[published(number, sequence=number % 5) for number in range(10)],
            delivered=whole_run().delivered,
        ),
        {},
        {},
    ),
    "a later one came before, of a process that began anew": (
        Events(
            published=[published(number, sequence=number % 5) for number in range(10)],
            delivered=[delivered(n, NAMES[0], received_ns=(20 - n) * S) for n in range(10)],
        ),
        {"topics": {"t": NAMES[:1]}},
        {"late": 9},
    ),
    "a topic that nobody reads": (
        Events(published=[published(0)]),
        {"topics": {"t": ()}},
        {"unjudged": 1},
    ),
    "rows that a recorder dropped": (
        whole_run(),
        {"recorders": {"r1": LeftOut(1.0, dropped=7, files_deleted=2)}},
        {"dropped": 7, "deleted": 2},
    ),
    "recorders that took unlike shares": (
        whole_run(),
        {"recorders": {"r1": LeftOut(1.0), "r2": LeftOut(0.1)}},
        {"shares": 2},
    ),
    "a publisher without a row": (whole_run(), {"publishers": ("p1", "p3")}, {"silent": 1}),
    "a broker that nobody named": (whole_run(), {"brokers": ("b2",)}, {"unlisted": 10}),
    "rows that are missing on both sides": (
        Events(
            published=[published(number) for number in range(10) if not 3 <= number < 6],
            delivered=[
                row for row in whole_run().delivered if not 3 * S <= row["received_ns"] < 6 * S
            ],
            absent=["published-p1-0002.ndjson"],
        ),
        {},
        {"missing": 3, "absent": 1},
    ),
    "a file that nobody read": (unread(), {}, {"unread": 1}),
    "nothing at all": (Events(), {}, {"nothing": 1}),
    "nothing confirmed": (
        Events(published=[published(3, outcome="unknown")]),
        {},
        {"unconfirmed": 1, "nothing": 1},
    ),
}


@pytest.mark.parametrize(("events", "manifest", "found"), PLANTED.values(), ids=PLANTED.keys())
def test_what_is_planted_has_its_name_and_fails_unless_it_is_allowed(
    events: Events, manifest: dict[str, Any], found: dict[str, int]
) -> None:
    judged = replace(MANIFEST, **manifest)
    result = audit(judged, events)
    assert result.counts == found
    assert result.holds == (not found)
    for name in found:
        others = [each for each in found if each != name]
        assert not audit(judged, events, allow=others).holds
    allowed = audit(judged, events, allow=list(found))
    assert allowed.holds
    assert len(allowed.put_up_with) == len(found)


def test_an_outage_without_confirms_is_as_long_as_it_was() -> None:
    """The run sends 10 a second for 60 s; from second 10 on nothing is answered, for 30 s or to the end."""
    for back_s, gap in ((40, Gap(30 * S, 10 * S)), (60, Gap(50 * S, 10 * S, ended=False))):
        events = Events()
        for number in range(600):
            at_ns = number * S // 10
            outcome = "unknown" if 10 * S <= at_ns < back_s * S else "confirmed"
            times = {"intended_ns": at_ns, "sent_ns": at_ns, "confirmed_ns": at_ns}
            events.published.append(published(number, outcome=outcome, **times))
        result = audit(replace(MANIFEST, topics={}, end_ns=60 * S), events)
        assert result.publishers["p1"].gap == gap
        # A run that did not end in order has no end but its last row.
        result = audit(replace(MANIFEST, topics={}, end_ns=None), events)
        assert abs(result.publishers["p1"].gap.length_ns - gap.length_ns) <= S // 10
