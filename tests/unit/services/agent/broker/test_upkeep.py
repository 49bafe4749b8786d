"""Declaring, noticing and answering, on a broker that a test steers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from messagebus._io.amqp.control import Control
from messagebus.broker import Broker
from messagebus.clock import monotonic_ms
from messagebus.destination import UNDELIVERED_QUEUE, Queue
from messagebus.errors import ChannelRefused, LinkError, LinkLost
from messagebus.services.agent.broker import answering as answering_module
from messagebus.services.agent.broker import applied, losses, reconcile, refusals
from messagebus.services.agent.broker import link as link_module
from messagebus.services.agent.broker import upkeep as module
from messagebus.services.agent.broker.answering import Answering
from messagebus.services.agent.broker.definitions import Definitions
from messagebus.services.agent.broker.management import ManagementUnavailable
from messagebus.services.agent.broker.upkeep import Upkeep
from messagebus.services.agent.config import AgentConfig
from messagebus.services.agent.topology.register import Answer, Entry, Register, Snapshot
from messagebus.stats import Durability
from messagebus.topology import Binding, Declarations, Exchange, QueueSpec, parse_wanted
from tests.support.eventually import eventually_async

ME = "a:5672"
SUBSCRIPTION = "mb.sub/orders/a"


@dataclass
class FakeBroker:
    """Broker with its contents and its next answers."""

    queues: dict[str, int | None] = field(default_factory=dict)
    specs: dict[str, QueueSpec] = field(default_factory=dict)  # of queues
    exchanges: dict[str, Exchange] = field(default_factory=dict)
    bindings: set[Binding] = field(default_factory=set)
    declared: list[str] = field(default_factory=list)  # queues, in order
    gate: bool = False
    is_up: bool = True
    is_dead: bool = False
    refuses: str = ""
    refusal: str = (
        "406 inequivalent arg 'x' for exchange 'e' in vhost '/': received 1 but current is 2"
    )
    refused: int = 0
    in_use: dict[str, int] = field(default_factory=dict)
    events: bool = True
    links: list[FakeControl] = field(default_factory=list)
    settle_queues: int = 0
    on_declare: Callable[[], None] = lambda: None
    bound: list[tuple[str, int]] = field(default_factory=list)  # queue, settles before
    settles: Callable[[], int] = lambda: 0

    def tell(self, key: str, **headers: Any) -> None:
        at_ms = time.time_ns() // 1_000_000
        for link in self.links:
            if link.is_open and link.on_event:
                link.on_event(key, {"vhost": "/", "timestamp_in_ms": at_ms, **headers})

    def lose(self, queue: str, *, silently: bool = False) -> None:
        del self.queues[queue]
        if not silently:
            source = "mb.topic/orders"
            self.tell("binding.deleted", source_name=source, destination_name=queue)
            self.tell("queue.deleted", name=queue)

    def kill(self) -> None:
        self.gate, self.is_dead = False, True
        self.suspend()

    def suspend(self) -> None:
        """Put it into maintenance mode: connections are closed, the port refuses; the gate stays."""
        self.is_up = False
        for link in self.links:
            link.abort()


class FakeLink:
    broker = ME

    def on_lost(self, callback: Callable[[LinkError], None]) -> None:
        self.lost = callback


class FakeControl:
    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.is_open = True
        self.link = FakeLink()
        self.on_event: Callable[[str, Mapping[str, Any]], None] | None = None
        broker.links.append(self)

    def _check(self) -> None:
        if not self.is_open:
            raise LinkLost(ME, "hung up")

    async def declare(self, wanted: Declarations) -> None:
        self._check()
        if any(queue.name == self.broker.refuses for queue in wanted.queues):
            self.broker.refused += 1
            raise ChannelRefused(ME, 406, self.broker.refusal)
        self.broker.exchanges |= {exchange.name: exchange for exchange in wanted.exchanges}
        for queue in wanted.queues:
            self.broker.declared.append(queue.name)
            self.broker.specs.setdefault(queue.name, queue)
            born = queue.arguments.get("mb-born")
            assert isinstance(born, int | None)
            self.broker.queues.setdefault(queue.name, born)
        self.broker.on_declare()

    async def bind(self, wanted: Declarations) -> None:
        self._check()
        for binding in wanted.bindings:
            assert binding.queue in self.broker.queues
            self.broker.bindings.add(binding)
            self.broker.bound.append((binding.queue, self.broker.settles()))

    async def counts(self, queue: str) -> tuple[int, int] | None:
        self._check()
        return (0, self.broker.in_use.get(queue, 0)) if queue in self.broker.queues else None

    async def count_all(self, queues: Iterable[str]) -> dict[str, tuple[int, int] | None]:
        return {queue: await self.counts(queue) for queue in queues}

    async def purge(self, queue: str) -> int | None:
        self._check()
        return 3 if queue in self.broker.queues else None

    async def mismatch(self, wanted: Declarations) -> str:
        self._check()
        names = [queue.name for queue in wanted.queues]
        return "two values" if self.broker.refuses in names else ""

    async def audit(self, wanted: Declarations) -> str:
        self._check()
        for queue in wanted.queues:
            if queue.name not in self.broker.queues:
                self.abort()
                return queue.name
        return ""

    async def delete_queue(self, name: str) -> None:
        self._check()
        if name in self.broker.queues:
            del self.broker.queues[name]
            self.broker.tell("queue.deleted", name=name)

    async def delete_exchange(self, name: str) -> None:
        self.broker.exchanges.pop(name, None)

    async def declare_settle_queue(self) -> None:
        self.broker.settle_queues += 1

    async def declare_probe(self) -> str:
        self.broker.queues["amq.gen-1"] = None
        return "amq.gen-1"

    async def gate_is_open(self) -> bool:
        return self.broker.gate

    async def open_gate(self) -> None:
        self._check()
        self.broker.gate = True

    async def follow_events(self, on_event: Callable[[str, Mapping[str, Any]], None]) -> bool:
        self.on_event = on_event if self.broker.events else None
        return self.broker.events

    def abort(self) -> None:
        if self.is_open:
            self.is_open = False
            if hasattr(self.link, "lost"):
                self.link.lost(LinkLost(ME, "hung up"))


class FakeSettler:
    fast = True
    files = True
    calls = 0
    dead = 0
    leaderless = 0
    bodies: tuple[str, ...] = ()

    async def names_synced(self) -> bool:
        self.calls += 1
        return self.fast

    async def queues_revived(self) -> int | None:
        return self.dead

    async def dead_lettering_revived(self) -> int | None:
        return 0

    async def queues_dead(self) -> list[str] | None:
        return list(self.bodies)

    async def queues_without_leader(self) -> int | None:
        return self.leaderless

    async def files_synced(self) -> bool:
        return self.files


class FakeManagement:
    is_there = True

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.fails = False
        self.exists: dict[str, Any] = {}

    async def arguments(self, _queue: str) -> dict[str, Any]:
        if self.fails:
            raise ManagementUnavailable("HTTP 500")
        return self.exists

    async def births(self) -> dict[str, int | None]:
        return dict((await self.definitions()).births)

    async def definitions(self) -> Definitions:
        if self.fails:
            raise ManagementUnavailable("HTTP 500")
        broker = self.broker
        return Definitions(
            births=dict(broker.queues),
            queues={
                name: {k: v for k, v in spec.arguments.items() if k.startswith("x-")}
                for name, spec in broker.specs.items()
                if name in broker.queues
            },
            exchanges=dict(broker.exchanges),
            bindings={each for each in broker.bindings if each.queue in broker.queues},
        )


QUEUE_REFUSED = (
    "inequivalent arg 'x-queue-type' for queue 'mb.queue/bad' in vhost '/':"
    " received 'quorum' but current is 'classic'"
)


def entry(wanted: str, number: int = 1, *, alive: bool = True, tomb: int = 0) -> Entry:
    return Entry(wanted=wanted, number=number, origin=ME, alive=alive, tomb=tomb)


@dataclass
class Rig:
    broker: FakeBroker
    settler: FakeSettler
    management: FakeManagement
    register: Register
    upkeep: Upkeep
    answering: Answering
    lives: list[int]
    used: list[str]
    gone: list[str]
    running: asyncio.Task[None] | None = None

    def want(self, *entries: Entry) -> None:
        self.register.receive(Snapshot(intact=True, entries=entries))
        self.upkeep.wake()

    async def until(self, condition: Callable[[], object]) -> None:
        await eventually_async(condition, within_s=5)

    async def settled(self) -> None:
        await self.until(lambda: self.upkeep.is_settled)


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    """One listed broker whose agent has an intact map; nothing waits longer than it must."""
    broker = FakeBroker()

    async def dial(*_: object, **__: object) -> FakeControl:
        if not broker.is_up:
            raise LinkLost(ME, "refused")
        broker.is_dead = False
        return FakeControl(broker)

    async def port_refuses(*_: object, **__: object) -> bool:
        return not broker.is_up

    async def node_is_gone(*_: object, **__: object) -> bool:
        return broker.is_dead and not broker.is_up

    monkeypatch.setattr(link_module, "node_is_gone", node_is_gone)
    monkeypatch.setattr(Control, "dial", dial)
    monkeypatch.setattr(answering_module, "port_refuses", port_refuses)
    monkeypatch.setattr(AgentConfig, "password", "unused")
    for name in ("REDIAL_MIN_S", "REDIAL_MAX_S"):
        monkeypatch.setattr(module, name, 0.001)
    monkeypatch.setattr(reconcile, "SLOW_S", 0.001)
    monkeypatch.setattr(module, "AUDIT_INTERVAL_S", 0.01)
    for each in (module, answering_module):
        monkeypatch.setattr(each, "LINK_WAIT_S", 0.05)
    register = Register(ME, Snapshot(intact=True))
    register.voters.listed([ME])
    settler, management, lives = FakeSettler(), FakeManagement(broker), list[int]()
    used, gone = list[str](), list[str]()

    def new_life() -> None:
        lives.append(register.voters.life)

    upkeep = Upkeep(
        AgentConfig(
            broker=ME,
            user="admin",
            password_file="-",
            http=ME,
            check=ME,
            list_file="-",
            state_dir="-",
            token_file="-",
            node_name="rabbit@a",
        ),
        register,
        settler=settler,  # type: ignore[arg-type]
        management=management,  # type: ignore[arg-type]
        on_new_life=new_life,
        on_report=lambda: None,
        on_gone=gone.append,
    )
    broker.settles = lambda: settler.calls
    answering = Answering(Broker.parse(ME), register, upkeep, on_used=used.append)
    rig = Rig(broker, settler, management, register, upkeep, answering, lives, used, gone)
    rig.running = asyncio.ensure_future(upkeep.run())
    yield rig
    rig.running.cancel()
    await asyncio.gather(rig.running, return_exceptions=True)


async def test_the_gate_opens_when_all_is_there_and_settled(rig: Rig) -> None:
    rig.broker.kill()
    rig.want(entry("orders/a"))
    rig.broker.is_up = True
    await rig.until(lambda: rig.broker.gate)
    assert set(rig.broker.queues) >= {SUBSCRIPTION, "mb.park/orders/a"}
    assert rig.settler.calls >= 1
    settled = {SUBSCRIPTION: True, "mb.park/orders/a": True, UNDELIVERED_QUEUE: True}
    assert rig.upkeep.settled_queues() == settled


async def test_without_a_majority_the_gate_stays_shut(rig: Rig) -> None:
    rig.broker.kill()
    rig.register.voters.listed([ME, "b:5672", "c:5672"])
    rig.want(entry("orders/a"))
    rig.broker.is_up = True
    await rig.settled()
    await rig.upkeep.bring_about()
    assert not rig.broker.gate
    assert not rig.upkeep.condition.gate_open


@pytest.mark.guarantee("topic-reaches-every-subscription")
async def test_a_broker_that_was_killed_gets_its_gate_in_its_new_life(rig: Rig) -> None:
    await rig.until(lambda: rig.broker.gate)
    rig.broker.kill()
    await rig.until(lambda: not rig.upkeep.condition.linked)
    rig.broker.is_up = True
    await rig.until(lambda: rig.broker.gate)
    assert rig.lives == [1, 2]


async def test_queues_that_died_at_boot_are_revived(rig: Rig) -> None:
    rig.broker.kill()
    rig.settler.dead = 2
    rig.broker.is_up = True
    await rig.until(lambda: rig.broker.gate)
    assert rig.upkeep.reconciler.recovery.revived == 2


async def test_the_gate_waits_for_queues_that_are_read_from_disk(rig: Rig) -> None:
    await rig.settled()
    await rig.until(lambda: rig.broker.gate)
    rig.settler.leaderless = 2
    rig.broker.kill()
    rig.broker.is_up = True
    await rig.until(lambda: "no leader yet" in rig.upkeep.fault)
    assert not rig.broker.gate
    rig.settler.leaderless = 0
    await rig.until(lambda: rig.broker.gate)


async def test_a_new_link_to_the_same_life_leaves_the_gate_alone(rig: Rig) -> None:
    await rig.until(lambda: rig.broker.gate)
    rig.broker.links[-1].abort()
    await rig.until(lambda: len(rig.broker.links) > 1 and rig.upkeep.is_settled)
    assert rig.upkeep.condition.gate_open
    assert rig.lives == [1]


async def test_a_gate_whose_queue_was_emptied_opens_again_in_the_same_life(rig: Rig) -> None:
    await rig.until(lambda: rig.broker.gate)
    lives = list(rig.lives)
    rig.broker.gate = False
    await rig.until(lambda: rig.broker.gate and rig.upkeep.condition.gate_open)
    assert rig.lives == lives
    assert len(rig.broker.links) == 1


async def test_queues_that_could_not_be_synced_are_not_settled(rig: Rig) -> None:
    rig.broker.kill()
    rig.settler.files = False
    rig.want(entry("orders/a"))
    rig.broker.is_up = True
    await rig.until(lambda: SUBSCRIPTION in rig.broker.queues)
    assert (await rig.answering.answer(["orders/a"])).answer is Answer.LATER
    assert not rig.broker.gate
    rig.settler.files = True
    await rig.until(lambda: rig.broker.gate)


async def test_a_new_queue_is_bound_only_when_it_is_settled(rig: Rig) -> None:
    await rig.settled()
    before = rig.settler.calls
    rig.want(entry("orders/a"))
    await rig.settled()
    assert {each for each in rig.broker.bound if each[0] == SUBSCRIPTION} == {
        (SUBSCRIPTION, before + 1)
    }


async def test_the_undelivered_are_let_go_when_all_is_bound_and_settled(rig: Rig) -> None:
    """Else a message that is due for a queue still to be bound would be taken for undelivered."""
    rig.broker.kill()
    rig.broker.bound.clear()
    before = rig.settler.calls
    rig.want(entry("orders/a"), entry("queue:jobs"))
    rig.broker.is_up = True
    await rig.settled()
    assert rig.broker.bound[-1] == (UNDELIVERED_QUEUE, before + 1)
    assert {queue for queue, _ in rig.broker.bound[:-1]} == {SUBSCRIPTION, "mb.queue/jobs"}


async def test_an_agent_that_does_not_know_all_queues_lets_no_undelivered_go(rig: Rig) -> None:
    rig.broker.kill()
    rig.broker.bound.clear()
    rig.register.voters.listed([ME, "b:5672", "c:5672"])
    rig.want(entry("orders/a"))
    rig.broker.is_up = True
    await rig.settled()
    await rig.upkeep.bring_about()
    assert UNDELIVERED_QUEUE not in {queue for queue, _ in rig.broker.bound}
    rig.register.voters.listed([ME])
    await rig.upkeep.bring_about()
    assert rig.broker.bound[-1][0] == UNDELIVERED_QUEUE


async def test_one_refused_entry_keeps_no_undelivered_in_their_steps(rig: Rig) -> None:
    rig.broker.kill()
    rig.broker.refuses = "mb.queue/jobs"
    rig.want(entry("orders/a"), entry("queue:jobs"))
    rig.broker.is_up = True
    await rig.until(lambda: UNDELIVERED_QUEUE in {queue for queue, _ in rig.broker.bound})


async def test_a_deleted_queue_of_the_undelivered_is_made_again(rig: Rig) -> None:
    await rig.settled()
    rig.broker.lose(UNDELIVERED_QUEUE)
    rig.broker.bound.clear()
    await rig.until(lambda: UNDELIVERED_QUEUE in {queue for queue, _ in rig.broker.bound})
    await rig.until(lambda: rig.upkeep.settled_queues()[UNDELIVERED_QUEUE])


async def test_a_queue_that_vanished_is_bound_at_once(rig: Rig) -> None:
    rig.want(entry("orders/a"))
    await rig.settled()
    before = rig.settler.calls
    rig.broker.bound.clear()
    rig.broker.lose(SUBSCRIPTION)
    await rig.settled()
    assert rig.broker.bound[0] == (SUBSCRIPTION, before)


async def test_without_erl_call_one_more_queue_and_a_wait_settle(rig: Rig) -> None:
    rig.settler.fast = False
    rig.want(entry("orders/a"), entry("orders/b", 2))
    await rig.until(lambda: rig.broker.gate)
    assert rig.broker.settle_queues <= 2
    assert rig.upkeep.reconciler._settles_slow == rig.broker.settle_queues


async def test_a_deleted_name_goes_from_the_broker_without_being_called_a_loss(rig: Rig) -> None:
    rig.want(entry("orders/a"))
    await rig.settled()
    rig.want(entry("orders/a", 2, alive=False, tomb=2))
    await rig.settled()
    assert SUBSCRIPTION not in rig.broker.queues
    assert not rig.upkeep.losses.kept


async def test_a_queue_of_an_earlier_life_is_made_anew(rig: Rig) -> None:
    rig.broker.kill()
    rig.broker.queues[SUBSCRIPTION] = 1
    rig.want(entry("orders/a", 9, tomb=8))
    rig.broker.is_up = True
    await rig.until(lambda: rig.broker.gate)
    assert rig.broker.queues[SUBSCRIPTION] == 9


@pytest.mark.guarantee("nothing-deleted-during-boot")
async def test_no_queue_is_deleted_while_a_boot_still_starts_queues(rig: Rig) -> None:
    await rig.until(lambda: rig.broker.gate)
    rig.settler.leaderless = 1
    rig.broker.kill()
    rig.broker.queues[SUBSCRIPTION] = 1
    rig.want(entry("orders/a", 9, tomb=8))
    rig.broker.is_up = True
    await rig.until(lambda: "no leader yet" in rig.upkeep.fault)
    assert rig.broker.queues[SUBSCRIPTION] == 1
    rig.settler.leaderless = 0
    await rig.until(lambda: rig.broker.gate)
    assert rig.broker.queues[SUBSCRIPTION] == 9


async def test_a_vanished_queue_is_told_once_and_made_again(rig: Rig) -> None:
    rig.want(entry("orders/a"))
    await rig.until(lambda: rig.upkeep.is_settled and rig.upkeep._watch.events_proven)
    rig.broker.lose(SUBSCRIPTION)
    assert rig.upkeep.condition.vanished == 1
    await rig.settled()
    assert SUBSCRIPTION in rig.broker.queues
    (loss,) = rig.upkeep.losses.kept
    assert (loss.what, loss.name, loss.how) == ("queue", SUBSCRIPTION, "event")
    assert loss.repaired_at_ms
    assert rig.upkeep.condition.vanished == 0


async def test_a_queue_that_vanishes_during_its_repair_is_made_again_too(rig: Rig) -> None:
    rig.want(entry("orders/a"))
    await rig.settled()

    def vanish_once() -> None:
        rig.broker.on_declare = lambda: None
        rig.broker.lose(SUBSCRIPTION)

    rig.broker.on_declare = vanish_once
    rig.want(entry("orders/b", 2))
    answer = await rig.answering.answer(["orders/a", "orders/b"])
    assert answer.answer is Answer.HELD
    assert SUBSCRIPTION in rig.broker.queues


async def test_without_events_the_audit_finds_it(rig: Rig) -> None:
    await rig.settled()
    rig.broker.links[-1].abort()
    rig.broker.events = False
    rig.want(entry("orders/a"))
    await rig.settled()
    rig.broker.lose(SUBSCRIPTION, silently=True)
    await rig.until(lambda: SUBSCRIPTION in rig.broker.queues)
    assert rig.upkeep.losses.kept[0].how in ("audit", "start")


async def test_an_event_that_never_came_is_made_up_for_by_the_broker_s_lists(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "COMPARE_EVERY_S", 0.01)
    monkeypatch.setattr(losses, "COMPARED_TIMES", 1_000)  # so that no audit in turn finds it
    rig.want(entry("orders/a"), expiring())
    await rig.settled()
    watch = rig.upkeep._watch
    await rig.until(lambda: watch.events_proven)
    rig.broker.lose(E_QUEUE, silently=True)
    listed = await rig.management.definitions()
    assert not losses.lacking_in(listed, watch.audited()), "the business of its expiry"
    comparing = asyncio.ensure_future(rig.upkeep.compare())
    rig.broker.lose(SUBSCRIPTION, silently=True)
    await rig.until(lambda: SUBSCRIPTION in rig.broker.queues)
    comparing.cancel()
    assert [(loss.name, loss.how) for loss in rig.upkeep.losses.kept] == [(SUBSCRIPTION, "audit")]


async def test_while_the_lists_fail_names_are_audited_in_turn(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "COMPARE_EVERY_S", 0.01)
    rig.want(entry("orders/a"))
    await rig.settled()
    rig.management.fails = True
    comparing = asyncio.ensure_future(rig.upkeep.compare())
    rig.broker.lose(SUBSCRIPTION, silently=True)
    await rig.until(lambda: SUBSCRIPTION in rig.broker.queues)
    comparing.cancel()
    assert rig.upkeep.losses.kept[0].how == "audit"


async def killed(
    rig: Rig, *entries: Entry, before: Callable[[], object] = lambda: None
) -> set[str]:
    """Kill a broker that has these; return the queues that its agent declares until it takes publishes again.

    before: called while the broker is down.
    """
    rig.want(*entries)
    await rig.settled()
    rig.broker.kill()
    await rig.until(lambda: not rig.upkeep.link.is_open)
    rig.broker.declared.clear()
    rig.broker.bound.clear()
    before()
    rig.broker.is_up = True
    await rig.until(lambda: rig.broker.gate)
    return set(rig.broker.declared) - {UNDELIVERED_QUEUE}


async def test_a_killed_broker_takes_publishes_when_its_lists_show_all_and_it_is_settled_again(
    rig: Rig,
) -> None:
    settles = rig.settler.calls
    assert await killed(rig, entry("orders"), entry("orders/a"), entry("queue:jobs")) == set()
    assert rig.upkeep.is_settled
    assert {queue for queue, _ in rig.broker.bound} == {UNDELIVERED_QUEUE}
    assert rig.settler.calls > settles + 1
    rig.broker.lose(SUBSCRIPTION)  # it is watched as what was declared
    await rig.until(lambda: SUBSCRIPTION in rig.broker.queues)


async def test_a_dead_queue_of_a_list_keeps_the_gate_shut(rig: Rig) -> None:
    rig.want(entry("orders/a"))
    await rig.settled()
    rig.settler.bodies = (SUBSCRIPTION,)
    rig.broker.kill()
    await rig.until(lambda: not rig.upkeep.link.is_open)
    rig.broker.is_up = True
    await rig.until(lambda: "dead as soon as they are made" in rig.upkeep.fault)
    assert not rig.broker.gate
    rig.settler.bodies = ()
    await rig.until(lambda: rig.broker.gate)


async def test_what_a_list_lacks_or_has_otherwise_is_declared_and_bound(rig: Rig) -> None:
    names = ["orders/a", "orders/b", "orders/c", "orders/d"]

    def changed() -> None:
        of_a, of_b = (f"mb.sub/orders/{each}" for each in "ab")
        rig.broker.specs[of_a] = QueueSpec(name=of_a, arguments={"x-queue-type": "classic"})
        rig.broker.bindings -= {each for each in rig.broker.bindings if each.queue == of_b}
        del rig.broker.queues["mb.park/orders/c"]

    declared = await killed(rig, *map(entry, names), before=changed)
    assert {each.rpartition("/")[2] for each in declared} == {"a", "b", "c"}
    assert {queue for queue, _ in rig.broker.bound} >= {f"mb.sub/orders/{each}" for each in "abc"}
    assert "mb.sub/orders/d" not in dict(rig.broker.bound)


async def test_a_list_that_has_an_exchange_otherwise_does_not_do(rig: Rig) -> None:
    def changed() -> None:
        name = "mb.topic/orders"
        rig.broker.exchanges[name] = Exchange(name=name, type="direct")

    assert SUBSCRIPTION in await killed(rig, entry("orders/a"), before=changed)


async def test_what_is_deleted_behind_the_list_is_declared_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = FakeManagement.definitions

    async def definitions(self: FakeManagement) -> Definitions:
        found = await listing(self)
        if SUBSCRIPTION in rig.broker.queues and not rig.broker.gate:
            rig.broker.lose(SUBSCRIPTION)
        return found

    monkeypatch.setattr(FakeManagement, "definitions", definitions)
    declared = await killed(rig, entry("orders/a"), entry("orders/b"))
    assert declared == {SUBSCRIPTION, "mb.park/orders/a"}
    assert SUBSCRIPTION in rig.broker.queues


async def test_the_list_of_a_link_is_used_once(rig: Rig) -> None:
    rig.want(entry("orders/a"))
    await rig.settled()
    assert rig.upkeep.applied.take_listed() is None


async def test_a_queue_that_expires_is_declared_at_each_start_because_that_is_a_use(
    rig: Rig,
) -> None:
    assert await killed(rig, expiring(), entry("orders/a")) == {E_QUEUE}


@pytest.mark.parametrize("events", [True, False])
async def test_a_queue_of_an_earlier_life_is_not_taken_for_one_that_is_there(
    rig: Rig, events: bool
) -> None:
    rig.broker.events = events
    rig.register.receive(Snapshot(intact=True, entries=(entry("orders/a", 1),)))

    def deleted_and_made_again() -> None:
        rig.register.receive(Snapshot(intact=True, entries=(entry("orders/a", 3, tomb=2),)))

    declared = await killed(rig, entry("orders/a", 1), before=deleted_and_made_again)
    assert SUBSCRIPTION in declared
    assert rig.broker.queues[SUBSCRIPTION] == 3


async def test_nothing_is_deleted_that_the_list_lacks(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted = list[str]()
    delete = FakeControl.delete_queue

    async def delete_queue(self: FakeControl, name: str) -> None:
        deleted.append(name)
        await delete(self, name)

    rig.want(entry("orders/a"))
    await rig.settled()
    monkeypatch.setattr(FakeControl, "delete_queue", delete_queue)
    await killed(rig, entry("orders/a", 2, alive=False, tomb=2), entry("orders/b"))
    assert SUBSCRIPTION in deleted
    deleted.clear()
    await killed(rig, entry("orders/b"))
    assert [each for each in deleted if each.startswith("mb.")] == []


async def test_what_vanished_while_the_agent_was_away_is_told(rig: Rig) -> None:
    rig.broker.kill()
    rig.upkeep.applied.held = {"orders/a": 1}
    rig.want(entry("orders/a"))
    rig.broker.is_up = True
    await rig.settled()
    assert {loss.name for loss in rig.upkeep.losses.kept} == {SUBSCRIPTION, "mb.park/orders/a"}
    assert {loss.how for loss in rig.upkeep.losses.kept} == {"start"}


async def test_events_of_others_are_nothing_to_us(rig: Rig) -> None:
    rig.want(entry("orders/a"), entry("queue:jobs", 2))
    await rig.settled()
    rig.broker.tell("queue.deleted", name="somebody's")
    rig.broker.tell("queue.deleted", name=SUBSCRIPTION, vhost="/other")
    rig.broker.tell("binding.deleted", source_name="", destination_name="mb.queue/jobs")
    rig.broker.tell("binding.deleted", source_name="other", destination_name=SUBSCRIPTION)
    rig.broker.tell("queue.deleted", name=SUBSCRIPTION, timestamp_in_ms=1)
    assert not rig.upkeep.losses.kept


async def test_one_refused_entry_does_not_hinder_the_others(rig: Rig) -> None:
    await rig.settled()
    rig.broker.refuses = "mb.queue/bad"
    rig.want(entry("queue:bad"), entry("queue:good", 2))
    await rig.until(lambda: "mb.queue/good" in rig.broker.queues)
    assert not rig.upkeep.is_settled
    answer = await rig.answering.answer(["queue:bad"])
    assert answer.answer is Answer.NO
    assert "exchange 'e': x is wanted 1" in answer.reason


@pytest.mark.guarantee("one-of-two-wins")
@pytest.mark.parametrize("is_there", [True, False])
async def test_a_queue_that_exists_otherwise_keeps_no_gate_shut_and_drains_nobody(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    """Such a queue takes the messages; a missing one would lose them."""
    monkeypatch.setattr(refusals, "REFUSED_RETRY_S", 0.01)
    rig.broker.kill()
    rig.broker.refuses = "mb.queue/bad"
    rig.broker.refusal = QUEUE_REFUSED
    if is_there:
        rig.broker.queues["mb.queue/bad"] = None
    rig.want(entry("queue:bad"), entry("queue:good", 2))
    rig.broker.is_up = True
    if not is_there:
        await rig.until(lambda: rig.broker.refused > 3)
        assert not rig.broker.gate
        return
    await rig.until(lambda: rig.broker.gate)
    assert rig.upkeep.condition.behind_since_ms is None
    assert "mb.queue/bad" in {queue for queue, _ in rig.broker.bound}
    assert not rig.upkeep.is_settled
    await rig.until(lambda: "x-queue-type is wanted" in rig.upkeep.fault)
    answer = await rig.answering.answer(["queue:bad"])
    assert answer.answer is Answer.NO
    assert "'x-queue-type' is wanted" in answer.reason or "x-queue-type is wanted" in answer.reason
    assert (await rig.answering.answer(["queue:good"])).answer is Answer.HELD
    rig.broker.refuses = ""
    await rig.settled()
    assert (await rig.answering.answer(["queue:bad"])).answer is Answer.HELD


async def test_held_is_answered_with_the_map_on_the_broker(rig: Rig) -> None:
    await rig.settled()
    rig.want(entry("orders/a"))
    answer = await rig.answering.answer(["orders/a"])
    assert (answer.answer, answer.stored) == (Answer.HELD, True)
    assert SUBSCRIPTION in rig.broker.queues


async def test_of_a_broker_that_is_down_the_answer_is_later(rig: Rig) -> None:
    await rig.until(lambda: rig.broker.gate)
    rig.broker.kill()
    rig.want(entry("orders/a"))
    assert (await rig.answering.answer(["orders/a"])).answer is Answer.LATER
    # It boots: its port still refuses, and its node lives again. It has no gate.
    await rig.until(lambda: rig.upkeep.link.dials > 2)
    rig.broker.is_dead = False
    assert (await rig.answering.answer(["orders/a"])).answer is Answer.LATER


@pytest.mark.guarantee("complete-means-everywhere")
@pytest.mark.parametrize("agent", ["linked before", "started since"])
async def test_a_port_that_refuses_is_no_proof_that_a_broker_takes_no_publishes(
    rig: Rig, agent: str
) -> None:
    """A listener may be suspended, or a firewall rejects: it serves again with the gate that it has."""
    await rig.until(lambda: rig.broker.gate)
    rig.broker.suspend()
    rig.want(entry("orders/a"))
    if agent == "started since":
        rig.upkeep._gate.opening()
    answer = await rig.answering.answer(["orders/a"])
    assert answer.answer is Answer.NO
    assert answer.stored


async def test_of_a_broker_that_accepts_and_does_not_answer_it_is_no(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.until(lambda: rig.broker.gate)

    async def hangs(*_: object, **__: object) -> FakeControl:
        raise LinkLost(ME, "no AMQP")

    monkeypatch.setattr(Control, "dial", hangs)
    rig.broker.links[-1].abort()
    rig.want(entry("orders/a"))
    assert (await rig.answering.answer(["orders/a"])).answer is Answer.NO


async def test_a_gate_whose_answer_was_lost_may_be_open(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.broker.kill()

    async def answer_lost(control: FakeControl) -> None:
        control.broker.gate = True
        control.abort()
        rig.broker.is_up = False
        raise LinkLost(ME, "no answer")

    monkeypatch.setattr(FakeControl, "open_gate", answer_lost)
    rig.broker.is_up = True
    await rig.until(lambda: rig.broker.gate)
    await rig.until(lambda: not rig.upkeep.condition.linked)
    assert rig.upkeep._gate.is_unknown


E_QUEUE = "mb.sub/orders/e"


def expiring(number: int = 1) -> Entry:
    return replace(entry("orders/e", number), options=(("expires_s", 5),))


async def test_an_expired_queue_is_no_loss_and_not_made_again_by_itself(rig: Rig) -> None:
    rig.want(expiring())
    await rig.settled()
    assert rig.upkeep.expiring() == {"orders/e": 5}
    assert not rig.used
    rig.broker.lose(E_QUEUE)
    assert rig.gone
    await rig.upkeep.bring_about()
    assert E_QUEUE not in rig.broker.queues
    assert rig.upkeep.is_settled
    assert not rig.upkeep.losses.kept
    assert await rig.upkeep.use_of("orders/e") is None


async def test_whoever_registers_for_an_expired_queue_finds_it(rig: Rig) -> None:
    rig.want(expiring())
    await rig.settled()
    rig.broker.lose(E_QUEUE)
    answer = await rig.answering.answer(["orders/e"])
    assert answer.answer is Answer.HELD
    assert E_QUEUE in rig.broker.queues
    assert not rig.upkeep.losses.kept
    assert rig.used == ["orders/e"]


async def test_what_expired_while_it_was_in_use_is_a_loss_and_made_again(rig: Rig) -> None:
    rig.want(expiring())
    await rig.settled()
    rig.broker.lose(E_QUEUE)
    await rig.upkeep.make_again("orders/e", lost=True)
    await rig.settled()
    assert E_QUEUE in rig.broker.queues
    assert [(loss.name, loss.how) for loss in rig.upkeep.losses.kept] == [(E_QUEUE, "expiry")]
    await rig.upkeep.make_again("orders/unknown")


async def test_use_is_the_number_of_consumers(rig: Rig) -> None:
    rig.want(expiring())
    await rig.settled()
    rig.broker.in_use[E_QUEUE] = 2
    assert await rig.upkeep.use_of("orders/e") == 2
    with pytest.raises(LinkLost):
        await rig.upkeep.use_of("orders/unknown")
    rig.broker.kill()
    with pytest.raises(LinkLost):
        await rig.upkeep.use_of("orders/e")


async def test_classic_queues_need_no_settling(rig: Rig) -> None:
    await rig.settled()
    before = rig.settler.calls
    rig.want(replace(entry("queue:jobs"), options=(("durability", "page-cache"),)))
    await rig.settled()
    assert "mb.queue/jobs" in rig.broker.queues
    assert rig.settler.calls == before


async def test_a_refusal_costs_no_link_and_hinders_no_registration(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "REFUSED_RETRY_S", 0.01)
    await rig.settled()
    links = len(rig.broker.links)
    rig.broker.refuses = "mb.queue/bad"
    rig.want(entry("queue:bad"))
    await rig.until(lambda: rig.broker.refused > 3)
    rig.want(entry("queue:good", 2))
    assert (await rig.answering.answer(["queue:good"])).answer is Answer.HELD
    assert (await rig.answering.answer(["queue:bad"])).answer is Answer.NO
    assert len(rig.broker.links) == links
    rig.broker.refuses = ""
    await rig.settled()


async def test_a_large_change_drains_no_broker_while_it_makes_progress(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else 500 subscriptions at once would drain all brokers together."""
    await rig.settled()
    now_ms, behind = [0], list[int]()
    monkeypatch.setattr(applied, "monotonic_ms", lambda: now_ms[0])

    def takes_a_second() -> None:
        since_ms = rig.upkeep.condition.behind_since_ms
        behind.append(0 if since_ms is None else now_ms[0] - since_ms)
        now_ms[0] += 1_000

    rig.broker.on_declare = takes_a_second
    many = 20 * reconcile.TOGETHER
    rig.want(*(entry(f"orders/s{number}", number + 1) for number in range(many)))
    await rig.settled()
    assert len(behind) >= 20
    assert max(behind) <= 1_000


async def test_a_change_that_takes_longer_than_its_caller_waits_is_not_begun_anew(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.settled()
    ended, settles = asyncio.Event(), list[str]()

    async def names_synced() -> bool:
        settles.append("begun")
        await ended.wait()
        return True

    monkeypatch.setattr(rig.settler, "names_synced", names_synced)
    rig.register.receive(Snapshot(intact=True, entries=(entry("orders/a"),)))
    for _caller in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await rig.upkeep.bring_about()
    ended.set()
    await rig.settled()
    assert settles == ["begun"]


async def test_what_exists_otherwise_is_looked_for(rig: Rig) -> None:
    await rig.settled()
    rig.broker.refuses = "mb.queue/bad"
    assert await rig.upkeep.mismatch([parse_wanted("queue:bad")]) == "two values"
    assert await rig.upkeep.mismatch([parse_wanted("queue:good")]) == ""
    rig.broker.kill()
    assert await rig.upkeep.mismatch([parse_wanted("queue:bad")]) == ""


async def test_what_exists_otherwise_is_told_argument_by_argument(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.settled()
    rig.broker.refuses = "mb.queue/bad"

    async def mismatch(_self: object, wanted: Declarations) -> str:
        return f"queue '{wanted.queues[-1].name}': x is wanted 1 and exists none"

    monkeypatch.setattr(FakeControl, "mismatch", mismatch)
    rig.management.exists = {"durable": True, "x-overflow": "drop-head", "mb-born": 3}
    weak = Queue("bad", Durability.PAGE_CACHE)
    assert await rig.upkeep.mismatch([weak]) == (
        "queue 'mb.queue/bad': x-overflow is wanted 'reject-publish' and exists 'drop-head',"
        " x-dead-letter-exchange is wanted '' and exists none,"
        " x-dead-letter-routing-key is wanted 'mb.park/bad' and exists none"
    )
    rig.management.fails = True
    assert "x is wanted 1" in await rig.upkeep.mismatch([weak])
    rig.management.is_there = False
    assert "x is wanted 1" in await rig.upkeep.mismatch([weak])


async def test_counts_and_purges_are_the_brokers(rig: Rig) -> None:
    rig.want(entry("orders/a"))
    await rig.settled()
    assert await rig.upkeep.link.counts([SUBSCRIPTION, "mb.queue/no"]) == {
        SUBSCRIPTION: (0, 0),
        "mb.queue/no": None,
    }
    assert await rig.upkeep.link.purge([SUBSCRIPTION]) == {SUBSCRIPTION: 3}
    rig.broker.kill()
    with pytest.raises(LinkLost):
        await rig.upkeep.link.counts([SUBSCRIPTION])


@pytest.mark.guarantee("without-management-api")
async def test_without_the_management_api_all_is_brought_about_that_can_be_judged(rig: Rig) -> None:
    """After a first deletion every new name has a tomb, and the map a floor."""
    rig.broker.kill()
    rig.management.fails = True
    rig.register.adopt(Snapshot(intact=True, floor=9))
    rig.upkeep.applied.held = {"queue:kept": 12}
    rig.broker.queues |= {"mb.queue/kept": 12, "mb.park/kept": 12}
    rig.want(entry("queue:new", 11, tomb=9), entry("queue:kept", 12, tomb=9))
    rig.broker.is_up = True
    await rig.until(lambda: rig.broker.gate)
    assert "mb.queue/new" in rig.broker.queues


@pytest.mark.guarantee("without-management-api")
async def test_what_may_be_of_an_earlier_life_waits_for_the_management_api(rig: Rig) -> None:
    rig.broker.kill()
    rig.management.fails = True
    rig.broker.queues["mb.queue/old"] = 3
    rig.want(entry("queue:old", 11, tomb=9))
    rig.broker.is_up = True
    await rig.until(lambda: "of an earlier life is not known" in rig.upkeep.fault)
    assert not rig.broker.gate
    rig.management.fails = False
    rig.upkeep.wake()
    await rig.until(lambda: rig.broker.gate)
    assert rig.broker.queues["mb.queue/old"] == 11


@pytest.mark.guarantee("no-clock-decides")
async def test_a_clock_that_was_ahead_hides_no_queue_that_vanished(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does so for the time of the declaration: by its clock each later deletion was before."""
    monkeypatch.setattr(module, "AUDIT_INTERVAL_S", 3600.0)
    await rig.settled()
    with monkeypatch.context() as ahead:
        ten_years_ms = 10 * 365 * 86_400_000
        ahead.setattr(reconcile, "wall_ms", lambda: time.time_ns() // 1_000_000 + ten_years_ms)
        rig.want(entry("orders/a"))
        await rig.settled()
    rig.broker.lose(SUBSCRIPTION)
    await rig.until(lambda: SUBSCRIPTION in rig.broker.queues and rig.upkeep.is_settled)
    assert [loss.name for loss in rig.upkeep.losses.kept] == [SUBSCRIPTION]


@pytest.mark.guarantee("no-clock-decides")
async def test_a_verdict_goes_by_no_clock_that_is_set(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.settled()
    for each in (module, reconcile, losses):
        monkeypatch.setattr(each, "wall_ms", lambda: 0)
    rig.want(entry("orders/a"))
    since_ms = rig.upkeep.condition.behind_since_ms
    assert since_ms is not None
    assert 0 <= monotonic_ms() - since_ms < 60_000
