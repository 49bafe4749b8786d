"""core.parking: a parked message's own data, the filter, and the places of moved and delayed ones."""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus.core.parking import (
    DELAYS,
    TTL_HEADER,
    Choice,
    Early,
    Facts,
    Spread,
    is_dropped_by_redrive,
    is_late,
    parked_marks,
    read_early,
    read_facts,
    read_ttl_ms,
    rest_of_delay,
)
from messagebus.destination import DELAY_STEPS_MS, Delay

DIED_S = 1_700_000_000
BY_CLIENT: dict[str, Any] = {
    "mb-park-reason": "timeout",
    "mb-park-exception": "TimeoutError: 3 s",
    "mb-park-attempts": 5,
    "mb-park-first-ms": 1_000,
    "mb-park-ms": 9_000,
    "mb-park-broker": "mb1:5672",
    "mb-attempt": 5,
    "mb-first-ms": 2_000,
    "mb-key": "k",
    "color": "red",
}
NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
MINUTE = Delay(60_000)
DUE_S = 1_700_000_000
DUE_MS = DUE_S * 1_000


def by_broker(reason: str, **more: Any) -> dict[str, Any]:
    death = {"reason": reason, "time": datetime.fromtimestamp(DIED_S, UTC), "count": 1}
    return {
        "x-death": [death],
        "x-first-death-reason": reason,
        "x-delivery-count": 0,
        "color": "red",
        **more,
    }


def test_a_client_tells_everything() -> None:
    assert read_facts(BY_CLIENT, message_id="m", stamp_ms=7_000) == Facts(
        message_id="m",
        key="k",
        reason="timeout",
        exception="TimeoutError: 3 s",
        attempts=5,
        first_ms=1_000,
        parked_ms=9_000,
        headers={"color": "red"},
    )


def test_a_message_that_kills_its_consumer_is_parked_by_its_broker_with_that_reason() -> None:
    facts = read_facts(by_broker("delivery_limit"), stamp_ms=7_000, delivery_limit=3)
    assert (facts.reason, facts.attempts) == ("delivery limit", 4)
    assert (facts.first_ms, facts.parked_ms) == (7_000, DIED_S * 1000)
    assert facts.headers == {"color": "red"}


def test_runs_before_the_last_copy_count_too() -> None:
    headers = by_broker("delivery_limit", **{"mb-attempt": 3, "mb-first-ms": 5})
    facts = read_facts(headers, stamp_ms=7_000, delivery_limit=3)
    assert (facts.attempts, facts.first_ms) == (6, 5)


def test_what_was_due_and_found_no_queue_says_whose_it_was() -> None:
    headers = by_broker("expired")
    headers["x-death"][0] |= {"queue": "mb.delay/1000", "routing-keys": ["mb.sub/orders/a", "cc"]}
    facts = read_facts(headers)
    assert (facts.reason, facts.address) == ("no queue: mb.sub/orders/a", "mb.sub/orders/a")
    # The same when it was moved to another broker, which keeps no x-death of others.
    moved = parked_marks(facts)
    assert read_facts(moved).address == "mb.sub/orders/a"
    assert read_facts(moved).reason == facts.reason


@pytest.mark.parametrize(
    "death",
    [
        {"queue": "mb.delay/1000"},
        {"queue": "mb.delay/1000", "routing-keys": []},
        {"queue": "mb.delay/1000", "routing-keys": [7]},
        {"queue": "mb.delay/1000", "routing-keys": "mb.sub/orders/a"},
        {"queue": 3, "routing-keys": ["mb.sub/orders/a"]},
        {"queue": "mb.sub/orders/b", "routing-keys": ["mb.sub/orders/a"]},
    ],
)
def test_what_did_not_come_out_of_a_step_was_due_nowhere(death: dict[str, Any]) -> None:
    facts = read_facts({"x-death": [{"reason": "expired", **death}]})
    assert (facts.reason, facts.address) == ("expired", "")


@pytest.mark.parametrize("number", [-(1 << 63), -1, 1 << 62, (1 << 63) - 1, True, "9", 1.5])
def test_times_and_counters_that_others_forged_say_nothing_or_are_cut(number: object) -> None:
    """Else putting it back would raise, and hold back all messages behind it."""
    names = ("mb-first-ms", "mb-park-first-ms", "mb-park-ms", "mb-park-attempts", "mb-redriven")
    facts = read_facts(dict.fromkeys(names, number))
    assert (facts.first_ms, facts.parked_ms) == (None, None)
    assert facts.attempts in (None, 1_000_000)
    assert facts.redriven in (0, 1_000_000)


@pytest.mark.parametrize(
    ("reason", "limit", "told", "attempts"),
    [
        ("delivery_limit", 0, "delivery limit", None),
        ("rejected", 3, "rejected", 1),
        ("expired", 3, "expired", None),
    ],
)
def test_what_the_broker_does_not_tell_is_not_made_up(
    reason: str, limit: int, told: str, attempts: int | None
) -> None:
    facts = read_facts(by_broker(reason), delivery_limit=limit)
    assert (facts.reason, facts.attempts, facts.first_ms) == (told, attempts, None)


def test_of_a_message_that_was_parked_twice_the_client_has_the_last_word() -> None:
    facts = read_facts(by_broker("rejected", **BY_CLIENT))
    assert (facts.reason, facts.parked_ms) == ("timeout", 9_000)


@given(
    st.dictionaries(
        st.sampled_from([*BY_CLIENT, "x-death", "mb-redriven"]),
        st.one_of(
            st.none(),
            st.booleans(),
            st.binary(),
            st.text(),
            st.lists(st.one_of(st.none(), st.dictionaries(st.text(), st.none()))),
        ),
    )
)
def test_headers_of_a_foreign_client_never_raise(headers: dict[str, Any]) -> None:
    facts = read_facts(headers)
    assert isinstance(facts.reason, str)
    assert Choice(pattern=re.compile("x"), since_ms=0).takes(facts, b"\xff") in (True, False)


def test_a_redriven_message_begins_anew_and_keeps_what_is_its_own() -> None:
    headers = BY_CLIENT | by_broker("rejected") | {"mb-redriven": 1, "mb-retry-reason": "x"}
    kept = {name for name in headers if not is_dropped_by_redrive(name)}
    assert kept == {"mb-first-ms", "mb-key", "color"}


# Choosing.
FACTS = read_facts(BY_CLIENT, message_id="m-17")


@pytest.mark.parametrize(
    ("choice", "is_taken"),
    [
        (Choice(), True),
        (Choice(until_ms=9_000), True),
        (Choice(until_ms=8_999), False),
        (Choice(since_ms=9_000), True),
        (Choice(since_ms=9_001), False),
        (Choice(reason="TIME"), True),
        (Choice(reason="limit"), False),
        (Choice(reason="TIMEOUTERROR: 3"), True),
        (Choice(key="k"), True),
        (Choice(key=""), False),
        (Choice(pattern=re.compile("m-1[0-9]$")), True),
        (Choice(pattern=re.compile("Error: 3")), True),
        (Choice(pattern=re.compile("^color: red$")), True),
        (Choice(pattern=re.compile("needle")), True),
        (Choice(pattern=re.compile("thread")), False),
        (Choice(key="k", reason="limit"), False),
        (Choice(message_id="m-17"), True),
        (Choice(message_id="m-1"), False),
        (Choice(message_id="m-1*"), True),
        (Choice(message_id="m-17*"), True),
        (Choice(message_id="17*"), False),
        (Choice(message_id=""), False),
    ],
)
def test_every_condition_must_hold(choice: Choice, is_taken: bool) -> None:
    assert choice.takes(FACTS, b"a needle\xff") is is_taken
    assert choice.is_everything is (choice == Choice())


@pytest.mark.parametrize(
    ("reason", "exception", "cause"),
    [
        ("5 of 5 attempts failed", "ValueError: order 17", "5 of 5 attempts failed (ValueError)"),
        ("5 of 5 attempts failed", "KeyError", "5 of 5 attempts failed (KeyError)"),
        (
            "failed for good: NoSuchCustomer",
            "NoSuchCustomer: ann",
            "failed for good: NoSuchCustomer",
        ),
        ("delivery limit", "", "delivery limit"),
    ],
)
def test_a_cause_is_the_reason_with_the_type_of_the_exception(
    reason: str, exception: str, cause: str
) -> None:
    told = {"mb-park-reason": reason, "mb-park-exception": exception}
    assert read_facts(told).cause == cause


def test_a_message_that_does_not_say_when_it_was_parked_is_neither_old_nor_new() -> None:
    unknown = read_facts({})
    assert Choice().takes(unknown, b"")
    assert not Choice(since_ms=0).takes(unknown, b"")
    assert not Choice(until_ms=1 << 60).takes(unknown, b"")


@given(st.lists(st.sampled_from(["", "a", "b", "c"])), st.integers(1, 5))
def test_messages_of_one_key_go_to_one_place_and_others_in_turn(
    keys: list[str], targets: int
) -> None:
    spread = Spread(targets)
    places = [(key, spread.place(key)) for key in keys]
    assert all(0 <= place < targets for _, place in places)
    assert len({place for key, place in places if key == "a"}) <= 1
    counts = Counter(place for key, place in places if not key)
    assert (
        max(counts.values(), default=0) - min((counts[n] for n in range(targets)), default=0) <= 1
    )


def test_keys_are_spread() -> None:
    assert {Spread(3).place(str(n)) for n in range(50)} == {0, 1, 2}


def test_why_a_message_was_parked_goes_with_it() -> None:
    known = Facts(reason="delivery limit", attempts=4, first_ms=1, parked_ms=2)
    assert parked_marks(known) == {
        "mb-park-reason": "delivery limit",
        "mb-park-attempts": 4,
        "mb-park-first-ms": 1,
        "mb-park-ms": 2,
    }
    assert parked_marks(Facts()) == {}


@pytest.mark.parametrize(
    ("waited_ms", "rest_ms"),
    [
        (0, 60_000),
        (1_000, 60_000),
        (31_000, 30_000),
        (30_999, 60_000),
        (59_000, 2_000),
        (61_000, 1_000),
    ],
)
def test_what_was_delayed_waits_for_the_rest_rounded_up(waited_ms: int, rest_ms: int) -> None:
    assert rest_of_delay(MINUTE, {}, NOW_MS - waited_ms, NOW_MS) == Delay(rest_ms)


@given(st.sampled_from(DELAY_STEPS_MS), st.integers(0, 10**10), st.integers(0, 999))
def test_no_delay_ends_early_although_stamps_are_whole_seconds(
    step_ms: int, waited_ms: int, cut_ms: int
) -> None:
    stamp_ms = NOW_MS - waited_ms - cut_ms
    rest = rest_of_delay(Delay(step_ms), {}, stamp_ms, NOW_MS)
    assert waited_ms + rest.ms >= step_ms
    assert rest.ms <= step_ms


@pytest.mark.guarantee("move-remaining")
def test_clocks_a_day_apart_and_an_unknown_time_wait_for_the_whole_step() -> None:
    assert rest_of_delay(MINUTE, {}, NOW_MS - DAY_MS, NOW_MS) == MINUTE
    assert rest_of_delay(MINUTE, {}, NOW_MS + DAY_MS, NOW_MS) == MINUTE
    assert rest_of_delay(MINUTE, {}, NOW_MS + 10**9, NOW_MS) == MINUTE
    assert rest_of_delay(MINUTE, {}, None, NOW_MS) == MINUTE


def test_a_retry_does_not_tell_since_when_it_waits() -> None:
    assert rest_of_delay(MINUTE, {"mb-attempt": 2}, NOW_MS - 50_000, NOW_MS) == MINUTE
    assert rest_of_delay(MINUTE, {"mb-first-ms": 7}, NOW_MS - 50_000, NOW_MS) == MINUTE


def test_every_step_is_known_by_its_queue() -> None:
    assert DELAYS["mb.delay/60000"] == MINUTE
    assert len(DELAYS) == len(DELAY_STEPS_MS)


def test_a_step_that_the_other_broker_does_not_have_is_not_used() -> None:
    waited = NOW_MS - 50_000
    there = (Delay(1_000), Delay(20_000), MINUTE, Delay(120_000))
    assert rest_of_delay(MINUTE, {}, waited, NOW_MS, there) == Delay(20_000)
    assert rest_of_delay(MINUTE, {}, waited, NOW_MS, (Delay(1_000), Delay(120_000))) == MINUTE


def came_out(queue: object = "mb.delay/2000", **more: Any) -> dict[str, Any]:
    due = datetime.fromtimestamp(DUE_S, UTC)
    return {"x-death": [{"queue": queue, "reason": "expired", "time": due, **more}]}


def test_what_its_own_expiration_let_go_waits_for_the_rest() -> None:
    assert read_early(came_out(**{"original-expiration": "200"})) == Early(1_800, 200)
    assert read_early(came_out(**{"original-expiration": "0"})) == Early(2_000, 0)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-death": "no"},
        {"x-death": ["no"]},
        came_out(),
        came_out(**{"original-expiration": "2000"}),
        came_out(**{"original-expiration": "-1"}),
        came_out(**{"original-expiration": "9" * 400}),
        came_out(**{"original-expiration": "\u0662"}),
        came_out("mb.sub/orders/a", **{"original-expiration": "200"}),
        came_out(7, **{"original-expiration": "200"}),
    ],
)
def test_what_waited_its_time_or_was_in_no_step_comes_now(headers: dict[str, Any]) -> None:
    assert read_early(headers) is None


def test_a_life_ends_so_long_after_it_was_due_and_the_brokers_second_is_given() -> None:
    headers = came_out() | {TTL_HEADER: 500}
    assert not is_late(headers, DUE_MS + 1_500)
    assert is_late(headers, DUE_MS + 1_501)
    assert not is_late(came_out(), DUE_MS + 1_501)
    assert not is_late({TTL_HEADER: 500}, DUE_MS + 1_501)
    assert not is_late(came_out("mb.sub/o/a") | {TTL_HEADER: 500}, DUE_MS + 1_501)
    assert not is_late(came_out([]) | {TTL_HEADER: 500}, DUE_MS + 1_501)
    assert not is_late(came_out(time="now") | {TTL_HEADER: 500}, DUE_MS + 1_501)


@pytest.mark.parametrize("forged", [-1, 1 << 32, (1 << 63) - 1, True, "5", 1.5, None])
def test_a_forged_life_is_none(forged: object) -> None:
    assert read_ttl_ms({TTL_HEADER: forged}) is None
    assert not is_late(came_out() | {TTL_HEADER: forged}, 1 << 60)
