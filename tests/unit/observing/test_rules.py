"""Rules about a cluster, and traces of single messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messagebus.observing.rates import Rates
from messagebus.observing.rules import (
    MINUTE_MS,
    RULES,
    TWINS,
    UNKNOWN_QUERY,
    Attention,
    Past,
    Raised,
    reason,
)
from messagebus.observing.snapshot import (
    Balancer,
    Bus,
    Client,
    Kind,
    Loss,
    Mirror,
    Outcomes,
    Room,
    Server,
    Totals,
)
from messagebus.observing.trace import Evidence, Trace, trace
from messagebus.services.agent.broker.loads import Ages
from tests.support.examples import examples
from tests.support.observed import NOW_MS, bus, row, seen

ROOT = Path(__file__).resolve().parents[3]
ALERTS = ROOT / "ops" / "monitoring" / "alerts.yml"
UNITS = {"s": 1, "m": 60, "h": 3600}
BILLING = "orders/billing"
SERVED = row(BILLING, consumers=1)


ALERT = re.compile(
    r"- alert: (\w+)(?:(?!- alert).)*?(?:for: (\d+)([smh])\n\s+)?"
    r"labels: {severity: (\w+)}.*?manual: (\S+)",
    re.DOTALL,
)


def alerts() -> dict[str, tuple[str, int, str]]:
    """Return severity, time and manual of each alert of the file; it is written in one way."""
    text = ALERTS.read_text()
    found = {
        name: (severity, int(count or 0) * UNITS[unit or "s"], manual)
        for name, count, unit, severity, manual in ALERT.findall(text)
    }
    assert len(found) == text.count("- alert: ")
    return found


def test_every_alert_has_a_twin_and_every_twin_an_alert() -> None:
    assert {rule.name: (rule.severity, rule.for_s, rule.manual) for rule in TWINS} == alerts()


def test_the_monitor_asks_prometheus_what_the_alert_asks() -> None:
    told = re.search(
        r"- alert: UnknownOutcomes\n\s+expr: >\n(.*?)\n\s+labels", ALERTS.read_text(), re.S
    )
    assert told
    assert " ".join(told[1].split()) == UNKNOWN_QUERY


def test_a_rule_that_nobody_watches_is_not_called_well() -> None:
    rules = {rule.name: rule for rule in RULES}
    well = bus(seen("mb1", SERVED))
    assert rules["UnknownOutcomes"].unwatched(well) == "no Prometheus is configured"
    assert rules["BrokerDown"].unwatched(well) == "no balancer is configured"
    assert rules["GateShut"].unwatched(well) == ""
    away = replace(well, outcomes=Outcomes(url="http://p:9090", fault="refused"))
    assert rules["UnknownOutcomes"].unwatched(away) == "http://p:9090: refused"
    known = replace(well, outcomes=Outcomes(url="http://p:9090", fault=""))
    assert rules["UnknownOutcomes"].unwatched(known) == ""


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_the_manual_of_every_rule_is_there(rule: Any) -> None:
    file, _, anchor = rule.manual.partition("#")
    titles = re.findall(r"^#+ (.*)", (ROOT / file).read_text(), re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    assert anchor in anchors


def later(told: Bus, ms: int) -> Bus:
    """Return the same bus at another time, with figures that are as young, and messages that are older."""
    brokers = []
    for each in told.brokers:
        assert each.last
        at_ms = NOW_MS + ms
        last = replace(
            each.last, at_ms=at_ms, received_at_ms=at_ms, counted_at_ms=at_ms, swept_at_ms=at_ms
        )
        brokers.append(replace(each, last=last))
    return replace(told, at_ms=NOW_MS + ms, brokers=tuple(brokers))


def over(told: Bus, seconds: int) -> list[Raised]:
    """Return what is raised at the end of a time in which nothing changes, looked at every ten seconds."""
    attention = Attention()
    raised: tuple[Raised, ...] = ()
    for at_s in (*range(0, seconds, 10), seconds):
        raised = attention.step(later(told, at_s * 1000))
    return list(raised)


def lb(*servers: Server, fault: str = "") -> Balancer:
    return Balancer(url="http://lb1:8404", fault=fault, servers=servers)


ROOM = Room(disk_free=100, disk_limit=10, memory_used=10, memory_limit=100)
LATE = Client(id="a@h", subscription=BILLING, applied=0, age_ms=5)
OLD = row(BILLING, consumers=1, ready=5, oldest_ms=400_000)

CASES: dict[str, Callable[[], Bus]] = {
    "BrokerDown": lambda: bus(
        seen("mb1", SERVED), balancers=[lb(Server(name="mb1", status="DOWN"))]
    ),
    "BrokersFew": lambda: bus(
        seen("mb1", SERVED),
        balancers=[lb(Server(name="mb1", status="UP"), Server(name="mb2", status="MAINT"))],
    ),
    "BrokerAlarm": lambda: bus(seen("mb1", SERVED, alarm="alarm: disk")),
    "BrokerDiskFillsUp": lambda: bus(seen("mb1", SERVED, room=replace(ROOM, disk_free=29))),
    "BrokerMemoryHigh": lambda: bus(seen("mb1", SERVED, room=replace(ROOM, memory_used=86))),
    "PolicyLosesMessages": lambda: bus(
        seen(
            "mb1",
            SERVED,
            reason="ready, but policy 'ttl' loses messages by message-ttl: mb.sub/t/s",
        )
    ),
    "GateShut": lambda: bus(seen("mb1", SERVED, gate=False, verdict="down", reason="gate is shut")),
    "DrainStuck": lambda: bus(seen("mb1", SERVED, draining="operators drain it")),
    "CertificateEnds": lambda: bus(seen("mb1", SERVED, certificate_s=13 * 86_400)),
    "QueueWithoutConsumers": lambda: bus(seen("mb1", row(BILLING, ready=1))),
    "OldestMessageGrowsOlder": lambda: bus(seen("mb1", OLD)),
    "FallsBehind": lambda: bus(seen("mb1", replace(OLD, oldest_at_ms=NOW_MS - 70_000))),
    "MessagesParked": lambda: bus(seen("mb1", SERVED, row(BILLING, "park", ready=2))),
    "ListOld": lambda: replace(
        bus(seen("mb1", SERVED)), list_age_ms=181_000, list_fault="no route"
    ),
    "ClientBehind": lambda: bus(seen("mb1", SERVED, clients=[LATE])),
    "ListsDiffer": lambda: bus(seen("mb1", SERVED), seen("mb2", SERVED, generation=2)),
    "AgentDown": lambda: bus(seen("mb1", SERVED, fault="timed out"), seen("mb2", SERVED)),
    "MirrorSplitBrain": lambda: bus(
        seen("mb1", SERVED, mirror=Mirror(copies=2, connected=False, alone=True))
    ),
    "MirrorSingleCopy": lambda: bus(
        seen("mb1", SERVED, mirror=Mirror(copies=1, connected=True, alone=False))
    ),
    "BalancerDown": lambda: bus(seen("mb1", SERVED), balancers=[lb(fault="refused")]),
    "BrokerSessionsFull": lambda: bus(
        seen("mb1", SERVED), balancers=[lb(Server(name="mb1", status="UP", sessions=91, limit=100))]
    ),
    "UnknownOutcomes": lambda: replace(
        bus(seen("mb1", SERVED)),
        outcomes=Outcomes(url="http://p:9090", fault="", unknown=(("shop on web-1", 4),)),
    ),
    "Coverage": lambda: bus(seen("mb1", SERVED, missing=("orders/x",), missing_count=1)),
    "BrokerAway": lambda: bus(seen("mb1", SERVED, linked=False)),
    "NoConsumerHere": lambda: bus(seen("mb1", SERVED), seen("mb2", row(BILLING, ready=3))),
    "TopologiesDiffer": lambda: bus(seen("mb1", SERVED), seen("mb2", SERVED, topology="t2")),
    "ClocksDiffer": lambda: bus(replace(seen("mb1", SERVED), skew_ms=-2_500)),
}
SELF_MADE = {"QueueLost", "ParkedGrows", "Uneven"}


def test_every_rule_has_a_case() -> None:
    assert {rule.name for rule in RULES} == CASES.keys() | SELF_MADE


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_rule_is_raised_when_its_condition_has_held_for_so_long(name: str) -> None:
    rule = next(rule for rule in RULES if rule.name == name)
    # Ages have to be seen growing first.
    extra_s = 130 if name in ("OldestMessageGrowsOlder", "FallsBehind") else 0
    told = CASES[name]()
    (found,) = [each for each in over(told, rule.for_s + extra_s) if each.rule is rule]
    assert found.about
    assert "{" not in found.text
    if rule.for_s:
        assert not [each for each in over(told, rule.for_s - 1) if each.rule is rule]


def test_a_bus_that_is_well_needs_no_attention() -> None:
    well = seen("mb1", SERVED, room=ROOM, mirror=Mirror(copies=2, connected=True, alone=False))
    up = [Server(name=name, status="UP") for name in ("mb1", "mb2")]
    assert over(bus(well, seen("mb2", SERVED), balancers=[lb(*up)]), 4_000) == []


def test_a_lost_queue_is_told_for_ten_minutes() -> None:
    loss = Loss(wanted=BILLING, what="queue", name="mb.sub/x", noticed_at_ms=NOW_MS, repaired=True)
    told, attention = bus(seen("mb1", SERVED, losses=(loss,))), Attention()
    (raised,) = attention.step(told)
    assert (raised.rule.name, "mb.sub/x" in raised.text) == ("QueueLost", True)
    assert attention.step(later(told, 601_000)) == ()


def test_what_was_parked_in_ten_minutes_is_counted() -> None:
    attention = Attention()
    for minute in range(14):
        arrived = 0 if minute < 4 else 11
        one = row(BILLING, "park", ready=0, arrived=arrived)
        raised = attention.step(later(bus(seen("mb1", SERVED, one)), minute * 60_000))
    assert [each.rule.name for each in raised] == ["ParkedGrows"]
    assert raised[0].text.startswith("11 messages of orders/billing")


@pytest.mark.parametrize(
    ("third", "told"),
    [
        (900, "Broker mb3, one of 3, received 69 % of all publishes of the last ten minutes"),
        (300, ""),
    ],
)
def test_a_broker_that_gets_more_than_twice_its_share_is_named(third: int, told: str) -> None:
    attention, raised = Attention(), tuple[Raised, ...]()
    for minute in range(12):
        published = {"mb1": 200 * minute, "mb2": 200 * minute, "mb3": third * minute}
        brokers = (
            seen(name, SERVED, totals=Totals(published=count)) for name, count in published.items()
        )
        raised = attention.step(later(bus(*brokers), minute * 60_000))
    assert [each.text for each in raised if each.rule.name == "Uneven"] == ([told] if told else [])


def test_a_disk_that_will_be_full_is_told_before() -> None:
    attention = Attention()
    for minute in range(16):
        room = Room(
            disk_free=1_000_000 - 5_000 * minute, disk_limit=10, memory_used=1, memory_limit=9
        )
        raised = attention.step(later(bus(seen("mb1", SERVED, room=room)), minute * 60_000))
    assert [each.rule.name for each in raised] == ["BrokerDiskFillsUp"]
    assert "3 h 6 min" in raised[0].text


def test_a_broker_that_falls_silent_clears_nothing_about_it() -> None:
    attention, told = Attention(), CASES["BrokerAlarm"]()
    for at_s in (0, 20):
        attention.step(later(told, at_s * 1000))
    silent = replace(told, brokers=tuple(replace(each, fault="timed out") for each in told.brokers))
    raised = attention.step(later(silent, 30_000))
    assert [each.rule.name for each in raised] == ["BrokerAlarm"]
    assert raised[0].since_ms == NOW_MS
    assert attention.step(later(bus(seen("mb1", SERVED)), 40_000)) == ()


def test_the_worst_comes_first() -> None:
    told = bus(seen("mb1", row(BILLING, ready=1), row(BILLING, "park", ready=1), certificate_s=1))
    raised = over(told, 1_000)
    severities = [each.rule.severity for each in raised]
    assert severities == sorted(severities)
    assert {"page", "warn"} == set(severities)


def test_what_makes_messages_late_comes_before_what_has_held_for_longer() -> None:
    attention, parked = Attention(), row(BILLING, "park", ready=3)
    old = row(BILLING, ready=9, oldest_at_ms=NOW_MS, consumers=1)
    raised: tuple[Raised, ...] = ()
    for minute in range(32):
        told = seen("mb1", old if minute > 12 else SERVED, parked)
        raised = attention.step(later(bus(told), minute * MINUTE_MS))
    since_ms = {each.rule.name: each.since_ms for each in raised}
    assert since_ms["OldestMessageGrowsOlder"] > since_ms["MessagesParked"]
    assert list(since_ms) == ["OldestMessageGrowsOlder", "MessagesParked"]


def names(raised: Iterable[Raised]) -> list[str]:
    return [each.rule.name for each in raised]


@pytest.mark.parametrize("of", [("mb1",), ("mb1", "mb2")], ids=["its agent", "all agents"])
def test_an_answer_that_is_missing_ends_no_case_and_begins_none(of: tuple[str, ...]) -> None:
    """The step that the past is kept in falls into the silence, too."""
    attention, old = Attention(), row(BILLING, ready=9, oldest_ms=400_000, consumers=1)
    parked = row("orders/crm", "park", ready=1)
    told = bus(seen("mb1", old, parked), seen("mb2", SERVED))
    silent = replace(
        told, brokers=tuple(replace(b, fault="late" * (b.broker in of)) for b in told.brokers)
    )
    for at_s in range(0, 470, 10):
        raised = attention.step(later(told, at_s * 1000))
    assert names(raised) == ["OldestMessageGrowsOlder"]
    assert names(attention.noticed) == ["MessagesParked"]
    for at_s in range(470, 600, 10):
        raised = attention.step(later(silent, at_s * 1000))
    kept = [(e.rule.name, e.is_present) for e in raised if e.rule.name != "AgentDown"]
    assert kept == [("OldestMessageGrowsOlder", False)]
    assert raised[0].since_ms < NOW_MS + 200_000
    for at_s in range(600, 900, 10):
        raised = attention.step(later(told, at_s * 1000))
        assert [(e.rule.name, e.is_present) for e in raised] == [("OldestMessageGrowsOlder", True)]
    assert names(attention.step(later(told, 900_000))) == [
        "OldestMessageGrowsOlder",
        "MessagesParked",
    ]


def test_what_a_silent_broker_showed_for_too_short_a_time_is_not_raised() -> None:
    attention, told = Attention(), CASES["MirrorSingleCopy"]()
    attention.step(told)
    silent = replace(told, brokers=tuple(replace(each, fault="late") for each in told.brokers))
    for at_s in range(10, 300, 10):
        assert "MirrorSingleCopy" not in names(attention.step(later(silent, at_s * 1000)))


def test_one_fact_is_one_line_and_another_broker_is_another_fact() -> None:
    alone = row(BILLING, ready=1, oldest_ms=400_000)
    stuck = row(BILLING, ready=9_000, unacked=20, consumers=1, oldest_ms=900_000)
    assert names(over(bus(seen("mb1", alone), seen("mb2", SERVED)), 900)) == ["NoConsumerHere"]
    assert names(over(bus(seen("mb1", alone), seen("mb2", stuck)), 900)) == [
        "NoConsumerHere",
        "OldestMessageGrowsOlder",
    ]
    assert names(over(bus(seen("mb1", alone)), 900)) == ["QueueWithoutConsumers"]


def test_of_two_alike_what_keeps_more_messages_comes_first() -> None:
    few, many = row("a/b", ready=9), row("z/z", ready=20_000)
    told = over(bus(seen("mb1", few, many)), 700)
    assert [each.about for each in told] == ["z/z", "a/b"]


def test_an_empty_queue_without_a_consumer_harms_nobody() -> None:
    assert over(bus(seen("mb1", row(BILLING))), 4_000) == []


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (bus(seen("mb1", row(BILLING, ready=1)), seen("mb2", row(BILLING))), "it has no consumer"),
        (bus(seen("mb1", row(BILLING, ready=1)), seen("mb2", SERVED)), "it has no consumer on mb1"),
        (
            bus(
                seen("mb1", row(BILLING, ready=1, consumers=1), alarm="alarm: disk"),
                seen("mb2", SERVED),
            ),
            "only on mb1, which is in alarm: disk",
        ),
        (bus(seen("mb1", row(BILLING, ready=1, consumers=1))), "unknown"),
        (
            bus(
                seen("mb1", row(BILLING, ready=9, oldest_ms=90_000)),
                seen("mb2", row(BILLING, ready=1, consumers=1, oldest_ms=100)),
            ),
            "it has no consumer on mb1",
        ),
        (
            bus(
                seen("mb1", row(BILLING, ready=9, consumers=1, unacked=25)),
                seen("mb2", row(BILLING, ready=9, consumers=1, unacked=25)),
            ),
            "its handlers are slow: consumers hold 50 messages, their whole prefetch",
        ),
        (
            bus(
                seen("mb1", row(BILLING, ready=9, consumers=1, unacked=25)),
                seen("mb2", row(BILLING, ready=0, consumers=1, unacked=3)),
            ),
            "unknown",
        ),
    ],
)
def test_the_first_reason_that_holds_is_told(told: Bus, why: str) -> None:
    assert reason(told, BILLING) == why


def test_handlers_that_answer_nothing_are_stuck() -> None:
    full = bus(seen("mb1", row(BILLING, ready=9, consumers=1, unacked=25)))
    held = "consumers hold 25 messages, their whole prefetch"
    assert reason(full, BILLING, 0.0) == f"its handlers are stuck: {held}, and answer none"
    assert reason(full, BILLING, 0.1) == f"its handlers are slow: {held}"


def test_a_case_tells_the_rates_that_were_observed_and_the_reason_by_them() -> None:
    full = row(BILLING, ready=9, consumers=1, unacked=25, oldest_ms=70_000)
    told, attention = bus(seen("mb1", full)), Attention()
    rates: dict[tuple[str, str, Kind], Rates] = {("mb1", BILLING, "sub"): Rates(5.0, 0.0)}
    for at_s in range(0, 300, 10):
        raised = attention.step(later(told, at_s * 1000), rates)
    (found,) = raised
    assert "5.0 msg/s in, 0.0 msg/s out. Reason: its handlers are stuck" in found.text


def test_the_past_keeps_two_steps_whole_and_of_older_ones_what_is_parked() -> None:
    past = Past()
    told = bus(seen("mb1", row(BILLING, ready=1), row(BILLING, "park", ready=2)))
    for minutes in range(0, 20, 2):
        past.add(later(told, minutes * MINUTE_MS))
    now_ms = NOW_MS + 18 * MINUTE_MS
    for minutes, kinds in ((2, {"sub", "park"}), (6, {"park"}), (10, {"park"})):
        then = past.before(now_ms - minutes * MINUTE_MS)
        assert then is not None
        assert {kind for _, kind in then.answers["mb1"].rows} == kinds
    assert past.before(now_ms - 12 * MINUTE_MS) is None


ID = "5f0c2a9be1d04773a1b20000000000c4"
STEP_MS = 10_000


@dataclass
class Parked:
    name: str = "orders/billing"
    broker: str = "mb1:5672"
    message_id: str = ID
    reason: str = "timeout"
    attempts: int | None = 3
    exception: str = "ValueError: <b>"
    parked_ms: int | None = 1_700_000_000_000


def verdicts(told: Trace) -> set[str]:
    return {each.verdict for each in told.lines}


def waiting(ready: int, **more: Any) -> Bus:
    return bus(
        seen("mb1:5672", row("orders/billing", ready=ready, **more)),
        seen("mb2:5672", row("orders/billing")),
    )


def test_a_parked_message_is_certain_and_says_why_it_was_parked() -> None:
    told = trace(Evidence(id=ID, parked=[Parked()]), waiting(9))
    assert told.answer == "Parked in orders/billing on mb1:5672."
    (line,) = [each for each in told.lines if each.verdict == "parked"]
    assert line.text == "timeout, after 3 runs: ValueError: <b>"
    assert "may wait" not in verdicts(told)


def test_a_trail_tells_what_clients_did_and_each_line_says_who_told_it() -> None:
    rows = [
        {"message_id": ID, "name": "orders", "what": "published: confirmed", "broker": "mb1:5672",
         "client": "shop-1", "agent": "mb2:5672", "at_ms": NOW_MS - 600_000},
        {"message_id": ID, "name": "orders/billing", "what": "handled: retry", "client": "bill-1",
         "error": "KeyError: x", "attempt": 2, "agent": "mb1:5672", "at_ms": NOW_MS - 500_000},
    ]  # fmt: skip
    told = trace(Evidence(id=ID, trail=rows), waiting(9, oldest_at_ms=NOW_MS - 60_000))
    lines = {each.verdict: each for each in told.lines if each.known.startswith("that client")}
    assert lines["published"].text == "published: confirmed, by shop-1"
    assert lines["delivered"].text == "handled: retry, run 2, by bill-1: KeyError: x"
    assert lines["delivered"].known == "that client told it, in the trail at mb1:5672"
    assert (
        told.answer == "It does not wait anywhere that answers."
    )  # by the time that the trail tells
    done = [{**rows[1], "what": "handled: ack"}]
    assert trace(Evidence(id=ID, trail=done), waiting(0)).answer == "Finished in orders/billing."


def test_what_no_broker_took_is_told_by_its_publisher() -> None:
    row = {"message_id": ID, "name": "orders", "what": "published: unroutable", "client": "shop-1",
           "at_ms": NOW_MS - 9_000}  # fmt: skip
    told = trace(Evidence(id=ID, trail=[row]), waiting(0))
    assert told.answer == "Its publisher shop-1 was told: unroutable."


def test_empty_queues_do_not_hold_it() -> None:
    told = trace(Evidence(id=ID), waiting(0))
    assert told.answer == "It does not wait anywhere that answers."


def test_a_silent_broker_may_have_it_and_the_answer_says_so() -> None:
    one = bus(seen("mb1:5672", row("orders/billing")), seen("mb2:5672", fault="no answer"))
    told = trace(Evidence(id=ID), one)
    assert told.answer.endswith("some places could not be looked at.")
    assert any("mb2:5672 is silent" in each.text for each in told.lines)


def test_without_a_time_every_queue_with_messages_may_hold_it() -> None:
    told = trace(Evidence(id=ID), waiting(9, oldest_at_ms=NOW_MS - 1_000))
    assert told.answer == "It might wait in orders/billing on mb1:5672."


def test_what_is_older_than_the_oldest_there_has_left() -> None:
    there = waiting(9, oldest_at_ms=NOW_MS - 60_000)
    early = trace(Evidence(id=ID, published_ms=NOW_MS - 600_000), there)
    assert early.answer == "It does not wait anywhere that answers."
    assert any("(deduced)" in each.known for each in early.lines)
    late = trace(Evidence(id=ID, published_ms=NOW_MS - 30_000), there)
    assert late.answer == "It might wait in orders/billing on mb1:5672."


def test_a_count_from_before_it_was_published_says_nothing() -> None:
    told = trace(Evidence(id=ID, published_ms=NOW_MS + 1_000), waiting(0))
    assert told.answer.startswith(
        "It might wait in orders/billing on mb1:5672, orders/billing on mb2"
    )


def test_another_topic_and_nothing_at_all_are_told_apart() -> None:
    told = trace(Evidence(id=ID, topic="invoices"), waiting(9))
    assert told.answer == "There is no record of it."


def test_a_recording_tells_who_published_it_and_who_is_done_with_it() -> None:
    rows = [
        {"outcome": "confirmed", "topic": "orders", "publisher": "p1", "broker": "mb1:5672", "at_ms": 1},
        {"ack": "acked", "topic": "orders", "subscription": "billing", "consumer": "c1",
         "broker": "mb1:5672", "at_ms": 2},
    ]  # fmt: skip
    told = trace(Evidence(id=ID, recorded=rows), waiting(0))
    assert told.answer == "Finished in orders/billing."
    assert {"published", "done"} <= verdicts(told)


def test_an_id_of_the_library_tells_its_process_and_another_does_not() -> None:
    first = trace(Evidence(id=ID), waiting(0)).lines[0]
    assert first.text.startswith("number 197 of one publishing process")
    assert "id" not in verdicts(trace(Evidence(id="order-4711"), waiting(0)))


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6)), min_size=2, max_size=60),
    st.data(),
)
def test_a_message_that_waits_is_never_called_away(
    steps: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Oracle: a queue that hands out in order, sampled as an agent does, from its start on."""
    ages, queue, departed, now_ms, age_ms = Ages(), list[int](), 0, 0, 0
    for came, left in steps:
        queue += [now_ms + data.draw(st.integers(0, STEP_MS - 1), label="at") for _ in range(came)]
        queue.sort()
        now_ms += STEP_MS
        gone = min(left, len(queue))
        queue, departed = queue[gone:], departed + gone
        age_ms = ages.sample("q", now_ms, waiting=len(queue), departed=departed)
    if queue:
        looked_ms = now_ms + data.draw(st.integers(0, STEP_MS))
        there = row("orders/billing", ready=len(queue), oldest_at_ms=now_ms - age_ms)
        made = bus(seen("mb1:5672", there), at_ms=looked_ms)
        for published_ms in queue:
            told = trace(Evidence(id=ID, published_ms=published_ms), made)
            assert "may wait" in verdicts(told)
