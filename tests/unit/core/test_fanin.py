"""core.fanin: one stream of many brokers, in turn, in order, under one limit."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from messagebus.core.fanin import FanIn
from tests.support.examples import examples

BROKERS = ("mb1", "mb2", "mb3")
LIMIT = 4


def filled(limit: int, **counts: int) -> FanIn[str]:
    """Return a fan-in with these items; each broker's are named broker-1, broker-2, ..."""
    fanin: FanIn[str] = FanIn(limit)
    for broker, count in counts.items():
        fanin.arrived(broker, [f"{broker}-{number}" for number in range(1, count + 1)])
    return fanin


def take_all(fanin: FanIn[str]) -> list[str]:
    taken = []
    while (item := fanin.take()) is not None:
        taken.append(item)
    return taken


def test_brokers_take_turns_and_none_starves() -> None:
    fanin = filled(100, mb1=4, mb2=1, mb3=2)
    assert take_all(fanin) == ["mb1-1", "mb2-1", "mb3-1", "mb1-2", "mb3-2", "mb1-3", "mb1-4"]


def test_a_broker_that_comes_late_waits_for_one_turn_of_the_others_only() -> None:
    fanin = filled(100, mb1=50)
    fanin.take()
    fanin.arrived("mb2", ["late"])
    assert "late" in [fanin.take(), fanin.take()]


def test_the_limit_of_handed_out_deliveries_holds_over_all_brokers_together() -> None:
    fanin = filled(3, mb1=5, mb2=5)
    assert len(take_all(fanin)) == 3
    assert fanin.handed_out == 3
    fanin.answered("mb1")
    assert len(take_all(fanin)) == 1


def test_what_a_lost_link_delivered_no_longer_counts() -> None:
    fanin = filled(2, mb1=5, mb2=1)
    assert take_all(fanin) == ["mb1-1", "mb2-1"]
    assert fanin.dropped("mb1") == 4
    assert fanin.handed_out == 1
    fanin.arrived("mb1", ["again"])
    assert take_all(fanin) == ["again"]


def test_a_broker_that_delivered_nothing_drops_nothing() -> None:
    assert filled(2).dropped("mb1") == 0


def test_what_is_put_back_is_next_again_in_its_order_and_counts_no_more() -> None:
    fanin = filled(3, a=4, b=2)
    assert take_all(fanin) == ["a-1", "b-1", "a-2"]
    fanin.put_back("a", ["a-1", "a-2"])
    assert (fanin.handed_out, fanin.oldest("a")) == (1, "a-1")
    fanin.answered("b")
    assert take_all(fanin) == ["b-2", "a-1", "a-2"]
    fanin.put_back("b", ["b-2"])
    assert fanin.withdraw("b") == ["b-2"]
    assert not fanin.holds("b")
    assert take_all(fanin) == ["a-3"]


def test_a_broker_holds_something_while_it_waits_or_is_handed_out() -> None:
    fanin = filled(1, a=1)
    assert (fanin.holds("a"), fanin.holds("b")) == (True, False)
    fanin.take()
    assert fanin.holds("a")
    fanin.answered("a")
    assert not fanin.holds("a")


def test_an_answer_for_what_was_not_handed_out_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        filled(5, mb1=3).answered("mb1")


def test_a_limit_below_one_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        FanIn(0)


def test_what_is_withdrawn_was_never_handed_out() -> None:
    fanin = filled(3, a=3, b=2)
    assert fanin.take() == "a-1"
    assert (fanin.oldest("a"), fanin.oldest("b"), fanin.oldest("c")) == ("a-2", "b-1", None)
    assert fanin.withdraw("a") == ["a-2", "a-3"]
    assert fanin.withdraw("a") == []
    assert fanin.withdraw("c") == []
    assert fanin.oldest("a") is None
    assert (fanin.handed_out, fanin.buffered, fanin.is_full) == (1, 2, False)
    fanin.arrived("a", ["a-2"])
    assert take_all(fanin) == ["b-1", "a-2"]
    assert fanin.is_full


class AgainstLists(RuleBasedStateMachine):
    """Machine whose oracle keeps one list of everything that arrived, and the turns as a list."""

    def __init__(self) -> None:
        super().__init__()
        self.fanin: FanIn[tuple[str, int]] = FanIn(LIMIT)
        self.arrived: list[tuple[str, int]] = []
        self.turns: list[str] = []
        self.held: list[str] = []
        self.count = 0

    @rule(broker=st.sampled_from(BROKERS), count=st.integers(1, 4))
    def arrive(self, broker: str, count: int) -> None:
        items = [(broker, number) for number in range(self.count, self.count + count)]
        self.count += count
        self.arrived += items
        self.fanin.arrived(broker, items)
        if broker not in self.turns:
            self.turns.append(broker)

    @rule()
    def take(self) -> None:
        expected = None
        if self.turns and len(self.held) < LIMIT:
            broker = self.turns.pop(0)
            expected = next(item for item in self.arrived if item[0] == broker)
            self.arrived.remove(expected)
            self.held.append(broker)
            if any(item[0] == broker for item in self.arrived):
                self.turns.append(broker)
        assert self.fanin.take() == expected

    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        if self.held:
            broker = data.draw(st.sampled_from(self.held))
            self.held.remove(broker)
            self.fanin.answered(broker)

    @rule(broker=st.sampled_from(BROKERS))
    def drop(self, broker: str) -> None:
        lost = [item for item in self.arrived if item[0] == broker]
        assert self.fanin.dropped(broker) == len(lost)
        self.arrived = [item for item in self.arrived if item[0] != broker]
        self.held = [each for each in self.held if each != broker]
        self.turns = [each for each in self.turns if each != broker]

    @rule(broker=st.sampled_from(BROKERS))
    def withdraw(self, broker: str) -> None:
        mine = [item for item in self.arrived if item[0] == broker]
        assert self.fanin.oldest(broker) == (mine[0] if mine else None)
        assert self.fanin.withdraw(broker) == mine
        self.arrived = [item for item in self.arrived if item[0] != broker]
        self.turns = [each for each in self.turns if each != broker]

    @invariant()
    def counts_agree(self) -> None:
        assert self.fanin.buffered == len(self.arrived)
        assert self.fanin.handed_out == len(self.held) <= LIMIT


TestAgainstLists = AgainstLists.TestCase
TestAgainstLists.settings = settings(
    max_examples=examples(80), stateful_step_count=40, deadline=None
)
