"""core.receipts: an answer goes to the link that delivered, once, or nowhere."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from messagebus.core.receipts import Ack, Receipt, Receipts

BROKERS = ("mb1:5672", "mb2:5672")


def connected(*tags: int, broker: str = "mb1:5672") -> tuple[Receipts, list[Receipt]]:
    receipts = Receipts()
    receipts.connected(broker)
    return receipts, [receipts.delivered(broker, tag) for tag in tags]


def test_an_ack_is_true_exactly_once() -> None:
    receipts, (one,) = connected(1)
    assert receipts.ack(one)
    assert not receipts.ack(one)
    assert not receipts.nack(one)
    assert list(receipts.flush()) == [Ack("mb1:5672", 1, False)]
    assert list(receipts.flush()) == []


def test_a_nacked_delivery_is_never_acked() -> None:
    receipts, (one,) = connected(1)
    assert receipts.nack(one)
    assert not receipts.ack(one)
    assert not receipts.nack(one)
    assert list(receipts.flush()) == []


def test_an_ack_of_an_earlier_link_goes_nowhere_although_the_tag_matches() -> None:
    receipts, (old,) = connected(1)
    receipts.disconnected("mb1:5672")
    assert not receipts.is_live(old)
    assert receipts.connected("mb1:5672") == 2
    new = receipts.delivered("mb1:5672", 1)
    assert not receipts.ack(old)
    assert not receipts.nack(old)
    assert receipts.is_live(new)
    assert not receipts.is_live(old)
    assert receipts.ack(new)


def test_an_unsent_ack_dies_with_its_link() -> None:
    receipts, (one,) = connected(1)
    receipts.ack(one)
    receipts.disconnected("mb1:5672")
    receipts.connected("mb1:5672")
    assert list(receipts.flush()) == []


def test_an_ack_for_an_unknown_broker_goes_nowhere() -> None:
    receipts = Receipts()
    assert not receipts.ack(Receipt("mb9:5672", 1, 1))
    assert not receipts.is_live(Receipt("mb9:5672", 1, 1))
    assert receipts.owed("mb9:5672") == 0
    assert receipts.disconnected("mb9:5672") == 0


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
    receipts, given = connected(*delivered)
    for tag in acked:
        assert receipts.ack(given[tag - 1])
    assert [(ack.tag, ack.multiple) for ack in receipts.flush()] == expected


def test_multiple_never_reaches_over_a_delivery_without_an_answer() -> None:
    receipts, (one, two, three) = connected(1, 2, 3)
    receipts.ack(one)
    receipts.ack(three)
    list(receipts.flush())
    receipts.ack(two)
    assert list(receipts.flush()) == [Ack("mb1:5672", 2, False)]


def test_owed_counts_what_has_no_answer() -> None:
    receipts, (one, two) = connected(1, 2)
    receipts.connected("mb2:5672")
    receipts.delivered("mb2:5672", 1)
    assert receipts.owed("mb1:5672") == 2
    receipts.ack(one)
    receipts.nack(two)
    assert receipts.owed("mb1:5672") == 0
    assert receipts.owed_in_all == 1
    assert receipts.disconnected("mb2:5672") == 1
    assert receipts.owed_in_all == 0


class AgainstBrokers(RuleBasedStateMachine):
    """The oracle is the brokers: each keeps, per link, the tags that it has no answer for."""

    def __init__(self) -> None:
        super().__init__()
        self.receipts = Receipts()
        self.epochs = dict.fromkeys(BROKERS, 0)
        self.last_tag = dict.fromkeys(BROKERS, 0)
        self.unacked: dict[str, set[int]] = {}  # at the broker; only live links
        self.given: list[Receipt] = []
        self.answered: set[Receipt] = set()
        self.acked: set[Receipt] = set()  # answered by ack, not seen by the broker yet

    def lives(self, receipt: Receipt) -> bool:
        return receipt.broker in self.unacked and receipt.epoch == self.epochs[receipt.broker]

    @rule(broker=st.sampled_from(BROKERS))
    def connect(self, broker: str) -> None:
        if broker in self.unacked:
            return
        self.epochs[broker] += 1
        self.last_tag[broker] = 0
        self.unacked[broker] = set()
        assert self.receipts.connected(broker) == self.epochs[broker]

    @rule(broker=st.sampled_from(BROKERS))
    def lose(self, broker: str) -> None:
        mine = [r for r in self.given if self.lives(r) and r.broker == broker]
        owed = len([r for r in mine if r not in self.answered])
        assert self.receipts.disconnected(broker) == owed
        self.unacked.pop(broker, None)

    @precondition(lambda self: self.unacked)
    @rule(data=st.data(), count=st.integers(1, 4))
    def deliver(self, data: st.DataObject, count: int) -> None:
        broker = data.draw(st.sampled_from(sorted(self.unacked)))
        for _ in range(count):
            self.last_tag[broker] += 1
            receipt = self.receipts.delivered(broker, self.last_tag[broker])
            assert receipt == (broker, self.epochs[broker], self.last_tag[broker])
            self.unacked[broker].add(receipt.tag)
            self.given.append(receipt)

    @precondition(lambda self: self.given)
    @rule(data=st.data(), ack=st.booleans())
    def answer(self, data: st.DataObject, ack: bool) -> None:
        receipt = data.draw(st.sampled_from(self.given))
        expected = self.lives(receipt) and receipt not in self.answered
        assert (self.receipts.ack if ack else self.receipts.nack)(receipt) == expected
        if not expected:
            return
        self.answered.add(receipt)
        if ack:
            self.acked.add(receipt)
        else:
            self.unacked[receipt.broker].remove(receipt.tag)

    @rule()
    def flush(self) -> None:
        wanted = {(r.broker, r.tag) for r in self.acked if self.lives(r)}
        done = set()
        for broker, tag, multiple in self.receipts.flush():
            held = self.unacked[broker]
            reached = {each for each in held if each <= tag} if multiple else {tag}
            assert tag in held, "the broker closes the channel for an unknown tag"
            held -= reached
            done |= {(broker, each) for each in reached}
        assert done == wanted
        self.acked.clear()

    @invariant()
    def liveness_and_owed_agree(self) -> None:
        for receipt in self.given[-8:]:
            assert self.receipts.is_live(receipt) == self.lives(receipt)
        owed = [r for r in self.given if self.lives(r) and r not in self.answered]
        assert self.receipts.owed_in_all == len(owed)
        for broker in BROKERS:
            assert self.receipts.owed(broker) == len([r for r in owed if r.broker == broker])


TestAgainstBrokers = AgainstBrokers.TestCase
TestAgainstBrokers.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
