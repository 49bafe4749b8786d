"""The place of a message: never called away while it is there, and each line says how it is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from messagebus_agent.broker.loads import Ages
from messagebus_tools.observing.snapshot import Bus
from messagebus_tools.observing.trace import Evidence, Trace, trace
from tests.support.observed import NOW_MS, bus, row, seen

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
    told = trace(Evidence(id=ID, told=rows), waiting(9, oldest_at_ms=NOW_MS - 60_000))
    lines = {each.verdict: each for each in told.lines if each.known.startswith("that client")}
    assert lines["published"].text == "published: confirmed, by shop-1"
    assert lines["delivered"].text == "handled: retry, run 2, by bill-1: KeyError: x"
    assert lines["delivered"].known == "that client told it, in the trail at mb1:5672"
    assert (
        told.answer == "It does not wait anywhere that answers."
    )  # by the time that the trail tells
    done = [{**rows[1], "what": "handled: ack"}]
    assert trace(Evidence(id=ID, told=done), waiting(0)).answer == "Done with in orders/billing."


def test_what_no_broker_took_is_told_by_its_publisher() -> None:
    row = {"message_id": ID, "name": "orders", "what": "published: unroutable", "client": "shop-1",
           "at_ms": NOW_MS - 9_000}  # fmt: skip
    told = trace(Evidence(id=ID, told=[row]), waiting(0))
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
    assert told.answer == "It may wait in orders/billing on mb1:5672."


def test_what_is_older_than_the_oldest_there_has_left() -> None:
    there = waiting(9, oldest_at_ms=NOW_MS - 60_000)
    early = trace(Evidence(id=ID, published_ms=NOW_MS - 600_000), there)
    assert early.answer == "It does not wait anywhere that answers."
    assert any("(deduced)" in each.known for each in early.lines)
    late = trace(Evidence(id=ID, published_ms=NOW_MS - 30_000), there)
    assert late.answer == "It may wait in orders/billing on mb1:5672."


def test_a_count_from_before_it_was_published_says_nothing() -> None:
    told = trace(Evidence(id=ID, published_ms=NOW_MS + 1_000), waiting(0))
    assert told.answer.startswith(
        "It may wait in orders/billing on mb1:5672, orders/billing on mb2"
    )


def test_another_topic_and_nothing_at_all_are_told_apart() -> None:
    told = trace(Evidence(id=ID, topic="invoices"), waiting(9))
    assert told.answer == "Nothing is known of it."


def test_a_recording_tells_who_published_it_and_who_is_done_with_it() -> None:
    rows = [
        {"outcome": "confirmed", "topic": "orders", "publisher": "p1", "broker": "mb1:5672", "at_ms": 1},
        {"ack": "acked", "topic": "orders", "subscription": "billing", "consumer": "c1",
         "broker": "mb1:5672", "at_ms": 2},
    ]  # fmt: skip
    told = trace(Evidence(id=ID, recorded=rows), waiting(0))
    assert told.answer == "Done with in orders/billing."
    assert {"published", "done"} <= verdicts(told)


def test_an_id_of_the_library_tells_its_process_and_another_does_not() -> None:
    first = trace(Evidence(id=ID), waiting(0)).lines[0]
    assert first.text.startswith("number 197 of one publishing process")
    assert "id" not in verdicts(trace(Evidence(id="order-4711"), waiting(0)))


@settings(max_examples=200, deadline=None)
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
