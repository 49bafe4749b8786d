"""core.confirms: every publish comes back exactly once, with the outcome that the broker meant."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from messagebus.core.confirms import Batch, ConfirmWindow, Packing, bundled
from messagebus.core.ends import Item
from tests.support.examples import examples

MESSAGES_MAX, BYTES_MAX = 6, 100
HUGE_TAG = 2**63


def item(name: str, size: int) -> Item:
    return Item(name, "destination", size, 1_000)


def batch(*sizes: int) -> Batch[Item]:
    made = Batch(item("0", sizes[0]))
    for number, size in enumerate(sizes[1:], start=1):
        made.items.append(item(str(number), size))
        made.size += size
    return made


def test_its_name_is_that_of_the_first_message_that_is_left() -> None:
    made = batch(10, 20, 30)
    assert (made.message_id, made.size) == ("0", 60)
    made.keep(made.items[1:])
    assert (made.message_id, made.size, len(made.items)) == ("1", 50, 2)


@example([b"12", b"34", b"5"], 5, 3)
@given(
    st.lists(st.binary(max_size=12) | st.text(max_size=3), max_size=40),
    st.integers(1, 5),
    st.integers(1, 20),
)
def test_what_is_given_together_is_bundled_in_order_within_a_batch_s_bounds(
    payloads: list[bytes | str], count_max: int, bytes_max: int
) -> None:
    found = list(bundled(payloads, Packing(count_max, bytes_max, 0)))
    assert [each for one in found for each in (one if isinstance(one, list) else [one])] == payloads
    bundles = [one for one in found if isinstance(one, list)]
    assert all(0 < len(one) <= count_max and sum(map(len, one)) <= bytes_max for one in bundles)
    alone = [one for one in found if isinstance(one, bytes)]
    assert all(len(one) >= bytes_max for one in alone)
    # No bundle could have taken the first of the next one too.
    for one, after in itertools.pairwise(found):
        if isinstance(one, list) and isinstance(after, list):
            assert len(one) == count_max or sum(map(len, one)) + len(after[0]) > bytes_max


def test_what_was_given_before_an_error_of_the_iterable_is_bundled_in_front_of_it() -> None:
    def lines() -> Iterator[bytes]:
        yield from (b"1", b"2", b"3")
        raise OSError("the disk went away")

    found: list[list[bytes] | bytes] = []
    with pytest.raises(OSError, match="disk"):
        found.extend(bundled(lines(), Packing(2, 100, 0)))
    assert found == [[b"1", b"2"], [b"3"]]


@dataclass(eq=False)
class Sent:
    message_id: str
    destination: str = "orders"
    size: int = 10


def window(*items: Sent, messages_max: int = 100) -> ConfirmWindow[Sent]:
    made: ConfirmWindow[Sent] = ConfirmWindow(messages_max=messages_max, bytes_max=BYTES_MAX)
    assert fill(made, *items) == list(items)
    return made


def fill(made: ConfirmWindow[Sent], *items: Sent, now_ms: int = 0) -> list[Sent]:
    return made.fill(deque(items), now_ms)


@pytest.mark.parametrize("multiple", [True, False])
def test_a_tag_that_was_never_sent_costs_nothing(multiple: bool) -> None:
    a = Sent("a")
    made = window(a)
    assert made.answered(HUGE_TAG, multiple=multiple) == ([a] if multiple else [], [])


def test_tag_0_with_multiple_answers_all_that_was_sent() -> None:
    sent = [Sent("a"), Sent("b"), Sent("c")]
    made = window(*sent)
    assert made.answered(0, multiple=True) == (sent, [])


@pytest.mark.guarantee("one-outcome-per-publish")
def test_a_returned_message_is_told_apart_although_it_is_acked() -> None:
    a, b = Sent("a"), Sent("b")
    made = window(a, b)
    made.returned("orders", "a")
    assert made.answered(2, multiple=True) == ([b], [a])


def test_a_return_marks_no_later_publish_of_the_same_id() -> None:
    first, again = Sent("a"), Sent("a")
    made = window(first)
    made.returned("orders", "a")
    made.answered(1, multiple=False)
    fill(made, again)
    assert made.answered(2, multiple=False) == ([again], [])


def test_what_finds_no_room_stays_in_the_queue() -> None:
    made = window(messages_max=1)
    queue = deque([Sent("a"), Sent("b")])
    made.fill(queue, 0)
    assert [each.message_id for each in queue] == ["b"]


def test_a_message_larger_than_all_bytes_goes_alone() -> None:
    made = window()
    large, small = Sent("a", size=BYTES_MAX + 1), Sent("b", size=0)
    assert fill(made, large, small) == [large]
    made.answered(1, multiple=False)
    assert fill(made, Sent("c", size=BYTES_MAX)) != []


class AgainstABroker(RuleBasedStateMachine):
    """Machine whose oracle is a broker's own view: a list of its publishes and its answer to each."""

    def __init__(self) -> None:
        super().__init__()
        self.window: ConfirmWindow[Sent] = ConfirmWindow(
            messages_max=MESSAGES_MAX, bytes_max=BYTES_MAX
        )
        self.sent: list[Sent] = []
        self.sent_ms: list[int] = []
        self.now_ms = 0
        self.unroutable: set[int] = set()
        self.told: set[int] = set()  # tags that the window gave back

    @property
    def open_tags(self) -> list[int]:
        return [tag for tag in range(1, len(self.sent) + 1) if tag not in self.told]

    @rule(size=st.integers(0, 120), routed=st.booleans(), name=st.sampled_from("ab"))
    def publish(self, size: int, routed: bool, name: str) -> None:
        self.now_ms += 1
        held = [self.sent[tag - 1].size for tag in self.open_tags]
        fits = len(held) < MESSAGES_MAX and (not held or sum(held) + size <= BYTES_MAX)
        item = Sent(name, destination="orders" if routed else "nowhere", size=size)
        assert self.window.fill(deque([item]), self.now_ms) == ([item] if fits else [])
        if not fits:
            return
        self.sent.append(item)
        self.sent_ms.append(self.now_ms)
        if not routed:
            self.unroutable.add(len(self.sent))
            self.window.returned(item.destination, item.message_id)

    @rule(tag=st.integers(0, 40), multiple=st.booleans())
    def answer(self, tag: int, multiple: bool) -> None:
        meant = range(1, (tag or len(self.sent)) + 1) if multiple else [tag]
        expected = [each for each in meant if each in self.open_tags]
        routed = [self.sent[each - 1] for each in expected if each not in self.unroutable]
        returned = [self.sent[each - 1] for each in expected if each in self.unroutable]
        assert self.window.answered(tag, multiple=multiple) == (routed, returned)
        self.told |= set(expected)

    @precondition(lambda self: self.open_tags)
    @rule()
    def link_lost(self) -> None:
        assert self.window.abandon() == [self.sent[tag - 1] for tag in self.open_tags]
        self.told |= set(self.open_tags)

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        open_items = [self.sent[tag - 1] for tag in self.open_tags]
        assert list(self.window.items()) == open_items
        assert len(self.window) == len(open_items)
        oldest_ms = self.sent_ms[self.open_tags[0] - 1] if self.open_tags else None
        assert self.window.oldest_ms() == oldest_ms


TestAgainstABroker = AgainstABroker.TestCase
TestAgainstABroker.settings = settings(
    max_examples=examples(80), stateful_step_count=40, deadline=None
)


def sent_at(*times_ms: int) -> ConfirmWindow[Item]:
    """Return a window with a publish of each time; they end at bytes 100, 200, ... of the link's stream."""
    window = ConfirmWindow[Item](messages_max=9, bytes_max=1_000)
    for number, now_ms in enumerate(times_ms, start=1):
        window.fill(deque([item(str(number), 80)]), now_ms)
        window.written(100 * number)
    return window


def test_the_time_of_a_publish_on_a_slow_line_counts_from_its_last_byte() -> None:
    window = sent_at(0)
    for now_ms in range(1_000, 9_000, 1_000):
        window.leaving(now_ms // 100, now_ms)
        assert window.oldest_ms() == now_ms
    window.leaving(100, 20_000)
    assert window.oldest_ms() == 8_000, "all of it has left: now it waits for its answer"


def test_what_has_left_waits_for_its_answer_however_much_leaves_behind_it() -> None:
    window = sent_at(0, 10, 20)
    window.leaving(150, 5_000)
    assert window.oldest_ms() == 0
    window.answered(1, multiple=False)
    assert window.oldest_ms() == 5_000
    window.answered(2, multiple=False)
    assert window.oldest_ms() == 5_000


def test_a_link_that_does_not_count_bytes_counts_from_the_moment_of_sending() -> None:
    window = ConfirmWindow[Item](messages_max=9, bytes_max=1_000)
    window.fill(deque([item("1", 80)]), 5)
    window.leaving(0, 1_000)
    assert window.oldest_ms() == 5
