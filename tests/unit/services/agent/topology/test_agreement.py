"""Changes and merges of one agent, with peers and a broker that answer as told."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

import pytest

from messagebus.broker import Broker, BrokerList, ListedBroker
from messagebus.errors import TopologyError, TopologyMismatch
from messagebus.services.agent.consumer_list import ListFile
from messagebus.services.agent.topology import agreement as module
from messagebus.services.agent.topology.agreement import NoMajority, Topology
from messagebus.services.agent.topology.peers import Node, PeerAnswer
from messagebus.services.agent.topology.register import (
    SWEEP_ROUNDS,
    Answer,
    Entry,
    Register,
    Reply,
    Snapshot,
)
from messagebus.services.agent.topology.store import Store
from messagebus.topology import Options, read_item
from tests.support.eventually import eventually_async

ME, B, C = "a:5672", "b:5672", "c:5672"
EMPTY = Snapshot(intact=True)


def entry(number: int = 5, *, origin: str = B, alive: bool = True) -> Entry:
    return Entry(
        wanted="orders", number=number, origin=origin, alive=alive, tomb=0 if alive else number
    )


def listed(*hosts: str, generation: int = 1) -> BrokerList:
    brokers = tuple(ListedBroker(broker=Broker(host)) for host in hosts)
    return BrokerList(generation=generation, listed=brokers)


@dataclass
class FakePeers:
    """Peers. maps: their answers to a pull. answers: to a push; taken from in turn."""

    maps: dict[str, Snapshot] = field(default_factory=dict)
    answers: list[dict[str, PeerAnswer]] = field(default_factory=list)
    pushed: list[tuple[Entry, ...]] = field(default_factory=list)
    asked: list[list[str]] = field(default_factory=list)
    during_push: list[object] = field(default_factory=list)
    mismatches: dict[str, str] = field(default_factory=dict)
    tried: list[list[object]] = field(default_factory=list)
    nodes: dict[str, Node] = field(default_factory=dict)

    async def pull(self, peers: Iterable[ListedBroker]) -> dict[str, Snapshot]:
        names = [peer.broker.name for peer in peers if peer.broker.name != ME]
        self.asked.append(names)
        return {name: self.maps[name] for name in names if name in self.maps}

    async def mismatch(
        self, peers: Iterable[ListedBroker], items: Sequence[object]
    ) -> dict[str, str]:
        self.tried.append(list(items))
        return {p.broker.name: self.mismatches.get(p.broker.name, "") for p in peers}

    async def push(
        self,
        _peers: Iterable[ListedBroker],
        entries: Sequence[Entry],
        _mine: Snapshot,
        *,
        answering: Iterable[str],
    ) -> dict[str, PeerAnswer]:
        assert set(answering) == {name for name in self.asked[-1] if name in self.maps}
        self.pushed.append(tuple(entries))
        for act in self.during_push:
            assert callable(act)
            act()
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@dataclass
class FakeUpkeep:
    reply: Reply = field(default_factory=lambda: Reply(answer=Answer.HELD, stored=True))
    woken: int = 0
    stored_first: list[bool] = field(default_factory=list)
    store: Store | None = None
    mismatched: str = ""

    @property
    def partitions(self) -> FakeUpkeep:
        return self

    async def mismatch(self, _wanted: Iterable[object]) -> str:
        return self.mismatched

    def wake(self) -> None:
        self.woken += 1

    def look_for_open(self) -> None:
        pass

    async def answer(self, names: Iterable[str]) -> Reply:
        assert self.store is not None
        kept = self.store.load_map()
        on_disk = {each.wanted for each in kept.entries} if kept else set()
        self.stored_first.append(set(names) <= on_disk)
        return self.reply


@dataclass
class Rig:
    topology: Topology
    register: Register
    peers: FakePeers
    upkeep: FakeUpkeep
    lists: ListFile


@pytest.fixture
def refused() -> set[str]:
    """The brokers whose AMQP port refuses."""
    return set()


@pytest.fixture
def gone() -> set[str]:
    """The names of nodes that are dead by the word of their hosts' epmd."""
    return set()


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: set[str], gone: set[str]) -> Rig:
    async def node_is_gone(_host: str, name: str, port: int, *, timeout_s: float) -> bool:
        assert port == 4369
        return name in gone

    monkeypatch.setattr(module, "node_is_gone", node_is_gone)

    async def port_refuses(broker: Broker, *, timeout_s: float) -> bool:
        return broker.name in refused

    monkeypatch.setattr(module, "port_refuses", port_refuses)
    store = Store(tmp_path)
    register = Register(ME, EMPTY)
    peers, upkeep, lists = FakePeers(), FakeUpkeep(store=store), ListFile(tmp_path / "list")
    lists.current = listed("a", "b", "c")
    topology = Topology(
        me=ME,
        register=register,
        store=store,
        peers=peers,  # type: ignore[arg-type]
        lists=lists,
        upkeep=upkeep,  # type: ignore[arg-type]
        answering=upkeep,  # type: ignore[arg-type]
        pull_now=asyncio.Event(),
    )
    topology.list_changed()
    return Rig(topology, register, peers, upkeep, lists)


def held(*entries: Entry) -> PeerAnswer:
    return PeerAnswer(answer="held", reason="", stored=True, intact=True, entries=entries)


async def test_a_change_held_by_all_is_complete(rig: Rig) -> None:
    rig.peers.maps = {B: EMPTY, C: EMPTY}
    rig.peers.answers = [{B: held(), C: held()}]
    judged = await rig.topology.change(["orders", "queue:jobs"], alive=True)
    assert judged.complete
    assert judged.held == (ME, B, C)
    assert [each.wanted for each in rig.peers.pushed[0]] == ["orders", "queue:jobs"]
    assert rig.upkeep.stored_first == [True]
    assert (rig.topology.changes, rig.topology.changes_incomplete) == (1, 0)
    assert judged.created == ("orders", "queue:jobs")
    assert (await rig.topology.change(["orders", "new"], alive=True)).created == ("new",)


async def test_equal_changes_that_wait_for_their_turn_are_made_once_for_all(rig: Rig) -> None:
    rig.peers.maps = {B: EMPTY, C: EMPTY}
    rig.peers.answers = [{B: held(), C: held()}]
    change = rig.topology.change
    judged = await asyncio.gather(
        change(["orders"], alive=True),
        *(change(["orders"], alive=True, options={"orders": {}}) for _ in range(10)),
        change(["queue:jobs"], alive=True),
    )
    assert all(each.complete for each in judged)
    pushed = [[each.wanted for each in entries] for entries in rig.peers.pushed]
    assert pushed == [["orders"], ["queue:jobs"]]
    await change(["orders"], alive=True)
    assert len(rig.peers.pushed) == 3


async def test_an_equal_change_that_comes_while_one_is_made_has_a_turn_of_its_own(rig: Rig) -> None:
    """The broker list, or a peer, may have changed since that one began."""
    rig.peers.maps = {B: EMPTY, C: EMPTY}
    rig.peers.answers = [{B: held(), C: held()}]
    later: list[asyncio.Task[object]] = []

    def ask() -> None:
        if not later:
            later.append(asyncio.create_task(rig.topology.change(["orders"], alive=True)))

    rig.peers.during_push = [ask]
    await rig.topology.change(["orders"], alive=True)
    await later[0]
    assert len(rig.peers.pushed) == 2


async def _exist(rig: Rig, *names: str) -> None:
    rig.peers.maps = {B: EMPTY, C: EMPTY}
    rig.peers.answers = [{B: held(), C: held()}]
    await rig.topology.change(names, alive=True)
    rig.peers.pushed.clear()


async def test_existing_names_that_wait_for_their_turn_are_confirmed_together(rig: Rig) -> None:
    """A thousand clients that start together would else ask every agent twice for each of them."""
    names = [f"orders/s{number}" for number in range(50)]
    await _exist(rig, *names)
    judged = await asyncio.gather(
        *(rig.topology.change([name], alive=True) for name in names * 2),
        rig.topology.change(["new"], alive=True),
    )
    assert all(each.complete for each in judged)
    assert [each.created for each in judged] == [()] * 100 + [("new",)]
    pushed = [[each.wanted for each in entries] for entries in rig.peers.pushed]
    assert pushed == [names, ["new"]]


async def test_who_waits_together_with_a_name_that_is_refused_is_answered_alone(rig: Rig) -> None:
    """Somebody deletes a name, and makes it with other options, while its confirmation waits."""
    billing, expiring = "orders/billing", {"orders/billing": {"expires_s": 60}}
    await _exist(rig, "orders/audit")
    await rig.topology.change([billing], alive=True, options=expiring)
    async with rig.topology._changing:
        asks = [
            asyncio.create_task(rig.topology.change([billing], alive=True, options=expiring)),
            asyncio.create_task(rig.topology.change(["orders/audit"], alive=True)),
        ]
        await asyncio.sleep(0)
        for alive in (False, True):
            rig.register.change([billing], alive=alive, answered=[B, C])
    refused, judged = await asyncio.gather(*asks, return_exceptions=True)
    assert isinstance(refused, TopologyMismatch)
    assert not isinstance(judged, BaseException)
    assert judged.complete


async def test_a_name_that_one_broker_lacks_leaves_the_others_complete(rig: Rig) -> None:
    await _exist(rig, "orders/billing", "orders/audit")
    no = PeerAnswer(answer="no", reason="refuses billing", stored=True, intact=True, entries=())
    together, billing, audit = {B: no, C: held()}, {B: no, C: held()}, {B: held(), C: held()}
    rig.peers.answers = [together, billing, audit]
    judged = await asyncio.gather(
        rig.topology.change(["orders/billing"], alive=True),
        rig.topology.change(["orders/audit"], alive=True),
    )
    assert [each.complete for each in judged] == [False, True]
    assert judged[0].missing == {B: "refuses billing"}


async def test_who_gives_up_waiting_leaves_the_others_their_answer(rig: Rig) -> None:
    rig.peers.maps = {B: EMPTY, C: EMPTY}
    rig.peers.answers = [{B: held(), C: held()}]
    first, second = (
        asyncio.create_task(rig.topology.change(["orders"], alive=True)) for _ in range(2)
    )
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).complete


async def test_without_a_majority_nothing_is_changed(rig: Rig) -> None:
    with pytest.raises(NoMajority):
        await rig.topology.change(["orders"], alive=True)
    assert not rig.register.entries
    assert not rig.peers.pushed


async def test_a_map_that_is_not_intact_is_no_vote(rig: Rig) -> None:
    rig.peers.maps = {B: Snapshot(intact=False), C: Snapshot(intact=False)}
    with pytest.raises(NoMajority):
        await rig.topology.change(["orders"], alive=True)


async def test_without_a_list_there_are_no_agents(rig: Rig) -> None:
    rig.lists.current = None
    with pytest.raises(NoMajority):
        await rig.topology.change(["orders"], alive=True)


async def test_what_the_peers_know_is_read_before_a_number_is_given(rig: Rig) -> None:
    rig.peers.maps = {B: replace(EMPTY, entries=(entry(7),))}
    rig.peers.answers = [{B: held(), C: held()}]
    await rig.topology.change(["queue:jobs"], alive=True)
    assert rig.peers.pushed[0][0].number == 8


@pytest.mark.guarantee("complete-means-everywhere")
@pytest.mark.parametrize(("refuses", "is_known", "is_gone"), list(product((False, True), repeat=3)))
async def test_a_silent_agent_is_safe_only_if_its_brokers_node_is_proved_dead(
    rig: Rig, refused: set[str], gone: set[str], refuses: bool, is_known: bool, is_gone: bool
) -> None:
    """A port that refuses proves nothing: a listener may be suspended, a firewall may reject."""
    rig.peers.maps = {B: EMPTY}
    rig.peers.answers = [{B: held()}]
    refused.update({C} if refuses else ())
    gone.update({"rabbit@c"} if is_gone else ())
    rig.peers.nodes = {C: Node(name="rabbit@c", epmd_port=4369)} if is_known else {}
    judged = await rig.topology.change(["orders"], alive=True)
    dead = refuses and is_known and is_gone
    assert judged.complete == dead
    assert (judged.later, set(judged.missing)) == (((C,), set()) if dead else ((), {C}))


async def test_a_broker_that_says_no_is_named_with_its_reason(rig: Rig, refused: set[str]) -> None:
    refused.add(B)
    rig.peers.maps = {B: EMPTY, C: EMPTY}
    no = PeerAnswer(answer="no", reason="406", stored=True, intact=True, entries=())
    rig.peers.answers = [{B: no, C: held()}]
    assert (await rig.topology.change(["orders"], alive=True)).missing == {B: "406"}


async def test_what_exists_with_other_options_is_told_and_changes_nothing(rig: Rig) -> None:
    rig.peers.maps = {B: EMPTY, C: EMPTY}
    rig.peers.answers = [{B: held(), C: held()}]
    weak = {"durability": "page-cache"}
    await rig.topology.change(["queue:jobs"], alive=True, options={"queue:jobs": weak})
    assert rig.register.entries["queue:jobs"].options == (("durability", "page-cache"),)
    with pytest.raises(TopologyMismatch, match="wanted fsync and exists page-cache"):
        await rig.topology.change(["orders", "queue:jobs"], alive=True)
    assert "orders" not in rig.register.entries
    assert len(rig.peers.pushed) == 1


@pytest.mark.parametrize("where", [ME, C])
async def test_what_somebody_declared_otherwise_on_a_broker_is_told_and_changes_nothing(
    rig: Rig, where: str
) -> None:
    rig.peers.maps = {B: EMPTY, C: EMPTY}
    rig.peers.answers = [{B: held(), C: held()}]
    rig.peers.mismatches = {where: "two values"}
    rig.upkeep.mismatched = "two values" if where == ME else ""
    with pytest.raises(TopologyMismatch, match=f"on {where}: two values"):
        await rig.topology.change(["orders"], alive=True)
    assert not rig.register.entries
    rig.upkeep.mismatched, rig.peers.mismatches = "", {}
    await rig.topology.change(["orders"], alive=True)
    rig.peers.mismatches = {C: "two values"}
    assert (await rig.topology.change(["orders"], alive=True)).complete
    assert rig.peers.tried == [["orders"], ["orders"]]


async def test_a_concurrent_creation_with_other_options_that_wins_is_told(rig: Rig) -> None:
    rig.peers.maps = {B: EMPTY, C: EMPTY}
    won = replace(entry(1, origin=B), options=(("durability", "none"),))
    rig.peers.answers = [{B: held(won), C: held()}]
    with pytest.raises(TopologyMismatch, match="wanted fsync and exists none"):
        await rig.topology.change(["orders"], alive=True)


async def test_a_list_that_changes_meanwhile_makes_it_start_over(rig: Rig) -> None:
    rig.peers.maps = {B: EMPTY, C: EMPTY, "d:5672": EMPTY}
    rig.peers.answers = [{B: held(), C: held()}, {B: held(), C: held(), "d:5672": held()}]

    def add_d() -> None:
        rig.lists.current = listed("a", "b", "c", "d", generation=2)
        rig.topology.list_changed()

    rig.peers.during_push = [add_d]
    judged = await asyncio.wait_for(rig.topology.change(["orders"], alive=True), 60)
    assert judged.complete
    assert "d:5672" in judged.held
    assert len(rig.peers.pushed) == 2


async def test_a_concurrent_change_that_wins_makes_it_start_over(rig: Rig) -> None:
    rig.peers.maps = {B: EMPTY, C: EMPTY}
    won = entry(1, origin=B, alive=False)
    rig.peers.answers = [{B: held(won), C: held()}, {B: held(), C: held()}]
    judged = await rig.topology.change(["orders"], alive=True)
    assert judged.complete
    assert [pushed[0].number for pushed in rig.peers.pushed] == [1, 2]
    assert rig.register.entries["orders"].alive
    assert rig.register.entries["orders"].tomb == 1


async def test_it_does_not_start_over_for_ever(rig: Rig) -> None:
    rig.peers.maps = {B: EMPTY, C: EMPTY}
    generations = iter(range(2, 100))

    def change() -> None:
        rig.lists.current = listed("a", "b", "c", generation=next(generations))

    rig.peers.during_push = [change]
    rig.peers.answers = [{B: held(), C: held()}]
    judged = await rig.topology.change(["orders"], alive=True)
    assert not judged.complete
    assert len(rig.peers.pushed) == module.CHANGE_ROUNDS


async def test_a_change_that_came_too_late_for_one_is_made_again_with_a_larger_number(
    rig: Rig,
) -> None:
    """That one dropped tombstones of larger numbers: a name that it does not know may be deleted."""
    rig.peers.maps = {B: EMPTY, C: EMPTY}
    late = PeerAnswer(answer="no", reason="late", stored=False, intact=True, entries=(), above=40)
    rig.peers.answers = [{B: held(), C: late}, {B: held(), C: held()}]
    judged = await rig.topology.change(["orders"], alive=True)
    assert judged.complete
    assert [pushed[0].number for pushed in rig.peers.pushed] == [1, 41]


async def test_what_comes_too_late_is_answered_with_what_its_number_must_be_above(rig: Rig) -> None:
    rig.register.adopt(Snapshot(intact=True, floor=9))
    reply = await rig.topology.receive(replace(EMPTY, entries=(entry(5),)))
    assert (reply.answer, reply.stored, reply.above) == (Answer.NO, False, 9)
    assert (await rig.topology.receive(replace(EMPTY, entries=(entry(10),)))).answer is Answer.HELD


async def test_a_map_that_operators_vouch_for_is_stored_and_counts(
    rig: Rig, tmp_path: Path
) -> None:
    await rig.topology.adopt(Snapshot(intact=False, floor=2, entries=(entry(5),)))
    kept = Store(tmp_path).load_map()
    assert kept == Snapshot(intact=True, floor=2, dropped=2, entries=(entry(5),))
    assert rig.upkeep.woken


async def test_a_deletion_that_everybody_forgot_already_is_done(rig: Rig) -> None:
    rig.peers.maps = {B: EMPTY, C: EMPTY}
    rig.peers.answers = [{B: held(), C: held()}]
    assert (await rig.topology.change(["orders"], alive=False)).complete
    for _ in range(2 * SWEEP_ROUNDS):
        rig.register.round_ended()
    rig.peers.during_push = [lambda: rig.register.heard(B, EMPTY, life=0)]
    assert (await rig.topology.change(["orders"], alive=False)).complete
    assert len(rig.peers.pushed) == 2


async def test_a_tombstone_that_all_have_is_forgotten_by_rounds_alone(rig: Rig) -> None:
    dead = Snapshot(intact=True, entries=(entry(7, alive=False),))
    rig.peers.maps = {B: dead, C: dead}
    current = rig.lists.current
    assert current is not None
    for _ in range(2 * SWEEP_ROUNDS):
        await rig.topology.pull(current.listed)
        rig.register.round_ended()
    assert not rig.register.entries
    assert rig.register.floor == 7


async def test_what_a_peer_tells_is_stored_before_it_is_answered(rig: Rig) -> None:
    reply = await rig.topology.receive(replace(EMPTY, entries=(entry(),)))
    assert reply.answer is Answer.HELD
    assert rig.upkeep.stored_first == [True]
    assert rig.topology.entries_of(replace(EMPTY, entries=(entry(),))) == [entry()]


async def test_a_map_that_may_not_be_merged_is_answered_no(rig: Rig) -> None:
    reply = await rig.topology.receive(Snapshot(intact=False, entries=(entry(),)))
    assert (reply.answer, reply.stored) == (Answer.NO, False)
    assert not rig.register.entries


async def test_a_map_that_cannot_be_stored_is_not_answered(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_self: Store, _snapshot: Snapshot) -> None:
        raise OSError("no space")

    monkeypatch.setattr(Store, "save_map", full)
    with pytest.raises(TopologyError, match="no space"):
        await rig.topology.receive(replace(EMPTY, entries=(entry(),)))
    assert rig.upkeep.stored_first == []


async def test_pulls_inform_wake_and_are_stored(rig: Rig, tmp_path: Path) -> None:
    rig.peers.maps = {B: replace(EMPTY, entries=(entry(),))}
    running = asyncio.ensure_future(rig.topology.run())
    await eventually_async(lambda: (tmp_path / "topology.json").exists(), within_s=5)
    running.cancel()
    kept = Store(tmp_path).load_map()
    assert kept is not None
    assert kept.entries == (entry(),)
    assert rig.register.informed
    assert rig.upkeep.woken


async def test_a_broker_listed_anew_reads_a_majority_again(rig: Rig) -> None:
    rig.peers.maps = {B: EMPTY, C: EMPTY}
    rig.lists.current = listed("b", "c", generation=2)
    rig.topology.list_changed()
    joining = [rig.topology.joining]
    rig.lists.current = listed("a", "b", "c", generation=3)
    rig.topology.list_changed()
    joining.append(rig.topology.joining)
    await rig.topology.pull(rig.lists.current.listed)
    joining.append(rig.topology.joining)
    assert joining == [False, True, False]


async def test_while_informed_a_round_asks_a_few_in_turn(rig: Rig) -> None:
    hosts = [f"h{number}" for number in range(20)]
    rig.lists.current = listed("a", *hosts)
    rig.topology.list_changed()
    assert len(rig.topology._next_peers(rig.lists.current)) == 20
    rig.peers.maps = {f"{host}:5672": EMPTY for host in hosts}
    await rig.topology.pull(rig.lists.current.listed)
    asked: set[str] = set()
    for _ in range(5):
        some = rig.topology._next_peers(rig.lists.current)
        assert len(some) == module.PULL_PEERS
        asked |= {peer.broker.name for peer in some}
    assert len(asked) == 20


class Network:
    """Network that brings one agent's requests to the others, each after some turns of the loop."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.agents: dict[str, Topology] = {}

    async def _later(self) -> None:
        for _ in range(self.random.randrange(6)):
            await asyncio.sleep(0)


@dataclass
class LinkedPeers:
    me: str
    network: Network
    nodes: dict[str, Node] = field(default_factory=dict)

    def _others(self) -> dict[str, Topology]:
        return {name: agent for name, agent in self.network.agents.items() if name != self.me}

    async def pull(self, _peers: Iterable[ListedBroker]) -> dict[str, Snapshot]:
        await self.network._later()
        return {name: agent.register.snapshot for name, agent in self._others().items()}

    async def mismatch(
        self, _peers: Iterable[ListedBroker], items: Sequence[object]
    ) -> dict[str, str]:
        wanted = {str(each): each for each in map(read_item, items)}

        async def ask(agent: Topology) -> str:
            await self.network._later()
            told = await agent.in_the_way(self.me, wanted)
            await self.network._later()
            return told

        others = self._others()
        return dict(zip(others, await asyncio.gather(*map(ask, others.values())), strict=True))

    async def push(
        self, _peers: object, entries: Sequence[Entry], mine: Snapshot, **_: object
    ) -> dict[str, PeerAnswer]:
        async def tell(agent: Topology) -> PeerAnswer:
            await self.network._later()
            part = replace(mine, entries=tuple(entries))
            reply = await agent.receive(part)
            found = tuple(agent.entries_of(part))
            return PeerAnswer(
                answer=reply.answer.value, reason="", stored=True, intact=True, entries=found
            )

        others = self._others()
        return dict(zip(others, await asyncio.gather(*map(tell, others.values())), strict=True))


@dataclass
class DeclaringUpkeep(FakeUpkeep):
    """Upkeep that declares. declared: name -> the options with which it was ever declared here."""

    register: Register | None = None
    declared: dict[str, set[object]] = field(default_factory=dict)

    async def answer(self, names: Iterable[str]) -> Reply:
        assert self.register is not None
        for name in names:
            self.declared.setdefault(name, set()).add(self.register.entries[name].options)
        return self.reply


@pytest.mark.guarantee("one-of-two-wins")
@pytest.mark.parametrize("seed", range(40))
async def test_of_two_that_make_one_name_otherwise_at_once_one_wins_and_one_is_told(
    tmp_path: Path, seed: int
) -> None:
    network, upkeeps = Network(seed), list[DeclaringUpkeep]()
    for host in "abc":
        name, lists = f"{host}:5672", ListFile(tmp_path / "list")
        lists.current = listed("a", "b", "c")
        register = Register(name, EMPTY)
        upkeeps.append(DeclaringUpkeep(register=register))
        network.agents[name] = Topology(
            me=name,
            register=register,
            store=Store(tmp_path / host),
            peers=LinkedPeers(name, network),  # type: ignore[arg-type]
            lists=lists,
            upkeep=upkeeps[-1],  # type: ignore[arg-type]
            answering=upkeeps[-1],  # type: ignore[arg-type]
            pull_now=asyncio.Event(),
        )
        Store(tmp_path / host).prepare()
        network.agents[name].list_changed()

    async def make(me: str, durability: str) -> str:
        await network._later()
        try:
            options = {"queue:x": {"durability": durability}}
            judged = await network.agents[me].change(["queue:x"], alive=True, options=options)
        except TopologyMismatch:
            return "mismatch"
        return "complete" if judged.complete else "incomplete"

    one, other = network.random.sample([ME, B, C], 2)
    told = await asyncio.gather(make(one, "page-cache"), make(other, "fsync"))
    assert sorted(told) == ["complete", "mismatch"]
    maps = [agent.register.entries for agent in network.agents.values()]
    assert maps[0] == maps[1] == maps[2]
    for upkeep in upkeeps:
        assert len(upkeep.declared["queue:x"]) == 1


async def test_a_partitioned_topic_gets_its_homes_and_its_subscriptions_their_number(
    rig: Rig,
) -> None:
    rig.peers.maps = {B: EMPTY, C: EMPTY}
    rig.peers.answers = [{B: held(), C: held()}] * 9
    options: dict[str, Options] = {"orders": {"partitions": 4}}
    await rig.topology.change(["orders", "orders/billing"], alive=True, options=options)
    entries = rig.register.entries
    assert sorted(str(dict(entries["orders"].options)["homes"]).split()) == [ME, B, C]
    assert dict(entries["orders/billing"].options) == {"partitions": 4}
    before = entries["orders"]
    await rig.topology.change(["orders"], alive=True, options=options)
    assert entries["orders"] == before
    with pytest.raises(TopologyMismatch, match="partitions is wanted 5 and exists 4"):
        await rig.topology.change(["orders"], alive=True, options={"orders": {"partitions": 5}})
    with pytest.raises(TopologyMismatch, match="delete orders/billing first"):
        await rig.topology.change(["orders"], alive=False)
    await rig.topology.change(["orders", "orders/billing"], alive=False)
    assert dict(entries["orders"].options).keys() == {
        "homes",
        "partitions",
    }  # what is to be deleted


async def test_a_stream_has_the_partitions_of_its_topic_and_keeps_it(rig: Rig) -> None:
    rig.peers.maps = {B: EMPTY, C: EMPTY}
    rig.peers.answers = [{B: held(), C: held()}] * 9
    options: dict[str, Options] = {"orders": {"partitions": 4}, "stream:orders": {"keep_s": 60}}
    await rig.topology.change(["stream:orders", "orders"], alive=True, options=options)
    entries = rig.register.entries
    assert dict(entries["stream:orders"].options) == {"keep_s": 60, "partitions": 4}
    await rig.topology.change(["stream:orders"], alive=True)
    with pytest.raises(TopologyMismatch, match="delete stream:orders first"):
        await rig.topology.change(["orders"], alive=False)
    await rig.topology.change(["stream:orders", "orders"], alive=False)


@pytest.mark.parametrize("reader", ["orders/billing", "stream:orders"])
async def test_a_topic_is_deleted_only_without_subscriptions_and_stream(
    rig: Rig, reader: str
) -> None:
    rig.peers.maps = {B: EMPTY, C: EMPTY}
    rig.peers.answers = [{B: held(), C: held()}] * 9
    await rig.topology.change(["orders", reader, "orders.eu", "queue:orders"], alive=True)
    with pytest.raises(TopologyMismatch, match=f"orders is read: delete {reader} first"):
        await rig.topology.change(["orders"], alive=False)
    assert rig.register.entries["orders"].alive
    await rig.topology.change([reader], alive=False)
    assert (await rig.topology.change(["orders"], alive=False)).complete


@pytest.mark.parametrize("reader", ["orders/billing", "stream:orders"])
async def test_a_plain_topic_with_readers_gets_no_partitions(rig: Rig, reader: str) -> None:
    rig.peers.maps = {B: EMPTY, C: EMPTY}
    rig.peers.answers = [{B: held(), C: held()}] * 9
    await rig.topology.change([reader], alive=True)
    wanted: dict[str, Options] = {"orders": {"partitions": 4}}
    with pytest.raises(TopologyMismatch, match=f"{reader} exists with others"):
        await rig.topology.change(["orders"], alive=True, options=wanted)
    expiring: dict[str, Options] = {"prices/x": {"expires_s": 60}}
    await rig.topology.change(["prices"], alive=True, options={"prices": {"partitions": 4}})
    with pytest.raises(TopologyMismatch, match="does not expire"):
        await rig.topology.change(["prices/x"], alive=True, options=expiring)


async def test_mqtt_of_a_topic_that_lives_is_switched_and_nothing_else_of_it(rig: Rig) -> None:
    rig.peers.maps = {B: EMPTY, C: EMPTY}
    rig.peers.answers = [{B: held(), C: held()}] * 9
    entries = rig.register.entries
    weak: dict[str, Options] = {"orders": {"durability": "none", "mqtt": True}}
    await rig.topology.change(["orders"], alive=True, options=weak)
    for asked, on in (({"mqtt": False}, False), ({}, False), ({"mqtt": True}, True)):
        options: dict[str, Options] = {"orders": {"durability": "none", **asked}}
        assert (await rig.topology.change(["orders"], alive=True, options=options)).complete
        assert dict(entries["orders"].options) == {"durability": "none", "mqtt": on}


async def test_of_two_that_switch_mqtt_at_once_the_later_answer_is_the_true_one(rig: Rig) -> None:
    rig.peers.maps = {B: EMPTY, C: EMPTY}
    won = replace(entry(1, origin=B), options=(("mqtt", False),))
    rig.peers.answers = [{B: held(won), C: held()}, {B: held(), C: held()}]
    options: dict[str, Options] = {"orders": {"mqtt": True}}
    assert (await rig.topology.change(["orders"], alive=True, options=options)).complete
    assert [pushed[0].number for pushed in rig.peers.pushed] == [1, 2]
    assert dict(rig.register.entries["orders"].options) == {"mqtt": True}


async def test_a_partitioned_topic_takes_nothing_by_mqtt(rig: Rig) -> None:
    rig.peers.maps = {B: EMPTY, C: EMPTY}
    rig.peers.answers = [{B: held(), C: held()}] * 9
    await rig.topology.change(["orders"], alive=True, options={"orders": {"partitions": 4}})
    with pytest.raises(TopologyMismatch, match="mqtt is for topics without partitions"):
        await rig.topology.change(["orders"], alive=True, options={"orders": {"mqtt": True}})
