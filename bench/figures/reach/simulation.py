"""A bus of any size in virtual time: the decisions of real agents and consumers, over simulated lines.

Agents are `Topology` with its `Register`, as the service has them; only HTTP, disk and broker are replaced.
Consumers are `Membership` with its `Subset`, at the ticks of the library's driver, and dial in the turns of
their process (`DialTurns`). What lines and steps of processes take is in `Lines` and `Processors`. Consumers
of one subscription share nothing with those of another one but the time of agents, which answer all of them,
and agents that only answer do nothing else: so one subscription and `AGENTS_MAX` agents are simulated, and
totals are multiples of theirs.
"""

# A message goes to any broker (HAProxy), and there to the consumers of the subscription in turn:
#
#   Poisson arrivals ─▶ broker ─▶ one of its attached consumers          `Simulation.messages`
#   list ─▶ agents, which look every 200 ms ─▶ consumers that wait there ─▶ `Membership.refresh` ─▶ dials
#                                           └▶ other agents, which are asked for their maps

from __future__ import annotations

import asyncio
import heapq
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

from bench.figures.reach.hosts import Hosts, Lines, Process, Processors
from bench.figures.reach.virtual_time import VirtualLoop
from messagebus._io.wire import DialTurns
from messagebus.broker import Broker, BrokerList, ListedBroker
from messagebus.core.membership import Action, Dial, Membership, State, Subset
from messagebus.services.agent.consumer_list import LOOK_INTERVAL_S
from messagebus.services.agent.topology.agreement import PULL_PEERS, Topology
from messagebus.services.agent.topology.peers import CONNECTIONS_MAX, PeerAnswer
from messagebus.services.agent.topology.register import (
    Answer,
    Entry,
    Register,
    Reply,
    Snapshot,
)
from messagebus.services.agent.topology.store import snapshot_to_json

AGENTS_MAX = 20
REDIAL_FIRST_MS = 50
# The rounds of an agent at rest take about a second.
UPKEEP_S = 1.0
# Of `messagebus._io.consume.driver`.
TICK_MS = 100
LOOK_S = 0.01


@dataclass(frozen=True, slots=True)
class Size:
    """A bus. consumers: of all subscriptions, which have as many each. cover: 0 for a full mesh.

    rate: messages a second into the bus, each for one subscription. processes: that the consumers of one
    subscription share; 0: each has its own.
    """

    brokers: int
    consumers: int
    subscriptions: int
    rate: float
    cover: int = 0
    processes: int = 0

    @property
    def group(self) -> int:
        """The consumers of one subscription."""
        return self.consumers // self.subscriptions


@dataclass(slots=True)
class Traffic:
    """Requests of the agents to each other, and the bytes of their bodies."""

    requests: int = 0
    bytes: int = 0


@dataclass(slots=True)
class Consumer:
    """One consumer. open: its links. dials: made in each second. phase_ms: of the ticks of its driver.

    turns: of the dials of its process.
    """

    members: Membership
    process: Process
    turns: DialTurns
    phase_ms: int = 0
    list_at_ms: float = 0.0
    dials: Counter[int] = field(default_factory=Counter)
    timer: asyncio.TimerHandle | None = None
    open: set[str] = field(default_factory=set)
    got: int = 0


class Simulation:
    """A bus of a size. Make it, and call its methods, on a `VirtualLoop`."""

    def __init__(
        self,
        size: Size,
        *,
        seed: int = 42,
        lines: Lines | None = None,
        processors: Processors | None = None,
    ) -> None:
        self.size, self.chance = size, random.Random(seed)
        self._loop = cast(VirtualLoop, asyncio.get_running_loop())
        listed = tuple(
            ListedBroker(broker=Broker(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}", 5672))
            for n in range(size.brokers)
        )
        self.list = BrokerList(listed=listed, generation=1)
        self.dead: set[str] = set()
        self.was_dead: frozenset[str] = frozenset()
        self._dialling = set[asyncio.Task[None]]()
        self.hosts = Hosts(self.names, lines or Lines(), processors or Processors())
        processes = [
            (self.hosts.process(), DialTurns()) for _ in range(size.processes or size.group)
        ]
        self.consumers = [
            Consumer(
                self._membership(slot),
                *processes[slot % len(processes)],
                phase_ms=self.chance.randrange(TICK_MS),
            )
            for slot in range(size.group)
        ]

        began_s = time.process_time()
        parsed = BrokerList.parse(self.list.render())
        self._membership(0).refresh([entry.broker.name for entry in parsed], 0)
        self._apply_ms = (time.process_time() - began_s) * 1000

    def _membership(self, slot: int) -> Membership:
        size = self.size
        subset = Subset(slot=slot, slots=size.group, cover=size.cover) if size.cover else None
        return Membership(subset=subset, backoff_first_ms=REDIAL_FIRST_MS)

    @property
    def names(self) -> list[str]:
        return [entry.broker.name for entry in self.list.listed]

    # Consumers.

    async def spread(self) -> float:
        """Give all agents a newer list at once; return the time in ms until the last consumer has it.

        A consumer waits at any agent, which looks at its file every LOOK_INTERVAL_S.
        """
        began_ms, names, everybody = self._loop.now_ms, self.names, self.size.consumers
        waiting: dict[str, list[Consumer | None]] = {name: [] for name in names}
        for number in self.chance.sample(range(everybody), everybody):
            one = self.consumers[number] if number < self.size.group else None
            waiting[self.chance.choice(names)].append(one)
        async with asyncio.TaskGroup() as tasks:
            for name in names:
                tasks.create_task(self._look(name, waiting[name]))
        return max(each.list_at_ms for each in self.consumers) - began_ms

    @asynccontextmanager
    async def upkeep(self) -> AsyncIterator[None]:
        """Let all agents do in the block, too, their work of each second at rest."""
        working = [asyncio.create_task(self._upkeep(name)) for name in self.names]
        try:
            yield
        finally:
            for each in working:
                each.cancel()

    async def _upkeep(self, agent: str) -> None:
        await asyncio.sleep(self.chance.uniform(0, UPKEEP_S))
        while True:
            await self.hosts.agents[agent].compute(self.hosts.processors.upkeep_ms * UPKEEP_S)
            await asyncio.sleep(UPKEEP_S)

    async def _look(self, agent: str, waiting: Iterable[Consumer | None]) -> None:
        """Let an agent find the list, after some time. waiting: there; None: one that is not simulated."""
        await asyncio.sleep(self.chance.uniform(0, LOOK_INTERVAL_S))
        others = [name for name in self.names if name != agent]
        asked = self.chance.sample(others, min(PULL_PEERS, len(others)))
        async with asyncio.TaskGroup() as tasks:
            # Its requests begin in an earlier turn of its loop than its answers.
            tasks.create_task(self.hosts.ask(agent, asked, CONNECTIONS_MAX))
            for consumer in waiting:
                tasks.create_task(self._answer(agent, consumer))

    async def _answer(self, agent: str, consumer: Consumer | None) -> None:
        costs = self.hosts.processors
        await self.hosts.agents[agent].compute(costs.request_ms)
        if consumer is not None:
            await asyncio.sleep(self.hosts.lines.answer_ms / 1000)
            await consumer.process.compute(costs.list_ms + self._apply_ms)
            self._listed(consumer)

    def _listed(self, consumer: Consumer) -> None:
        consumer.list_at_ms = self._loop.now_ms
        self._perform(consumer, consumer.members.refresh(self.names, self._loop.now_ms))

    def _perform(self, consumer: Consumer, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Dial):
                dialling = asyncio.create_task(self._dial(consumer, action.broker))
                self._dialling.add(dialling)
                dialling.add_done_callback(self._dialling.discard)
        if consumer.timer is not None:
            consumer.timer.cancel()
        due_ms = consumer.members.next_due_ms()
        if due_ms is not None:
            due_ms += (consumer.phase_ms - due_ms) % TICK_MS  # the driver looks at its ticks alone
        consumer.timer = (
            None if due_ms is None else self._loop.call_at(due_ms / 1000, self._tick, consumer)
        )

    def _tick(self, consumer: Consumer) -> None:
        consumer.timer = None
        self._perform(consumer, consumer.members.tick(self._loop.now_ms))

    async def _dial(self, consumer: Consumer, broker: str) -> None:
        try:
            async with consumer.turns.turn(broker):
                consumer.dials[self._loop.now_ms // 1000] += 1
                is_dead, lines, costs = broker in self.dead, self.hosts.lines, self.hosts.processors
                await consumer.process.compute(costs.refused_ms if is_dead else costs.login_ms)
                await asyncio.sleep((lines.refused_ms if is_dead else lines.login_ms) / 1000)
                if is_dead:
                    raise ConnectionRefusedError
        except ConnectionRefusedError:
            self._lost(consumer, broker)
        else:
            consumer.open.add(broker)
            consumer.members.opened(broker)

    def _lost(self, consumer: Consumer, broker: str) -> None:
        consumer.open.discard(broker)
        now_ms, share = self._loop.now_ms, self.chance.random()
        consumer.members.lost(broker, now_ms, share, absent=True)
        self._perform(consumer, [])

    def kill(self, part: float) -> None:
        """Kill this part of the brokers, of which ports refuse from now on."""
        count = max(1, round(self.size.brokers * part))
        self.dead = set(self.chance.sample(self.names, count))
        self.was_dead = frozenset(self.dead)
        for consumer in self.consumers:
            for broker in sorted(consumer.open & self.dead):
                self._lost(consumer, broker)

    async def die(self, part: float, seconds: int) -> list[int]:
        """Kill this part of the brokers; return the dials of all simulated consumers in each second then."""
        from_s = int(self._loop.time()) + 1
        await asyncio.sleep(from_s - self._loop.time())
        self.kill(part)
        await asyncio.sleep(seconds)
        return self.dials(from_s, seconds)

    async def back(self) -> float:
        """Start the killed brokers; return the time in ms until every consumer has all its links."""
        self.dead.clear()
        began_ms = self._loop.now_ms
        await self.whole()
        return self._loop.now_ms - began_ms

    async def whole(self) -> None:
        """Wait until every consumer has all its links."""
        while not all(  # noqa: ASYNC110 - the time is virtual
            state is State.OPEN for one in self.consumers for state in one.members.states.values()
        ):
            await asyncio.sleep(LOOK_S)

    def dials(self, from_s: int, seconds: int) -> list[int]:
        """Return the dials of all simulated consumers together in each of these seconds."""
        every = sum((consumer.dials for consumer in self.consumers), Counter[int]())
        return [every[second] for second in range(from_s, from_s + seconds)]

    def links(self) -> list[int]:
        """Return the open links of each consumer."""
        return [len(each.open) for each in self.consumers]

    def messages(self, seconds: float) -> list[int]:
        """Publish for so long to the living brokers; return the messages that each consumer gets."""
        living = [name for name in self.names if name not in self.dead]
        attached = {name: [c for c in self.consumers if name in c.open] for name in living}
        for consumer in self.consumers:
            consumer.got = 0
        count = round(self.size.rate / self.size.subscriptions * seconds)
        turns = {name: self.chance.randrange(self.size.group) for name in living}
        for name in self.chance.choices(living, k=count):
            turns[name] += 1
            attached[name][turns[name] % len(attached[name])].got += 1
        return [consumer.got for consumer in self.consumers]

    # Agents.

    def agents(self) -> Agents:
        return Agents(self.list, self.hosts)


class Agents:
    """The agents of a list: each has its map; `AGENTS_MAX` of them ask in rounds, as all of them do."""

    def __init__(self, listed: BrokerList, hosts: Hosts) -> None:
        self.list, self._hosts, self.traffic = listed, hosts, Traffic()
        self.topologies = {
            entry.broker.name: self._topology(entry.broker.name) for entry in listed.listed
        }
        self._asking = list(self.topologies.values())[:AGENTS_MAX]
        self._read: dict[tuple[str, str], int] = {}
        self._maps: dict[str, tuple[int, Snapshot]] = {}

    def _topology(self, me: str) -> Topology:
        register = Register(me, Snapshot(intact=True))
        register.voters.listed(self.list.names)
        return Topology(
            me=me,
            register=register,
            store=cast(Any, SimpleNamespace(save_map=lambda _map: None)),
            peers=cast(Any, _Peers(self, me)),
            lists=cast(Any, SimpleNamespace(current=self.list)),
            upkeep=cast(Any, _Upkeep()),
            answering=cast(Any, SimpleNamespace(answer=_held)),
            pull_now=asyncio.Event(),
        )

    async def rest(self, seconds: float) -> Traffic:
        """Let them ask each other in rounds for so long; return what all of them together ask."""
        for each in self._asking:
            await each.pull(self.list.listed)  # they have a majority: from now on a few are asked
        tasks = [asyncio.create_task(each.run()) for each in self._asking]
        await asyncio.sleep(1.0)
        self.traffic = Traffic()
        await asyncio.sleep(seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        times = len(self.topologies) / len(self._asking)
        return Traffic(round(self.traffic.requests * times), round(self.traffic.bytes * times))

    async def change(self, names: Sequence[str]) -> tuple[Traffic, float]:
        """Create these names through the first agent; return its requests, and the time in ms."""
        first, loop = self._asking[0], asyncio.get_running_loop()
        self.traffic, began_s = Traffic(), loop.time()
        judged = await first.change(list(names), alive=True)
        assert judged.complete, judged
        return self.traffic, (loop.time() - began_s) * 1000

    async def ask(self, asker: str, names: Sequence[str]) -> None:
        self.traffic.requests += len(names)
        await self._hosts.ask(asker, names, CONNECTIONS_MAX)

    def map_for(self, reader: str, name: str) -> Snapshot:
        """Return the map of an agent, the same object while it is the same; count it if it is news."""
        register = self.topologies[name].register
        version, snapshot = self._maps.get(name, (-1, None))
        if version != register.version or snapshot is None:
            snapshot = register.snapshot
            self._maps[name] = register.version, snapshot
        if self._read.get((reader, name)) != register.version:
            self._read[reader, name] = register.version
            self.traffic.bytes += size_of(snapshot)
        return snapshot


class _Peers:
    """The other agents, as `Peers` has them, on lines of `Agents`."""

    def __init__(self, all: Agents, me: str) -> None:
        self._all, self._me = all, me

    def _names(self, listed: Iterable[ListedBroker]) -> list[str]:
        return [entry.broker.name for entry in listed if entry.broker.name != self._me]

    async def pull(self, listed: Iterable[ListedBroker]) -> dict[str, Snapshot]:
        names = self._names(listed)
        await self._all.ask(self._me, names)
        return {name: self._all.map_for(self._me, name) for name in names}

    async def mismatch(
        self, peers: Iterable[ListedBroker], items: Sequence[object]
    ) -> dict[str, str]:
        names = self._names(peers)
        await self._all.ask(self._me, names)
        self._all.traffic.bytes += len(names) * len(json.dumps(list(items)))
        return dict.fromkeys(names, "")

    async def push(
        self,
        listed: Iterable[ListedBroker],
        entries: Sequence[Entry],
        mine: Snapshot,
        *,
        answering: Iterable[str],
    ) -> dict[str, PeerAnswer]:
        names, part = self._names(listed), replace(mine, entries=tuple(entries))
        await self._all.ask(self._me, names)
        self._all.traffic.bytes += len(names) * size_of(part)
        return {name: await self._told(name, part) for name in names}

    async def _told(self, name: str, part: Snapshot) -> PeerAnswer:
        topology = self._all.topologies[name]
        reply = await topology.receive(part)
        return PeerAnswer(
            answer=reply.answer.value,
            reason=reply.reason,
            stored=reply.stored,
            intact=topology.register.intact,
            entries=tuple(topology.entries_of(part)),
        )


class _Upkeep:
    """A broker that holds whatever its agent has."""

    partitions = SimpleNamespace(look_for_open=lambda: None)

    def wake(self) -> None:
        """Its map is applied at once."""

    async def mismatch(self, _wanted: object) -> str:
        return ""


async def _held(_names: Iterable[str]) -> Reply:
    return Reply(answer=Answer.HELD, stored=True)


def fullest_broker(
    publishers: int, brokers: int, hours: int, *, lifetime_s: float, seed: int = 42
) -> float:
    """Return what the fullest broker gets of equal publishers in so many hours, to the mean.

    Each has one link, by HAProxy's `leastconn`, and renews it as `core.route` says: the new one before the
    old one is closed, which counts until then.
    """
    chance, counts, shares = random.Random(seed), [0] * brokers, [0.0] * brokers

    def least() -> int:
        return chance.choice([n for n, count in enumerate(counts) if count == min(counts)])

    def due_s() -> float:
        return lifetime_s * (0.8 + 0.4 * chance.random())

    at, renewals, now_s, end_s = list[int](), list[tuple[float, int]](), 0.0, hours * 3600.0
    for number in range(publishers):
        at.append(least())
        counts[at[number]] += 1
        heapq.heappush(renewals, (due_s(), number))
    while now_s < end_s:
        next_s, number = heapq.heappop(renewals)
        for broker, count in enumerate(counts):
            shares[broker] += count * (min(next_s, end_s) - now_s)
        now_s, new = next_s, least()
        counts[new] += 1
        counts[at[number]] -= 1
        at[number] = new
        heapq.heappush(renewals, (now_s + due_s(), number))
    return max(shares) / sum(shares) * brokers


def size_of(snapshot: Snapshot) -> int:
    """Return the bytes of a map as peers read it."""
    return len(json.dumps(snapshot_to_json(snapshot)))
