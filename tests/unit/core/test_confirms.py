"""core.confirms: every publish comes back exactly once, with the outcome that the broker meant."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from messagebus.core.confirms import CONFIRMED, REFUSED, UNROUTABLE, ConfirmWindow

MESSAGES_MAX, BYTES_MAX = 6, 100
HUGE_TAG = 2**63


@dataclass(eq=False)
class Sent:
    message_id: str
    lane: str = "orders"
    size: int = 10


def window(*items: Sent, messages_max: int = 100) -> ConfirmWindow[Sent]:
    made: ConfirmWindow[Sent] = ConfirmWindow(messages_max=messages_max, bytes_max=BYTES_MAX)
    for item in items:
        made.add(item)
    return made


def test_tags_are_counted_as_the_broker_counts_them() -> None:
    made = window()
    assert [made.add(Sent("a")), made.add(Sent("b"))] == [1, 2]
    made.answered(2, multiple=True, ok=True)
    assert made.add(Sent("c")) == 3


def test_multiple_settles_all_up_to_the_tag_oldest_first() -> None:
    a, b, c = Sent("a"), Sent("b"), Sent("c")
    made = window(a, b, c)
    assert made.answered(2, multiple=True, ok=True) == [(a, CONFIRMED), (b, CONFIRMED)]
    assert list(made.items()) == [c]


def test_multiple_with_tag_0_settles_all_so_far() -> None:
    a, b = Sent("a"), Sent("b")
    assert window(a, b).answered(0, multiple=True, ok=False) == [(a, REFUSED), (b, REFUSED)]


def test_a_single_answer_settles_only_its_own_tag() -> None:
    a, b, c = Sent("a"), Sent("b"), Sent("c")
    made = window(a, b, c)
    assert made.answered(2, multiple=False, ok=True) == [(b, CONFIRMED)]
    assert made.answered(3, multiple=True, ok=True) == [(a, CONFIRMED), (c, CONFIRMED)]


def test_an_answer_given_twice_settles_nothing_the_second_time() -> None:
    made = window(Sent("a"))
    made.answered(1, multiple=False, ok=True)
    assert made.answered(1, multiple=False, ok=True) == []
    assert made.answered(1, multiple=True, ok=False) == []


@pytest.mark.parametrize("multiple", [True, False])
def test_a_tag_that_was_never_sent_costs_nothing(multiple: bool) -> None:
    a = Sent("a")
    made = window(a)
    settled = made.answered(HUGE_TAG, multiple=multiple, ok=True)
    assert settled == ([(a, CONFIRMED)] if multiple else [])


def test_a_returned_message_is_unroutable_although_it_is_acked() -> None:
    a, b = Sent("a"), Sent("b")
    made = window(a, b)
    made.returned("orders", "a")
    assert made.answered(2, multiple=True, ok=True) == [(a, UNROUTABLE), (b, CONFIRMED)]


def test_two_returned_publishes_of_one_id_are_both_unroutable() -> None:
    made = window(Sent("a"), Sent("a"), Sent("a"))
    made.returned("orders", "a")
    made.returned("orders", "a")
    outcomes = [outcome for _, outcome in made.answered(3, multiple=True, ok=True)]
    assert outcomes == [UNROUTABLE, UNROUTABLE, CONFIRMED]


def test_a_return_marks_only_the_lane_that_it_names() -> None:
    routed, returned = Sent("a", lane="orders"), Sent("a", lane="nowhere")
    made = window(routed, returned)
    made.returned("nowhere", "a")
    assert made.answered(2, multiple=True, ok=True) == [
        (routed, CONFIRMED),
        (returned, UNROUTABLE),
    ]


def test_a_return_marks_no_later_publish_of_the_same_id() -> None:
    first, again = Sent("a"), Sent("a")
    made = window(first)
    made.returned("orders", "a")
    made.answered(1, multiple=False, ok=True)
    made.add(again)
    assert made.answered(2, multiple=False, ok=True) == [(again, CONFIRMED)]


def test_room_is_bounded_by_messages_and_by_bytes() -> None:
    made = window(Sent("a"), Sent("b"), messages_max=3)
    assert made.has_room(80)
    assert not made.has_room(81)
    made.add(Sent("c"))
    assert not made.has_room(0)


def test_a_message_larger_than_all_bytes_goes_alone() -> None:
    made = window()
    assert made.has_room(BYTES_MAX + 1)
    made.add(Sent("a", size=BYTES_MAX + 1))
    assert not made.has_room(0)
    made.answered(1, multiple=False, ok=True)
    assert made.has_room(BYTES_MAX)


def test_abandon_gives_back_everything_once_oldest_first() -> None:
    a, b, c = Sent("a"), Sent("b"), Sent("c")
    made = window(a, b, c)
    made.answered(2, multiple=False, ok=True)
    assert made.abandon() == [a, c]
    assert made.abandon() == []
    assert len(made) == 0
    assert made.has_room(BYTES_MAX)
    assert made.answered(3, multiple=True, ok=True) == []


def test_the_oldest_is_the_one_that_has_waited_longest() -> None:
    a, b, c = Sent("a"), Sent("b"), Sent("c")
    made = window(a, b, c)
    made.answered(1, multiple=False, ok=True)
    assert made.oldest() is b
    made.answered(0, multiple=True, ok=True)
    assert made.oldest() is None


class AgainstABroker(RuleBasedStateMachine):
    """The oracle is a broker's own view: a list of what it got and what it did with each."""

    def __init__(self) -> None:
        super().__init__()
        self.window: ConfirmWindow[Sent] = ConfirmWindow(
            messages_max=MESSAGES_MAX, bytes_max=BYTES_MAX
        )
        self.sent: list[Sent] = []
        self.fate: dict[int, str] = {}  # tag -> what the broker did with it
        self.told: dict[int, str] = {}  # tag -> what the window said

    @property
    def open_tags(self) -> list[int]:
        return [tag for tag in range(1, len(self.sent) + 1) if tag not in self.told]

    @rule(size=st.integers(0, 120), routed=st.booleans(), name=st.sampled_from("ab"))
    def publish(self, size: int, routed: bool, name: str) -> None:
        held = [self.sent[tag - 1].size for tag in self.open_tags]
        fits = len(held) < MESSAGES_MAX and (not held or sum(held) + size <= BYTES_MAX)
        assert self.window.has_room(size) == fits
        if not fits:
            return
        item = Sent(name, lane="orders" if routed else "nowhere", size=size)
        self.sent.append(item)
        tag = self.window.add(item)
        assert tag == len(self.sent)
        if not routed:
            self.fate[tag] = UNROUTABLE
            self.window.returned(item.lane, item.message_id)

    @rule(tag=st.integers(0, 40), multiple=st.booleans(), ok=st.booleans())
    def answer(self, tag: int, multiple: bool, ok: bool) -> None:
        meant = range(1, (tag or len(self.sent)) + 1) if multiple else [tag]
        expected = {
            each: self.fate.get(each, CONFIRMED if ok else REFUSED)
            for each in meant
            if each in self.open_tags
        }
        settled = self.window.answered(tag, multiple=multiple, ok=ok)
        assert settled == [(self.sent[each - 1], outcome) for each, outcome in expected.items()]
        self.told |= expected

    @precondition(lambda self: self.open_tags)
    @rule()
    def link_lost(self) -> None:
        assert self.window.abandon() == [self.sent[tag - 1] for tag in self.open_tags]
        self.told |= dict.fromkeys(self.open_tags, "abandoned")

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        open_items = [self.sent[tag - 1] for tag in self.open_tags]
        assert list(self.window.items()) == open_items
        assert len(self.window) == len(open_items)
        assert self.window.oldest() is (open_items[0] if open_items else None)


TestAgainstABroker = AgainstABroker.TestCase
TestAgainstABroker.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
