"""Deletion of an expiring subscription, and its return."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from messagebus.broker import Broker, BrokerList, ListedBroker
from messagebus.errors import LinkLost
from messagebus.services.agent.consumer_list import ListFile
from messagebus.services.agent.gate import Condition
from messagebus.services.agent.topology import expiry as module
from messagebus.services.agent.topology.expiry import Expiry, Uses
from messagebus.services.agent.topology.register import Completion
from tests.support.eventually import eventually_async

ME, B, C = "a:5672", "b:5672", "c:5672"
E = "orders/e"


class Clock:
    now_s = 1_000.0

    def monotonic(self) -> float:
        return self.now_s


@dataclass
class FakeUpkeep:
    """Upkeep of a fake broker. consumers: of the queue of E, None when it is gone."""

    consumers: int | None = 0
    condition: Condition = field(default_factory=lambda: Condition(linked=True))
    made: list[tuple[str, bool]] = field(default_factory=list)
    is_wanted: bool = True
    dials: int = 0
    fails: bool = False
    during_use: Callable[[], None] | None = None

    @property
    def link(self) -> FakeUpkeep:
        return self

    @property
    def is_open(self) -> bool:
        return self.condition.linked

    def expiring(self) -> dict[str, int]:
        return {E: 10} if self.is_wanted else {}

    async def use_of(self, name: str) -> int | None:
        if self.during_use:
            self.during_use()
        if self.fails:
            raise LinkLost(ME, "hung up")
        assert name == E
        return self.consumers

    async def make_again(self, name: str, *, lost: bool) -> None:
        self.made.append((name, lost))
        self.consumers = 0


@dataclass
class FakePeers:
    answers: dict[str, dict[str, float | None]] = field(default_factory=dict)
    asked: int = 0
    during: Callable[[], None] | None = None

    async def unused(self, _peers: Iterable[ListedBroker]) -> dict[str, dict[str, float | None]]:
        self.asked += 1
        if self.during:
            self.during()
        return self.answers


@dataclass
class FakeTopology:
    deleted: list[str] = field(default_factory=list)

    async def change(self, names: Sequence[str], *, alive: bool) -> Completion:
        assert not alive
        self.deleted.extend(names)
        return Completion(complete=True, held=(), later=(), missing={})


@dataclass
class Rig:
    expiry: Expiry
    upkeep: FakeUpkeep
    peers: FakePeers
    topology: FakeTopology
    clients: list[tuple[str, float]]
    clock: Clock
    lists: ListFile

    async def after(self, seconds: float) -> None:
        self.clock.now_s += seconds
        await self.expiry.look()


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    upkeep, peers, topology, lists = FakeUpkeep(), FakePeers(), FakeTopology(), ListFile("-")
    lists.current = BrokerList(
        generation=1, listed=tuple(ListedBroker(broker=Broker(host)) for host in "abc")
    )
    clients: list[tuple[str, float]] = []
    expiry = Expiry(
        me=ME,
        uses=Uses(),
        upkeep=upkeep,  # type: ignore[arg-type]
        topology=topology,  # type: ignore[arg-type]
        peers=peers,  # type: ignore[arg-type]
        lists=lists,
        clients=lambda: clients,
    )
    return Rig(expiry, upkeep, peers, topology, clients, clock, lists)


async def test_what_nobody_used_for_longer_than_its_expiry_is_deleted(rig: Rig) -> None:
    rig.peers.answers = {B: {E: 11.0}, C: {E: 12.0}}
    await rig.expiry.look()
    await rig.after(10)
    assert not rig.topology.deleted
    await rig.after(1)
    assert rig.topology.deleted == [E]
    assert rig.expiry.deleted == 1


@pytest.mark.parametrize("how", ["consumer", "client", "registration"])
async def test_what_is_used_stays(rig: Rig, how: str) -> None:
    rig.peers.answers = {B: {E: 99.0}, C: {E: 99.0}}
    await rig.expiry.look()
    if how == "registration":
        rig.clock.now_s += 9
        rig.expiry._uses.used(E)
        await rig.after(9)
    elif how == "consumer":
        rig.upkeep.consumers = 1
        await rig.after(99)
    else:
        rig.clients.append((E, 4.0))
        await rig.after(99)
        assert rig.expiry.unused_s() == {E: 4.0}
    assert not rig.topology.deleted


async def test_what_is_used_elsewhere_stays(rig: Rig) -> None:
    rig.peers.answers = {B: {E: 99.0}, C: {E: 0.5}}
    await rig.expiry.look()
    await rig.after(99)
    assert not rig.topology.deleted
    assert not rig.upkeep.made


@pytest.mark.parametrize(("peers", "deleted"), [({}, False), ({B: {E: 99.0}}, True)])
async def test_a_majority_must_know_of_no_use(
    rig: Rig, peers: dict[str, dict[str, float | None]], deleted: bool
) -> None:
    rig.peers.answers = {**peers, C: {E: None}}
    await rig.expiry.look()
    await rig.after(99)
    assert bool(rig.topology.deleted) is deleted


async def test_one_of_them_deletes_and_not_all_at_once(rig: Rig) -> None:
    rig.peers.answers = {"0:5672": {E: 99.0}, B: {E: 99.0}}
    await rig.expiry.look()
    await rig.after(99)
    assert not rig.topology.deleted


async def test_a_queue_that_expired_here_and_is_used_elsewhere_is_made_again_and_told(
    rig: Rig,
) -> None:
    rig.peers.answers = {B: {E: 0.0}}
    await rig.expiry.look()
    rig.upkeep.consumers = None
    await rig.after(99)
    assert rig.upkeep.made == [(E, True)]
    assert not rig.topology.deleted


async def test_a_broker_that_is_a_little_earlier_than_we_are_makes_nothing_again(rig: Rig) -> None:
    rig.peers.answers = {B: {E: 9.5}, C: {E: 9.9}}
    await rig.expiry.look()
    rig.upkeep.consumers = None
    await rig.after(9.8)
    rig.peers.answers = {B: {E: 10.5}, C: {E: 10.9}}
    await rig.after(1)
    assert not rig.upkeep.made
    assert rig.topology.deleted == [E]


async def test_a_queue_that_expired_before_it_was_watched_is_deleted(rig: Rig) -> None:
    rig.peers.answers = {B: {E: 99.0}}
    rig.upkeep.consumers = None
    await rig.expiry.look()
    assert rig.topology.deleted == [E]


async def test_a_queue_that_vanished_while_it_was_used_is_made_again(rig: Rig) -> None:
    rig.upkeep.consumers = 1
    await rig.expiry.look()
    rig.upkeep.consumers = None
    await rig.after(1)
    assert rig.upkeep.made == [(E, True)]


async def test_who_lost_sight_of_its_broker_counts_anew(rig: Rig) -> None:
    rig.peers.answers = {B: {E: 99.0}, C: {E: 99.0}}
    await rig.expiry.look()
    rig.upkeep.condition = Condition(linked=False)
    await rig.after(99)
    assert rig.expiry.unused_s() == {E: None}
    rig.upkeep.condition = Condition(linked=True)
    rig.upkeep.dials += 1
    await rig.after(1)
    assert rig.expiry.unused_s() == {E: 0.0}
    assert not rig.topology.deleted


async def test_what_was_deleted_is_forgotten(rig: Rig) -> None:
    await rig.expiry.look()
    rig.upkeep.is_wanted = False
    await rig.after(99)
    rig.upkeep.is_wanted = True
    await rig.after(0)
    assert rig.expiry.unused_s() == {E: 0.0}


async def test_without_a_list_nobody_is_asked(rig: Rig) -> None:
    await rig.expiry.look()
    rig.lists.current = None
    await rig.after(99)
    assert rig.peers.asked == 0


async def test_it_goes_on_when_the_link_is_lost_and_looks_at_once_when_told(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_INTERVAL_S", 60.0)
    looks: list[Any] = []
    use_of = rig.upkeep.use_of

    async def counted(name: str) -> int | None:
        looks.append(name)
        return await use_of(name)

    monkeypatch.setattr(rig.upkeep, "use_of", counted)
    rig.upkeep.fails = True
    running = asyncio.ensure_future(rig.expiry.run())
    rig.expiry._uses.gone(E)
    await eventually_async(lambda: len(looks) == 1, within_s=5)
    rig.expiry._uses.gone(E)
    await eventually_async(lambda: len(looks) == 2, within_s=5)
    running.cancel()


@pytest.mark.guarantee("no-task-ends-the-agent")
async def test_a_subscription_deleted_while_the_others_are_asked_is_left_alone(rig: Rig) -> None:
    rig.upkeep.consumers = None
    await rig.expiry.look()
    rig.peers.during = lambda: setattr(rig.upkeep, "is_wanted", False)
    rig.peers.answers = {B: {}, C: {}}
    await rig.after(20)
    assert rig.peers.asked
    assert not rig.topology.deleted
    rig.peers.during, rig.upkeep.is_wanted = None, True
    rig.peers.answers = {B: {E: 30.0}, C: {E: 30.0}}
    await rig.after(20)
    assert rig.topology.deleted == [E]


async def test_one_deleted_in_the_middle_of_a_look_does_not_break_it_off(rig: Rig) -> None:
    rig.upkeep.fails = True
    rig.upkeep.during_use = lambda: setattr(rig.upkeep, "is_wanted", False)
    await rig.expiry.look()
    rig.upkeep.is_wanted, rig.upkeep.during_use = True, None
    with pytest.raises(LinkLost):
        await rig.expiry.look()
