"""core.redundancy: two copies count as two only on two brokers, each after its own confirm."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from messagebus.core.confirms import Batch, Packing
from messagebus.core.ends import End, Item
from messagebus.core.pending import PendingPublishes
from messagebus.core.redundancy import (
    NO_SECOND,
    PREFERRED,
    REQUIRED,
    CopyEnd,
    PairEnd,
    end_of,
    may_go,
)
from tests.support.examples import examples

A, B, C = "mb1:5672", "mb2:5672", "mb3:5672"
FAR_MS = 1_000_000
CONFIRMED, REFUSED, UNROUTABLE, UNKNOWN = "confirmed", "refused", "unroutable", "unknown"


@pytest.mark.parametrize("mode", [REQUIRED, PREFERRED])
def test_two_confirms_of_two_brokers_are_both_named(mode: str) -> None:
    end = end_of(CopyEnd(CONFIRMED, "", A), CopyEnd(CONFIRMED, "", B), mode)
    assert end == PairEnd(CONFIRMED, "", (A, B))


def test_one_confirm_is_unknown_and_says_where_it_lies() -> None:
    for first, second in (
        (CopyEnd(CONFIRMED, "", A), CopyEnd(REFUSED, "no room", B)),
        (CopyEnd(UNKNOWN, "no room"), CopyEnd(CONFIRMED, "", A)),
        (CopyEnd(CONFIRMED, "", A), CopyEnd(REFUSED, "no room")),
    ):
        end = end_of(first, second, REQUIRED)
        assert end == PairEnd(UNKNOWN, f"stored on 1 of 2 brokers: {A}; no room", (A,))


def test_one_confirm_does_where_two_are_preferred_and_that_is_told() -> None:
    end = end_of(CopyEnd(CONFIRMED, "", A), NO_SECOND, PREFERRED)
    assert end == PairEnd(CONFIRMED, NO_SECOND.reason, (A,), downgraded=True)


def confirmed_by(ends: list[CopyEnd]) -> list[str]:
    return sorted({each.broker for each in ends if each.outcome == CONFIRMED and each.broker})


copies = st.builds(
    CopyEnd,
    st.sampled_from([CONFIRMED, REFUSED, UNROUTABLE, UNKNOWN]),
    st.sampled_from(["", "why"]),
    st.sampled_from(["", A, B]),
)


@given(copies, copies, st.sampled_from([REQUIRED, PREFERRED]))
def test_every_end_is_that_of_the_table(first: CopyEnd, second: CopyEnd, mode: str) -> None:
    outcomes = {first.outcome, second.outcome}
    names = confirmed_by([first, second])
    if UNROUTABLE in outcomes:
        expected = UNROUTABLE
    elif len(names) == 2 or (CONFIRMED in outcomes and mode == PREFERRED):
        expected = CONFIRMED
    elif outcomes == {REFUSED}:
        expected = REFUSED
    else:
        expected = UNKNOWN
    end = end_of(first, second, mode)
    assert end.outcome == expected
    assert sorted(end.brokers) == names
    assert end.downgraded == (expected == CONFIRMED and len(names) < 2)


@pytest.mark.guarantee("two-copies-two-brokers")
def test_a_broker_that_does_not_say_its_name_is_no_second_one() -> None:
    assert not may_go("", "")
    assert not may_go("", A)


class Copy(Item):
    """One of two copies. stored: the brokers that it was sent to, in order."""

    __slots__ = ("lane", "place", "stored", "twin")

    def __init__(self, message_id: str, deadline_ms: int = FAR_MS) -> None:
        super().__init__(message_id, "orders", 10, deadline_ms)
        self.twin: Copy | None = None
        self.place = ""
        self.stored: list[str] = []


def pair(message_id: str) -> tuple[Copy, Copy]:
    first, second = Copy(message_id), Copy(message_id)
    first.twin, second.twin = second, first
    return first, second


def lane(window: int = 3, *, packed: bool = False) -> PendingPublishes:
    made = PendingPublishes(
        messages_max=1_000,
        bytes_max=100_000,
        window=window,
        window_bytes_max=1_000,
        attempts_max=1_000,
        retry_unknown=True,
    )
    if packed:
        made.backlog.pack("orders", Packing(count_max=3, bytes_max=100, linger_ms=0))
    made.backlog.open("orders")
    return made


def test_a_barred_copy_leaves_its_batch_and_the_others_stay() -> None:
    (first, twin), (second, _), (third, _) = pair("1"), pair("2"), pair("3")
    twin.place = A
    ours = lane(packed=True)
    for each in (first, second, third):
        ours.backlog.accept(each)
    ours.in_flight.opened(1, after=())
    assert ours.displace(A, 0) == [first]
    (batch,) = ours.take(0)
    assert isinstance(batch, Batch)
    assert (batch.items, batch.message_id, batch.size) == ([second, third], "2", 20)


def test_what_moves_up_where_a_copy_was_taken_out_is_looked_at_too() -> None:
    copies = []
    ours = lane(window=1)
    for name in ("1", "2"):
        first, twin = pair(name)
        twin.place = A
        copies.append(first)
        ours.backlog.accept(first)
    free, _ = pair("3")
    ours.backlog.accept(free)
    ours.in_flight.opened(1, after=())
    assert ours.displace(A, 0) == copies
    assert ours.take(0) == [free]


def test_what_left_in_a_batch_is_known_to_be_there() -> None:
    pairs = [pair(f"{number}") for number in range(2)]
    ours, other = lane(packed=True), lane(packed=True)
    for first, second in pairs:
        ours.backlog.accept(first)
        other.backlog.accept(second)
    for each in (ours, other):
        each.in_flight.opened(1, after=())
    assert ours.displace(A, 0) == []
    assert len(ours.take(0)) == 1
    assert other.displace(A, 0) == [second for _, second in pairs]
    assert (other.take(0), other.backlog.messages) == ([], 0)


def test_a_lingering_batch_is_looked_at_before_it_leaves() -> None:
    first, twin = pair("1")
    ours = lane()
    ours.backlog.pack("orders", Packing(count_max=3, bytes_max=100, linger_ms=5))
    ours.backlog.accept(first)
    ours.in_flight.opened(1, after=())
    assert ours.take(0) == []
    twin.place = A
    assert ours.displace(A, 5) == [first]
    assert ours.take(5) == []


def test_what_is_no_copy_goes_anywhere() -> None:
    plain = Item("m", "orders", 10, FAR_MS)
    ours = lane()
    ours.backlog.accept(plain)
    ours.in_flight.opened(1, after=())
    assert ours.displace("", 0) == []
    assert ours.take(0) == [plain]


def test_what_is_withdrawn_ends_at_once() -> None:
    (first, _), (second, _) = pair("1"), pair("2")
    ours = lane()
    ours.in_flight.opened(1, after=())
    ours.backlog.accept(first)
    ours.take(0)
    ours.backlog.accept(second)
    ended = [(each, each.end) for each in ours.withdraw([first, second], "no second broker")]
    assert ended == [
        (first, (UNKNOWN, "no second broker")),
        (second, (REFUSED, "no second broker")),
    ]
    assert ours.backlog.messages == 0


class TwoLanes(RuleBasedStateMachine):
    """Two backlogs whose links move among brokers; an oracle keeps where every copy was sent last.

    The second lane never has the first one's broker, as `_io.publish.routes` sees to; the first moves freely,
    and the second one then sends nothing until it is elsewhere.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lanes = [lane(), lane()]
        self.brokers = ["", ""]
        self.links = [0, 0]
        self.pairs: list[tuple[Copy, Copy]] = []
        self.sent: dict[tuple[int, int], list[list[Copy]]] = {}  # lane, link -> unanswered entries

    def move(self, number: int, broker: str) -> None:
        old = self.links[number]
        self.links[number] += 1
        self.lanes[number].in_flight.opened(self.links[number], after=())
        if old:
            self.lanes[number].link_lost(old, 0)
            self.sent.pop((number, old), None)
        self.brokers[number] = broker

    @rule(broker=st.sampled_from([A, B, C, ""]))
    def the_first_moves(self, broker: str) -> None:
        self.move(0, broker)

    @rule(broker=st.sampled_from([A, B, C]))
    def the_second_moves(self, broker: str) -> None:
        if broker != self.brokers[0]:
            self.move(1, broker)

    @rule(count=st.integers(1, 4))
    def accept(self, count: int) -> None:
        for _ in range(count):
            made = pair(f"{len(self.pairs)}")
            self.pairs.append(made)
            for pending, copy in zip(self.lanes, made, strict=True):
                pending.backlog.accept(copy)

    @precondition(lambda self: any(self.links))
    @rule(number=st.integers(0, 1))
    def send(self, number: int) -> None:
        broker, pending = self.brokers[number], self.lanes[number]
        if number == 1 and broker == self.brokers[0]:
            return
        for copy in reversed(pending.displace(broker, 0)):
            if not broker:
                pending.ends.settle([copy], End(REFUSED, "no name"))
                continue
            self.lanes[1 - number].backlog.accept_first(copy, alone=True)
        for entry in pending.take(0):
            assert isinstance(entry, Copy)
            assert entry.twin is not None
            assert broker
            last = entry.twin.stored[-1:]
            assert last != [broker], "both copies on one broker"
            entry.stored.append(broker)
            self.sent.setdefault((number, self.links[number]), []).append([entry])

    @rule(number=st.integers(0, 1), ok=st.booleans())
    def answer(self, number: int, ok: bool) -> None:
        self.lanes[number].answered(self.links[number], 0, multiple=True, ok=ok)

    @invariant()
    def two_confirms_are_of_two_brokers(self) -> None:
        for first, second in self.pairs:
            if first.end and second.end and first.end.outcome == second.end.outcome == CONFIRMED:
                assert first.stored[-1] != second.stored[-1]

    def teardown(self) -> None:
        """Give both lanes brokers of their own: then every copy comes out, wherever it was before."""
        self.move(0, A)
        self.move(1, B)
        for _ in range(4 * len(self.pairs) + 4):
            for number in (0, 1):
                self.send(number)
                self.answer(number, True)
        for copies in self.pairs:
            for copy in copies:
                assert copy.end is not None, "a copy waits for ever"


TestTwoLanes = pytest.mark.guarantee("two-copies-two-brokers")(TwoLanes.TestCase)
TestTwoLanes.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


def test_order_is_kept_by_who_takes_over() -> None:
    pairs = [pair(f"{number}") for number in range(3)]
    ours = lane(window=10)
    ours.backlog.accept(Item("later", "orders", 1, FAR_MS))
    for first, _ in reversed(pairs):
        ours.backlog.accept_first(first, alone=True)
    ours.in_flight.opened(1, after=())
    taken = [each.message_id for each in ours.take(0)]
    assert taken == ["0", "1", "2", "later"]
    assert all(before < after for before, after in pairwise(taken))
