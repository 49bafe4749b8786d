"""core.membership: attached to listed brokers, letting go of all others, whatever happens between."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from messagebus.core.membership import (
    ABSENT_FIRST_MS,
    Dial,
    Drain,
    HangUp,
    Judgement,
    ListKeeper,
    Membership,
    State,
    Subset,
)
from messagebus.core.route import REFUSED_FIRST_MS, REFUSED_MAX_MS, backoff_ms
from tests.support.examples import examples

A, B = "mb1:5672", "mb2:5672"
FIRST_MS, MAX_MS, DRAIN_MS = 100, 5_000, 60_000
MANY = [f"mb{number}.example:5672" for number in range(100)]


def members(*listed: str) -> Membership:
    """Return members with all listed brokers open at time 0."""
    made = Membership(backoff_first_ms=FIRST_MS, backoff_max_ms=MAX_MS, drain_ms=DRAIN_MS)
    made.refresh(listed, 0)
    for broker in listed:
        made.opened(broker)
    return made


@pytest.mark.parametrize("listed", [[], (), frozenset[str]()])
def test_an_empty_list_disconnects_nobody(listed: list[str]) -> None:
    made = members(A, B)
    assert made.refresh(listed, 10) == []
    assert made.tick(10**9) == []
    assert made.states == {A: State.OPEN, B: State.OPEN}


def test_a_link_that_ends_soon_after_each_attach_is_dialled_ever_slower() -> None:
    made = members(A)
    now_ms, waits = 0, []
    for _try in range(8):
        made.lost(A, now_ms, 1.0)
        due_ms = made.next_due_ms()
        assert due_ms is not None
        waits.append(due_ms - now_ms)
        (dial,) = made.tick(due_ms)
        assert isinstance(dial, Dial)
        made.opened(A)
        now_ms = due_ms + 10
    assert waits == [100, 200, 400, 800, 1_600, 3_200, MAX_MS, MAX_MS]
    made.lost(A, now_ms + MAX_MS, 1.0)
    assert made.next_due_ms() == now_ms + MAX_MS + FIRST_MS


def test_a_broker_that_boots_is_dialled_soon_and_one_that_stays_away_seldom() -> None:
    made = members(A)
    made.lost(A, MAX_MS, 1.0)
    began_ms = now_ms = MAX_MS + FIRST_MS
    waits = dict[int, int]()
    while now_ms < began_ms + 120_000:
        assert made.tick(now_ms) == [Dial(A, 1 + len(waits))]
        made.lost(A, now_ms, 1.0, absent=True)
        due_ms = made.next_due_ms()
        assert due_ms is not None
        waits[now_ms - began_ms], now_ms = due_ms - now_ms, due_ms
    assert all(wait_ms <= max(FIRST_MS, at_ms // 7) for at_ms, wait_ms in waits.items())
    assert len(waits) < 110
    assert waits[max(waits)] == MAX_MS


@pytest.mark.parametrize("dead", [1, 2, 100, 1_000])
def test_many_absent_brokers_together_are_dialled_no_more_often_than_a_few(dead: int) -> None:
    away = [f"mb{number}:5672" for number in range(dead)]
    made = members(*away, "alive:5672")
    for broker in away:
        made.lost(broker, 0, 0.5)
    dials, now_ms = Counter[int](), 0
    while (due_ms := made.next_due_ms()) is not None and due_ms < 10_000:
        now_ms = max(now_ms, due_ms)
        for action in made.tick(now_ms):
            assert isinstance(action, Dial)
            dials[now_ms // 1_000] += 1
            made.lost(action.broker, now_ms, 0.5, absent=True)
    # Beside the one dial by which each is found to be absent. No wait is above 5 s.
    assert dials[0] <= dead + 1_000 * 4 // (3 * ABSENT_FIRST_MS)
    assert sum(dials[second] for second in range(1, 10)) <= max(9 * 34, 2.7 * dead)
    assert sum(dials.values()) > dead, "each is tried again"


def test_a_refused_login_is_tried_again_slowly_and_ever_slower() -> None:
    made = Membership(backoff_first_ms=FIRST_MS, backoff_max_ms=MAX_MS)
    made.refresh([A], 0)
    now_ms, waits = 0, []
    for _try in range(7):
        made.lost(A, now_ms, 1.0, refused=True)
        due_ms = made.next_due_ms()
        assert due_ms is not None
        waits.append(due_ms - now_ms)
        assert made.tick(due_ms) == [Dial(A)]
        now_ms = due_ms
    assert waits == [1_000, 2_000, 4_000, 8_000, 16_000, REFUSED_MAX_MS, REFUSED_MAX_MS]
    made.opened(A)
    made.lost(A, now_ms, 1.0, refused=True)
    assert made.next_due_ms() == now_ms + REFUSED_FIRST_MS, "one that was taken counts"


@pytest.mark.guarantee("removed-is-finished-first")
def test_a_removed_broker_is_finished_then_let_go() -> None:
    made = members(A, B)
    assert made.refresh([B], 10) == [Drain(A)]
    assert made.states[A] is State.DRAINING
    assert made.drained(A, 20) == [HangUp(A)]
    assert made.states == {B: State.OPEN}
    assert made.tick(10**9) == []


def test_a_broker_that_is_listed_again_while_it_drains_is_dialled_again_after_it() -> None:
    made = members(A, B)
    made.refresh([B], 10)
    assert made.refresh([A, B], 20) == []
    assert made.drained(A, 30) == [HangUp(A)]
    assert made.tick(30) == [Dial(A)]


def test_a_drain_that_takes_too_long_is_given_up() -> None:
    made = members(A, B)
    made.refresh([B], 10)
    assert made.next_due_ms() == 10 + DRAIN_MS
    assert made.tick(9 + DRAIN_MS) == []
    assert made.tick(10 + DRAIN_MS) == [HangUp(A)]
    assert A not in made.states


@pytest.mark.parametrize("broker", [A, "unknown"])
def test_an_open_that_nobody_dialled_is_a_bug(broker: str) -> None:
    with pytest.raises(AssertionError):
        members(A).opened(broker)


BROKERS = (A, B, "mb3:5672")


def test_a_broker_that_is_not_ours_is_never_dialled_and_is_let_go_when_it_ceases_to_be() -> None:
    listed = [f"mb{number}" for number in range(20)]
    subset = Subset(slot=0, slots=4, cover=1)
    members = Membership(subset=subset)
    dialled = {action.broker for action in members.refresh(listed, 0) if isinstance(action, Dial)}
    assert dialled == subset.of(listed)
    assert 0 < len(dialled) < len(listed)
    assert members.states.keys() == dialled


class AgainstATable(RuleBasedStateMachine):
    """Machine whose oracle keeps sets instead of states, and dictionaries of due times."""

    def __init__(self) -> None:
        super().__init__()
        self.members = Membership(
            backoff_first_ms=FIRST_MS, backoff_max_ms=MAX_MS, drain_ms=DRAIN_MS
        )
        self.now_ms = 0
        self.listed: set[str] = set()
        self.waiting: dict[str, int] = {}
        self.draining: dict[str, int] = {}
        self.dialing: set[str] = set()
        self.open: set[str] = set()
        self.failures = dict.fromkeys(BROKERS, 0)
        self.dialed_ms: dict[str, int] = {}

    def expect_tick(self) -> list[object]:
        expected: list[object] = []
        for broker in sorted({*self.waiting, *self.draining}):
            if self.waiting.get(broker, self.now_ms + 1) <= self.now_ms:
                del self.waiting[broker]
                self.dialing.add(broker)
                self.dialed_ms[broker] = self.now_ms
                expected.append(Dial(broker, self.failures[broker]))
            elif self.draining.get(broker, self.now_ms + 1) <= self.now_ms:
                expected += self.expect_drained(broker)
        return expected

    def expect_drained(self, broker: str) -> list[object]:
        if broker not in self.draining:
            return []
        del self.draining[broker]
        self.failures[broker] = 0
        if broker in self.listed:
            self.waiting[broker] = self.now_ms
        return [HangUp(broker)]

    @rule(listed=st.sets(st.sampled_from(BROKERS)))
    def refresh(self, listed: set[str]) -> None:
        expected: list[object] = []
        if listed:
            self.listed = listed
            known = {*self.waiting, *self.draining, *self.dialing, *self.open}
            for broker in listed - known:
                self.waiting[broker], self.failures[broker] = self.now_ms, 0
            for broker in sorted(known - listed):
                self.waiting.pop(broker, None)
                if broker in self.dialing:
                    self.dialing.remove(broker)
                    expected.append(HangUp(broker))
                if broker in self.open:
                    self.open.remove(broker)
                    self.draining[broker] = self.now_ms + DRAIN_MS
                    expected.append(Drain(broker))
            expected += self.expect_tick()
        assert self.members.refresh(listed, self.now_ms) == expected

    @rule(later_ms=st.sampled_from([0, 1, 50, 100, 1_000, 5_000, DRAIN_MS]))
    def wait(self, later_ms: int) -> None:
        self.now_ms += later_ms
        expected = self.expect_tick()
        assert self.members.tick(self.now_ms) == expected

    @rule(data=st.data())
    def dial_succeeds(self, data: st.DataObject) -> None:
        if self.dialing:
            broker = data.draw(st.sampled_from(sorted(self.dialing)))
            self.dialing.remove(broker)
            self.open.add(broker)
            self.members.opened(broker)

    @rule(broker=st.sampled_from(BROKERS), share=st.floats(0, 1))
    def link_ends(self, broker: str, share: float) -> None:
        if broker in self.waiting:
            return  # there is none
        if (
            broker in {*self.draining, *self.open}
            and self.now_ms - self.dialed_ms[broker] >= MAX_MS
        ):
            self.failures[broker] = 0
        known = broker in {*self.draining, *self.dialing, *self.open}
        self.draining.pop(broker, None)
        self.dialing.discard(broker)
        self.open.discard(broker)
        if known and broker in self.listed:
            self.failures[broker] += 1
            self.waiting[broker] = self.now_ms + backoff_ms(
                self.failures[broker], first_ms=FIRST_MS, max_ms=MAX_MS, share=share
            )
        self.members.lost(broker, self.now_ms, share)

    @rule(broker=st.sampled_from(BROKERS))
    def nothing_is_owed(self, broker: str) -> None:
        expected = self.expect_drained(broker)
        assert self.members.drained(broker, self.now_ms) == expected

    @invariant()
    def states_agree(self) -> None:
        assert self.members.states == {
            **dict.fromkeys(self.waiting, State.WAITING),
            **dict.fromkeys(self.dialing, State.DIALING),
            **dict.fromkeys(self.open, State.OPEN),
            **dict.fromkeys(self.draining, State.DRAINING),
        }

    @invariant()
    def who_drains_is_told(self) -> None:
        assert self.members.draining == self.draining.keys()

    @invariant()
    def whatever_waits_is_due_within_a_bound(self) -> None:
        due_ms = self.members.next_due_ms()
        timed = [*self.waiting.values(), *self.draining.values()]
        assert due_ms == (min(timed) if timed else None)
        if due_ms is not None:
            assert due_ms <= self.now_ms + max(MAX_MS, DRAIN_MS)

    @invariant()
    def every_listed_broker_is_attached_or_on_its_way(self) -> None:
        assert self.listed <= self.members.states.keys()


TestAgainstATable = AgainstATable.TestCase
TestAgainstATable.settings = settings(
    max_examples=examples(80), stateful_step_count=40, deadline=None
)


def shares(slots: int, cover: int, brokers: list[str] = MANY) -> list[frozenset[str]]:
    return [Subset(slot=slot, slots=slots, cover=cover).of(brokers) for slot in range(slots)]


@given(
    st.integers(1, 12),
    st.integers(1, 4),
    st.sets(st.integers(0, 1 << 32).map("mb{}:5672".format), max_size=20),
)
@settings(max_examples=examples(100), deadline=None)
def test_every_broker_is_taken_by_as_many_consumers_as_wanted(
    slots: int, cover: int, brokers: set[str]
) -> None:
    taken = Counter(b for share in shares(slots, cover, sorted(brokers)) for b in share)
    assert taken == dict.fromkeys(brokers, min(cover, slots))


def test_consumers_have_about_as_many_brokers_each() -> None:
    sizes = [len(share) for share in shares(slots=20, cover=4)]
    assert sum(sizes) == 400
    assert 8 <= min(sizes) <= max(sizes) <= 36


def test_one_more_broker_moves_no_other() -> None:
    before, after = shares(8, 2), shares(8, 2, [*MANY, "new.example:5672"])
    assert [share - {"new.example:5672"} for share in after] == before


def test_one_more_consumer_takes_only_its_own_share() -> None:
    before, after = shares(8, 2), shares(9, 2)
    lost = sum(len(old - new) for old, new in zip(before, after[:8], strict=True))
    assert all(new <= old for old, new in zip(before, after[:8], strict=True))
    assert lost == len(after[8])


@pytest.mark.parametrize("slot", [-1, 3])
def test_a_slot_that_is_not_there_is_a_bug(slot: int) -> None:
    with pytest.raises(AssertionError):
        Subset(slot=slot, slots=3, cover=1)


NEWER, SAME, REFUSED = Judgement.NEWER, Judgement.SAME, Judgement.REFUSED


def keeper(**fields: object) -> ListKeeper:
    made = ListKeeper(cluster="prod", hosts_allowed=("mb*.example", "10.0.0.?"))
    return dataclasses.replace(made, **fields)  # type: ignore[arg-type]


def judge(
    made: ListKeeper,
    generation: int,
    *,
    cluster: str = "prod",
    hosts: tuple[str, ...] = ("mb1.example",),
    now_ms: int = 1_000,
) -> Judgement:
    return made.judge(generation=generation, cluster=cluster, hosts=hosts, now_ms=now_ms)[0]


@pytest.mark.parametrize(
    ("in_hand", "arrived", "expected"),
    [
        (-1, 0, NEWER),
        (-1, 1, NEWER),
        (0, 0, NEWER),
        (0, 1, NEWER),
        (5, 6, NEWER),
        (5, 5, SAME),
        (5, 4, REFUSED),
        (5, 0, REFUSED),
    ],
)
def test_only_a_newer_generation_replaces_a_list(
    in_hand: int, arrived: int, expected: Judgement
) -> None:
    made = keeper(generation=in_hand)
    assert judge(made, arrived) is expected
    assert made.generation == (in_hand if expected is REFUSED else arrived)


@pytest.mark.parametrize(
    ("cluster", "hosts", "word"),
    [
        ("test", ("mb1.example",), "cluster 'test'"),
        ("", ("mb1.example",), "cluster ''"),
        ("prod", ("mb1.example", "evil.example"), "host 'evil.example'"),
        ("prod", ("mb1.example.evil",), "host 'mb1.example.evil'"),
        ("prod", ("MB1.example",), "host 'MB1.example'"),
    ],
)
def test_a_refused_list_changes_nothing_and_says_why(
    cluster: str, hosts: tuple[str, ...], word: str
) -> None:
    made = keeper(generation=3, good_ms=500)
    before = dataclasses.asdict(made)
    judgement, reason = made.judge(generation=4, cluster=cluster, hosts=iter(hosts), now_ms=9_000)
    assert (judgement, dataclasses.asdict(made)) == (REFUSED, before)
    assert word in reason


def test_an_older_list_says_both_generations() -> None:
    _, reason = keeper(generation=7).judge(generation=3, cluster="prod", hosts=(), now_ms=0)
    assert "3" in reason
    assert "7" in reason


def test_any_cluster_and_host_will_do_when_none_is_configured() -> None:
    assert judge(ListKeeper(), 1, cluster="whatever", hosts=("anything",)) is NEWER


def test_the_age_of_the_last_good_answer_is_visible() -> None:
    made = keeper()
    assert made.age_ms(5_000) is None
    made.failed()
    assert made.age_ms(5_000) is None
    judge(made, 1, now_ms=5_000)
    assert made.age_ms(6_500) == 1_500
    made.unchanged(7_000)
    assert made.age_ms(7_000) == 0
    judge(made, 0, now_ms=8_000)  # refused: older
    assert made.age_ms(8_000) == 1_000


def test_faults_are_counted_and_a_good_answer_ends_the_row() -> None:
    made = keeper()
    made.failed()
    made.failed()
    assert (made.faults, made.faults_in_a_row) == (2, 2)
    judge(made, 1)
    assert (made.faults, made.faults_in_a_row) == (2, 0)
    made.failed()
    made.unchanged(1)
    assert (made.faults, made.faults_in_a_row) == (3, 0)


LISTS = st.tuples(
    st.integers(0, 5),
    st.sampled_from(["prod", "test"]),
    st.sets(st.sampled_from(["mb1.example", "10.0.0.1", "evil"]), min_size=1),
)


@given(st.lists(LISTS, max_size=12))
def test_the_list_in_hand_is_the_newest_of_the_acceptable_ones(
    lists: list[tuple[int, str, set[str]]],
) -> None:
    made = keeper()
    believed: list[int] = []
    for now_ms, (generation, cluster, hosts) in enumerate(lists):
        acceptable = (
            cluster == "prod"
            and hosts <= {"mb1.example", "10.0.0.1"}
            and generation >= max(believed, default=-1)
        )
        new = acceptable and (generation == 0 or generation > max(believed, default=-1))
        expected = (NEWER if new else SAME) if acceptable else REFUSED
        assert judge(made, generation, cluster=cluster, hosts=tuple(hosts), now_ms=now_ms) is (
            expected
        )
        if acceptable:
            believed.append(generation)
            assert made.good_ms == now_ms
        assert made.generation == max(believed, default=-1)


def test_a_listed_broker_is_untried_until_it_is_attached_or_a_dial_failed() -> None:
    made, told = Membership(), list[bool]()
    made.refresh([A, B], 0)
    told.append(made.untried)
    made.opened(A)
    told.append(made.untried)
    made.lost(B, 0, 0.5)
    told.append(made.untried)
    made.refresh([A, B, "mb3:5672"], 10)
    told.append(made.untried)
    assert told == [True, True, False, True]
