"""The map of one agent, and three of them under faults against a naive oracle."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from messagebus.services.agent.topology import register as module
from messagebus.services.agent.topology.register import (
    EXPIRED_KEPT,
    NUMBERS_AHEAD_MAX,
    SWEEP_ROUNDS,
    Answer,
    Entry,
    Options,
    Register,
    Reply,
    Snapshot,
    completion,
    majority,
)
from tests.support.examples import examples

NAMES = ("A", "B", "C")
KEYS = ("k1", "k2", "expiring")
EXPIRES = (("expires_s", 5),)
HELD = Reply(answer=Answer.HELD, stored=True)
LATER = Reply(answer=Answer.LATER, stored=True)
DEAD = Reply(answer=Answer.DEAD)
NO = Reply(answer=Answer.NO, reason="agent hangs")


def entry(
    wanted: str = "k",
    number: int = 1,
    *,
    origin: str = "A",
    alive: bool = True,
    tomb: int = 0,
    expires: bool = False,
) -> Entry:
    return Entry(
        wanted=wanted,
        number=number,
        origin=origin,
        alive=alive,
        tomb=tomb,
        options=EXPIRES if expires else (),
    )


def dead(wanted: str, number: int, *, expires: bool = False) -> Entry:
    return entry(wanted, number, alive=False, tomb=number, expires=expires)


def intact(*entries: Entry, floor: int = 0) -> Snapshot:
    return Snapshot(intact=True, floor=floor, dropped=floor, entries=entries)


def register(me: str = "A", *entries: Entry, kept: bool = True) -> Register:
    made = Register(me, intact(*entries) if kept else None)
    made.voters.listed(NAMES)
    return made


def hear(ours: Register, peer: str, snapshot: Snapshot) -> bool:
    return ours.heard(peer, snapshot, life=ours.voters.life)


def sweep(ours: Register, **maps: Snapshot) -> None:
    """Make two sweeps in which these were heard: enough for entries that all of them know."""
    for _ in range(2 * SWEEP_ROUNDS):
        for peer, snapshot in maps.items():
            hear(ours, peer, snapshot)
        ours.round_ended()


@pytest.mark.parametrize(("voters", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_a_majority_is_more_than_half(voters: int, needed: int) -> None:
    assert majority(voters) == needed


def test_an_intact_map_counts_itself_so_one_more_of_three_informs() -> None:
    ours = register()
    assert not ours.informed
    hear(ours, "B", intact())
    assert ours.informed


def test_a_new_or_wiped_agent_needs_both_others() -> None:
    ours = register(kept=False)
    hear(ours, "B", intact(entry()))
    assert (ours.informed, ours.intact) == (False, False)
    hear(ours, "C", intact(entry()))
    assert (ours.informed, ours.intact) == (True, True)


def test_a_map_that_is_not_intact_is_not_merged() -> None:
    ours = register()
    hear(ours, "B", Snapshot(intact=False, entries=(entry(),)))
    assert not ours.entries
    assert not ours.informed


def test_the_only_broker_is_informed_by_its_own_map() -> None:
    ours = Register("A", intact())
    ours.voters.listed(["A"])
    assert ours.informed
    wiped = Register("A", None)
    wiped.voters.listed(["A"])
    assert not wiped.informed


def test_without_a_list_there_is_no_majority() -> None:
    ours = Register("A", intact())
    assert not ours.informed
    assert ours.change(["k"], alive=True, answered=["B", "C"]) is None


def test_an_agent_that_is_not_listed_yet_is_informed_by_a_majority_of_the_listed() -> None:
    ours = Register("D", None)
    ours.voters.listed(NAMES)
    answers = []
    for peer in ("A", "B"):
        hear(ours, peer, intact(entry()))
        answers.append(ours.informed)
    assert answers == [False, True]
    assert "k" in ours.entries


def test_what_was_read_before_a_new_life_of_the_broker_says_nothing() -> None:
    ours = register()
    life = ours.voters.life
    hear(ours, "B", intact())
    ours.voters.life_began()
    assert not ours.informed
    ours.heard("C", intact(), life=life)
    assert not ours.informed
    hear(ours, "C", intact())
    assert ours.informed


def test_an_agent_off_the_list_does_not_inform() -> None:
    ours = register()
    hear(ours, "B", intact())
    ours.voters.listed(["A", "C", "D"])
    assert not ours.informed


def test_creating_what_lives_changes_no_number() -> None:
    ours = register("A", entry(number=7))
    version = ours.version
    (found,) = ours.change(["k"], alive=True, answered=["B"]) or ()
    assert found.number == 7
    assert ours.version == version


def test_numbers_grow_over_all_keys_and_a_deletion_leaves_a_tomb() -> None:
    ours = register("A", entry(number=7))
    (dead,) = ours.change(["k"], alive=False, answered=["B"]) or ()
    assert (dead.number, dead.tomb, dead.alive) == (8, 8, False)
    other, again = ours.change(["other", "k"], alive=True, answered=["B"]) or ()
    assert (other.number, other.tomb) == (9, 0)
    assert (again.number, again.tomb) == (10, 8)


def test_options_are_those_it_began_to_live_with() -> None:
    ours = register("A", entry())
    asked: dict[str, Options] = {"q": {"expires_s": 5, "durability": "none"}}

    def change(alive: bool, options: dict[str, Options] | None = None) -> Entry:
        changed = ours.change(["q"], alive=alive, answered=["B"], options=options)
        assert changed is not None
        return changed[0]

    born = change(True, asked)
    assert born.options == (("durability", "none"), ("expires_s", 5))
    assert change(True, {"q": {}}) == born
    assert change(False, asked).options == (("expires_s", 5),)
    assert change(True).options == ()


def test_mqtt_is_switched_by_whoever_asks_and_is_off_in_the_next_life() -> None:
    ours = register("A", entry())

    def change(alive: bool = True, **asked: bool) -> Entry:
        (changed,) = ours.change(["q"], alive=alive, answered=["B"], options={"q": asked}) or ()
        return changed

    assert change().options == ()
    on = change(mqtt=True)
    assert on.options == (("mqtt", True),)
    assert change() == change(mqtt=True) == on
    off = change(mqtt=False)
    assert off.number > on.number
    assert off.options == change(alive=False).options == change().options == (("mqtt", False),)


def test_what_an_agent_of_an_earlier_version_forgot_of_an_entry_is_not_forgotten() -> None:
    on = Entry(wanted="k", number=3, origin="B", alive=True, tomb=0, options=(("mqtt", True),))
    forgotten = entry(number=3, origin="B")
    for known, comes in ((on, forgotten), (forgotten, on)):
        ours = register("A", known)
        ours.receive(intact(comes))
        assert ours.entries["k"] == on


def test_a_change_needs_a_majority() -> None:
    assert register().change(["k"], alive=True, answered=[]) is None
    assert register().change(["k"], alive=True, answered=["A", "X"]) is None
    wiped = register(kept=False)
    assert wiped.change(["k"], alive=True, answered=["B"]) is None
    assert wiped.change(["k"], alive=True, answered=["B", "C"])


def test_the_larger_number_then_origin_stands_and_the_larger_tomb() -> None:
    ours = register("A", entry(number=5, origin="A", tomb=3))
    ours.receive(intact(entry(number=5, origin="B", tomb=2)))
    assert ours.entries["k"] == entry(number=5, origin="B", tomb=3)
    ours.receive(intact(entry(number=4, origin="C", alive=False, tomb=4)))
    assert ours.entries["k"] == entry(number=5, origin="B", tomb=4)


def test_a_version_grows_only_with_what_is_kept() -> None:
    ours = register("A", entry())
    version = ours.version
    hear(ours, "B", intact(entry()))
    assert ours.version == version
    hear(ours, "B", intact(entry(number=2)))
    assert ours.version > version


@pytest.mark.guarantee("no-clock-decides")
def test_no_peer_alone_makes_anybody_forget_whatever_it_says() -> None:
    """The answer is forged at an agent's address: newer than all, and empty."""
    ours = register("A", entry("k", 5), dead("gone", 6))
    forged = Snapshot(intact=True, floor=2**60, dropped=2**60)
    sweep(ours, B=intact(entry("k", 5), dead("gone", 6)), C=forged)
    assert "k" in ours.entries
    assert ours.intact
    assert ours.informed
    (made,) = ours.change(["new"], alive=True, answered=["C"], above=2**60) or ()
    assert made.number < NUMBERS_AHEAD_MAX


def test_whoever_comes_back_with_an_older_map_forgets_what_a_majority_deleted() -> None:
    ours = register("A", entry("old", 5), entry("mine", 12))
    hear(ours, "B", intact(entry("new", 11), floor=10))
    assert "old" in ours.entries
    hear(ours, "C", intact(entry("new", 11), floor=10))
    assert set(ours.entries) == {"new", "mine"}
    assert ours.floor == 10
    assert ours.intact


def test_a_name_that_one_of_the_majority_still_has_is_kept() -> None:
    ours = register("A", entry("k", 5))
    hear(ours, "B", intact(floor=10))
    hear(ours, "C", intact(entry("k", 5), floor=10))
    assert "k" in ours.entries


def test_an_older_map_brings_nothing_back() -> None:
    ours = Register("A", intact(floor=10))
    ours.voters.listed(NAMES)
    hear(ours, "B", intact(entry("old", 5), entry("new", 11)))
    assert set(ours.entries) == {"new"}
    assert not ours.receive(intact(entry("old", 5)))
    assert set(ours.entries) == {"new"}


def test_a_tomb_stays_while_one_listed_agent_has_not_been_heard_to_know_it() -> None:
    tomb = dead("gone", 2)
    ours = register("A", entry(), tomb)
    sweep(ours, B=intact(entry(), tomb))
    assert "gone" in ours.entries
    sweep(ours, B=intact(entry(), tomb), C=intact(entry(), entry("gone", 1)))
    assert "gone" in ours.entries
    sweep(ours, B=intact(entry(), tomb), C=intact(entry()))
    assert "gone" in ours.entries
    sweep(ours, B=intact(entry(), tomb), C=intact(entry(), tomb))
    assert set(ours.entries) == {"k"}
    assert ours.floor == 2


def test_a_tomb_that_the_others_dropped_is_dropped() -> None:
    ours = register("A", entry("k", 3), dead("gone", 2))
    sweep(ours, B=intact(entry("k", 3), floor=2), C=intact(entry("k", 3), dead("gone", 2)))
    assert set(ours.entries) == {"k"}


def test_a_tomb_of_what_expires_is_dropped_though_an_agent_is_away() -> None:
    ours = register("A", dead("gone", 2, expires=True))
    sweep(ours, B=intact(dead("gone", 2, expires=True)))
    assert not ours.entries
    assert (ours.floor, ours.dropped) == (0, 2)
    hear(ours, "B", intact(dead("gone", 2, expires=True), entry("k", 1)))
    assert set(ours.entries) == {"k"}


def test_of_many_names_that_expired_only_the_newest_tombs_are_kept() -> None:
    """So it is after six roll-outs of 10,000 consumers, also with a peer that knows none of them."""
    count = 60_000
    ours = register("A", entry("k", 1), *(dead(f"e{n}", n, expires=True) for n in range(2, count)))
    ours.round_ended()
    assert ours.entries["k"].alive
    assert len(ours.entries) == 1 + EXPIRED_KEPT
    assert f"e{count - 1}" in ours.entries
    assert ours.dropped == count - 1 - EXPIRED_KEPT
    assert ours.floor == 0
    hear(ours, "B", intact(dead("e2", 2, expires=True), entry("e3", 1, expires=True), dead("q", 3)))
    assert "e2" not in ours.entries
    assert ours.entries["e3"].alive
    assert not ours.entries["q"].alive


def test_a_map_that_was_not_heard_for_a_sweep_is_read_as_a_whole_again() -> None:
    ours = register("A", dead("gone", 2, expires=True))
    theirs = intact(entry("gone", 1, expires=True))
    hear(ours, "B", theirs)
    hear(ours, "C", intact())
    for _ in range(2 * SWEEP_ROUNDS):
        ours.round_ended()
    assert not ours.entries
    hear(ours, "B", theirs)
    assert ours.entries["gone"].alive


def test_a_peers_map_that_is_as_it_was_is_not_merged_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each second each peer sends all its entries: a merge took half a core with 60,000 of them."""
    ours, theirs = register("A", entry("k", 1)), intact(entry("k", 5))
    hear(ours, "B", theirs)
    ours.adopt(intact(entry("k", 9)))
    merged: list[Iterable[Entry]] = []
    monkeypatch.setattr(ours, "_merge", merged.append)
    for _ in range(3):
        assert hear(ours, "B", theirs)
    assert not merged
    assert ours.informed
    hear(ours, "B", intact(entry("k", 5)))
    assert len(merged) == 1


def test_known_limit_a_map_put_back_from_a_backup_counts_itself() -> None:
    """A and B acknowledged `k` while C was dead. B's folder is restored from an earlier backup; A is away.

    Any agent that could tell that B once knew more has merged that more, so none can tell: documented.
    """
    put_back, third = register("B"), register("C")
    hear(put_back, "C", third.snapshot)
    hear(third, "B", put_back.snapshot)
    assert put_back.informed
    assert third.informed
    assert "k" not in {**put_back.entries, **third.entries}
    # An empty folder does not count, and nothing is opened without A.
    wiped = register("B", kept=False)
    hear(wiped, "C", third.snapshot)
    assert not wiped.informed


def test_numbers_do_not_start_again_when_the_tombs_are_dropped() -> None:
    ours = register("A", dead("gone", 9))
    sweep(ours, B=intact(dead("gone", 9)), C=intact(dead("gone", 9)))
    assert not ours.entries
    (again,) = ours.change(["gone"], alive=True, answered=["B"]) or ()
    assert (again.number, again.tomb) == (10, 9)
    wiped = register("B", kept=False)
    for peer in ("A", "C"):
        hear(wiped, peer, intact(floor=9))
    assert (wiped.floor, wiped.dropped) == (9, 9)


def test_a_change_that_comes_too_late_is_not_taken_and_made_again_with_a_larger_number() -> None:
    theirs = Register("B", intact(floor=9))
    theirs.voters.listed(NAMES)
    ours = register("A", entry("slow", 4))
    assert not theirs.receive(intact(entry("slow", 4), entry("other", 10)))
    assert set(theirs.entries) == {"other"}
    changed = ours.change(["slow"], alive=True, answered=["B"], above=theirs.dropped)
    assert changed is not None
    assert changed[0].number == 10
    assert theirs.receive(intact(*changed))


def test_deleting_what_is_deleted_changes_no_number() -> None:
    ours = register("A", dead("k", 7))
    assert ours.change(["k"], alive=False, answered=["B"]) == (dead("k", 7),)


def test_a_map_that_operators_vouch_for_counts_and_keeps_what_is_here() -> None:
    ours = register("A", kept=False)
    ours.receive(intact(entry("mine", 2)))
    ours.adopt(intact(entry("k", 5), floor=1))
    assert set(ours.entries) == {"mine", "k"}
    assert (ours.intact, ours.floor, ours.dropped) == (True, 1, 1)
    assert ours.change(["new"], alive=True, answered=["B"])


# --- Three agents, one fault at a time. ---


@pytest.fixture(scope="module")
def short_sweeps() -> Iterator[None]:
    """Sweeps of two rounds: their length decides nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SWEEP_ROUNDS", 2)
        yield


@dataclass
class Node:
    """One agent and its broker, as seen from outside. has: entities that live on the broker."""

    register: Register
    disk: Snapshot | None
    agent_up: bool = True
    broker_up: bool = True
    gate_open: bool = False
    cut: bool = False
    lied_for: bool = False
    has: dict[str, Entry] = field(default_factory=dict)
    told: tuple[int, Snapshot] | None = None

    @property
    def snapshot(self) -> Snapshot:
        """The same object while the map is the same, as peers get it by ETag."""
        if self.told is None or self.told[0] != self.register.version:
            self.told = (self.register.version, self.register.snapshot)
        return self.told[1]

    def bring_about(self) -> None:
        if not (self.agent_up and self.broker_up):
            return
        for key, entry in self.register.entries.items():
            if entry.alive:
                self.has[key] = entry
            else:
                self.has.pop(key, None)
        if not self.register.informed:
            return
        for key, entry in list(self.has.items()):
            if key not in self.register.entries and entry.number <= self.register.floor:
                del self.has[key]
        self.gate_open = True


@dataclass
class World:
    """World of agents on the real `Register`; `check` is the naive oracle.

    All acknowledged changes are remembered. No agent persists entries that it merely read; none
    reads unless told to, so that every order of reading and failing is met.
    """

    nodes: dict[str, Node] = field(default_factory=dict)
    listed: tuple[str, ...] = NAMES
    acknowledged: dict[str, Entry] = field(default_factory=dict)
    deleted_at: dict[str, int] = field(default_factory=dict)
    deletions: dict[str, list[Entry]] = field(default_factory=lambda: {key: [] for key in KEYS})

    def __post_init__(self) -> None:
        for name in NAMES:
            first = intact()
            self.nodes[name] = Node(Register(name, first), first)
            self.nodes[name].register.voters.listed(NAMES)
            self.nodes[name].register.voters.life_began()
        for name in NAMES:
            self.pull(name)

    def heal(self) -> None:
        """Have an agent that was off the list read both others before the next fault.

        With one of the two away it would have to take the other's word for deletions.
        """
        was_listed = self.listed
        self._list(NAMES)
        for name, node in self.nodes.items():
            node.cut = node.lied_for = False
            if not node.agent_up:
                self._start_agent(name)
            if not node.broker_up:
                self._start_broker(name)
        for _ in range(2 if was_listed != NAMES else 0):
            for name in NAMES:
                self.pull(name)

    def _list(self, names: tuple[str, ...]) -> None:
        self.listed = names
        for node in self.nodes.values():
            node.register.voters.listed(names)

    def _start_agent(self, name: str) -> None:
        node = self.nodes[name]
        node.agent_up, node.told = True, None
        node.register = Register(name, node.disk)
        node.register.voters.listed(self.listed)
        if not node.gate_open:
            node.register.voters.life_began()

    def _start_broker(self, name: str) -> None:
        node = self.nodes[name]
        node.broker_up, node.gate_open = True, False
        if node.agent_up:
            node.register.voters.life_began()

    def _stop_broker(self, name: str) -> None:
        self.nodes[name].broker_up = self.nodes[name].gate_open = False

    def off(self, name: str) -> None:
        self.heal()
        self._stop_broker(name)
        self.nodes[name].agent_up = False

    def unlist(self, name: str) -> None:
        """Take it off the list, with its map on its disk; `heal` puts it on again."""
        if not all(node.register.intact for node in self.nodes.values()):
            return  # of two left, one that was wiped never has a majority
        self.off(name)
        self._list(tuple(each for each in NAMES if each != name))

    def liar(self, name: str) -> None:
        """Answer at its address with a map newer than all, with nothing in it.

        It passes for one of a majority, so each of the others must know all acknowledged changes.
        """
        self.heal()
        for _ in range(2):
            for each in NAMES:
                self.pull(each)
        self.off(name)
        self.nodes[name].lied_for = True

    def agent_off(self, name: str) -> None:
        self.heal()
        self.nodes[name].agent_up = False

    def broker_off(self, name: str) -> None:
        """Stop the broker; the cut, if there is one, stays."""
        if not self.nodes[name].cut:
            self.heal()
        self._stop_broker(name)

    def broker_on(self, name: str) -> None:
        if not self.nodes[name].broker_up and not self.nodes[name].lied_for:
            self._start_broker(name)

    def cut(self, name: str) -> None:
        self.heal()
        self.nodes[name].cut = True

    def wipe(self, name: str) -> None:
        """Wipe one agent at a time: two of three leave no majority until operators vouch."""
        if not all(node.register.intact for node in self.nodes.values()):
            return
        self.off(name)
        self.nodes[name].disk = None
        self.nodes[name].has.clear()
        self.heal()

    def reach(self, one: str, other: str) -> bool:
        pair = (self.nodes[one], self.nodes[other])
        return all(node.agent_up and not node.cut for node in pair)

    def pull(self, name: str) -> list[str]:
        node = self.nodes[name]
        answered: list[str] = []
        if not node.agent_up:
            return answered
        for peer in self.listed:
            if peer == name:
                continue
            theirs = None
            if self.reach(name, peer):
                theirs = self.nodes[peer].snapshot
            elif self.nodes[peer].lied_for and not node.cut:
                theirs = Snapshot(intact=True, floor=10**15, dropped=10**15)
            if theirs and node.register.heard(peer, theirs, life=node.register.voters.life):
                answered.append(peer)
        node.register.round_ended()
        node.bring_about()
        return answered

    def sweeps(self, count: int) -> None:
        """Run as many rounds as two sweeps take, of all, and store their maps."""
        for _ in range(count * 2 * module.SWEEP_ROUNDS):
            for name in NAMES:
                self.pull(name)
        for node in self.nodes.values():
            if node.agent_up:
                node.disk = node.snapshot

    def change(self, name: str, key: str, alive: bool) -> None:
        above = 0
        for _round in range(3):
            above = self._change(name, key, alive, above)

    def _change(self, name: str, key: str, alive: bool, above: int) -> int:
        """Try a change. Returns the number that it must exceed, if it was not taken."""
        node = self.nodes[name]
        if not node.agent_up or name not in self.listed:
            return 0
        answered = self.pull(name)
        options: dict[str, Options] = {key: dict(EXPIRES)} if key == "expiring" else {}
        changed = node.register.change(
            [key], alive=alive, answered=answered, above=above, options=options
        )
        if changed is None:
            return 0
        self.deletions[key] += [] if alive else changed
        node.disk = node.snapshot
        node.bring_about()
        told = {peer: self._tell(name, peer, changed) for peer in self.listed if peer != name}
        replies = {peer: reply for peer, (reply, _above) in told.items()}
        mine = Answer.HELD if node.broker_up else Answer.LATER
        replies[name] = Reply(answer=mine, stored=node.register.intact)
        found = node.register.entries.get(key)
        stands = found is not None and found.alive == alive
        if found and stands and completion(self.listed, replies).complete:
            self.acknowledged[key] = found
            if not alive:
                self.deleted_at[key] = found.number
        return max(each for _reply, each in told.values())

    def _tell(self, name: str, peer: str, changed: tuple[Entry, ...]) -> tuple[Reply, int]:
        node = self.nodes[peer]
        mine = self.nodes[name].register
        if not self.reach(name, peer):
            return Reply(answer=Answer.NO if node.broker_up else Answer.DEAD), 0
        if not node.register.receive(Snapshot(intact=mine.intact, entries=changed)):
            return Reply(answer=Answer.NO), node.register.dropped
        node.disk = node.snapshot
        node.bring_about()
        found = (node.register.entries.get(each.wanted) for each in changed)
        theirs = tuple(each for each in found if each)
        mine.receive(Snapshot(intact=node.register.intact, entries=theirs))
        answer = Answer.HELD if node.broker_up else Answer.LATER
        return Reply(answer=answer, stored=node.register.intact), 0

    def check(self) -> None:
        """Check that every broker that takes publishes has every acknowledged change."""
        for name, node in self.nodes.items():
            if not node.gate_open or name not in self.listed:
                continue
            for key, promised in self.acknowledged.items():
                self._check_one(name, node.has.get(key), key, promised)

    def _check_one(self, name: str, found: Entry | None, key: str, promised: Entry) -> None:
        if found is None:
            assert not promised.alive or self.superseded(key), f"{name} lacks {promised}"
        elif key != "expiring":  # which may come back once more, and expires again
            assert found.rank >= promised.rank, f"{name} has {found}, acknowledged was {promised}"
            assert found.tomb >= self.deleted_at.get(key, 0), f"{name} lost a tomb: {found}"

    def superseded(self, key: str) -> bool:
        """Return whether a later deletion that was not acknowledged may have reached some agents."""
        return any(entry.rank > self.acknowledged[key].rank for entry in self.deletions[key])


FAULTS = ["off", "agent_off", "cut", "wipe", "broker_off", "broker_on", "unlist", "liar"]
STEPS_OF_ALL = ["create", "create", "delete", "delete", "pull", "pull", "heal", "heal", "sweeps"]
Step = tuple[str, str, str]
STEPS = st.tuples(
    st.sampled_from([*STEPS_OF_ALL, *FAULTS]), st.sampled_from(NAMES), st.sampled_from(KEYS)
)


def play(steps: list[Step]) -> World:
    world = World()
    for what, name, key in steps:
        match what:
            case "create" | "delete":
                world.change(name, key, what == "create")
            case "sweeps":
                world.sweeps(1)
            case "heal":
                world.heal()
            case _:
                getattr(world, what)(name)
        world.check()
    return world


def steps(told: str) -> list[Step]:
    """Return the steps of a text such as ``off C, create A, create B k2``; a key is k1 unless told."""
    words = (each.split() for each in told.split(", "))
    return [(what, name, key[0] if key else "k1") for what, name, *key in words]


@pytest.mark.guarantee("no-clock-decides")
@settings(max_examples=examples(1000), deadline=None, derandomize=True)
@given(steps=st.lists(STEPS, max_size=40))
# A and B know k1, C was off. A is wiped and reads C, which has read no other yet.
@example(steps=steps("off C, create A, heal C, cut B, wipe A, cut B, pull A"))
# B has k1, is off the list while k1 is deleted and its tomb dropped, and comes back.
@example(steps=steps("create A, unlist B, delete A, sweeps A, heal B, pull B, pull A"))
# The same, but A reads B before B has read anybody.
@example(steps=steps("create A, unlist B, delete A, sweeps A, heal B, pull A"))
# B is away, not off the list: the tomb waits for it.
@example(steps=steps("create A, off B, delete A, sweeps A, heal B, pull A"))
# C is wiped, and makes k1 anew while it knows of its tomb from B alone.
@example(steps=steps("delete A, sweeps A, wipe C, cut A, create C, heal A, create C"))
# A liar answers for C while B, which knows nothing of k1, boots.
@example(steps=steps("off B, create A, sweeps A, liar C, sweeps A, create B k2, heal C, pull C"))
# B and C know k1, A was off. B is wiped, and A reads no other.
@example(steps=steps("off A, create B, heal A, wipe B, cut C, pull A"))
# B is cut off with its broker down, so the change is complete; its broker comes back first.
@example(steps=steps("pull B, cut B, broker_off B, create A, broker_on B, pull B"))
def test_whoever_takes_publishes_has_every_acknowledged_change(
    short_sweeps: None, steps: list[Step]
) -> None:
    play(steps)


@pytest.mark.guarantee("no-clock-decides")
@settings(max_examples=examples(300), deadline=None, derandomize=True)
@given(steps=st.lists(STEPS, max_size=30), seed=st.integers(0, 2**16))
def test_after_all_faults_are_over_the_maps_become_one(
    short_sweeps: None, steps: list[Step], seed: int
) -> None:
    world = play(steps)
    world.heal()
    order = list(NAMES) * 3
    random.Random(seed).shuffle(order)
    for name in [*order, *NAMES, *NAMES]:
        world.pull(name)
    world.check()
    assert all(world.nodes[name].gate_open for name in NAMES)
    world.sweeps(2)
    world.check()
    maps = [dict(world.nodes[name].register.entries) for name in NAMES]
    assert maps[0] == maps[1] == maps[2]
    assert all(entry.alive for entry in maps[0].values())


def test_held_by_all_is_complete() -> None:
    judged = completion("ABC", dict.fromkeys("ABC", HELD))
    assert judged.complete
    assert judged.held == ("A", "B", "C")
    assert not judged.missing


def test_a_broker_that_takes_no_publishes_yet_does_not_stand_in_the_way() -> None:
    judged = completion("ABC", {"A": HELD, "B": LATER, "C": DEAD})
    assert judged.complete
    assert judged.held == ("A",)
    assert judged.later == ("B", "C")


@pytest.mark.parametrize("replies", [{"A": HELD, "B": HELD, "C": NO}, {"A": HELD, "B": HELD}])
def test_a_broker_that_may_be_serving_is_named(replies: dict[str, Reply]) -> None:
    judged = completion("ABC", replies)
    assert not judged.complete
    assert set(judged.missing) == {"C"}


def test_the_reason_of_the_broker_is_told() -> None:
    assert completion("AC", {"A": HELD, "C": NO}).missing["C"] == "agent hangs"


def test_without_a_majority_that_stored_it_it_may_be_lost_again() -> None:
    judged = completion("ABC", {"A": HELD, "B": DEAD, "C": DEAD})
    assert not judged.complete
    assert set(judged.missing) == {"B", "C"}
    assert "1 of 3" in judged.missing["B"]


def test_held_by_a_map_that_does_not_count_is_no_vote() -> None:
    unvoted = Reply(answer=Answer.HELD)
    assert not completion("ABC", {"A": HELD, "B": unvoted, "C": unvoted}).complete


def test_of_no_brokers_nothing_is_complete() -> None:
    assert not completion([], {}).complete


def test_brokers_off_the_list_have_no_say() -> None:
    assert completion("A", {"A": HELD, "X": NO}).complete


def test_every_combination_of_three_against_the_rule_in_words() -> None:
    kinds = (HELD, LATER, DEAD, NO, Reply(answer=Answer.LATER), None)
    for three in product(kinds, repeat=3):
        replies = {name: reply for name, reply in zip("ABC", three, strict=True) if reply}
        nobody_serves_without = all(reply is not None and reply is not NO for reply in three)
        two_stored = sum(reply in (HELD, LATER) for reply in three) >= 2
        expected = nobody_serves_without and two_stored
        assert completion("ABC", replies).complete == expected, three


def test_a_refusal_without_a_reason_is_one_all_the_same() -> None:
    judged = completion("AB", {"A": HELD, "B": Reply(answer=Answer.NO, stored=True)})
    assert not judged.complete
    assert judged.missing == {"B": "refused it"}


def test_agents_off_the_list_do_not_make_a_majority() -> None:
    replies = {"A": HELD, "B": DEAD, "C": DEAD, "X": HELD, "Y": HELD}
    assert not completion("ABC", replies).complete
