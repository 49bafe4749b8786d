"""core.keyed: in each lane one after the other, in order of arrival, whatever fails, overruns or is lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from messagebus.core import keyed as keyed_module
from messagebus.core.keyed import FOR_EVER, Keyed
from tests.support.examples import examples
from tests.support.order_model import World, walk

MACHINES = settings(max_examples=examples(300), stateful_step_count=50, deadline=None)
LINKS, KEYS = ("mb1", "mb2"), ("", "a", "b")
# States of an entry of which its lane waits for the end.
OUT = ("out", "parks")
WALKS = examples(400)


class Item(NamedTuple):
    """A delivery of these tests. key: "" for none. lifts: it was redriven."""

    number: int
    key: str
    link: str
    lifts: bool = False


def lane_of(item: Item) -> object:
    return item.key or item


def keyed(*, claims: bool = False) -> Keyed[Item]:
    return Keyed(
        lane_of=lane_of,
        link_of=lambda item: item.link,
        lifts=lambda item: item.lifts,
        claims=claims,
    )


def arrived(machine: Keyed[Item], *keys: str, link: str = "mb1", first: int = 0) -> list[Item]:
    items = [Item(number, key, link) for number, key in enumerate(keys, start=first)]
    machine.arrived(items)
    return items


def out(machine: Keyed[Item]) -> list[int]:
    return [item.number for item in machine.take()[0]]


# Examples.


def test_a_failed_one_goes_again_before_what_follows_it_and_other_keys_go_on() -> None:
    machine = keyed()
    first, _second, _other = arrived(machine, "a", "a", "b")
    machine.take()
    assert machine.rest(first, 500)
    assert not machine.rest(first, 500)  # it is not out
    assert (machine.wake_ms(), machine.due(499), out(machine)) == (500, [], [])
    arrived(machine, "b", "c", first=3)
    assert (out(machine), machine.resting) == ([4], 1)
    assert machine.due(500) == [first]
    assert (out(machine), machine.resting, machine.wake_ms()) == ([0], 0, None)


def test_too_many_parked_keys_are_refused_and_what_has_no_key_is_not_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keyed_module, "PARKED_MAX", 1)
    machine = keyed()
    first, other, alone = arrived(machine, "a", "b", "")
    assert machine.park(alone)
    assert [machine.park(item) for item in (first, first, other)] == [True, True, False]
    assert machine.parked == 1


def test_what_is_claimed_again_on_its_way_into_the_parking_queue_is_parked() -> None:
    machine = keyed(claims=True)
    first, second = arrived(machine, "a", "a")
    machine.granted([first, second])
    assert machine.take() == ([first], [])
    assert machine.park(first)
    machine.answered(first)
    assert machine.take() == ([], [second])
    machine.granted([second])
    assert machine.take() == ([], [second])


def test_a_stopped_key_keeps_what_failed_in_front_and_does_not_keep_its_link() -> None:
    machine = keyed()
    first, second, other = arrived(machine, "a", "a", "b")
    machine.take()
    machine.rest(first, FOR_EVER)
    assert (machine.stopped, machine.resting, machine.wake_ms()) == (1, 0, None)
    assert not machine.holds("mb1")
    machine.answered(other)
    assert (machine.due(FOR_EVER), out(machine)) == ([], [])
    assert machine.oldest("mb1") == [first]
    assert machine.withdraw("mb1") == [first, second]
    assert machine.stopped == 0


def test_a_link_is_held_while_something_of_it_waits() -> None:
    machine = keyed()
    (first,) = arrived(machine, "a", link="mb2")
    (second,) = arrived(machine, "a", first=1)
    machine.take()
    assert machine.holds("mb1")
    assert not machine.holds("mb2")  # it is out
    assert (machine.waits(first), machine.waits(second)) == (False, True)
    machine.answered(first)
    assert not machine.holds("mb1")


# The naive oracle: a list of all that is here, searched again after each event.
def test_a_duplicate_behind_others_of_its_key_is_answered_where_it_waits() -> None:
    machine = keyed(claims=True)
    first, second, third = arrived(machine, "a", "a", "a")
    machine.granted([first, third])
    machine.take()
    machine.answered(second)
    machine.answered(first)
    assert out(machine) == [2]


@dataclass
class Entry:
    item: Item
    state: str = "waits"  # or out, parks, rests
    until_ms: int = 0
    granted: bool = False
    denied: bool = False


@dataclass
class Oracle:
    """All that is here, in order. late: runs behind their limit, by lane.

    unclaimed: lanes that have given up their claims. let_go, ask: what is to be given up, and asked for.
    """

    claims: bool
    entries: list[Entry] = field(default_factory=list)
    late: dict[object, Item] = field(default_factory=dict)
    parked: set[object] = field(default_factory=set)
    unclaimed: set[object] = field(default_factory=set)
    let_go: set[Item] = field(default_factory=set)
    ask: set[Item] = field(default_factory=set)

    def lane(self, name: object) -> list[Entry]:
        return [each for each in self.entries if lane_of(each.item) == name]

    def entry(self, item: Item) -> Entry:
        return next(each for each in self.entries if each.item == item)

    def next_out(self) -> tuple[set[Item], set[Item]]:
        """Let out what may go; return it, and what is to be parked."""
        hand_out, park = set(), set()
        for name in {lane_of(each.item) for each in self.entries}:
            lane = self.lane(name)
            if name in self.late or any(each.state in OUT for each in lane):
                continue
            first = lane[0]
            if first.state == "rests":
                continue
            if self.claims and not first.granted and first.denied:
                self.unclaimed.add(name)
                for each in lane:
                    self.let_go |= {each.item} if each.granted else set()
                    each.granted = False
                continue
            if name in self.unclaimed:
                self.unclaimed.remove(name)
                self.ask |= {each.item for each in lane if not each.granted}
            if self.claims and not first.granted:
                continue
            first.granted = False
            if name in self.parked:
                park.add(first.item)
                first.state = "parks"
            else:
                hand_out.add(first.item)
                first.state = "out"
        return hand_out, park


class Lanes(RuleBasedStateMachine):
    claims = False

    def __init__(self) -> None:
        super().__init__()
        self.real, self.oracle = keyed(claims=self.claims), Oracle(self.claims)
        self.count = self.now_ms = 0

    def agree(self) -> None:
        hand_out, park = self.real.take()
        oracle = self.oracle
        oracle.unclaimed &= {lane_of(each.item) for each in oracle.entries}
        assert (set(hand_out), set(park)) == oracle.next_out()
        assert [set(each) for each in self.real.take_claims()] == [oracle.let_go, oracle.ask]
        oracle.let_go, oracle.ask = set(), set()
        assert len(set(hand_out) | set(park)) == len(hand_out) + len(park)

    def outs(self, *states: str) -> list[Item]:
        return [each.item for each in self.oracle.entries if each.state in (states or OUT)]

    @rule(
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=4),
        link=st.sampled_from(LINKS),
        lifts=st.sampled_from((False, False, False, True)),
    )
    def arrive(self, keys: list[str], link: str, lifts: bool) -> None:
        items = []
        for key in keys:
            self.count += 1
            item = Item(self.count, key, link, lifts)
            items.append(item)
            if lifts:
                self.oracle.parked.discard(lane_of(item))
            self.oracle.entries.append(Entry(item))
        self.real.arrived(items)
        self.agree()

    @precondition(lambda self: self.claims and self.oracle.entries)
    @rule(data=st.data())
    def grant(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.oracle.entries))
        self.real.granted([entry.item])
        if entry.state in OUT:  # its claim had run out before its run
            hand_out, park = self.real.take()
            assert (park if entry.state == "parks" else hand_out) == [entry.item]
            assert len(hand_out) + len(park) == 1
        else:
            entry.denied = False
            name = lane_of(entry.item)
            if name in self.oracle.unclaimed and entry is not self.oracle.lane(name)[0]:
                self.oracle.let_go = {entry.item}
            else:
                entry.granted = True
            self.agree()

    @precondition(lambda self: self.claims and self.oracle.entries)
    @rule(data=st.data())
    def deny(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.oracle.entries))
        self.real.denied([entry.item])
        if entry.state not in OUT:
            entry.granted, entry.denied = False, True
        self.agree()

    @precondition(lambda self: self.outs())
    @rule(data=st.data(), parks=st.booleans())
    def answer(self, data: st.DataObject, parks: bool) -> None:
        item = data.draw(st.sampled_from(self.outs()))
        if parks and item.key:
            assert self.real.park(item)
            self.oracle.parked.add(lane_of(item))
        self.real.answered(item)
        self.oracle.entries.remove(self.oracle.entry(item))
        self.agree()

    @precondition(lambda self: self.outs("out"))
    @rule(data=st.data(), delay_ms=st.sampled_from((0, 5, 20, FOR_EVER)), late=st.booleans())
    def fail(self, data: st.DataObject, delay_ms: int, late: bool) -> None:
        item = data.draw(st.sampled_from(self.outs("out")))
        if late:
            self.real.overran(item)
            self.oracle.late[lane_of(item)] = item
        until_ms = FOR_EVER if delay_ms == FOR_EVER else self.now_ms + delay_ms
        assert self.real.rest(item, until_ms)
        entry = self.oracle.entry(item)
        entry.state, entry.until_ms, entry.granted = "rests", until_ms, False
        self.agree()

    @precondition(lambda self: self.outs("out"))
    @rule(data=st.data())
    def overrun(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(self.outs("out")))
        self.real.overran(item)
        self.oracle.late[lane_of(item)] = item
        self.answer_one(item)

    def answer_one(self, item: Item) -> None:
        self.real.answered(item)
        self.oracle.entries.remove(self.oracle.entry(item))
        self.agree()

    @precondition(lambda self: self.oracle.late)
    @rule(data=st.data())
    def end_late(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.oracle.late, key=str)))
        self.real.ended_late(self.oracle.late.pop(name))
        self.agree()

    @rule(ms=st.integers(1, 20))
    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        due = [
            each
            for each in self.oracle.entries
            if each.state == "rests" and each.until_ms <= self.now_ms
        ]
        assert {each.item for each in due} == set(self.real.due(self.now_ms))
        for entry in due:
            entry.state = "waits"
        self.agree()

    @rule(link=st.sampled_from(LINKS), keep_runs=st.booleans(), share=st.integers(0, 2))
    def lose(self, link: str, keep_runs: bool, share: int) -> None:
        """Lose a link; of what is out, some nobody has seen."""
        outs = [each.item for each in self.oracle.entries if each.item.link == link]
        unseen = [item for item in outs[:share] if self.oracle.entry(item).state in OUT]
        self.real.lost(link, unseen, keep_runs=keep_runs)
        self.oracle.entries = [
            each
            for each in self.oracle.entries
            if each.item.link != link
            or (each.state in OUT and keep_runs and each.item not in unseen)
        ]
        self.agree()

    @invariant()
    def counts_agree(self) -> None:
        entries = self.oracle.entries
        waiting = [each for each in entries if each.state not in OUT]
        assert self.real.waiting == len(waiting)
        resting = [each for each in entries if each.state == "rests"]
        stopped = [each for each in resting if each.until_ms == FOR_EVER]
        assert (self.real.resting, self.real.stopped) == (
            len(resting) - len(stopped),
            len(stopped),
        )
        for link in LINKS:
            firsts = {
                next(
                    (
                        each.item
                        for each in waiting
                        if lane_of(each.item) == name and each.item.link == link
                    ),
                    None,
                )
                for name in {lane_of(each.item) for each in waiting}
            }
            assert set(self.real.oldest(link)) == firsts - {None}

    @invariant()
    def forgets_what_is_gone(self) -> None:
        names = {lane_of(each.item) for each in self.oracle.entries} | set(self.oracle.late)
        assert set(self.real._lanes) == names
        assert set(self.real._out) == set(self.outs())
        granted = {each.item for each in self.oracle.entries if each.granted}
        assert (self.real._granted or set()) == granted
        assert self.real._denied == {each.item for each in self.oracle.entries if each.denied}


class ClaimedLanes(Lanes):
    claims = True


TestLanes = Lanes.TestCase
TestLanes.settings = MACHINES
TestClaimedLanes = ClaimedLanes.TestCase
TestClaimedLanes.settings = MACHINES


@pytest.mark.guarantee("key-order-inside-a-consumer")
@pytest.mark.parametrize("claims", [False, True])
def test_no_random_schedule_completes_or_parks_a_key_out_of_order(claims: bool) -> None:
    for seed in range(WALKS):
        fault, steps = walk(World(claims=claims), seed)
        assert not fault, "\n".join([fault, f"seed {seed}", *steps])
