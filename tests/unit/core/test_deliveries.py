"""core.deliveries: one stream of many brokers, in turn, under one limit; answers go to their link, once."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from messagebus.core.deliveries import Ack, FanIn, Ledger, Ledgers
from tests.support.examples import examples

CONTENT = (b"properties", b"content")
CLAIMED = -1
BROKERS = ("mb1", "mb2", "mb3")
LIMIT = 4
MACHINES = settings(max_examples=examples(80), stateful_step_count=40, deadline=None)


def ledger(*tags: int) -> Ledger:
    made = Ledgers().connected("mb1:5672")
    made.delivered(tags)
    return made


def test_an_answer_to_an_earlier_link_goes_nowhere_although_the_tag_matches() -> None:
    ledgers = Ledgers()
    old, other = ledgers.connected("mb1:5672"), ledgers.connected("mb2:5672")
    old.delivered([1])
    old.end()
    new = ledgers.connected("mb1:5672")
    new.delivered([1])
    assert (old.epoch, new.epoch, other.epoch) == (1, 2, 1)
    assert (old.is_live, new.is_live) == (False, True)
    assert not old.ack(1)
    assert not old.nack(1)
    assert new.ack(1)


def test_an_unsent_ack_dies_with_its_link() -> None:
    made = ledger(1)
    made.ack(1)
    made.end()
    assert made.flush() == []


@pytest.mark.parametrize(
    ("delivered", "acked", "expected"),
    [
        ((1,), (1,), [(1, False)]),
        ((1, 2, 3), (1, 2, 3), [(3, True)]),
        ((1, 2, 3), (2, 1), [(2, True)]),
        ((1, 2, 3), (2, 3), [(2, False), (3, False)]),
        ((1, 2, 3, 4), (1, 2, 4), [(2, True), (4, False)]),
        ((1, 2), (), []),
    ],
)
def test_acks_are_coalesced_up_to_the_first_gap(
    delivered: tuple[int, ...], acked: tuple[int, ...], expected: list[tuple[int, bool]]
) -> None:
    made = ledger(*delivered)
    for tag in acked:
        assert made.ack(tag)
    assert made.flush() == expected


# Batches.
def batch(parts: int) -> Ledger:
    made = ledger()
    made.batch_delivered(1, parts, CONTENT)
    return made


def test_a_part_is_answered_exactly_once() -> None:
    made = batch(2)
    assert made.ack(1, 1)
    assert not made.ack(1, 1)
    assert not made.claim(1, 1)
    assert not made.ack(1, 3), "there is no such part"
    assert not made.ack(2, 1), "there is no such batch"


def test_a_claimed_part_holds_the_batch_until_it_is_done() -> None:
    made = batch(2)
    assert made.claim(1, 1)
    assert made.ack(1, 2)
    assert made.flush() == []
    assert made.claim_done(1, 1)
    assert made.flush() == [Ack(1, False)]


def test_a_batch_dies_with_its_link() -> None:
    made = batch(2)
    made.claim(1, 1)
    made.end()
    assert not made.claim_done(1, 1)
    assert not made.ack(1, 2)


def test_only_batches_with_an_answered_and_an_open_part_are_half_answered() -> None:
    made = batch(3)
    made.batch_delivered(2, 2, CONTENT)
    assert made.half_answered() == []
    made.ack(1, 2)
    assert made.half_answered() == [(1, [1, 3], CONTENT)]
    made.ack(1, 1)
    made.ack(1, 3)
    assert made.half_answered() == []


# Copies.


def test_what_is_claimed_is_answered_by_nobody_else_and_acked_when_it_is_done() -> None:
    made = ledger(1, 2, 3)
    assert made.claim(2, 0)
    assert not made.claim(2, 0)
    assert not made.ack(2)
    assert not made.nack(2)
    assert made.ack(1)
    assert made.ack(3)
    assert made.flush() == [Ack(1, False), Ack(3, False)], "never past what is claimed"
    assert made.owed == 1
    assert made.claim_done(2, 0)
    assert made.flush() == [Ack(2, False)]
    assert made.owed == 0


def test_what_is_claimed_may_be_refused_and_dies_with_its_link() -> None:
    made = ledger(1, 2)
    assert made.claim(1, 0)
    assert made.claim(2, 0)
    assert made.claim_refused(1)
    assert made.end() == 1
    assert made.owed == 0
    assert not made.claim_done(2, 0)
    assert not made.claim_refused(2)
    assert not made.claim(2, 0)


def test_a_batch_that_nobody_has_seen_is_answered_as_one() -> None:
    made = ledger()
    made.batch_delivered(1, 2, CONTENT)
    made.batch_delivered(2, 1, CONTENT)
    assert made.as_one(1, 1) is None
    assert made.as_one(1, 2) == CONTENT
    assert not made.ack(1, 1)
    assert made.nack(1)
    assert made.as_one(2, 1) == CONTENT
    assert made.claim(2, 0)
    assert made.claim_done(2, 0)
    assert made.flush() == [Ack(2, False)]


def test_of_a_batch_with_a_part_that_cannot_be_answered_the_whole_is_rejected_at_its_end() -> None:
    made = ledger()
    made.batch_delivered(1, 2, CONTENT)
    assert made.claim(1, 1)
    assert made.is_claimed
    assert made.claim_refused(1, 1)
    assert (made.rejected, made.owed, made.is_claimed) == ([], 1, False)
    assert made.ack(1, 2)
    assert (made.rejected, made.flush(), made.owed) == ([1], [], 0)


def test_of_half_answered_batches_those_are_settled_whose_answers_are_not_under_way() -> None:
    made = ledger()
    for tag in (1, 2, 3):
        made.batch_delivered(tag, 3, CONTENT)
    made.ack(1, 2)
    made.ack(2, 1)
    made.claim(2, 2)
    assert made.answered_for_good() == [([1, 3], CONTENT)]
    assert (made.open_parts(2), made.open_parts(9)) == ([3], [])
    assert (made.content(3), made.content(9)) == (CONTENT, None)


class AgainstABroker(RuleBasedStateMachine):
    """Machine whose oracle is the broker: per tag, how many of its messages have no answer yet."""

    def __init__(self) -> None:
        super().__init__()
        self.ledgers = Ledgers()
        self.connect()

    @rule()
    def connect(self) -> None:
        self.ledger = self.ledgers.connected("mb1:5672")
        self.last_tag = 0
        self.unacked: set[int] = set()  # as the broker sees it
        # tag -> parts without an answer; {0}: no batch; {CLAIMED}: no batch, and it is being answered
        self.open: dict[int, set[int]] = {}
        self.sizes: dict[int, int] = {}  # parts of each batch
        self.acked: set[int] = set()  # wholly answered, not seen by the broker yet

    @rule(parts=st.lists(st.sampled_from([0, 0, 1, 3]), min_size=1, max_size=4))
    def deliver(self, parts: list[int]) -> None:
        for count in parts:
            self.last_tag += 1
            self.unacked.add(self.last_tag)
            if count:
                self.ledger.batch_delivered(self.last_tag, count, CONTENT)
            else:
                self.ledger.delivered([self.last_tag])
            self.open[self.last_tag] = set(range(1, count + 1)) if count else {0}
            self.sizes[self.last_tag] = count

    @precondition(lambda self: self.last_tag)
    @rule(data=st.data(), part=st.integers(0, 3))
    def ack(self, data: st.DataObject, part: int) -> None:
        tag = data.draw(st.integers(1, self.last_tag))
        expected = part in self.open[tag]
        if part == 0 and self.open[tag] - {0, CLAIMED}:
            return  # a batch is never answered as a whole
        assert self.ledger.ack(tag, part) == expected
        if expected:
            self.open[tag].remove(part)
            if not self.open[tag]:
                self.acked.add(tag)

    @precondition(lambda self: self.last_tag)
    @rule(data=st.data())
    def nack(self, data: st.DataObject) -> None:
        tag = data.draw(st.integers(1, self.last_tag))
        if 0 in self.open[tag]:
            assert self.ledger.nack(tag)
            self.open[tag].clear()
            self.unacked.remove(tag)

    @precondition(lambda self: self.last_tag)
    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        tag = data.draw(st.integers(1, self.last_tag))
        if self.open[tag] - {0, CLAIMED}:
            return
        assert self.ledger.claim(tag, 0) == (0 in self.open[tag])
        if 0 in self.open[tag]:
            self.open[tag] = {CLAIMED}

    @precondition(lambda self: any(CLAIMED in parts for parts in self.open.values()))
    @rule(data=st.data(), refused=st.booleans())
    def claim_ends(self, data: st.DataObject, refused: bool) -> None:
        claimed = [tag for tag, parts in self.open.items() if CLAIMED in parts]
        tag = data.draw(st.sampled_from(claimed))
        self.open[tag].clear()
        if refused:
            assert self.ledger.claim_refused(tag)
            self.unacked.remove(tag)
        else:
            assert self.ledger.claim_done(tag, 0)
            self.acked.add(tag)

    @precondition(lambda self: self.last_tag)
    @rule(data=st.data(), parts=st.integers(1, 3))
    def give_back_whole(self, data: st.DataObject, parts: int) -> None:
        """Give back a batch of which no part has been answered."""
        tag = data.draw(st.integers(1, self.last_tag))
        is_whole = self.open[tag] == set(range(1, parts + 1)) and not self.half_answered(tag)
        if 0 in self.open[tag] or CLAIMED in self.open[tag] or self.half_answered(tag):
            return
        content = self.ledger.as_one(tag, parts)
        assert (content is not None) == (is_whole and bool(self.open[tag]))
        if is_whole:
            assert self.ledger.nack(tag)
            self.open[tag].clear()
            self.unacked.remove(tag)

    def half_answered(self, tag: int) -> bool:
        return self.sizes.get(tag, 0) != len(self.open[tag])

    @rule()
    def flush(self) -> None:
        done = set()
        for tag, multiple in self.ledger.flush():
            assert tag in self.unacked, "the broker closes the channel for an unknown tag"
            reached = {each for each in self.unacked if each <= tag} if multiple else {tag}
            self.unacked -= reached
            done |= reached
        assert done == self.acked
        self.acked.clear()

    @rule()
    def lose(self) -> None:
        old = self.ledger
        assert old.end() == sum(bool(parts) for parts in self.open.values())
        tags = list(self.open)
        self.connect()
        assert not any(old.ack(tag) or old.nack(tag) for tag in tags)

    @invariant()
    def owed_is_what_has_no_answer(self) -> None:
        assert self.ledger.owed == sum(bool(parts) for parts in self.open.values())


TestAgainstABroker = AgainstABroker.TestCase
TestAgainstABroker.settings = MACHINES


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
TestAgainstLists.settings = MACHINES


def test_after_a_pause_nothing_is_handed_out_until_it_is_resumed_with_the_same_limit() -> None:
    fanin: FanIn[str] = FanIn(2)
    fanin.arrived("mb1", ["a", "b", "c"])
    fanin.pause()
    assert fanin.take() is None
    fanin.resume()
    assert [fanin.take() for _ in range(3)] == ["a", "b", None]
