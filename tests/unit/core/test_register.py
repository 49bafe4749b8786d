"""The map of one agent, and three of them under faults against a naive oracle."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from messagebus.core.register import (
    AWAY_MS,
    TOMB_KEPT_MS,
    Entry,
    Options,
    Register,
    Snapshot,
    majority,
)
from messagebus.core.registration import Answer, Reply, completion

DAY_MS = 24 * 3600 * 1000
START_MS = 1_700_000_000_000
NAMES = ("A", "B", "C")
KEYS = ("k1", "k2")


def entry(
    wanted: str = "k", number: int = 1, *, origin: str = "A", alive: bool = True, tomb: int = 0
) -> Entry:
    return Entry(
        wanted=wanted, number=number, origin=origin, alive=alive, tomb=tomb, changed_at_ms=START_MS
    )


def intact(*entries: Entry, at_ms: int = START_MS) -> Snapshot:
    return Snapshot(intact=True, current_at_ms=at_ms, entries=entries)


def register(me: str = "A", *entries: Entry, kept: bool = True) -> Register:
    made = Register(me, intact(*entries) if kept else None)
    made.listed(NAMES)
    return made


def hear(ours: Register, peer: str, snapshot: Snapshot, at_ms: int = START_MS) -> None:
    ours.heard(peer, snapshot, life=ours.life, asked_at_ms=at_ms)


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
    hear(ours, "B", Snapshot(intact=False, current_at_ms=START_MS, entries=(entry(),)))
    assert not ours.entries
    assert not ours.informed


def test_the_only_broker_is_informed_by_its_own_map() -> None:
    ours = Register("A", intact())
    ours.listed(["A"])
    assert ours.informed
    wiped = Register("A", None)
    wiped.listed(["A"])
    assert not wiped.informed


def test_without_a_list_there_is_no_majority() -> None:
    ours = Register("A", intact())
    assert not ours.informed
    assert ours.change(["k"], alive=True, answered=["B", "C"], now_ms=START_MS) is None


def test_an_agent_that_is_not_listed_yet_is_informed_by_a_majority_of_the_listed() -> None:
    ours = Register("D", None)
    ours.listed(NAMES)
    answers = []
    for peer in ("A", "B"):
        hear(ours, peer, intact(entry()))
        answers.append(ours.informed)
    assert answers == [False, True]
    assert "k" in ours.entries


def test_what_was_read_before_a_new_life_of_the_broker_says_nothing() -> None:
    ours = register()
    life = ours.life
    hear(ours, "B", intact())
    ours.life_began()
    assert not ours.informed
    ours.heard("C", intact(), life=life, asked_at_ms=START_MS)
    assert not ours.informed
    hear(ours, "C", intact())
    assert ours.informed


def test_an_agent_off_the_list_does_not_inform() -> None:
    ours = register()
    hear(ours, "B", intact())
    ours.listed(["A", "C", "D"])
    assert not ours.informed


def test_creating_what_lives_changes_no_number() -> None:
    ours = register("A", entry(number=7))
    version = ours.version
    (found,) = ours.change(["k"], alive=True, answered=["B"], now_ms=START_MS) or ()
    assert found.number == 7
    assert ours.version == version


def test_numbers_grow_over_all_keys_and_a_deletion_leaves_a_tomb() -> None:
    ours = register("A", entry(number=7))
    (dead,) = ours.change(["k"], alive=False, answered=["B"], now_ms=START_MS) or ()
    assert (dead.number, dead.tomb, dead.alive) == (8, 8, False)
    other, again = ours.change(["other", "k"], alive=True, answered=["B"], now_ms=START_MS) or ()
    assert (other.number, other.tomb) == (9, 0)
    assert (again.number, again.tomb) == (10, 8)


def test_options_are_those_it_began_to_live_with() -> None:
    ours = register("A", entry())
    asked: dict[str, Options] = {"q": {"expires_s": 5, "durability": "none"}}

    def change(alive: bool, options: dict[str, Options] | None = None) -> Entry:
        changed = ours.change(["q"], alive=alive, answered=["B"], now_ms=START_MS, options=options)
        assert changed is not None
        return changed[0]

    born = change(True, asked)
    assert born.options == (("durability", "none"), ("expires_s", 5))
    assert change(True, {"q": {}}) == born
    assert change(False, asked).options == ()
    assert change(True).options == ()


def test_a_change_needs_a_majority() -> None:
    assert register().change(["k"], alive=True, answered=[], now_ms=START_MS) is None
    assert register().change(["k"], alive=True, answered=["A", "X"], now_ms=START_MS) is None
    wiped = register(kept=False)
    assert wiped.change(["k"], alive=True, answered=["B"], now_ms=START_MS) is None
    assert wiped.change(["k"], alive=True, answered=["B", "C"], now_ms=START_MS)


def test_the_larger_number_then_origin_stands_and_the_larger_tomb() -> None:
    ours = register("A", entry(number=5, origin="A", tomb=3))
    ours.told(intact(entry(number=5, origin="B", tomb=2)))
    assert ours.entries["k"] == entry(number=5, origin="B", tomb=3)
    ours.told(intact(entry(number=4, origin="C", alive=False, tomb=4)))
    assert ours.entries["k"] == entry(number=5, origin="B", tomb=4)


def test_a_version_grows_only_with_what_is_kept() -> None:
    ours = register("A", entry())
    version = ours.version
    hear(ours, "B", intact(entry()))
    assert ours.version == version
    hear(ours, "B", intact(entry(number=2)))
    assert ours.version > version


def test_a_map_that_missed_a_week_is_not_merged() -> None:
    ours = Register("A", intact(at_ms=START_MS + AWAY_MS + 1))
    ours.listed(NAMES)
    hear(ours, "B", intact(entry(), at_ms=START_MS), at_ms=START_MS + AWAY_MS + 2)
    assert not ours.entries
    assert not ours.informed
    assert not ours.told(intact(entry(), at_ms=START_MS))


def test_whoever_missed_a_week_forgets_and_adopts() -> None:
    ours = register("A", entry("old"))
    now_ms = START_MS + AWAY_MS + 1
    hear(ours, "B", intact(entry("new"), at_ms=now_ms), at_ms=now_ms)
    assert set(ours.entries) == {"new"}
    assert not ours.intact
    hear(ours, "C", intact(entry("new"), at_ms=now_ms), at_ms=now_ms)
    assert ours.intact


def test_a_cluster_that_was_off_as_a_whole_for_a_year_keeps_its_map() -> None:
    ours = register("A", entry(), entry("gone", 2, alive=False, tomb=2))
    now_ms = START_MS + 365 * DAY_MS
    hear(ours, "B", intact(entry()), at_ms=now_ms)
    assert ours.intact
    assert ours.informed
    assert set(ours.entries) == {"k", "gone"}
    assert ours.current_at_ms == now_ms


def test_tombs_are_forgotten_after_every_map_that_may_be_merged_has_seen_them() -> None:
    ours = register("A", entry(), entry("gone", 2, alive=False, tomb=2))
    for days in range(0, 14):
        hear(ours, "B", intact(at_ms=START_MS), at_ms=START_MS + days * DAY_MS)
        ours.forget_tombs()
    assert "gone" in ours.entries
    now_ms = START_MS + TOMB_KEPT_MS + 1
    hear(ours, "B", intact(at_ms=now_ms), at_ms=now_ms)
    ours.forget_tombs()
    assert set(ours.entries) == {"k"}


def test_numbers_do_not_start_again_when_the_tombs_are_forgotten() -> None:
    now_ms = START_MS + TOMB_KEPT_MS + 1
    ours = Register("A", intact(entry("gone", 9, alive=False, tomb=9), at_ms=now_ms))
    ours.listed(NAMES)
    hear(ours, "B", intact(at_ms=now_ms), at_ms=now_ms)
    ours.forget_tombs()
    assert not ours.entries
    assert ours.snapshot.floor == 9
    (again,) = ours.change(["gone"], alive=True, answered=["B"], now_ms=now_ms) or ()
    assert (again.number, again.tomb) == (10, 9)
    theirs = register("B")
    hear(theirs, "A", ours.snapshot, at_ms=now_ms)
    assert theirs.floor == 9


def test_how_current_a_map_is_needs_a_majority_too() -> None:
    ours = Register("A", intact())
    ours.listed(["A", "B", "C", "D", "E"])
    hear(ours, "B", intact(), at_ms=START_MS + 10)
    ours.alone(START_MS + 50)
    assert ours.current_at_ms == START_MS
    hear(ours, "C", intact(), at_ms=START_MS + 20)
    assert ours.current_at_ms == START_MS + 10


# --- Three agents, one fault at a time. ---


@dataclass
class Node:
    """One agent and its broker, as seen from outside. has: what lives on the broker."""

    register: Register
    disk: Snapshot | None
    agent_up: bool = True
    broker_up: bool = True
    gate_open: bool = False
    cut: bool = False
    has: dict[str, Entry] = field(default_factory=dict)

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
    """Runs what agents do, on the real `Register`; `check` is the naive oracle.

    Whatever was acknowledged is remembered as it was. Nobody persists what it merely read; nobody
    reads unless told to, so that every order of reading and failing is met.
    """

    now_ms: int = START_MS
    nodes: dict[str, Node] = field(default_factory=dict)
    acknowledged: dict[str, Entry] = field(default_factory=dict)
    deleted_at: dict[str, int] = field(default_factory=dict)
    deletions: dict[str, list[Entry]] = field(default_factory=lambda: {key: [] for key in KEYS})

    def __post_init__(self) -> None:
        for name in NAMES:
            first = intact()
            self.nodes[name] = Node(Register(name, first), first)
            self.nodes[name].register.listed(NAMES)
            self.nodes[name].register.life_began()
        for name in NAMES:
            self.pull(name)

    def heal(self) -> None:
        for name, node in self.nodes.items():
            node.cut = False
            if not node.agent_up:
                self._start_agent(name)
            if not node.broker_up:
                self._start_broker(name)

    def _start_agent(self, name: str) -> None:
        node = self.nodes[name]
        node.agent_up = True
        node.register = Register(name, node.disk)
        node.register.listed(NAMES)
        if not node.gate_open:
            node.register.life_began()

    def _start_broker(self, name: str) -> None:
        node = self.nodes[name]
        node.broker_up, node.gate_open = True, False
        if node.agent_up:
            node.register.life_began()

    def _stop_broker(self, name: str) -> None:
        self.nodes[name].broker_up = self.nodes[name].gate_open = False

    def off(self, name: str) -> None:
        self.heal()
        self._stop_broker(name)
        self.nodes[name].agent_up = False

    def agent_off(self, name: str) -> None:
        self.heal()
        self.nodes[name].agent_up = False

    def broker_off(self, name: str) -> None:
        """The cut, if there is one, stays."""
        if not self.nodes[name].cut:
            self.heal()
        self._stop_broker(name)

    def broker_on(self, name: str) -> None:
        if not self.nodes[name].broker_up:
            self._start_broker(name)

    def cut(self, name: str) -> None:
        self.heal()
        self.nodes[name].cut = True

    def wipe(self, name: str) -> None:
        """One at a time: two agents of three wiped, or away for a week, leave no majority for ever."""
        snapshots = [node.register.snapshot for node in self.nodes.values()]
        if not all(s.intact and self.now_ms - s.current_at_ms < AWAY_MS for s in snapshots):
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
        for peer in NAMES:
            if peer != name and self.reach(name, peer):
                theirs = self.nodes[peer].register.snapshot
                node.register.heard(peer, theirs, life=node.register.life, asked_at_ms=self.now_ms)
                answered += [peer] if theirs.intact else []
        node.register.forget_tombs()
        node.bring_about()
        if node.disk and node.register.current_at_ms - node.disk.current_at_ms >= DAY_MS:
            node.disk = node.register.snapshot
        return answered

    def days(self, count: int) -> None:
        for _ in range(count):
            self.now_ms += DAY_MS
            for name in NAMES:
                self.pull(name)

    def change(self, name: str, key: str, alive: bool) -> None:
        node = self.nodes[name]
        if not node.agent_up:
            return
        answered = self.pull(name)
        changed = node.register.change([key], alive=alive, answered=answered, now_ms=self.now_ms)
        if changed is None:
            return
        self.deletions[key] += [] if alive else changed
        node.disk = node.register.snapshot
        node.bring_about()
        replies = {peer: self._tell(name, peer, changed) for peer in NAMES if peer != name}
        mine = Answer.HELD if node.broker_up else Answer.LATER
        replies[name] = Reply(answer=mine, stored=node.register.intact)
        stands = node.register.entries[key].alive == alive
        if stands and completion(NAMES, replies).complete:
            self.acknowledged[key] = node.register.entries[key]
            if not alive:
                self.deleted_at[key] = node.register.entries[key].number

    def _tell(self, name: str, peer: str, changed: tuple[Entry, ...]) -> Reply:
        node = self.nodes[peer]
        mine = self.nodes[name].register
        if not self.reach(name, peer):
            return Reply(answer=Answer.NO if node.broker_up else Answer.DEAD)
        told = Snapshot(intact=mine.intact, current_at_ms=mine.current_at_ms, entries=changed)
        if not node.register.told(told):
            return Reply(answer=Answer.NO)
        node.disk = node.register.snapshot
        node.bring_about()
        theirs = tuple(node.register.entries[each.wanted] for each in changed)
        mine.told(
            Snapshot(intact=node.register.intact, current_at_ms=mine.current_at_ms, entries=theirs)
        )
        answer = Answer.HELD if node.broker_up else Answer.LATER
        return Reply(answer=answer, stored=node.register.intact)

    def check(self) -> None:
        """Every broker that takes publishes has every acknowledged change."""
        for name, node in self.nodes.items():
            for key, promised in self.acknowledged.items():
                if node.gate_open:
                    self._check_one(name, node.has.get(key), key, promised)

    def _check_one(self, name: str, found: Entry | None, key: str, promised: Entry) -> None:
        if found is None:
            assert not promised.alive or self.superseded(key), f"{name} lacks {promised}"
            return
        assert found.rank >= promised.rank, f"{name} has {found}, acknowledged was {promised}"
        assert found.tomb >= self.deleted_at.get(key, 0), f"{name} lost a tomb: {found}"

    def superseded(self, key: str) -> bool:
        """A later deletion that was not acknowledged may have reached some."""
        return any(entry.rank > self.acknowledged[key].rank for entry in self.deletions[key])


FAULTS = ["off", "agent_off", "cut", "wipe", "broker_off", "broker_on"]
Step = tuple[str, str, str, int]
STEPS = st.tuples(
    st.sampled_from(
        ["create", "create", "delete", "delete", "pull", "pull", "heal", "heal", "days"] + FAULTS  # noqa: RUF005
    ),
    st.sampled_from(NAMES),
    st.sampled_from(KEYS),
    st.sampled_from([1, 8, 15]),
)


def play(steps: list[Step]) -> World:
    world = World()
    for what, name, key, days in steps:
        match what:
            case "create" | "delete":
                world.change(name, key, what == "create")
            case "days":
                world.days(days)
            case "heal":
                world.heal()
            case _:
                getattr(world, what)(name)
        world.check()
    return world


@settings(max_examples=1500, deadline=None, derandomize=True)
@given(steps=st.lists(STEPS, max_size=40))
# A and B know k1, C was off. A is wiped and reads C, which has read nobody yet.
@example(
    steps=[
        ("off", "C", "k1", 1),
        ("create", "A", "k1", 1),
        ("heal", "C", "k1", 1),
        ("cut", "B", "k1", 1),
        ("wipe", "A", "k1", 1),
        ("cut", "B", "k1", 1),
        ("pull", "A", "k1", 1),
    ]
)
# B has k1, is off while k1 is deleted and its tomb forgotten, and comes back.
@example(
    steps=[
        ("create", "A", "k1", 1),
        ("off", "B", "k1", 1),
        ("delete", "A", "k1", 1),
        ("days", "A", "k1", 15),
        ("heal", "B", "k1", 1),
        ("pull", "B", "k1", 1),
        ("pull", "A", "k1", 1),
    ]
)
# The same, but A reads B before B has read anybody.
@example(
    steps=[
        ("create", "A", "k1", 1),
        ("off", "B", "k1", 1),
        ("delete", "A", "k1", 1),
        ("days", "A", "k1", 15),
        ("heal", "B", "k1", 1),
        ("pull", "A", "k1", 1),
    ]
)
# B and C know k1, A was off. B is wiped, and A reads nobody else.
@example(
    steps=[
        ("off", "A", "k1", 1),
        ("create", "B", "k1", 1),
        ("heal", "A", "k1", 1),
        ("wipe", "B", "k1", 1),
        ("cut", "C", "k1", 1),
        ("pull", "A", "k1", 1),
    ]
)
# B is cut off with its broker down, so the change is complete; its broker comes back first.
@example(
    steps=[
        ("pull", "B", "k1", 1),
        ("cut", "B", "k1", 1),
        ("broker_off", "B", "k1", 1),
        ("create", "A", "k1", 1),
        ("broker_on", "B", "k1", 1),
        ("pull", "B", "k1", 1),
    ]
)
def test_whoever_takes_publishes_has_every_acknowledged_change(steps: list[Step]) -> None:
    play(steps)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(steps=st.lists(STEPS, max_size=30), seed=st.integers(0, 2**16))
def test_after_all_faults_are_over_the_maps_become_one(steps: list[Step], seed: int) -> None:
    world = play(steps)
    world.heal()
    order = list(NAMES) * 3
    random.Random(seed).shuffle(order)
    for name in [*order, *NAMES, *NAMES]:
        world.pull(name)
    world.check()
    maps = [dict(world.nodes[name].register.entries) for name in NAMES]
    assert maps[0] == maps[1] == maps[2]
    assert all(world.nodes[name].gate_open for name in NAMES)
