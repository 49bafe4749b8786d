"""core.distinct: several distinct brokers, whichever answer first, without a wait without bound."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus.core.distinct import Dial, Distinct, HangUp

HEDGE_MS = 250


def search(brokers: str = "abc", wanted: int = 2) -> Distinct:
    return Distinct(list(brokers), wanted, hedge_ms=HEDGE_MS)


def test_as_many_dials_run_as_links_are_wanted_in_the_order_of_preference() -> None:
    made = search()
    assert made.tick(0) == [Dial("a"), Dial("b")]
    assert made.tick(0) == []


def test_a_failed_dial_is_replaced_at_once() -> None:
    made = search()
    made.tick(0)
    made.failed("a")
    assert made.tick(1) == [Dial("c")]


def test_a_frozen_broker_is_joined_by_the_next_after_the_hedge() -> None:
    made = search()
    made.tick(0)
    assert made.opened("b") == []
    assert made.next_due_ms(0) == HEDGE_MS
    assert made.tick(HEDGE_MS - 1) == []
    assert made.tick(HEDGE_MS) == [Dial("c")]


def test_enough_answers_hang_up_the_late_dials() -> None:
    made = search()
    made.tick(0)
    made.opened("b")
    made.tick(HEDGE_MS)
    assert made.opened("c") == [HangUp("a")]
    assert made.is_done
    assert made.found == ["b", "c"]
    assert made.dials == 3


def test_an_answer_that_comes_too_late_is_hung_up() -> None:
    made = search(wanted=1)
    made.tick(0)
    made.opened("a")
    assert made.opened("b") == [HangUp("b")]
    assert made.found == ["a"]


def test_it_ends_when_nobody_is_left() -> None:
    made = search("ab")
    made.tick(0)
    made.opened("a")
    made.failed("b")
    assert made.tick(1) == []
    assert made.is_done


def test_a_dial_that_is_late_already_is_nothing_to_wait_for() -> None:
    made = search("abcd", wanted=1)
    made.tick(0)
    made.tick(HEDGE_MS)  # b joins a
    assert made.next_due_ms(HEDGE_MS) == 2 * HEDGE_MS


def test_nothing_is_due_when_nobody_is_left_to_try() -> None:
    made = search("ab")
    made.tick(0)
    assert made.next_due_ms(0) is None


@pytest.mark.parametrize(("brokers", "wanted"), [("aa", 1), ("ab", 0)])
def test_a_broker_named_twice_or_nothing_wanted_is_a_bug(brokers: str, wanted: int) -> None:
    with pytest.raises(AssertionError):
        search(brokers, wanted)


@given(
    st.integers(1, 6),
    st.integers(1, 6),
    st.lists(st.sampled_from(["open", "fail", "freeze"]), min_size=6, max_size=6),
)
def test_it_finds_what_answers_and_dials_nobody_twice(
    count: int, wanted: int, behaviour: list[str]
) -> None:
    brokers = [f"b{number}" for number in range(count)]
    fate = dict(zip(brokers, behaviour, strict=False))
    made = Distinct(brokers, wanted, hedge_ms=HEDGE_MS)
    now_ms, dialled = 0, list[str]()
    while not made.is_done:
        dials = made.tick(now_ms)
        for each in dials:
            dialled.append(each.broker)
            if fate[each.broker] == "open":
                made.opened(each.broker)
            elif fate[each.broker] == "fail":
                made.failed(each.broker)
        if dials:
            continue
        due_ms = made.next_due_ms(now_ms)
        if due_ms is None:
            assert set(dialled) == set(brokers), "a dial is possible, and nobody would ask for it"
            break  # only frozen ones are left: each ends by its own deadline
        assert due_ms > now_ms, "a due time that has passed spins"
        now_ms = due_ms
    assert len(dialled) == len(set(dialled)) == made.dials
    answering = [broker for broker in brokers if fate[broker] == "open"]
    assert set(made.found) <= set(answering)
    assert len(made.found) == min(wanted, len(answering))
