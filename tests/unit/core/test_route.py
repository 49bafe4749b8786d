"""core.route: one link to publish through, left for another one in good order."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from messagebus.core.route import (
    AVOIDED_MAX,
    BACKOFF_MAX_MS,
    DIALS_AT_ONCE,
    HEDGE_PART,
    MOVE_TRIES_MAX,
    REFUSED_FIRST_MS,
    REFUSED_MAX_MS,
    STAY_MS,
    Action,
    Adopt,
    Dial,
    HangUp,
    Route,
    backoff_ms,
)
from tests.support.examples import examples

LIFETIME_MS, FIRST_MS, MAX_MS = 600_000, 500, 8_000
A, B = "mb1:5672", "mb2:5672"


def route() -> Route:
    return Route(lifetime_ms=LIFETIME_MS, timeout_first_ms=FIRST_MS, timeout_max_ms=MAX_MS)


def due(made: Route) -> int:
    due_ms = made.next_due_ms()
    assert due_ms is not None
    return due_ms


def on_broker(broker: str = A, *, share: float = 0.5) -> Route:
    """Return a route whose link 1 is current since time 0."""
    made = route()
    made.tick(0)
    assert made.opened(1, broker, 0, share) == [Adopt(1)]
    return made


def test_without_a_link_it_dials_at_once() -> None:
    assert route().tick(0) == [Dial(1, FIRST_MS)]


def test_a_second_dial_starts_before_the_first_is_given_up_and_no_third() -> None:
    made = route()
    made.tick(0)
    assert made.next_due_ms() == FIRST_MS // HEDGE_PART
    assert made.tick(FIRST_MS // HEDGE_PART - 1) == []
    assert made.tick(FIRST_MS // HEDGE_PART) == [Dial(2, FIRST_MS)]
    assert made.next_due_ms() is None
    assert made.tick(10**6) == []


def test_the_first_answer_wins_and_the_other_dial_is_given_up() -> None:
    made = route()
    made.tick(0)
    made.tick(FIRST_MS)
    assert made.opened(2, A, 600, 0.5) == [Adopt(2), HangUp(1)]
    assert (made.current, made.broker) == (2, A)
    assert made.opened(1, A, 700, 0.5) == [HangUp(1)]


def test_failed_dials_wait_longer_and_are_given_more_time_up_to_bounds() -> None:
    made = route()
    now_ms, timeouts, waits = 0, [], []
    for _ in range(12):
        (dial,) = made.tick(now_ms)
        assert isinstance(dial, Dial)
        timeouts.append(dial.timeout_ms)
        made.lost(dial.link, now_ms, 1.0)
        waits.append(due(made) - now_ms)
        assert made.tick(due(made) - 1) == []
        now_ms = due(made)
    assert timeouts == [500, 1_000, 2_000, 4_000, *[MAX_MS] * 8]
    assert waits == [20, 40, 80, 160, 320, 640, 1_280, *[BACKOFF_MAX_MS] * 5]


def test_a_broker_that_boots_is_dialled_soon_and_one_that_stays_away_seldom() -> None:
    made = on_broker()
    made.lost(1, 0, 1.0)
    now_ms, waits = 0, dict[int, int]()
    while now_ms < 60_000:
        (dial,) = made.tick(now_ms)
        assert isinstance(dial, Dial)
        made.lost(dial.link, now_ms, 1.0, absent=True)
        waits[now_ms] = due(made) - now_ms
        now_ms = due(made)
    assert all(wait_ms <= max(20, at_ms // 7) for at_ms, wait_ms in waits.items())
    assert len(waits) < 130
    assert waits[max(waits)] == BACKOFF_MAX_MS
    (dial,) = made.tick(now_ms)
    made.opened(dial.link, A, now_ms, 0.5)
    made.lost(dial.link, now_ms, 1.0)
    (dial,) = made.tick(now_ms)
    made.lost(dial.link, now_ms, 1.0, absent=True)
    assert due(made) == now_ms + 20, "its next boot is another one"


def test_a_refused_login_is_tried_again_slowly_and_ever_slower() -> None:
    made, now_ms, at_ms = route(), 0, []
    while now_ms < 300_000:
        (dial,) = [each for each in made.tick(now_ms) if isinstance(each, Dial)]
        at_ms.append(now_ms)
        made.lost(dial.link, now_ms, 1.0, refused=True)
        now_ms = due(made)
    waits = [later - earlier for earlier, later in pairwise(at_ms)]
    assert waits[:6] == [1_000, 2_000, 4_000, 8_000, 16_000, 30_000]
    assert set(waits[5:]) == {REFUSED_MAX_MS}


def test_a_good_login_forgets_refused_ones() -> None:
    made = route()
    made.tick(0)
    made.lost(1, 0, 1.0, refused=True)
    made.tick(1_000)
    made.opened(2, A, 1_000, 0.5)
    made.lost(2, 2_000, 1.0)
    made.tick(2_000)
    made.lost(3, 2_000, 1.0, refused=True)
    assert due(made) == 2_000 + REFUSED_FIRST_MS


def test_a_success_forgets_earlier_failures() -> None:
    made = route()
    made.tick(0)
    made.lost(1, 0, 1.0)
    made.tick(1_000)
    made.opened(2, A, 1_000, 0.5)
    made.lost(2, 2_000, 1.0)
    assert made.tick(2_000) == [Dial(3, FIRST_MS)]


def test_a_lost_link_is_replaced_at_once() -> None:
    made = on_broker()
    made.lost(1, 5_000, 1.0)
    assert (made.current, made.broker) == (None, "")
    assert due(made) <= 5_000
    assert made.tick(5_000) == [Dial(2, FIRST_MS)]


def test_the_end_of_an_unknown_link_changes_nothing() -> None:
    made = on_broker()
    made.lost(77, 1, 1.0)
    assert made.current == 1
    assert made.tick(1) == []


def test_a_dead_link_is_left_for_any_also_while_its_broker_is_being_left() -> None:
    made = on_broker(A)
    made.leave(1_000)
    made.tick(1_000)
    assert made.opened(2, A, 1_000, 1.0) == [HangUp(2)]
    made.abandon(1_001)
    assert made.tick(1_001) == [Dial(3, FIRST_MS)]
    assert made.opened(3, A, 1_100, 1.0) == [Adopt(3)]


def test_without_a_link_there_is_none_to_abandon() -> None:
    made = route()
    made.abandon(0)
    assert made.tick(0) == [Dial(1, FIRST_MS)]


def test_a_broker_without_a_name_is_left_for_any() -> None:
    made = on_broker("")
    made.leave(1_000)
    made.tick(1_000)
    assert made.opened(2, "", 1_000, 1.0) == [Adopt(2)]


def stubborn(made: Route, now_ms: int) -> int:
    """Lead every dial back to the same broker. Returns how many there were until it gives up."""
    made.leave(now_ms)
    tries = 0
    while dials := made.tick(now_ms):
        (dial,) = dials
        assert isinstance(dial, Dial)
        tries += 1
        assert made.opened(dial.link, A, now_ms, 1.0) == [HangUp(dial.link)]
        now_ms = due(made)
        if now_ms > 100_000:
            break
    return tries


def test_moving_on_and_on_ends_after_some_tries_and_rests_before_it_starts_again() -> None:
    made = on_broker(A)
    assert stubborn(made, 1_000) == MOVE_TRIES_MAX
    assert made.current == 1
    gave_up_ms = 1_000 + 20 + 40 + 80 + 160 + 320 + 640 + 1_280
    made.leave(gave_up_ms + STAY_MS - 1)
    assert made.tick(gave_up_ms + STAY_MS - 1) == []
    made.leave(gave_up_ms + STAY_MS)
    assert made.tick(gave_up_ms + STAY_MS) == [Dial(10, FIRST_MS)]


def test_a_new_broker_may_be_left_at_once_although_the_old_one_could_not() -> None:
    made = on_broker(A)
    stubborn(made, 1_000)
    made.lost(1, 4_000, 0.0)
    (dial,) = made.tick(4_000)
    assert isinstance(dial, Dial)
    made.opened(dial.link, B, 4_000, 0.5)
    made.leave(4_001)
    assert made.tick(4_001) == [Dial(dial.link + 1, FIRST_MS)]


@pytest.mark.parametrize(("share", "due_ms"), [(0.0, 480_000), (0.5, 600_000), (1.0, 720_000)])
def test_a_publisher_that_lives_long_does_not_stay_on_its_first_broker(
    share: float, due_ms: int
) -> None:
    made = on_broker(A, share=share)
    assert made.next_due_ms() == due_ms
    assert made.tick(due_ms - 1) == []
    assert made.tick(due_ms) == [Dial(2, FIRST_MS)]
    assert made.opened(2, A, due_ms, 0.5) == [Adopt(2)]  # the same one will do
    assert made.moves == 1
    assert made.next_due_ms() == due_ms + LIFETIME_MS


def test_renew_dials_whichever_broker_the_balancer_gives() -> None:
    made = on_broker(A)
    made.renew(1_000)
    assert made.next_due_ms() == 1_000
    assert made.tick(1_000) == [Dial(2, FIRST_MS)]
    assert made.opened(2, A, 1_001, 0.5) == [Adopt(2)]


def test_a_broker_that_is_to_be_left_is_left_also_while_a_renewal_runs() -> None:
    made = on_broker(A)
    made.renew(1_000)
    made.tick(1_000)
    made.leave(1_001)
    assert made.opened(2, A, 1_002, 0.5) == [HangUp(2)]
    made.renew(1_003)  # and a renewal does not make it stay
    (dial,) = made.tick(due(made))
    assert isinstance(dial, Dial)
    assert made.opened(dial.link, A, 1_100, 0.5) == [HangUp(dial.link)]


def test_told_to_leave_again_and_again_it_keeps_its_back_off() -> None:
    made = on_broker(A)
    made.leave(1_000)
    made.tick(1_000)
    made.opened(2, A, 1_000, 1.0)
    made.leave(1_010)
    assert made.tick(1_010) == []


def test_a_failed_dial_of_a_move_keeps_the_current_link() -> None:
    made = on_broker(A)
    made.leave(1_000)
    made.tick(1_000)
    made.lost(2, 1_100, 1.0)
    assert made.current == 1
    assert made.tick(1_120) == [Dial(3, 2 * FIRST_MS)]


class UnderAnyDriver(RuleBasedStateMachine):
    """Machine whose oracle is a driver's view: the dials that run, the link it publishes through."""

    @initialize()
    def begin(self) -> None:
        self.route = route()
        self.now_ms = 0
        self.dialing: set[int] = set()
        self.current: int | None = None
        self.broker = ""
        self.avoid: str | None = None
        self.tries, self.stay_until_ms = 0, 0
        self.dialled = 0
        self.moves = 0
        self.perform(self.route.tick(0))

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Dial(link, timeout_ms):
                    self.dialled += 1
                    assert link == self.dialled, "links are numbered by their dials"
                    assert FIRST_MS <= timeout_ms <= MAX_MS
                    self.dialing.add(link)
                case HangUp(link):
                    self.dialing.remove(link)
                case Adopt(link):
                    self.dialing.remove(link)
                    self.moves += self.current is not None
                    self.current, self.avoid = link, None
                    self.tries, self.stay_until_ms = 0, self.now_ms

    @rule(later_ms=st.sampled_from([0, 1, 10, 250, 2_000, 10_000, LIFETIME_MS]))
    def wait(self, later_ms: int) -> None:
        self.now_ms += later_ms
        self.perform(self.route.tick(self.now_ms))

    @rule(data=st.data(), broker=st.sampled_from([A, B, ""]), share=st.floats(0, 1))
    def dial_succeeds(self, data: st.DataObject, broker: str, share: float) -> None:
        if not self.dialing:
            return
        link = data.draw(st.sampled_from(sorted(self.dialing)))
        unwanted = self.current is not None and broker and broker == self.avoid
        actions = self.route.opened(link, broker, self.now_ms, share)
        if unwanted:
            assert actions == [HangUp(link)]
            self.tries += 1
            if self.tries == MOVE_TRIES_MAX:
                self.tries, self.avoid = 0, None
                self.stay_until_ms = self.now_ms + STAY_MS
        else:
            assert actions[0] == Adopt(link)
            self.broker = broker
        self.perform(actions)
        assert unwanted or not self.dialing, "the other dials are given up"

    @rule(data=st.data(), share=st.floats(0, 1))
    def dial_fails(self, data: st.DataObject, share: float) -> None:
        if self.dialing:
            link = data.draw(st.sampled_from(sorted(self.dialing)))
            self.dialing.remove(link)
            self.route.lost(link, self.now_ms, share)

    @rule(share=st.floats(0, 1))
    def link_ends(self, share: float) -> None:
        if self.current is not None:
            self.route.lost(self.current, self.now_ms, share)
            self.current, self.broker, self.avoid = None, "", None

    @rule()
    def leave(self) -> None:
        self.route.leave(self.now_ms)
        if self.current is not None and self.now_ms >= self.stay_until_ms:
            self.avoid = self.broker

    @rule()
    def renew(self) -> None:
        self.route.renew(self.now_ms)

    @invariant()
    def one_link_and_few_dials(self) -> None:
        assert self.route.current == self.current
        assert self.route.broker == self.broker
        assert self.route.moves == self.moves
        assert self.route.dials == self.dialled
        assert len(self.dialing) <= DIALS_AT_ONCE

    @invariant()
    def whoever_wants_a_link_has_two_dials_or_one_that_is_due_within_a_bound(self) -> None:
        due_ms = self.route.next_due_ms()
        if len(self.dialing) < DIALS_AT_ONCE or due_ms is not None:
            assert due_ms is not None
            wants = self.current is None or self.avoid is not None
            bound_ms = max(BACKOFF_MAX_MS, MAX_MS // 2) if wants else int(LIFETIME_MS * 1.2)
            assert due_ms <= self.now_ms + bound_ms

    @invariant()
    def what_is_due_now_is_done_now(self) -> None:
        due_ms = self.route.next_due_ms()
        before = len(self.dialing)
        self.perform(self.route.tick(self.now_ms))
        is_due = due_ms is not None and due_ms <= self.now_ms
        assert len(self.dialing) - before == is_due


TestUnderAnyDriver = UnderAnyDriver.TestCase
TestUnderAnyDriver.settings = settings(
    max_examples=examples(80), stateful_step_count=40, deadline=None
)


SHARES = st.floats(0, 1, allow_nan=False)


@pytest.mark.parametrize(
    ("failures", "share", "expected"),
    [
        (1, 0.0, 50),
        (1, 1.0, 100),
        (2, 0.0, 100),
        (2, 1.0, 200),
        (3, 0.5, 300),
        (7, 1.0, 5_000),
        (1_000_000, 0.0, 2_500),
        (1_000_000, 1.0, 5_000),
        (0, 1.0, 100),
        (-3, 0.0, 50),
    ],
)
def test_the_wait_doubles_up_to_its_bound(failures: int, share: float, expected: int) -> None:
    assert backoff_ms(failures, first_ms=100, max_ms=5_000, share=share) == expected


@given(st.integers(0, 10_000), st.integers(1, 10_000), st.integers(1, 100_000), SHARES)
def test_at_least_half_of_the_full_wait_is_certain(
    failures: int, first_ms: int, max_ms: int, share: float
) -> None:
    full_ms = min(max_ms, first_ms * 2 ** min(max(failures - 1, 0), 20))
    wait_ms = backoff_ms(failures, first_ms=first_ms, max_ms=max_ms, share=share)
    assert full_ms // 2 <= wait_ms <= full_ms


@given(st.integers(1, 40), SHARES)
def test_one_more_failure_never_shortens_the_wait(failures: int, share: float) -> None:
    before = backoff_ms(failures, first_ms=20, max_ms=2_000, share=share)
    assert backoff_ms(failures + 1, first_ms=20, max_ms=2_000, share=share) >= before


def test_a_broker_to_be_avoided_is_hung_up_and_soon_dialled_around_by_name() -> None:
    made, now_ms, named = route(), 0, []
    for _ in range(3 * AVOIDED_MAX):
        (dial,) = made.tick(now_ms)
        assert isinstance(dial, Dial)
        named.append(dial.by_name)
        assert made.opened(dial.link, A, now_ms, 1.0, avoid=A) == [HangUp(dial.link)]
        assert made.current is None
        assert now_ms < due(made) <= now_ms + BACKOFF_MAX_MS
        now_ms = due(made)
    assert not any(named[:AVOIDED_MAX])
    assert set(named[AVOIDED_MAX:]) == {True, False}  # in turns: a name may be out of reach
    (dial,) = made.tick(now_ms)
    assert isinstance(dial, Dial)
    assert made.opened(dial.link, B, now_ms, 0.5, avoid=A) == [Adopt(dial.link)]


def test_a_broker_without_a_name_is_avoided_where_one_is() -> None:
    made = route()
    made.tick(0)
    assert made.opened(1, "", 0, 0.5, avoid="") == [HangUp(1)]


def test_once_a_link_is_adopted_the_balancer_is_trusted_again() -> None:
    made, now_ms = route(), 0
    for _ in range(AVOIDED_MAX):
        (dial,) = made.tick(now_ms)
        made.opened(dial.link, A, now_ms, 0.0, avoid=A)
        now_ms = due(made)
    (dial,) = made.tick(now_ms)
    made.opened(dial.link, B, now_ms, 0.5, avoid=A)
    made.lost(dial.link, now_ms, 0.5)
    for _ in range(2):
        (dial,) = made.tick(now_ms)
        assert isinstance(dial, Dial)
        assert not dial.by_name
        made.lost(dial.link, now_ms, 0.0)
        now_ms = due(made)
