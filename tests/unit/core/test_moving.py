from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus.core.moving import DELAYS, Spread, parked_marks, rest_of_delay
from messagebus.core.parking import Facts
from messagebus.destination import DELAY_STEPS_MS, Delay

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
MINUTE = Delay(60_000)


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
