"""Moves of partitions: what `topology.handover` decides is done, written to the map, and told to clients.

Every pass begins with the map and with what the broker shows, so an agent that was killed goes on where it
was. Its writes count when a majority of the agents has them on disk; it opens nothing before that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterator, Mapping

from messagebus._io.amqp.control import port_answers
from messagebus.broker import Broker, BrokerList
from messagebus.core.homes import Chain, Home, mark_of, segment_of, write_chains
from messagebus.errors import LinkError, TopologyError, reason_of
from messagebus.services.agent.broker.management import ManagementUnavailable
from messagebus.services.agent.broker.settle import Settler
from messagebus.services.agent.broker.upkeep import Upkeep
from messagebus.services.agent.consumer_list import ListFile
from messagebus.services.agent.topology.agreement import Topology
from messagebus.services.agent.topology.handover import (
    Facts,
    Step,
    abandoned,
    next_step,
    sealed,
    why_not,
)
from messagebus.services.agent.topology.homes import (
    HOMES,
    chains_of,
    has_segments,
    homes_of,
    segment_name,
)
from messagebus.services.agent.topology.peers import Peers
from messagebus.services.agent.topology.register import Entry, majority

log = logging.getLogger("messagebus.agent")

# Pauses between two passes of a move: while it waits for others, and behind one that failed.
PASS_S, FAILED_S = 0.1, 1.0
LATE = "does not answer, or is of a version that abandons nothing"
# A client asks again after this, at the latest.
NEWS_S_MAX = 60.0
# A lost home is dialled for so long; the agent that asks for this waits for PULL_TIMEOUT_S.
PROBE_S = 0.5


class Moves:
    """One agent's part in the moves of partitions."""

    def __init__(
        self,
        *,
        me: str,
        topology: Topology,
        upkeep: Upkeep,
        settler: Settler,
        peers: Peers,
        lists: ListFile,
    ) -> None:
        self._me, self._topology, self._upkeep = me, topology, upkeep
        self._register, self._settler = topology.register, settler
        self._peers, self._lists = peers, lists
        self._changed = asyncio.Event()
        self._register.on_change = self._on_change
        # Segments behind whose unbind the barrier was passed, in one life of the link to the broker.
        self._quiet: set[tuple[str, str]] = set()
        self._quiet_life = 0
        self._written: dict[str, str] = {}  # topic -> homes that a majority has
        self.fault = ""

    def _on_change(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    # Clients.

    def homes(self, topic: str) -> str:
        """Return the homes of a topic as text, "" for a topic that has no partitions, or is gone."""
        entry = self._register.entries.get(topic)
        return str(dict(entry.options).get(HOMES, "")) if entry and entry.alive else ""

    async def news(self, topic: str, known: str, wait_s: float) -> str:
        """Return the homes of a topic when they have another mark than `known`, or when the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(wait_s, NEWS_S_MAX)):
                while mark_of(self.homes(topic)) == known:
                    await self._changed.wait()
        return self.homes(topic)

    async def begin(self, topic: str, wanted: Mapping[int, str]) -> dict[int, str]:
        """Decide the next homes of partitions, or say why not: partition -> "" or the reason."""
        current = self._lists.current
        peers = list(current.listed) if current else []
        staying = [each.broker.name for each in peers if not each.draining]
        bound = await self._peers.bound(peers, topic)
        silent = [each for each in peers if each.broker.name not in bound]
        before = ", ".join(await self._peers.pull(silent))
        entry = self._register.entries.get(topic)
        if entry is None or not entry.alive or not (chains := list(chains_of(entry))):
            return dict.fromkeys(wanted, f"there is no topic {topic} with partitions")
        told = dict[int, str]()
        for partition, to in wanted.items():
            if partition >= len(chains):
                told[partition] = f"{topic} has {len(chains)} partitions"
                continue
            chain = chains[partition]
            told[partition] = why_not(chain, self._me, to, staying) or self._why_not_now(entry)
            if before:
                told[partition] = f"the agent of {before} is late, or of a version without moves"
            elif not told[partition] and bound.get(to) is None:
                told[partition] = f"{to} takes no messages, or its agent does not answer"
            if told[partition]:
                continue
            chains[partition] = sealed(chain, to)
            self._upkeep.partitions.unsealed.add(
                segment_name(topic, segment_of(partition, chain.homes[-1]))
            )
            log.info("move begins topic=%s partition=%d to=%s", topic, partition, to)
        self._register.homes_changed(topic, write_chains(chains))
        if not all(told.values()):
            # Killed behind its answer, it would forget what it has said. Without a majority it tries again.
            with contextlib.suppress(TopologyError):
                await self._write(topic)
        return told

    def _why_not_now(self, entry: Entry) -> str:
        if not self._settler.erl_call:
            return f"the agent of {self._me} has no erl_call, node_name or cookie_file: it cannot count"
        if not (self._register.informed and self._upkeep.link.is_open):
            return f"the agent of {self._me} does not know its broker and the map yet"
        if not self._upkeep.partitions.is_open(entry):
            return "it is not open yet: all agents of the list have to know it"
        return ""

    # Lost homes.

    async def abandon(self, topic: str, home: str) -> dict[int, str]:
        """Decide in place of a lost home: each partition of it -> "" or what it waits for.

        Nothing that waits is open yet: ask again. Raises TopologyError when an agent does not agree.
        """
        if why := await self.why_not_abandoned(home, self._me):
            raise TopologyError(why)
        current = self._lists.current
        assert current is not None
        heard, agreed, bound = await asyncio.gather(
            self._topology.pull(current.listed),
            self._peers.agree(current.listed, home),
            self._peers.bound(current.listed, topic),
        )
        for name in sorted(current.names - {self._me}):
            if why := agreed.get(name, "") or ("" if name in heard & agreed.keys() else LATE):
                raise TopologyError(f"all agents of the list have to agree: that of {name} {why}")
        if self._upkeep.condition.gate_open:
            bound[self._me] = self._upkeep.partitions.bound(topic)
        entry = self._register.entries.get(topic)
        if entry is None or not entry.alive or not homes_of(entry):
            raise TopologyError(f"there is no topic {topic} with partitions")
        # What is decided already, see `abandoned`.
        await self._write(topic, by_all=True)
        told = self._abandon(topic, home, current, bound)
        if self._register.entries[topic] != entry:
            await self._write(topic, by_all=True)
        return told

    def _abandon(
        self, topic: str, home: str, current: BrokerList, bound: Mapping[str, list[str] | None]
    ) -> dict[int, str]:
        chains, told = list(chains_of(self._register.entries[topic])), dict[int, str]()
        counts = Counter(chain.homes[-1].broker for chain in chains)
        open_at = {name: segments for name, segments in bound.items() if segments is not None}
        taking = [e.broker.name for e in current if not e.draining and e.broker.name in open_at]
        for partition, chain in enumerate(chains):
            brokers, last = [each.broker for each in chain.homes], chain.homes[-1]
            if home not in brokers:
                if any(each.broker == home for each in chain.lost):
                    told[partition] = ""
                continue
            to = min((n for n in taking if n not in brokers), key=lambda n: counts[n], default="")
            if last.broker == home and not to:
                told[partition] = "no other broker takes messages"
                continue
            is_bound = segment_of(partition, last) in open_at.get(last.broker, ())
            now = abandoned(chain, home, to, is_bound=is_bound)
            counts[now.homes[-1].broker] += now.homes[-1] != last
            chains[partition], told[partition] = now, _left(chain, now, home, current)
            if now != chain:
                log.warning("abandoned topic=%s partition=%d now=%s", topic, partition, now.homes)
        self._register.homes_changed(topic, write_chains(chains))
        return told

    async def why_not_abandoned(self, home: str, decider: str) -> str:
        """Return why this agent lets nobody, or not this one, decide in place of a lost home, else ""."""
        current = self._lists.current
        if current is None:
            return "has no consumer list"
        if home in current.names:
            return f"has {home} on its list: take it off, or move its partitions"
        if decider != (first := min(current.names)):
            return f"lets the agent of {first} decide, the first of its list"
        if not (self._register.informed and self._register.intact):
            return "does not know the map yet"
        if await port_answers(Broker.parse(home), timeout_s=PROBE_S):
            return f"gets an answer of {home}: put it on the list again"
        return ""

    # Doing.

    async def run(self) -> None:
        """Do what the map wants of this agent, for ever."""
        while True:
            changed = self._changed
            try:
                is_busy = await self._pass()
                self.fault = ""
            except (LinkError, TopologyError, ManagementUnavailable, TimeoutError) as fault:
                told = reason_of(fault)
                if told != self.fault:
                    log.warning("moves wait reason=%s", told)
                self.fault = told
            if self.fault:
                await asyncio.sleep(FAILED_S)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PASS_S if is_busy else None):
                    await changed.wait()

    async def _pass(self) -> bool:
        """Make the next steps. Returns whether more are to come."""
        if self._quiet_life != self._upkeep.link.dials:
            self._quiet_life, self._quiet = self._upkeep.link.dials, set()
        is_busy = False
        for moving in list(self._moving()):
            is_busy = True
            entry: Entry | None = moving
            while entry is not None and await self._step(entry):
                entry = self._register.entries.get(entry.wanted)
        return is_busy

    def _moving(self) -> Iterator[Entry]:
        for entry in self._register.entries.values():
            if entry.alive and dict(entry.options).get(HOMES):
                for chain in chains_of(entry):
                    if len(chain.homes) > 1 and any(h.broker == self._me for h in chain.homes):
                        yield entry
                        break

    async def _step(self, entry: Entry) -> bool:
        """Make one step of each partition of a topic. Returns whether there may be another one at once."""
        if not self._register.informed:
            raise TopologyError("a majority of the agents was not heard yet")
        topic, chains = entry.wanted, list(chains_of(entry))
        await self._write(topic)  # what was decided, and is not known to be kept
        unbound, steps = self._upkeep.partitions.unbound(topic), dict[int, Step]()
        next_bound = await self._bound_at_next(topic, chains)
        left = await self._left(topic, chains)
        for partition, chain in enumerate(chains):
            if len(chain.homes) == 1:
                continue
            mine = [home for home in chain.homes if home.broker == self._me]
            facts = Facts(
                bound=[h.epoch for h in mine if self._enters(topic, partition, chain, h, unbound)],
                quiet=(topic, segment_of(partition, chain.homes[0])) in self._quiet,
                next_bound=segment_of(partition, chain.homes[-1]) in next_bound,
                left=left.get(partition, {}),
            )
            if (step := next_step(chain, self._me, facts)) is not None:
                steps[partition] = step[0]
        return await self._make(topic, chains, steps)

    async def _make(self, topic: str, chains: list[Chain], steps: Mapping[int, Step]) -> bool:
        if Step.UNBIND in steps.values():
            for partition, step in steps.items():
                if step is Step.UNBIND:
                    segment = segment_of(partition, chains[partition].homes[0])
                    self._upkeep.partitions.unsealed.discard(segment_name(topic, segment))
            self._register.version += 1  # what is sealed here has changed
            await self._upkeep.seal()
            return True
        waiting = [p for p, step in steps.items() if step is Step.PASS_BARRIER]
        if waiting:
            if not await self._settler.channels_passed():
                raise TopologyError("the channels of the broker did not answer")
            self._quiet |= {(topic, segment_of(p, chains[p].homes[0])) for p in waiting}
            return True
        for partition, step in steps.items():
            chain = chains[partition]
            if step is Step.OPEN:
                chains[partition] = chain._replace(is_open=True)
                log.info("partition moved topic=%s partition=%d", topic, partition)
            elif step is Step.FINISH:
                gone, *homes = chain.homes
                chains[partition] = Chain(tuple(homes), lost=chain.lost - {gone})
                log.info("segment finished topic=%s partition=%d", topic, partition)
        entry = self._register.entries[topic]
        if self._register.homes_changed(topic, write_chains(chains)) != entry:
            await self._write(topic)
            await self._upkeep.bring_about()
        return False

    @staticmethod
    def _enters(
        topic: str, partition: int, chain: Chain, home: Home, unbound: Mapping[str, bool]
    ) -> bool:
        """Return whether publishes may still enter a segment of this broker."""
        is_last = home == chain.homes[-1]
        return is_last or not unbound.get(segment_of(partition, home), False)

    async def _bound_at_next(self, topic: str, chains: list[Chain]) -> set[str]:
        """Return the segments that the next homes of our partitions say are bound there."""
        wanted = {
            chain.homes[-1].broker
            for chain in chains
            if not chain.is_open and chain.homes[0].broker == self._me
        }
        current = self._lists.current
        peers = [each for each in current.listed if each.broker.name in wanted] if current else []
        bound = await self._peers.bound(peers, topic)
        return {segment for each in bound.values() for segment in each or ()}

    async def _left(self, topic: str, chains: list[Chain]) -> dict[int, dict[int, int]]:
        """Return what is left in our sealed segments: partition -> epoch -> messages.

        Notes in the chains each subscription for which nothing is.
        """
        asked = dict[str, tuple[int, str]]()
        found = {
            partition: {chain.homes[0].epoch: 0}
            for partition, chain in enumerate(chains)
            if chain.is_open and len(chain.homes) > 1 and chain.homes[0].broker == self._me
        }
        for entry in self._register.entries.values() if found else ():
            if entry.alive and entry.wanted.startswith(f"{topic}/") and has_segments(entry):
                queues = self._upkeep.partitions.segment_queues(entry.wanted)
                for partition in found:
                    segment = segment_of(partition, chains[partition].homes[0])
                    if segment not in queues:
                        return {}
                    asked[queues[segment]] = partition, entry.wanted.partition("/")[2]
        counts = await self._settler.messages_left(list(asked)) if asked else {}
        if len(counts) < len(asked):
            return {}
        for queue, count in counts.items():
            partition, subscription = asked[queue]
            chain = chains[partition]
            # Consumers go on when it is noted, before their queue is deleted.
            found[partition][chain.homes[0].epoch] += count + (subscription not in chain.done)
            if not count:
                chains[partition] = chain._replace(done=chain.done | {subscription})
        return found

    async def _write(self, topic: str, *, by_all: bool = False) -> None:
        """Have the homes of a topic on the disks of a majority, or of all. Raises TopologyError."""
        homes, current = self.homes(topic), self._lists.current
        if self._written.get(topic) == homes and not by_all:
            return
        if current is None:
            raise TopologyError("no consumer list: the agents are unknown")
        wanted = len(current.names) if by_all else majority(len(current.names))
        if await self._topology.keep(topic, current) < wanted:
            who = "not every agent of the list" if by_all else "no majority of the agents"
            raise TopologyError(f"{who} has stored the homes of {topic}")
        self._written[topic] = homes


def _left(chain: Chain, now: Chain, home: str, current: BrokerList) -> str:
    """Return what an abandoned partition still waits for, "" for nothing. now: its chain from now on."""
    last = chain.homes[-1].broker
    if now == chain and last not in current.names:
        return f"its next home {last} is not on the list: abandon that"
    if home in [each.broker for each in now.homes]:
        return f"its next home {now.homes[-1].broker} prepares"
    return ""
