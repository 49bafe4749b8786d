"""core.in_flight: how long a link has answered nothing."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from messagebus.core.backlog import Backlog
from messagebus.core.ends import NO_DEADLINE_MS, Item
from messagebus.core.in_flight import LOOK_MAX_MS, InFlight, Silence
from tests.support.examples import examples

LOOK_MS = LOOK_MAX_MS // 2


class Link:
    """One link, its publishes, and the looks at it."""

    def __init__(self) -> None:
        self.in_flight = InFlight(messages_max=100, bytes_max=1 << 20)
        self.in_flight.opened(1, after=())
        self.silence, self.sent, self.answered = Silence(), 0, 0

    def send(self, now_ms: int) -> None:
        backlog = Backlog(messages_max=10, bytes_max=1 << 20)
        self.sent += 1
        backlog.queue.append(Item(str(self.sent), "orders", 1, NO_DEADLINE_MS))
        assert self.in_flight.current is not None
        assert self.in_flight.current.fill(backlog.queue, now_ms)

    def answer(self) -> None:
        assert self.in_flight.current is not None
        if self.answered < self.sent:
            self.answered += 1
            self.in_flight.current.answered(self.answered, multiple=False)

    def look(self, now_ms: int) -> int:
        return self.silence.look(self.in_flight, now_ms)


def silent_after(link: Link, looks: int, *, answers: bool = False, from_ms: int = 0) -> int:
    """Return what the last of so many looks says, with a publish before each of them."""
    silent_ms = 0
    for number in range(1, looks + 1):
        now_ms = from_ms + number * LOOK_MS
        link.send(now_ms - LOOK_MS)
        if answers:
            link.answer()
        silent_ms = link.look(now_ms)
    return silent_ms


def test_a_link_that_answers_nothing_is_silent_from_its_last_answer_on() -> None:
    link = Link()
    silent_after(link, 5, answers=True)
    assert silent_after(link, 6, from_ms=5 * LOOK_MS) == 6 * LOOK_MS


def test_a_link_that_is_slow_but_answers_now_and_then_is_not_silent() -> None:
    link = Link()
    for number in range(20):
        silent_after(link, 2, from_ms=2 * number * LOOK_MS)
        link.answer()
        assert link.look((2 * number + 2) * LOOK_MS) <= 2 * LOOK_MS
    assert link.in_flight.unanswered_ms(40 * LOOK_MS) > 10 * LOOK_MS, "yet its answers are late"


def test_a_link_without_a_publish_is_not_silent() -> None:
    link = Link()
    link.send(0)
    link.answer()
    for number in range(1, 100):
        assert link.look(number * LOOK_MS) == 0
    link.send(100 * LOOK_MS)
    assert link.look(101 * LOOK_MS) == LOOK_MS


def test_a_process_that_was_suspended_has_not_listened() -> None:
    link = Link()
    silent_after(link, 3, answers=True)
    link.send(3 * LOOK_MS)
    assert link.look(3 * LOOK_MS + 60_000) == LOOK_MAX_MS


def test_another_link_begins_without_silence() -> None:
    link = Link()
    silent_after(link, 8)
    link.in_flight.opened(2, after=())
    assert link.look(9 * LOOK_MS) == 0
    link.in_flight.lost(2)
    assert link.look(10 * LOOK_MS) == 0


@settings(max_examples=examples(200))
@given(st.lists(st.tuples(st.sampled_from(["send", "answer", "look"]), st.integers(0, 500))))
def test_silence_is_never_longer_than_the_time_without_an_answer(
    steps: list[tuple[str, int]],
) -> None:
    link, now_ms, since_ms = Link(), 0, 0
    for what, after_ms in steps:
        now_ms += after_ms
        if what == "send" and link.sent - link.answered < 100:
            if link.sent == link.answered:
                since_ms = now_ms
            link.send(now_ms)
        elif what == "answer":
            link.answer()
            since_ms = now_ms
        else:
            waits = link.sent > link.answered
            assert 0 <= link.look(now_ms) <= (now_ms - since_ms if waits else 0)
