"""core.once: what of a consumer's deliveries is claimed, handed out, acked, held and given back, and when.

Each `Consumer` here talks to records that `core.claims` changes, as every store does.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from messagebus.core import claims, once, turns
from messagebus.core.claims import DONE, KEY_BYTES, PARKED, WAITING, Answer, Record, Rule, Turn
from messagebus.core.once import Claims, Orders
from messagebus.core.turns import SEED_BYTES, Turns
from messagebus.core.waiting import ASK_MAX_MS, CALM_MS
from tests.support.examples import examples

LEASE_MS = 30_000
RULE = Rule(LEASE_MS, remember_ms=86_400_000, unended_max=5)


def key_of(item: str) -> bytes:
    """Return the key of a delivery: "a2" is the second copy of "a"."""
    return item[0].encode() * KEY_BYTES


class Store:
    """Records, and the time that all consumers share."""

    def __init__(self) -> None:
        self.records: dict[bytes, Record] = {}
        self.now_ms = 1_000
        self.consumers = 0

    def state(self, item: str) -> int:
        record = self.records.get(key_of(item))
        return record.state if record else 0


class Consumer:
    """A consumer with deliveries such as "a1". seen: all orders since the last `took`."""

    def __init__(self, store: Store | None = None, rule: Rule = RULE, **options: Any) -> None:
        self.store, self.rule = store or Store(), rule
        self.store.consumers += 1
        seed = bytes([self.store.consumers]).ljust(SEED_BYTES, b"\0")
        self.ages: dict[str, int] = options.pop("ages", {})
        away = options.pop("run_when_away", False)
        self.once: Claims[str] = Claims(rule, **options)
        self.turns = Turns(self.once, seed, run_when_away=away)

    @property
    def now_ms(self) -> int:
        return self.store.now_ms

    def later(self, ms: int) -> None:
        self.store.now_ms += ms

    def arrived(self, *items: str) -> None:
        ages = self.ages
        self.once.arrived([(key_of(item), item, ages.get(item, 0)) for item in items], self.now_ms)

    def turn(self) -> Turn | None:
        return self.turns.turn(self.now_ms)

    def carry_out(self, turn: Turn) -> Answer:
        return claims.apply(self.store.records, turn, self.rule, self.now_ms)

    def talk(self) -> Orders[str]:
        """Carry out turns until there is none; return the orders since the last call."""
        while (turn := self.turn()) is not None:
            self.turns.answered(self.carry_out(turn), self.now_ms)
        return self.took()

    def talk_once(self) -> Orders[str]:
        """Carry out one turn, if there is one; return the orders since the last call."""
        if (turn := self.turn()) is not None:
            self.turns.answered(self.carry_out(turn), self.now_ms)
        return self.took()

    def lose(self, *, reply: bool = False) -> Turn:
        """Lose a turn, or its reply."""
        turn = self.turn()
        assert turn is not None
        if reply:
            self.carry_out(turn)
        self.turns.away(self.now_ms)
        return turn

    def took(self) -> Orders[str]:
        return self.once.take() or Orders()

    def start(self, *items: str) -> None:
        """Let these arrive and begin their runs."""
        self.arrived(*items)
        assert self.talk().hand_out == list(items)
        assert all(self.once.may_start(item, self.now_ms) for item in items)


def crashed(store: Store, times: int, *items: str) -> None:
    """Leave so many runs of each message without an end."""
    for _ in range(times):
        dead = Consumer(store)
        dead.arrived(*items)
        dead.talk()
        dead.later(CALM_MS)
        dead.talk()
        store.now_ms += LEASE_MS


def test_nothing_is_handed_out_before_its_claim_and_nothing_acked_before_it_is_stored() -> None:
    consumer = Consumer()
    consumer.arrived("a1")
    assert consumer.took() == Orders()
    assert consumer.talk() == Orders(hand_out=["a1"])
    assert consumer.once.may_start("a1", consumer.now_ms)
    assert consumer.once.ended("a1")
    assert consumer.took() == Orders()
    assert consumer.store.state("a1") != DONE
    assert not consumer.turns.has_reported_all
    assert consumer.talk() == Orders(ack=["a1"])
    assert consumer.store.state("a1") == DONE
    assert consumer.turns.is_idle


def test_when_the_store_is_back_nothing_is_handed_out_without_a_claim_again() -> None:
    consumer = Consumer(run_when_away=True)
    consumer.arrived("a1")
    consumer.lose()
    assert consumer.took().hand_out == ["a1"]
    consumer.later(ASK_MAX_MS)
    consumer.talk()
    consumer.arrived("b1")
    assert consumer.took() == Orders()


def test_what_is_asked_for_while_it_is_held_is_held_once() -> None:
    other = Consumer()
    other.start("a1")
    consumer = Consumer(other.store)
    consumer.arrived("a2")
    consumer.talk()
    consumer.once.ask(["a2"])
    consumer.talk()
    assert consumer.once.held.count == 1
    consumer.later(ASK_MAX_MS)
    consumer.talk()
    assert consumer.once.held.count == 1


def test_a_run_that_failed_is_given_back_before_its_message_comes_again() -> None:
    consumer = Consumer()
    consumer.start("a1")
    consumer.once.given_back("a1")
    assert consumer.took() == Orders()
    assert consumer.once.holds("a1")
    assert consumer.talk() == Orders(released=["a1"])
    assert consumer.store.state("a1") == WAITING
    assert not consumer.once.holds("a1")
    consumer.start("a2")


def test_a_message_is_parked_in_the_store_before_it_is_acked() -> None:
    consumer = Consumer()
    consumer.start("a1")
    consumer.once.parked("a1")
    assert consumer.took() == Orders()
    assert consumer.talk() == Orders(ack=["a1"])
    assert consumer.store.state("a1") == PARKED


def test_an_end_counts_once_and_that_of_a_stranger_is_refused() -> None:
    consumer = Consumer()
    consumer.start("a1")
    assert consumer.once.ended("a1")
    consumer.once.given_back("a1")
    assert consumer.talk() == Orders(ack=["a1"])
    assert not consumer.once.ended("a1")
    assert not consumer.once.may_start("a1", consumer.now_ms)
    assert consumer.turn() is None


def test_one_turn_is_on_its_way_at_a_time_and_what_comes_meanwhile_goes_with_the_next() -> None:
    consumer = Consumer()
    consumer.arrived("a1")
    turn = consumer.turn()
    assert turn is not None
    consumer.arrived("b1")
    assert consumer.turn() is None
    assert consumer.turns.wake_ms() is None
    consumer.turns.answered(consumer.carry_out(turn), consumer.now_ms)
    following = consumer.turn()
    assert following is not None
    assert following.claim == [key_of("b1")]
    assert following.token != turn.token


def test_a_turn_asks_for_a_bounded_number_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "CLAIMS_MAX", 2)
    consumer = Consumer()
    consumer.arrived("a1", "b1", "c1", "d1", "e1")
    found = []
    while (turn := consumer.turn()) is not None:
        found.append([key[:1].decode() for key in turn.claim])
        consumer.turns.answered(consumer.carry_out(turn), consumer.now_ms)
    assert found == [["a", "b"], ["c", "d"], ["e"]]


def test_a_run_that_did_not_begin_after_all_asks_for_leave_again() -> None:
    consumer = Consumer()
    consumer.start("a1")
    consumer.once.not_started("a1")
    consumer.later(LEASE_MS)
    assert not consumer.once.may_start("a1", consumer.now_ms)


def test_a_copy_of_what_was_done_is_acked_without_a_call() -> None:
    consumer = Consumer()
    consumer.start("a1")
    consumer.once.ended("a1")
    consumer.talk()
    consumer.arrived("a2", "a3")
    assert consumer.turn() is None
    assert consumer.took() == Orders(ack=["a2", "a3"])
    assert consumer.once.counters.duplicates == 2


def is_believed(remember_ms: int, done_after_ms: int, asked_after_ms: int, step_ms: int) -> bool:
    """Return whether a copy is acked without a call, this time after the message was done."""
    consumer = Consumer(rule=Rule(100, remember_ms, 5))
    consumer.arrived("y1")
    consumer.later(done_after_ms)
    consumer.arrived("a1")
    consumer.talk()
    consumer.once.ended("a1")
    consumer.talk()
    for _ in range(asked_after_ms // step_ms):
        consumer.later(step_ms)
        consumer.arrived("y2")
    consumer.later(asked_after_ms % step_ms)
    consumer.arrived("a2")
    return not consumer.once.holds("a2")


@pytest.mark.parametrize("remember_ms", [60_000, 86_400_000, 1_000])
def test_what_was_done_is_believed_for_a_minute_at_most_and_no_longer_than_its_record_lives(
    remember_ms: int,
) -> None:
    most_ms = min(once.RECENT_MS, remember_ms)
    for done_after_ms in (0, most_ms // 4, most_ms // 2 - 1, most_ms // 2, most_ms):
        for step_ms in (most_ms // 7, most_ms // 2 - 1, most_ms * 2):
            found = [
                is_believed(remember_ms, done_after_ms, after_ms, step_ms)
                for after_ms in (most_ms // 2 - 1, most_ms, most_ms * 2)
            ]
            assert found == [True, False, False]


@pytest.mark.guarantee("dedup-waits-are-bounded")
def test_the_number_of_recent_keys_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(once, "RECENT_MAX", 4)
    consumer, names = Consumer(), "abcdefgh"
    for name in names:
        consumer.start(f"{name}1")
        consumer.once.ended(f"{name}1")
        consumer.talk()
    consumer.arrived(*[f"{name}2" for name in names])
    known = consumer.took().ack
    assert 2 <= len(known) <= 4
    assert set(known) <= {"e2", "f2", "g2", "h2"}
    assert consumer.talk() == Orders(ack=[f"{name}2" for name in names if f"{name}2" not in known])


def test_what_another_consumer_has_done_or_parked_is_acked_and_counted() -> None:
    store = Store()
    first, second = Consumer(store), Consumer(store)
    first.start("a1", "b1")
    first.once.ended("a1")
    first.once.parked("b1")
    first.talk()
    second.arrived("a2", "b2")
    assert second.talk() == Orders(ack=["a2", "b2"])
    assert second.once.counters.duplicates == 2
    assert second.turns.is_idle


@pytest.mark.parametrize("end", ["ended", "parked"])
def test_copies_wait_for_the_first_one_and_take_its_end(end: str) -> None:
    consumer = Consumer()
    consumer.arrived("a1", "a2")
    assert consumer.talk() == Orders(hand_out=["a1"])
    consumer.once.may_start("a1", consumer.now_ms)
    consumer.arrived("a3")
    assert consumer.talk() == Orders()
    assert not consumer.once.may_start("a2", consumer.now_ms)
    getattr(consumer.once, end)("a2")  # which never ran
    assert consumer.talk() == Orders()
    getattr(consumer.once, end)("a1")
    assert consumer.talk() == Orders(ack=["a1", "a2", "a3"])
    assert (consumer.once.counters.deferred, consumer.once.counters.duplicates) == (2, 2)
    assert consumer.turns.is_idle


@pytest.mark.parametrize("granted", [False, True])
def test_one_that_comes_again_in_its_place_goes_before_its_copies(granted: bool) -> None:
    consumer = Consumer()
    consumer.start("a1")
    consumer.arrived("a2", "a3")
    consumer.once.given_back("a1")
    turn = consumer.turn()
    assert turn is not None
    consumer.turns.answered(consumer.carry_out(turn), consumer.now_ms)
    assert consumer.took() == Orders(released=["a1"])
    if granted:
        assert consumer.talk() == Orders(hand_out=["a2"])
    consumer.once.comes_again(key_of("a1"), "a1", 0, consumer.now_ms)
    assert consumer.talk() == Orders(hand_out=["a1"])
    assert not consumer.once.may_start("a2", consumer.now_ms)
    assert consumer.once.may_start("a1", consumer.now_ms)
    consumer.once.ended("a1")
    assert consumer.talk() == Orders(ack=["a1", "a2", "a3"])
    assert consumer.turns.is_idle


def test_a_claim_that_is_let_go_is_anybodys_until_it_is_asked_for_again() -> None:
    store = Store()
    consumer, other = Consumer(store), Consumer(store)
    consumer.arrived("a1", "b1")
    assert consumer.talk() == Orders(hand_out=["a1", "b1"])
    assert consumer.once.may_start("a1", consumer.now_ms)
    consumer.once.let_go(["a1", "b1"])  # one of them runs
    assert consumer.talk() == Orders()
    other.start("b2")
    consumer.once.ask(["b1"])
    assert consumer.talk().held == ["b1"]
    other.once.ended("b2")
    assert other.talk() == Orders(ack=["b2"])
    consumer.once.ask(["a1", "b1"])
    assert consumer.talk() == Orders(ack=["b1"])
    consumer.once.ended("a1")
    assert consumer.talk() == Orders(ack=["a1"])
    assert consumer.turns.is_idle


def test_a_copy_that_takes_the_place_of_one_whose_claim_was_let_go_is_asked_for() -> None:
    consumer = Consumer()
    consumer.arrived("a1", "a2")
    assert consumer.talk() == Orders(hand_out=["a1"])
    consumer.once.let_go(["a1"])
    assert consumer.talk() == Orders()
    consumer.once.dropped(["a1"])
    assert consumer.talk() == Orders(hand_out=["a2"])


def test_one_that_comes_again_waits_for_a_copy_that_runs_by_now() -> None:
    consumer = Consumer()
    consumer.start("a1")
    consumer.arrived("a2")
    consumer.once.given_back("a1")
    assert consumer.talk() == Orders(released=["a1"], hand_out=["a2"])
    assert consumer.once.may_start("a2", consumer.now_ms)
    consumer.once.comes_again(key_of("a1"), "a1", 0, consumer.now_ms)
    assert consumer.talk() == Orders()
    consumer.once.ended("a2")
    assert consumer.talk() == Orders(ack=["a2", "a1"])
    assert consumer.turns.is_idle


def test_when_the_first_one_failed_its_copies_are_asked_for_and_one_runs() -> None:
    consumer = Consumer()
    consumer.start("a1")
    consumer.arrived("a2", "a3")
    consumer.once.given_back("a1")
    assert consumer.talk() == Orders(released=["a1"], hand_out=["a2"])
    assert consumer.once.may_start("a2", consumer.now_ms)
    consumer.once.ended("a2")
    assert consumer.talk() == Orders(ack=["a2", "a3"])


@pytest.mark.guarantee("dedup-waits-are-bounded")
def test_copies_above_the_limit_come_again_later() -> None:
    consumer = Consumer(deferred_max=2)
    consumer.start("a1", "b1")
    consumer.arrived("a2", "b2", "a3", "b3")
    assert consumer.took() == Orders(defer=[("a3", 5_000), ("b3", 5_000)])
    assert not consumer.once.holds("a3")
    consumer.once.ended("a1")
    consumer.talk()
    consumer.arrived("b4", "b5")
    assert consumer.took() == Orders(defer=[("b5", 5_000)])


def test_where_order_is_kept_every_copy_is_held() -> None:
    consumer = Consumer(deferred_max=0)
    consumer.once.held.keep_all()
    consumer.arrived("a1", "a2", "a3")
    assert consumer.took() == Orders(held=["a2", "a3"])


def held(deferred_max: int = 100, items: Iterable[str] = ("a2",)) -> tuple[Consumer, Consumer]:
    """Return one consumer that runs messages, and another that has asked for them."""
    store = Store()
    first, second = Consumer(store), Consumer(store, deferred_max=deferred_max)
    first.start(*[f"{item[0]}1" for item in items])
    second.arrived(*items)
    return first, second


@pytest.mark.guarantee("dedup-waits-are-bounded")
def test_what_another_runs_is_asked_for_again_after_50_100_and_up_to_5000_ms() -> None:
    first, second = held()
    assert second.talk() == Orders()
    asked_ms = [second.now_ms]
    while len(asked_ms) < 10:
        wake_ms = second.turns.wake_ms()
        assert wake_ms is not None
        second.later(wake_ms - second.now_ms - 1)
        assert second.turn() is None
        second.later(1)
        first.talk()  # it extends
        if (turn := second.turn()) is not None:
            assert turn.claim == [key_of("a2")]
            asked_ms.append(second.now_ms)
            second.turns.answered(second.carry_out(turn), second.now_ms)
            assert second.took() == Orders()
    steps = [after - before for before, after in pairwise(asked_ms)]
    assert steps == [50, 100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]
    assert second.once.counters.deferred == 1


def test_what_another_runs_is_asked_for_at_the_end_of_its_lease_and_run_after_a_crash() -> None:
    _first, second = held()
    second.later(LEASE_MS - 20)
    assert second.talk() == Orders()
    assert second.turns.wake_ms() == 1_000 + LEASE_MS
    second.later(20)
    assert second.talk() == Orders(hand_out=["a2"])


def test_what_another_has_ended_is_acked_and_what_it_gave_back_is_run() -> None:
    first, second = held(items=("a2", "b2"))
    assert second.talk() == Orders()
    first.once.ended("a1")
    first.once.given_back("b1")
    first.talk()
    second.later(50)
    assert second.talk() == Orders(ack=["a2"], hand_out=["b2"])


@pytest.mark.guarantee("dedup-waits-are-bounded")
def test_held_above_the_limit_comes_again_by_a_copy_after_the_rest_of_the_lease() -> None:
    _first, second = held(deferred_max=1, items=("a2", "b2"))
    second.later(1_000)
    assert second.talk() == Orders(defer=[("b2", LEASE_MS - 1_000)])
    assert (second.once.holds("a2"), second.once.holds("b2")) == (True, False)
    assert second.once.counters.deferred == 2


def test_what_is_held_no_more_leaves_room() -> None:
    _first, second = held(deferred_max=1, items=("a2", "b2", "c2"))
    assert [item for item, _ms in second.talk().defer] == ["b2", "c2"]
    second.once.dropped(["a2"])
    second.arrived("b3")
    assert second.talk() == Orders()
    second.once.given_back("b3")  # returned unseen
    assert second.talk() == Orders(released=["b3"])
    second.arrived("c3")
    assert second.talk() == Orders()


def test_a_message_that_is_held_with_copies_above_the_limit_goes_with_all_of_them() -> None:
    _first, second = held(deferred_max=1)
    second.arrived("a3")
    assert second.talk() == Orders(defer=[("a2", LEASE_MS), ("a3", LEASE_MS)])
    assert second.turns.is_idle


def test_claims_are_extended_when_a_third_of_their_lease_is_over() -> None:
    consumer = Consumer()
    consumer.start("a1")
    consumer.later(LEASE_MS // 3 - 1)
    assert consumer.turn() is None
    consumer.later(1)
    consumer.turns.wake_ms()
    turn = consumer.turn()
    assert turn is not None
    assert [held.key for held in turn.extend] == [key_of("a1")]
    consumer.turns.answered(consumer.carry_out(turn), consumer.now_ms)
    assert consumer.store.records[key_of("a1")].lease_ms == consumer.now_ms + LEASE_MS
    assert consumer.turns.wake_ms() == consumer.now_ms + LEASE_MS // 3
    consumer.once.ended("a1")
    consumer.later(LEASE_MS)
    turn = consumer.turn()
    assert turn is not None
    assert not turn.extend


def test_an_extension_without_an_answer_is_repeated_with_the_next_try() -> None:
    consumer = Consumer()
    consumer.start("a1")
    consumer.later(LEASE_MS // 3)
    first = consumer.lose()
    consumer.later(50)
    assert consumer.lose().extend == first.extend


@pytest.mark.guarantee("unseen-is-anybodys")
def test_a_claim_that_ran_out_while_it_waited_is_given_back_and_asked_for_again() -> None:
    consumer = Consumer()
    consumer.arrived("a1")
    assert consumer.talk() == Orders(hand_out=["a1"])
    consumer.later(LEASE_MS)
    assert not consumer.once.may_start("a1", consumer.now_ms)
    assert not consumer.once.may_start("a1", consumer.now_ms)
    turn = consumer.turn()
    assert turn is not None
    assert ([held.key for held in turn.release], turn.claim) == ([key_of("a1")], [key_of("a1")])
    consumer.turns.answered(consumer.carry_out(turn), consumer.now_ms)
    assert consumer.took() == Orders(hand_out=["a1"])
    assert consumer.once.may_start("a1", consumer.now_ms)
    assert consumer.store.records[key_of("a1")].unended == 1


def test_a_lease_counts_from_the_moment_that_its_turn_was_sent() -> None:
    consumer = Consumer()
    consumer.arrived("a1")
    turn = consumer.turn()
    assert turn is not None
    answer = consumer.carry_out(turn)
    consumer.later(LEASE_MS)
    consumer.turns.answered(answer, consumer.now_ms)
    assert not consumer.once.may_start("a1", consumer.now_ms)


def test_a_lease_that_was_lost_at_work_is_counted_and_the_run_goes_on() -> None:
    store = Store()
    first, second = Consumer(store), Consumer(store)
    first.start("a1")
    first.arrived("b1")
    first.talk()
    first.later(LEASE_MS)
    second.arrived("a2", "b2")
    assert second.talk().hand_out == ["a2", "b2"]
    assert first.talk() == Orders()
    assert first.once.counters.leases_lost == 1
    assert not first.once.may_start("b1", first.now_ms)  # it had not begun
    first.once.ended("a1")
    assert first.talk().ack == ["a1"]
    assert store.state("a1") == DONE


@pytest.mark.guarantee("unseen-is-anybodys")
def test_what_goes_back_unseen_is_anybodys_at_once() -> None:
    store = Store()
    first, second = Consumer(store), Consumer(store)
    first.arrived("a1", "b1")
    first.talk()
    first.once.dropped(["a1"])
    assert not first.once.holds("a1")
    first.talk()
    second.arrived("a2")
    assert second.talk() == Orders(hand_out=["a2"])
    assert store.records[key_of("a1")].unended == 1


def test_what_goes_back_while_it_is_asked_for_is_given_back_and_not_handed_out() -> None:
    consumer = Consumer()
    consumer.arrived("a1")
    turn = consumer.turn()
    assert turn is not None
    consumer.once.dropped(["a1"])
    consumer.arrived("a2")
    consumer.turns.answered(consumer.carry_out(turn), consumer.now_ms)
    assert consumer.took() == Orders()
    assert consumer.talk() == Orders(hand_out=["a2"])
    assert consumer.store.records[key_of("a1")].unended == 1


def test_when_a_delivery_goes_back_its_copy_takes_its_place() -> None:
    consumer = Consumer()
    consumer.arrived("a1", "a2", "a3")
    consumer.once.dropped(["a1"])
    assert consumer.talk() == Orders(hand_out=["a2"])
    consumer.once.dropped(["a2"])
    assert consumer.talk() == Orders(hand_out=["a3"])
    assert consumer.once.may_start("a3", consumer.now_ms)
    consumer.once.ended("a3")
    assert consumer.talk() == Orders(ack=["a3"])


def test_when_all_copies_go_back_the_claim_does_too() -> None:
    consumer = Consumer()
    consumer.arrived("a1", "a2", "a3")
    consumer.talk()
    consumer.once.dropped(["a1", "a2", "a3", "x1"])
    assert consumer.talk() == Orders()
    assert consumer.turns.is_idle
    assert consumer.store.state("a1") == WAITING


def test_the_end_of_a_run_is_stored_also_when_its_link_is_lost() -> None:
    consumer = Consumer()
    consumer.start("a1")
    consumer.arrived("a2")
    consumer.once.dropped(["a1", "a2"])
    assert consumer.once.holds("a1")
    consumer.arrived("a3")
    consumer.once.ended("a1")
    assert consumer.talk() == Orders(ack=["a1", "a3"])
    assert consumer.store.state("a1") == DONE


@pytest.mark.guarantee("never-run-never-acked")
def test_a_message_whose_runs_never_end_is_parked_with_the_reason_and_then_acked() -> None:
    store = Store()
    crashed(store, 5, "a1")
    consumer = Consumer(store)
    consumer.arrived("a2")
    assert consumer.talk() == Orders(park=[("a2", "5 runs never ended")])
    assert consumer.once.counters.unended == 1
    assert store.state("a2") not in (DONE, PARKED)
    consumer.once.parked("a2")
    assert consumer.talk() == Orders(ack=["a2"])
    assert store.state("a2") == PARKED


@pytest.mark.guarantee("suspects-run-alone")
def test_a_suspect_runs_beside_no_other_suspect() -> None:
    """The last three of five runs; what is not suspected runs on."""
    store = Store()
    crashed(store, 2, "a1", "b1", "c1")
    consumer = Consumer(store)
    consumer.arrived("a2", "b2", "c2", "d1")
    assert consumer.talk() == Orders(hand_out=["d1"])
    consumer.later(CALM_MS)
    assert consumer.talk() == Orders(hand_out=["a2"])
    consumer.once.may_start("a2", consumer.now_ms)
    assert consumer.talk() == Orders()
    assert store.state("b1") == store.state("c1") == WAITING
    consumer.once.ended("a2")
    assert consumer.talk() == Orders(ack=["a2"], hand_out=["b2"])
    consumer.once.dropped(["c2"])
    consumer.once.dropped(["b2"])
    consumer.arrived("c3")
    consumer.talk()
    consumer.later(CALM_MS)
    assert consumer.talk() == Orders(hand_out=["c3"])
    assert store.records[key_of("c3")].unended == 3


def suspects(*items: str, **options: Any) -> Consumer:
    """Return a consumer of these, all of them suspects; the first one of `is_next` has its turn."""
    store = Store()
    crashed(store, 2, *items)
    consumer = Consumer(store, **options)
    consumer.arrived(*items)
    assert consumer.talk() == Orders()
    consumer.later(CALM_MS)
    return consumer


@pytest.mark.guarantee("suspects-run-alone")
def test_messages_that_came_with_one_that_kills_are_never_parked_for_it() -> None:
    """Each process reads it first and dies at the begin of its run, with claims of the others under way."""
    store, parked = Store(), list[str]()
    for _ in range(RULE.unended_max + 1):
        consumer = Consumer(store)
        consumer.arrived("a1")
        behind = ["b1", "c1"]  # each comes with the next read
        while "a1" not in (orders := consumer.talk_once()).hand_out and not parked:
            parked += [item for item, _reason in orders.park]
            if behind:
                consumer.arrived(behind.pop(0))
            consumer.later(1)
        store.now_ms += LEASE_MS
    assert parked == ["a1"]
    assert store.records[key_of("b1")].unended < RULE.unended_max


def test_a_suspect_behind_others_of_its_lane_does_not_have_its_turn_before_one_that_can_run() -> (
    None
):
    lane = ["x1", "a1"]
    consumer = suspects("a1", "b1", is_next=lambda item: item not in lane[1:])
    assert consumer.talk() == Orders(hand_out=["b1"])
    consumer.once.may_start("b1", consumer.now_ms)
    consumer.once.ended("b1")
    assert consumer.talk() == Orders(ack=["b1"])
    assert consumer.once.suspects.waiting
    del lane[0]
    assert consumer.talk() == Orders(hand_out=["a1"])


@pytest.mark.guarantee("endless-handler")
@pytest.mark.parametrize("ends", ["lease", "time limit"])
def test_a_suspect_whose_run_never_ends_holds_up_no_other(ends: str) -> None:
    consumer = suspects("a1", "b1", "c1")
    for item in ("a1", "b1"):
        assert consumer.talk().hand_out == [item]
        consumer.once.may_start(item, consumer.now_ms)
        assert consumer.talk() == Orders()
        if ends == "time limit":
            consumer.once.overran([item])
        else:
            consumer.later(LEASE_MS)
    assert consumer.talk().hand_out == ["c1"]
    consumer.once.ended("c1")
    assert consumer.talk().ack == ["c1"]


def test_a_turn_that_is_over_is_looked_at_in_time() -> None:
    consumer = suspects("a1", "b1")
    since_ms = consumer.now_ms
    consumer.talk()
    consumer.once.may_start("a1", consumer.now_ms)
    while not consumer.talk().hand_out:
        wake_ms = consumer.turns.wake_ms()
        assert wake_ms is not None
        assert consumer.now_ms < wake_ms <= since_ms + LEASE_MS
        consumer.store.now_ms = wake_ms


def test_a_suspect_that_is_parked_or_let_go_or_goes_back_passes_its_turn_on() -> None:
    store = Store()
    crashed(store, 4, "a1")
    crashed(store, 2, "b1", "c1")
    consumer = Consumer(store)
    consumer.arrived("a1", "b1", "c1")
    assert consumer.talk() == Orders()
    crashed(store, 1, "a1")
    orders = consumer.talk()
    assert [item for item, _reason in orders.park] == ["a1"]  # its parking never ends
    assert orders.hand_out == ["b1"]
    consumer.once.let_go(["b1"])
    assert consumer.talk().hand_out == ["c1"]


def test_a_copy_that_takes_the_place_of_a_suspect_waits_for_a_turn_of_its_own() -> None:
    behind = list[str]()
    consumer = suspects("a1", "b1", is_next=lambda item: item not in behind)
    consumer.arrived("a2")
    behind.append("a2")
    assert consumer.talk().hand_out == ["a1"]
    consumer.once.dropped(["a1"])
    assert consumer.talk().hand_out == []
    consumer.later(CALM_MS)
    assert consumer.talk().hand_out == ["b1"]
    consumer.once.ended("b1")
    assert consumer.talk().ack == ["b1"]
    behind.clear()
    assert consumer.talk().hand_out == ["a2"]


def test_suspects_run_without_a_store_one_after_the_other() -> None:
    consumer = suspects("a1", "b1", run_when_away=True)
    found = list[str]()
    for _ in range(2):
        consumer.lose()
        found += consumer.took().hand_out
        consumer.later(5_000)
    assert found == ["a1", "b1"]


def test_a_message_is_no_suspect_before_its_last_runs() -> None:
    store = Store()
    crashed(store, 1, "a1", "b1")
    consumer = Consumer(store)
    consumer.arrived("a2", "b2")
    assert consumer.talk() == Orders(hand_out=["a2", "b2"])


def test_a_suspect_that_another_runs_makes_room_for_the_next() -> None:
    store = Store()
    crashed(store, 2, "a1", "b1")
    first, second = Consumer(store), Consumer(store)
    first.arrived("a2")
    first.talk()
    first.later(CALM_MS)
    assert first.talk().hand_out == ["a2"]
    second.arrived("a3", "b3")
    second.talk()
    second.later(CALM_MS)
    assert second.talk().hand_out == ["b3"]
    crashed_alone = Consumer(store)
    crashed_alone.arrived("b4")
    crashed_alone.talk()
    crashed_alone.later(CALM_MS)
    assert crashed_alone.talk().hand_out == []


@pytest.mark.guarantee("key-order-inside-a-consumer")
def test_a_message_whose_runs_never_end_is_parked_when_nothing_of_its_lane_stands_before_it() -> (
    None
):
    """It waits for no turn: a suspect of another lane runs all the time."""
    store, lane = Store(), ["a1", "b1"]
    crashed(store, 5, "b1")
    crashed(store, 2, "c1", "d1")
    consumer = Consumer(store, is_next=lambda item: item not in lane[1:])
    consumer.arrived("a1", "b1", "c1", "d1")
    assert consumer.talk() == Orders(hand_out=["a1"])
    assert store.state("b1") == WAITING
    consumer.later(CALM_MS)
    assert consumer.talk() == Orders(hand_out=["c1"])
    assert all(consumer.once.may_start(item, consumer.now_ms) for item in ("a1", "c1"))
    consumer.once.ended("a1")
    assert consumer.talk() == Orders(ack=["a1"])
    assert consumer.once.suspects.waiting
    del lane[0]
    assert consumer.talk() == Orders(park=[("b1", "5 runs never ended")])
    assert consumer.once.counters.unended == 1
    consumer.once.parked("b1")
    assert consumer.talk() == Orders(ack=["b1"])
    consumer.once.ended("c1")
    assert consumer.talk() == Orders(ack=["c1"], hand_out=["d1"])


@pytest.mark.guarantee("too-old-is-counted")
@pytest.mark.parametrize("park", [False, True])
def test_a_message_older_than_the_stores_memory_and_unknown_to_it_is_run_or_parked(
    park: bool,
) -> None:
    ages = {"a1": RULE.remember_ms, "b1": RULE.remember_ms + 1}
    consumer = Consumer(park_too_old=park, ages=ages)
    consumer.arrived("a1", "b1")
    reason = "older than 86400 s, and unknown to the store"
    if park:
        assert consumer.talk() == Orders(hand_out=["a1"], park=[("b1", reason)])
    else:
        assert consumer.talk() == Orders(hand_out=["a1", "b1"])
    assert consumer.once.counters.too_old == 1


def test_a_message_that_the_store_knows_is_never_too_old() -> None:
    store = Store()
    crashed(store, 1, "a1")
    consumer = Consumer(store, ages={"a2": 1 << 40}, park_too_old=True)
    consumer.arrived("a2")
    assert consumer.talk() == Orders(hand_out=["a2"])
    assert consumer.once.counters.too_old == 0


def test_a_message_grows_too_old_while_the_store_is_away() -> None:
    consumer = Consumer(ages={"a1": RULE.remember_ms - 1_000}, park_too_old=True)
    consumer.arrived("a1")
    consumer.lose()
    consumer.later(5_000)
    orders = consumer.talk()
    assert (orders.hand_out, [item for item, _why in orders.park]) == ([], ["a1"])


@pytest.mark.guarantee("dedup-waits-are-bounded")
def test_a_store_that_is_away_is_asked_again_after_50_100_and_up_to_5000_ms() -> None:
    consumer = Consumer()
    consumer.arrived("a1")
    first = consumer.lose()
    waits = []
    for _ in range(9):
        wake_ms = consumer.turns.wake_ms()
        assert wake_ms is not None
        waits.append(wake_ms - consumer.now_ms)
        consumer.later(waits[-1] - 1)
        assert consumer.turn() is None
        consumer.later(1)
        assert consumer.lose() == first
    assert waits == [50, 100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]
    assert consumer.turns.away_ms(consumer.now_ms) == sum(waits)
    consumer.later(5_000)
    assert consumer.talk() == Orders(hand_out=["a1"])
    assert consumer.turns.away_ms(consumer.now_ms) is None
    consumer.arrived("b1")
    consumer.lose()
    assert consumer.turns.wake_ms() == consumer.now_ms + 50


def test_a_store_that_is_away_is_asked_also_when_there_is_nothing_to_say() -> None:
    consumer = Consumer()
    consumer.arrived("a1")
    consumer.lose()
    consumer.once.dropped(["a1"])
    consumer.later(50)
    assert consumer.turn() is not None


@pytest.mark.guarantee("lost-reply-costs-nothing")
def test_a_turn_whose_reply_was_lost_is_repeated_and_counts_once() -> None:
    consumer = Consumer()
    consumer.start("z1")
    consumer.arrived("a1", "b1")
    consumer.once.ended("z1")
    first = consumer.lose(reply=True)
    assert consumer.took() == Orders()
    consumer.arrived("c1")
    consumer.later(50)
    turn = consumer.turn()
    assert turn is not None
    assert (turn.token, turn.done) == (first.token, first.done)
    assert turn.claim == [*first.claim, key_of("c1")]
    consumer.turns.answered(consumer.carry_out(turn), consumer.now_ms)
    assert consumer.took() == Orders(ack=["z1"], hand_out=["a1", "b1", "c1"])
    assert consumer.store.records[key_of("a1")].unended == 1


@pytest.mark.guarantee("lost-reply-costs-nothing")
def test_what_was_given_back_behind_a_lost_reply_is_told_with_the_next_turn() -> None:
    consumer = Consumer()
    consumer.arrived("a1", "b1")
    consumer.talk()
    consumer.once.dropped(["a1"])
    consumer.lose()
    consumer.once.dropped(["b1"])
    consumer.later(50)
    assert not consumer.turns.has_reported_all
    consumer.talk()
    assert consumer.turns.is_idle
    assert consumer.store.state("a1") == consumer.store.state("b1") == WAITING


@pytest.mark.guarantee("store-away")
def test_one_that_waits_hands_out_and_acks_nothing_while_its_store_is_away() -> None:
    consumer = Consumer()
    consumer.start("a1")
    consumer.once.ended("a1")
    consumer.lose()
    consumer.arrived("b1", "a2")
    consumer.later(LEASE_MS)
    consumer.lose()
    assert consumer.took() == Orders()
    consumer.later(100)
    assert consumer.talk() == Orders(ack=["a1", "a2"], hand_out=["b1"])
    assert consumer.once.counters.undeduplicated == 0


@pytest.mark.guarantee("store-away")
def test_one_that_runs_on_hands_out_without_claims_acks_at_once_and_tells_later() -> None:
    consumer = Consumer(run_when_away=True)
    consumer.start("a1", "b1", "c1")
    consumer.once.ended("a1")
    consumer.arrived("d1")
    consumer.lose()
    assert consumer.took() == Orders(ack=["a1"], hand_out=["d1"])
    consumer.arrived("e1", "a2")
    assert consumer.took() == Orders(hand_out=["e1"], ack=["a2"])
    consumer.later(LEASE_MS * 2)
    assert consumer.once.may_start("e1", consumer.now_ms)
    consumer.once.ended("e1")
    consumer.once.given_back("b1")
    consumer.once.parked("c1")
    assert consumer.took() == Orders(ack=["e1", "c1"], released=["b1"])
    assert consumer.once.counters.undeduplicated == 2
    assert consumer.talk() == Orders()
    states = [consumer.store.state(item) for item in ("a1", "b1", "c1", "e1")]
    assert states == [DONE, WAITING, PARKED, DONE]
    assert consumer.turns.has_reported_all
    assert not consumer.turns.is_idle  # d1 has not ended


@pytest.mark.guarantee("dedup-waits-are-bounded")
def test_ends_told_later_are_bounded_and_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(once, "BEHIND_MAX", 3)
    consumer = Consumer(run_when_away=True)
    consumer.arrived("a1")
    consumer.lose()
    consumer.arrived("b1", "c1", "d1", "e1")
    for item in ("a1", "b1", "c1", "d1", "e1"):
        assert consumer.once.may_start(item, consumer.now_ms)
        consumer.once.ended(item)
    assert consumer.once.next_turn.untold == 2
    consumer.later(50)
    consumer.talk()
    done = [item for item in ("a1", "b1", "c1", "d1", "e1") if consumer.store.state(item) == DONE]
    assert done == ["c1", "d1", "e1"]


class Consumers(RuleBasedStateMachine):
    """Two consumers, a store with faults, brokers, and an oracle: a table of what each message is."""

    def __init__(self) -> None:
        super().__init__()
        self.store = Store()
        self.late: list[tuple[Consumer, Turn]] = []
        self.consumers = [Consumer(self.store, deferred_max=1) for _ in range(2)]
        self.answers: list[Answer | None] = [None, None]
        self.handed: list[list[str]] = [[], []]
        self.running: list[list[str]] = [[], []]
        self.parking: list[list[str]] = [[], []]
        self.copies: dict[str, str] = {}  # copy -> where it is
        # The oracle.
        self.ended: set[str] = set()
        self.parked: set[str] = set()
        self.crashes = dict.fromkeys("abc", 0)
        self.by: dict[str, int] = {}  # message -> who runs it
        self.answered_ms = [self.store.now_ms] * 2

    # The brokers.
    @rule(name=st.sampled_from("abc"))
    def publish(self, name: str) -> None:
        """Put another copy of a message into its queue."""
        number = sum(copy[0] == name for copy in self.copies)
        if number < 4:
            self.copies[f"{name}{number}"] = "ready"

    @rule(who=st.sampled_from([0, 1]), count=st.integers(1, 3))
    def deliver(self, who: int, count: int) -> None:
        ready = [copy for copy, where in self.copies.items() if where == "ready"][:count]
        for copy in ready:
            self.copies[copy] = f"owed by {who}"
        self.consumers[who].arrived(*ready)
        self.carry_out(who)

    @rule(who=st.sampled_from([0, 1]))
    def lose_link(self, who: int) -> None:
        """Held deliveries come again; runs go on."""
        mine = self.owed(who)
        self.handed[who] = []
        self.consumers[who].once.dropped(mine)
        for copy in mine:
            # A copy that runs on is another delivery from now on: its answer goes nowhere.
            again = f"{copy}'" if self.consumers[who].once.holds(copy) else copy
            del self.copies[copy]
            self.copies[again] = "ready"
        self.carry_out(who)

    def owed(self, who: int) -> list[str]:
        return [copy for copy, where in self.copies.items() if where == f"owed by {who}"]

    # The store.
    @rule(who=st.sampled_from([0, 1]), fate=st.sampled_from(["", "", "", "call", "reply", "late"]))
    def ask(self, who: int, fate: str) -> None:
        consumer = self.consumers[who]
        if self.answers[who] is not None or (turn := consumer.turn()) is None:
            return
        if fate == "late":
            self.late.append((consumer, turn))
        if fate in ("", "reply"):
            self.answers[who] = consumer.carry_out(turn)
        if fate:
            self.answers[who] = None
            consumer.turns.away(consumer.now_ms)
        self.carry_out(who)

    @rule(who=st.sampled_from([0, 1]))
    def answer(self, who: int) -> None:
        if (answer := self.answers[who]) is not None:
            self.answers[who] = None
            self.answered_ms[who] = self.store.now_ms
            self.consumers[who].turns.answered(answer, self.store.now_ms)
            self.carry_out(who)

    @precondition(lambda self: self.late)
    @rule()
    def late_call_comes(self) -> None:
        consumer, turn = self.late.pop(0)
        consumer.carry_out(turn)

    @rule(ms=st.sampled_from([50, 1_000, LEASE_MS // 3, LEASE_MS + 1]))
    def time_passes(self, ms: int) -> None:
        self.store.now_ms += ms

    # The consumers.
    @rule(who=st.sampled_from([0, 1]), end=st.sampled_from(["ended", "ended", "given_back", ""]))
    def work(self, who: int, end: str) -> None:
        """Begin a run, or end one."""
        consumer = self.consumers[who]
        if self.parking[who]:
            item = self.parking[who].pop(0)
            self.parked.add(item[0])
            consumer.once.parked(item)
        elif end and self.running[who]:
            item = self.running[who].pop(0)
            if self.by.get(item[0]) == who:
                del self.by[item[0]]
            if end == "ended":
                self.ended.add(item[0])
            getattr(consumer.once, end)(item)
        elif self.handed[who]:
            item = self.handed[who].pop(0)
            if consumer.once.may_start(item, self.store.now_ms):
                self.check_start(who, item)
                self.running[who].append(item)
        self.carry_out(who)

    def check_start(self, who: int, item: str) -> None:
        name = item[0]
        other = self.by.get(name)
        assert other != who, f"{item} runs twice in one consumer"
        if other is not None:
            out_of_touch_ms = self.store.now_ms - self.answered_ms[other]
            assert out_of_touch_ms >= LEASE_MS // 3, f"{item} runs in both"
            self.crashes[name] += 1
        # What ended is run again only after a crash or a lost lease in between.
        assert name not in self.ended or self.crashes[name], f"{item} runs after its end"
        self.by[name] = who

    @rule(who=st.sampled_from([0, 1]))
    def crash(self, who: int) -> None:
        for copy in self.owed(who):
            self.copies[copy] = "ready"
        for name in "abc":  # any of them may have been claimed, or have ended untold
            self.crashes[name] += 1
        self.by = {name: by for name, by in self.by.items() if by != who}
        self.consumers[who] = Consumer(self.store, deferred_max=1)
        self.answers[who] = None
        self.handed[who], self.running[who], self.parking[who] = [], [], []
        self.answered_ms[who] = self.store.now_ms

    def carry_out(self, who: int) -> None:
        while (orders := self.consumers[who].once.take()) is not None:
            self.handed[who] += orders.hand_out
            for item, _reason in orders.park:
                assert self.crashes[item[0]] >= RULE.unended_max, f"{item} parked needlessly"
                self.parking[who].append(item)
            for item in orders.ack:
                assert item[0] in self.ended | self.parked, f"{item} acked without an end"
                if self.copies.get(item) == f"owed by {who}":
                    self.copies[item] = "acked"
            for item in [*orders.released, *(item for item, _ms in orders.defer)]:
                if self.copies.get(item) == f"owed by {who}":
                    self.copies[item] = "ready"

    def teardown(self) -> None:
        """In the end every copy is acked, and every message has an end."""
        for _ in range(60):
            if all(where == "acked" for where in self.copies.values()):
                break
            for who in (0, 1):
                self.store.now_ms += LEASE_MS
                self.deliver(who, 10)
                for _ in range(8):
                    self.answer(who)
                    self.ask(who, "")
                    self.answer(who)
                    self.work(who, "ended")
        assert set(self.copies.values()) <= {"acked"}, self.copies
        assert {copy[0] for copy in self.copies} <= self.ended | self.parked
        for who, consumer in enumerate(self.consumers):
            while self.running[who]:
                self.work(who, "ended")
            consumer.later(LEASE_MS)
            consumer.talk()
            assert consumer.turns.is_idle


TestConsumers = Consumers.TestCase
TestConsumers.settings = settings(max_examples=examples(80), stateful_step_count=40, deadline=None)
