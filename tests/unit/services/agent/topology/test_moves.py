"""An agent's part in moves: when one begins, and in which order its steps are made and written."""

from __future__ import annotations

import re
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from messagebus.broker import Broker, BrokerList, ListedBroker
from messagebus.core.homes import mark_of
from messagebus.errors import TopologyError
from messagebus.services.agent.topology import moves
from messagebus.services.agent.topology.moves import Moves
from messagebus.services.agent.topology.register import Entry, Register, Snapshot

A, B, C, LOST = "a:5672", "b:5672", "c:5672", "lost:5672"
LISTED = BrokerList(listed=tuple(ListedBroker(broker=Broker.parse(each)) for each in (A, B, C)))


class World:
    """The other parts of the agent of A: they say what they are told to say, and what they were asked."""

    def __init__(self, homes: str = f"{A} {B}") -> None:
        options = (("homes", homes), ("partitions", 2))
        topic = Entry(wanted="orders", number=1, origin=A, alive=True, tomb=0, options=options)
        below = Entry(
            wanted="orders/billing",
            number=2,
            origin=A,
            alive=True,
            tomb=0,
            options=(("partitions", 2),),
        )
        self.register = Register(A, Snapshot(intact=True, entries=(topic, below)))
        self.register.voters.listed([A, B, C])
        self.register.heard(B, self.register.snapshot, life=0)
        self.said: list[str] = []
        self.bound: dict[str, list[str] | None] = {B: [], C: []}
        self.old: list[str] = []
        self.keeps, self.passes, self.is_open = 3, True, True
        self.heard, self.why_not = {B, C}, {B: "", C: ""}
        self.left = 0
        self.unsealed: set[str] = set()
        self.condition = SimpleNamespace(gate_open=True)
        self.bound_here: list[str] = []
        self.dials = 1
        self.erl_call = "/erl_call"
        self.current = LISTED
        parts: Any = self
        self.moves = Moves(
            me=A,
            topology=parts,
            upkeep=SimpleNamespace(  # type: ignore[arg-type]
                condition=self.condition,
                link=SimpleNamespace(dials=1, is_open=True),
                partitions=SimpleNamespace(
                    unsealed=self.unsealed,
                    is_open=lambda _entry: self.is_open,
                    bound=lambda _topic: self.bound_here,
                    unbound=lambda _topic: {"0.1": "unbind" in self.said},
                    segment_queues=lambda name: {"0.1": f"mb.seg/{name}/0.1"},
                ),
                seal=self.seal,
                bring_about=self.bring_about,
            ),
            settler=parts,
            peers=SimpleNamespace(  # type: ignore[arg-type]
                bound=self.bound_at, pull=self.pull_old, agree=self.agree
            ),
            lists=parts,
        )

    @property
    def homes(self) -> str:
        return self.moves.homes("orders")

    async def bound_at(self, peers: Iterable[ListedBroker], _topic: str) -> dict[str, Any]:
        names = {each.broker.name for each in peers}
        return {name: told for name, told in self.bound.items() if name in names}

    async def pull(self, _peers: Iterable[ListedBroker]) -> set[str]:
        return self.heard

    async def agree(self, _peers: Iterable[ListedBroker], _home: str) -> dict[str, str]:
        return self.why_not

    async def pull_old(self, peers: Iterable[ListedBroker]) -> list[str]:
        return [each.broker.name for each in peers if each.broker.name in self.old]

    async def keep(self, _topic: str, _current: BrokerList) -> int:
        self.said.append(f"keep {self.homes.split()[0]}")
        return self.keeps

    async def seal(self) -> None:
        self.said.append("unbind")

    async def bring_about(self) -> None:
        self.said.append("bring about")

    async def channels_passed(self) -> bool:
        self.said.append("barrier")
        return self.passes

    async def messages_left(self, queues: list[str]) -> dict[str, int]:
        return dict.fromkeys(queues, self.left)

    async def look(self, times: int = 1) -> None:
        for _ in range(times):
            await self.moves._pass()


async def test_a_move_is_written_to_a_majority_before_anything_is_unbound() -> None:
    world = World()
    world.bound[C], world.keeps = ["0.2"], 1
    assert await world.moves.begin("orders", {0: C}) == {0: ""}
    assert (world.homes, world.unsealed) == (f"{A}>2@{C} {B}", {"orders#0.1"})
    assert world.said == [f"keep {A}>2@{C}"]  # before it was told, so that no death forgets it
    with pytest.raises(TopologyError, match="no majority of the agents has stored"):
        await world.look()
    assert world.said == [f"keep {A}>2@{C}"] * 2


async def test_the_old_home_takes_publishes_until_the_next_one_is_bound() -> None:
    world = World()
    await world.moves.begin("orders", {0: C})
    await world.look(3)
    assert world.said == [f"keep {A}>2@{C}"]
    world.bound[C] = ["0.2"]
    await world.look()
    assert world.said[1:] == ["unbind", "barrier", f"keep {A},2@{C}", "bring about"]
    assert not world.unsealed


async def test_nothing_is_open_while_a_channel_has_not_answered() -> None:
    world = World()
    await world.moves.begin("orders", {0: C})
    world.bound[C], world.passes = ["0.2"], False
    with pytest.raises(TopologyError, match="channels of the broker did not answer"):
        await world.look()
    assert world.homes == f"{A}>2@{C} {B}"


async def test_a_segment_ends_when_nothing_is_left_and_that_was_told() -> None:
    world = World()
    await world.moves.begin("orders", {0: C})
    world.bound[C], world.left = ["0.2"], 1
    await world.look(3)
    assert world.homes == f"{A},2@{C} {B}"
    world.left = 0
    await world.look()
    assert world.homes == f"{A}/billing,2@{C} {B}"
    await world.look()
    assert world.homes == f"2@{C} {B}"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"is_open": False}, "it is not open yet"),
        ({"erl_call": ""}, "has no erl_call"),
        ({"bound": {B: []}}, "c:5672 takes no messages, or its agent does not answer"),
        ({"bound": {B: [], C: None}}, "c:5672 takes no messages"),
        ({"bound": {C: []}, "old": [B]}, "the agent of b:5672 is late, or of a version without"),
        ({"current": BrokerList(listed=LISTED.listed[:2])}, "c:5672 is not on the list"),
    ],
)
async def test_why_a_move_does_not_begin(change: dict[str, Any], why: str) -> None:
    world = World()
    for name, value in change.items():
        setattr(world, name, value)
    told = await world.moves.begin("orders", {0: C})
    assert why in told[0]
    assert (world.homes, world.unsealed) == (f"{A} {B}", set())


async def test_what_is_not_here_to_move_is_refused() -> None:
    world = World()
    assert "its home b:5672 decides" in (await world.moves.begin("orders", {1: C}))[1]
    assert "has 2 partitions" in (await world.moves.begin("orders", {7: C}))[7]
    assert "there is no topic" in (await world.moves.begin("plain", {0: C}))[0]


async def test_who_waits_for_news_hears_of_a_move() -> None:
    world = World()
    known = mark_of(world.homes)
    assert await world.moves.news("orders", known, 0.01) == f"{A} {B}"
    await world.moves.begin("orders", {0: C})
    assert await world.moves.news("orders", known, 60) == f"{A}>2@{C} {B}"


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The brokers that answer when they are dialled."""
    found = set[str]()

    async def answers(broker: Broker, *, timeout_s: float) -> bool:
        return broker.name in found

    monkeypatch.setattr(moves, "port_answers", answers)
    return found


async def test_a_lost_home_is_passed_by_when_all_agents_know_it_and_the_next_one_is_bound(
    answering: set[str],
) -> None:
    world = World(f"{LOST} {LOST}")
    waits = {0: f"its next home {A} prepares", 1: f"its next home {B} prepares"}
    assert await world.moves.abandon("orders", LOST) == waits
    assert world.homes == f"{LOST}/!{LOST}>2@{A} {LOST}/!{LOST}>2@{B}"
    world.bound_here, world.bound[B] = ["0.2"], None  # where the gate is shut
    assert await world.moves.abandon("orders", LOST) == {0: "", 1: waits[1]}
    world.bound[B], world.keeps = ["1.2"], 2
    with pytest.raises(TopologyError, match="not every agent of the list has stored the homes"):
        await world.moves.abandon("orders", LOST)
    assert world.homes == f"2@{A}/!{LOST} {LOST}/!{LOST}>2@{B}"
    world.keeps = 3
    for _ in range(2):  # also of one who was interrupted, or came second
        assert await world.moves.abandon("orders", LOST) == {0: "", 1: ""}
    assert world.homes == f"2@{A}/!{LOST} 2@{B}/!{LOST}"


async def test_partitions_of_a_lost_home_go_to_those_with_the_fewest_that_take_messages(
    answering: set[str],
) -> None:
    world = World(f"{LOST} {A}")
    world.bound[B] = None
    assert await world.moves.abandon("orders", LOST) == {0: f"its next home {C} prepares"}
    world = World(f"{A}>2@{LOST} {LOST}")
    world.bound = {}
    told = await world.moves.abandon("orders", LOST)
    assert told == {0: "no other broker takes messages", 1: f"its next home {A} prepares"}
    both = World(f"{LOST}>2@gone:5672 {B}")
    told = await both.moves.abandon("orders", LOST)
    assert told == {0: "its next home gone:5672 is not on the list: abandon that"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"why_not": {B: f"has {LOST} on its list", C: ""}}, f"that of {B} has {LOST} on its list"),
        ({"why_not": {B: ""}}, f"that of {C} does not answer, or is of a version"),
        ({"heard": {C}}, f"that of {B} does not answer"),
        ({"current": BrokerList(listed=LISTED.listed[1:])}, f"lets the agent of {B} decide"),
        ({"current": None}, "has no consumer list"),
        ({"answering": {LOST}}, f"gets an answer of {LOST}: put it on the list again"),
        ({"home": B}, f"has {B} on its list: take it off, or move its partitions"),
        ({"topic": "plain"}, "there is no topic plain with partitions"),
        ({"informed": False}, "does not know the map yet"),
    ],
)
async def test_a_home_is_abandoned_only_when_all_agree_that_it_is_lost(
    change: dict[str, Any], why: str, answering: set[str]
) -> None:
    world = World(f"{LOST} {B}")
    answering |= change.pop("answering", set())
    topic, home = change.pop("topic", "orders"), change.pop("home", LOST)
    if not change.pop("informed", True):
        world.register.voters.life_began()
    for name, value in change.items():
        setattr(world, name, value)
    with pytest.raises(TopologyError, match=re.escape(why)):
        await world.moves.abandon(topic, home)
    assert (world.homes, world.said) == (f"{LOST} {B}", [])
