"""The agent's map in action: kept on disk, merged with the peers', changed for callers.

Any agent coordinates a change: read a majority, decide, store, tell all, judge the answers
(`core.register`). A list that changed meanwhile makes it start over, since the new list's
brokers were not asked.

`resolve` judges a request against the map. No subscription may be weaker than its topic, or a
confirm would promise more than it keeps. A subscription without a durability takes its topic's level.
"""

# A change of a caller, in rounds until the list and the entries stand (`_changing`: one change at a time):
#
#   wait in turn ─ pull a majority ─ resolve, ask all ─ write, store ─┬─ own broker (`Answering`) ─┬─ judge
#   `_waiting`     `Register.heard`  `_making`          `_storing`    └─ other agents (`Peers`) ───┘
#
# `_making` are the names that this agent is about to create while it asks; of two agents that make one name
# at the same time with different options, one yields to the other (`_yielded_to`).

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from messagebus._io.amqp.control import node_is_gone, port_refuses
from messagebus.broker import Broker, BrokerList, ListedBroker
from messagebus.core.homes import joined
from messagebus.destination import Stream, Subscription, Topic
from messagebus.errors import TopologyError, TopologyMismatch
from messagebus.services.agent.broker.answering import Answering
from messagebus.services.agent.broker.upkeep import Upkeep
from messagebus.services.agent.consumer_list import ListFile
from messagebus.services.agent.topology.homes import HOMES, PARTITIONS, chosen
from messagebus.services.agent.topology.peers import PeerAnswer, Peers
from messagebus.services.agent.topology.register import (
    Answer,
    Completion,
    Entry,
    Register,
    Reply,
    Snapshot,
    completion,
)
from messagebus.services.agent.topology.store import Store
from messagebus.services.agent.web.metrics import Figure
from messagebus.topology import (
    STREAM_PREFIX,
    Options,
    Wanted,
    against_partitions,
    differences,
    options_of,
    parse_wanted,
    to_item,
    with_options,
)

log = logging.getLogger("messagebus.agent")

PULL_INTERVAL_S = 1.0
# Once a majority was read, a round asks this many peers in turn: pulls only repair lost pushes then.
PULL_PEERS = 8
# The list may change, or another agent may decide otherwise, while a change is under way.
CHANGE_ROUNDS = 5
CHANGE_WAIT_S = 20.0
PROBE_TIMEOUT_S = 1.0
FSYNC, MQTT = "fsync", "mqtt"
# Of the names that are confirmed together, among those that wait; no other key is like it.
EXISTING = "existing"


class NoMajority(TopologyError):
    """Raised when too few agents answered for a change; nothing was changed."""


class Topology:
    """One agent's part in the register. Runs on one loop.

    pull_now: set by other parts of the agent, to read from the peers at once.
    """

    def __init__(
        self,
        *,
        me: str,
        register: Register,
        store: Store,
        peers: Peers,
        lists: ListFile,
        upkeep: Upkeep,
        answering: Answering,
        pull_now: asyncio.Event,
    ) -> None:
        self._me = me
        self.register = register
        self._store = store
        self._peers = peers
        self._lists = lists
        self._upkeep, self._answering = upkeep, answering
        self._changing = asyncio.Lock()
        self._waiting: dict[str, asyncio.Task[Completion]] = {}
        self._existing: dict[str, Options] = {}  # of the turn that waits under EXISTING
        self._storing = asyncio.Lock()
        self._stored_version = register.version
        # Names that the change under way is about to create, while the other agents are asked, and the
        # agents that make the same with other options and go first.
        self._making: dict[str, Options] = {}
        self._yielded_to: dict[str, str] = {}
        self._pull_now = pull_now
        self._turn = 0
        self.joining = False
        self.changes = 0
        self.changes_incomplete = 0
        self.fault = ""

    def figures(self) -> Iterator[Figure]:
        entries = self.register.entries.values()
        alive = sum(entry.alive for entry in entries)
        yield Figure("intact", self.register.intact)
        yield Figure("informed", self.register.informed)
        yield Figure("entries_alive", alive)
        yield Figure("tombstones", len(entries) - alive)
        yield Figure("changes", self.changes)
        yield Figure("changes_incomplete", self.changes_incomplete)

    # The list.

    def list_changed(self) -> None:
        """Apply a changed consumer list: other agents vote."""
        current = self._lists.current
        if current is None:
            return
        # Between being added to the list and now a change may have been completed without us.
        known = self.register.voters.names
        if known and self._me in current.names - known:
            self.joining = True
            self.register.voters.life_began()
        self.register.voters.listed(current.names)
        self._pull_now.set()

    # Reading from the peers.

    async def run(self) -> None:
        """Pull from the peers every PULL_INTERVAL_S, for ever."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PULL_INTERVAL_S):
                    await self._pull_now.wait()
            self._pull_now.clear()
            current = self._lists.current
            if current is not None:
                await self.pull(self._next_peers(current))
                self.register.round_ended()
            await self._store_quietly()

    async def pull(self, listed: Sequence[ListedBroker]) -> set[str]:
        """Merge the maps of these peers. Returns the names of those whose map counts."""
        register, life = self.register, self.register.voters.life
        answers = await self._peers.pull(listed)
        version, informed = register.version, register.informed
        counts = {name for name, map_ in answers.items() if register.heard(name, map_, life=life)}
        if register.informed:
            self.joining = False
        self._upkeep.partitions.look_for_open()
        if (version, informed) != (register.version, register.informed):
            self._upkeep.wake()
        return counts

    def _next_peers(self, current: BrokerList) -> Sequence[ListedBroker]:
        others = [entry for entry in current.listed if entry.broker.name != self._me]
        if not self.register.informed or len(others) <= PULL_PEERS:
            return others
        self._turn = (self._turn + PULL_PEERS) % len(others)
        return list(islice([*others, *others], self._turn, self._turn + PULL_PEERS))

    # Changes of peers.

    async def receive(self, snapshot: Snapshot) -> Reply:
        """Take entries that a peer changed: store them, apply them, answer for them."""
        names = [entry.wanted for entry in snapshot.entries if entry.alive]
        if not snapshot.intact:
            return Reply(answer=Answer.NO, reason="it comes from a map that is not intact")
        if not self.register.receive(snapshot):
            above = self.register.dropped
            reason = "a deletion that came after it is forgotten here already"
            return Reply(answer=Answer.NO, reason=reason, above=above)
        await self._store_map()
        return await self._answering.answer(names)

    async def adopt(self, snapshot: Snapshot) -> None:
        """Merge a map that operators vouch for, since no majority can, and let the map count.

        Raises TopologyError when it cannot be stored.
        """
        self.register.adopt(snapshot)
        log.warning("map adopted on operators' word entries=%d", len(self.register.entries))
        await self._store_map()
        self._upkeep.wake()

    def entries_of(self, snapshot: Snapshot) -> list[Entry]:
        """Return the map's current entries of these names."""
        names = (entry.wanted for entry in snapshot.entries)
        return [self.register.entries[name] for name in names if name in self.register.entries]

    # Changing.

    async def change(
        self,
        names: Sequence[str],
        *,
        alive: bool,
        options: Mapping[str, Options] | None = None,
    ) -> Completion:
        """Create or delete names on every broker.

        Equal changes that wait here for their turn are made once, for all callers: many clients that
        start together want the same. Names that exist are confirmed together, whoever waits for which.

        options: the options of a name, as `messagebus.topology.options_of` gives them. Raises
        NoMajority, TopologyMismatch when one of them exists with other options or a part of its
        name on a broker differs, or TopologyError when another change has been under way for too long.
        """
        asked = {name: options.get(name, {}) if options else {} for name in names}
        if alive and self._all_exist(asked):
            with contextlib.suppress(TopologyMismatch):  # of a name that somebody else asked for
                judged, together = await self._confirmed(asked)
                if judged.complete or together.keys() == asked.keys():
                    created = tuple(name for name in judged.created if name in asked)
                    return replace(judged, created=created)
        key = json.dumps([alive, asked], sort_keys=True)
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = asyncio.create_task(self._in_turn(key, asked, alive))
        return await asyncio.shield(waiting)

    def _all_exist(self, asked: Mapping[str, Options]) -> bool:
        """Return whether the map has all of these as they are asked for, and nothing is to be switched."""
        exist = all(self._lives(name) and MQTT not in each for name, each in asked.items())
        return exist and not resolve(self.register.entries, asked)[1]

    async def _confirmed(
        self, asked: Mapping[str, Options]
    ) -> tuple[Completion, Mapping[str, Options]]:
        """Add names to those that are confirmed in the next turn; return its end, and all its names."""
        waiting = self._waiting.get(EXISTING)
        if waiting is None:
            self._existing = {}
            turn = self._in_turn(EXISTING, self._existing, alive=True)
            waiting = self._waiting[EXISTING] = asyncio.create_task(turn)
        together = self._existing
        together.update(asked)
        return await asyncio.shield(waiting), together

    async def _in_turn(self, key: str, requested: Mapping[str, Options], alive: bool) -> Completion:
        try:
            async with asyncio.timeout(CHANGE_WAIT_S):
                await self._changing.acquire()
        except TimeoutError:
            raise TopologyError("other changes are under way here") from None
        finally:
            del self._waiting[key]  # a later caller needs a newer state than this change reads
        try:
            judged = await self._change(requested, alive)
        finally:
            self._changing.release()
        self.changes += 1
        self.changes_incomplete += not judged.complete
        log.info(
            "changed wanted=%s alive=%s complete=%s missing=%s",
            ",".join(requested),
            alive,
            judged.complete,
            dict(judged.missing),
        )
        return judged

    async def _change(self, requested: Mapping[str, Options], alive: bool) -> Completion:
        above, created = 0, tuple[str, ...]()
        for _round in range(CHANGE_ROUNDS):
            current = self._lists.current
            if current is None:
                raise NoMajority("no consumer list: the agents are unknown")
            before, (judged, above) = above, await self._one_round(current, requested, alive, above)
            created = created or judged.created
            stands = self._stands(requested, alive) and above == before
            if self._lists.current == current and stands:
                return replace(judged, created=created)
        why = "the list or the entry changed in every round"
        return Completion(complete=False, held=(), later=(), missing={self._me: why})

    def _stands(self, requested: Mapping[str, Options], alive: bool) -> bool:
        """Return whether no concurrent change of another agent has won."""
        entries = self.register.entries
        if not alive:
            return not any(name in entries and entries[name].alive for name in requested)
        stands = all(name in entries and entries[name].alive for name in requested)
        return (
            stands
            and not resolve(entries, requested)[1]
            and all(
                dict(entries[name].options).get(MQTT) == options[MQTT]
                for name, options in requested.items()
                if MQTT in options
            )
        )

    async def _one_round(
        self, current: BrokerList, requested: Mapping[str, Options], alive: bool, above: int
    ) -> tuple[Completion, int]:
        """Make one round. Returns also the number to exceed for agents that did not take this change."""
        names = list(requested)
        heard = await self.pull(current.listed)
        if not alive and (why := _still_read(self.register.entries, requested)):
            raise TopologyMismatch(why)
        options = await self._agreed(current, requested, heard) if alive else requested
        created = tuple(name for name in names if alive and not self._lives(name))
        entries = self.register.change(
            names, alive=alive, answered=heard, above=above, options=options
        )
        if entries is None:
            raise NoMajority(
                f"no majority: {len(heard)} of {len(current.names)} agents answered"
                f" beside this one{'' if self.register.intact else ', whose map is not intact'}"
            )
        await self._store_map()
        self._upkeep.wake()
        mine, told = await asyncio.gather(
            self._answering.answer(names if alive else ()),
            self._peers.push(
                current.listed,
                entries,
                self.register.snapshot,
                answering=heard,
            ),
        )
        for answer in told.values():
            self._take(answer)
        replies = {self._me: mine} | {name: _reply(answer) for name, answer in told.items()}
        silent = [e.broker for e in current.listed if e.broker.name not in replies]
        # Only now, with the change stored: a broker that boots after its refusal reads it.
        replies |= dict(await asyncio.gather(*(self._probed(broker) for broker in silent)))
        if alive and any(MQTT in each for each in requested.values()):
            replies = {name: _with_mqtt(each) for name, each in replies.items()}
        judged = replace(completion(current.names, replies), created=created)
        return judged, max([above, *(answer.above for answer in told.values())])

    def _lives(self, name: str) -> bool:
        entry = self.register.entries.get(name)
        return entry is not None and entry.alive

    async def _agreed(
        self, current: BrokerList, requested: Mapping[str, Options], answering: Collection[str]
    ) -> Mapping[str, Options]:
        """Return the options that the names will have. Raises TopologyMismatch before anything is changed.

        Names that are new to the map are looked for on the brokers: somebody may have declared them by hand.
        """
        taken, against = resolve(self.register.entries, requested)
        if against:
            raise TopologyMismatch("; ".join(against.values()))
        new = [name for name in taken if not self._lives(name)]
        wanted = [with_options(name, taken[name]) for name in new]
        peers = [peer for peer in current.listed if peer.broker.name in answering]
        if wanted:
            self._making, self._yielded_to = {name: taken[name] for name in new}, {}
            try:
                mine, theirs = await asyncio.gather(
                    self._upkeep.mismatch(wanted),
                    self._peers.mismatch(peers, [to_item(w) for w in wanted]),
                )
            finally:
                self._making = {}
            self._refuse_mismatches(requested, {self._me: mine, **theirs})
        for name, options in requested.items():
            if MQTT not in options:  # it may have been switched since we looked
                taken[name] = {key: each for key, each in taken[name].items() if key != MQTT}
        return {name: self._with_homes(current, name, taken[name]) for name in taken}

    def _refuse_mismatches(
        self, requested: Mapping[str, Options], on_brokers: Mapping[str, str]
    ) -> None:
        """Raise TopologyMismatch for a name whose options have changed since the brokers answered.

        on_brokers: broker -> what it has otherwise, "" for nothing; a cause too.
        """
        _taken, against = resolve(self.register.entries, requested)
        for name, other in self._yielded_to.items():
            against[name] = f"{name}: {other} makes it with other options at this moment"
        if against:
            raise TopologyMismatch("; ".join(against.values()))
        if differing := [f"on {broker}: {text}" for broker, text in on_brokers.items() if text]:
            raise TopologyMismatch("; ".join(differing))

    def _with_homes(self, current: BrokerList, name: str, options: Options) -> Options:
        """Return the options of a name with the homes of a new partitioned topic."""
        if not options.get(PARTITIONS) or not isinstance(parse_wanted(name), Topic):
            return options
        entry = self.register.entries.get(name)
        if entry is not None and entry.alive:
            return options
        staying = [each.broker.name for each in current.listed if not each.draining]
        return {**options, HOMES: chosen(name, staying or current.names)}

    async def keep(self, topic: str, current: BrokerList) -> int:
        """Have the homes of a topic stored by the agents. Returns how many have stored them.

        An agent counts when its answer has these homes. Raises TopologyError.
        """
        entry = self.register.entries[topic]
        await self._store_map()
        answers = await self._peers.push(
            current.listed, [entry], self.register.snapshot, answering=current.names
        )
        wanted = dict(entry.options)
        stored = int(self.register.intact and self._me in current.names)
        for answer in answers.values():
            theirs = next((each for each in answer.entries if each.wanted == topic), None)
            homes = "" if theirs is None else str(dict(theirs.options).get(HOMES, ""))
            knows = joined(homes, str(wanted[HOMES]), int(wanted[PARTITIONS])) == homes
            stored += answer.stored and answer.intact and knows
            self._take(answer)
        return stored

    async def in_the_way(self, origin: str, wanted: Mapping[str, Wanted]) -> str:
        """Describe what differs from these here, in the map or on the broker, in words; "" for nothing.

        When two agents are about to make one name with different options, each asks the other, and
        the larger goes first, as with equal numbers. So one of them is refused, and declares nothing
        anywhere. origin: of the agent that asks, "" when nobody is about to make anything.
        """
        told: list[str] = []
        for name, each in wanted.items():
            mine = self._making.get(name)
            against = "" if mine is None else differences(each, mine)
            if against and origin > self._me:
                self._yielded_to[name] = origin
            elif against and origin:
                told.append(f"{against}, by what {self._me} makes at this moment")
        asked = {name: options_of(each) for name, each in wanted.items()}
        told += resolve(self.register.entries, asked)[1].values()
        return "; ".join(told) or await self._upkeep.mismatch(wanted.values())

    async def _probed(self, broker: Broker) -> tuple[str, Reply]:
        """Return the reply for a silent agent: safe only if its broker's node is dead, or boots without it.

        A port that refuses proves neither: in maintenance mode, or behind a firewall, the broker serves again
        with its open gate.
        """
        why = "its agent does not answer and its broker may be serving"
        if await port_refuses(broker, timeout_s=PROBE_TIMEOUT_S):
            node = self._peers.nodes.get(broker.name)
            if node and await node_is_gone(
                broker.host, node.name, node.epmd_port, timeout_s=PROBE_TIMEOUT_S
            ):
                return broker.name, Reply(answer=Answer.DEAD)
            why = "its agent does not answer, and nothing proves that its broker is dead"
        return broker.name, Reply(answer=Answer.NO, reason=why)

    def _take(self, answer: PeerAnswer) -> None:
        """Merge a concurrent change of another agent that came back with an answer."""
        self.register.receive(Snapshot(intact=answer.intact, entries=answer.entries))

    # Storing.

    async def _store_map(self) -> None:
        """Write the current map, or a newer one, to disk. Raises TopologyError."""
        wanted = self.register.version
        async with self._storing:
            if self._stored_version >= wanted:
                return
            version, snapshot = self.register.version, self.register.snapshot
            try:
                await asyncio.to_thread(self._store.save_map, snapshot)
            except OSError as fault:
                raise TopologyError(f"the map could not be stored: {fault}") from fault
            self._stored_version = version

    async def _store_quietly(self) -> None:
        """Write the map between changes, when nobody waits for it: a fault is logged and tried again."""
        try:
            await self._store_map()
            self.fault = ""
        except TopologyError as fault:
            if not self.fault:
                log.warning("%s", fault)
            self.fault = str(fault)


def _reply(heard: PeerAnswer) -> Reply:
    kinds = {"held": Answer.HELD, "later": Answer.LATER}
    answer = kinds.get(heard.answer, Answer.NO)
    return Reply(answer=answer, stored=heard.stored, reason=heard.reason)


def _with_mqtt(reply: Reply) -> Reply:
    """Return the reply to who asked for MQTT: a broker that holds all but that does not do."""
    is_refused = reply.answer is Answer.HELD and reply.reason
    return replace(reply, answer=Answer.NO) if is_refused else reply


def resolve(
    entries: Mapping[str, Entry], requested: Mapping[str, Options]
) -> tuple[dict[str, Options], dict[str, str]]:
    """Return the options that each name will have, and name -> reason, with both values, for the refused.

    requested: names with their requested options. Raises NameInvalid.
    """
    standing: dict[str, Options] = {e.wanted: dict(e.options) for e in entries.values() if e.alive}
    taken, against = dict[str, Options](), dict[str, str]()
    # Topics before their subscriptions and streams, which take their level and partitions.
    for name in sorted(requested, key=lambda name: "/" in name or ":" in name):
        wanted = with_options(name, requested[name])
        options = standing.get(name)
        told = "" if options is None else differences(wanted, options)
        if options is None:
            options = _as_new(wanted, standing)
        if MQTT in requested[name]:
            options = {**options, MQTT: requested[name][MQTT]}
        told = told or _against_others(wanted, options, standing)
        if told:
            against[name] = told
        else:
            taken[name] = standing[name] = options
    return taken, against


def _as_new(wanted: Wanted, standing: Mapping[str, Options]) -> Options:
    options = options_of(wanted)
    if isinstance(wanted, Subscription | Stream):
        above = standing.get(str(wanted.topic), {})
        if count := above.get(PARTITIONS):
            options = {**options, PARTITIONS: count}
    if isinstance(wanted, Subscription) and "durability" not in options:
        topic = _level(standing.get(str(wanted.topic), {}))
        return options if topic == FSYNC else {**options, "durability": topic}
    return options


def _against_others(wanted: Wanted, options: Options, standing: Mapping[str, Options]) -> str:
    level = _level(options)
    if "delivery_limit" in options and level != FSYNC:
        return f"{wanted}: delivery_limit needs durability {FSYNC} and its topic exists {level}"
    match wanted:
        case Subscription(topic=topic) | Stream(topic=topic):
            return _against_topic(wanted, options, standing.get(str(topic)))
        case Topic():
            return _against_readers(wanted, options, standing)
        case _:
            return ""


def _against_topic(wanted: Subscription | Stream, options: Options, topic: Options | None) -> str:
    """Return what of a subscription or stream its topic does not allow, "" for nothing."""
    count = None if topic is None else topic.get(PARTITIONS, 0)
    if told := against_partitions(wanted, options.get(PARTITIONS, 0), count):
        return told
    if not count and "ordered" in options:
        return f"{wanted}: ordered is for subscriptions of a topic with partitions"
    if count and options.get("expires_s"):
        return f"{wanted}: a subscription of a partitioned topic does not expire"
    level = _level(options)
    if topic is not None and _level(topic) == FSYNC != level:
        return f"{wanted}: durability is wanted {level} and its topic exists {FSYNC}"
    return ""


def _against_readers(wanted: Topic, options: Options, standing: Mapping[str, Options]) -> str:
    """Return what of a topic does not go with its subscriptions or its stream, "" for nothing."""
    count = options.get(PARTITIONS, 0)
    if count and MQTT in options:
        return f"{wanted}: mqtt is for topics without partitions, and it exists with some"
    if count and (plain := next(_below(wanted, standing, count), "")):
        return f"{wanted}: partitions is wanted {count} and {plain} exists with others"
    if _level(options) == FSYNC:
        for name, below in standing.items():
            if name.startswith(f"{wanted}/") and _level(below) != FSYNC:
                weaker = f"its subscription {name} exists {_level(below)}"
                return f"{wanted}: durability is wanted {FSYNC} and {weaker}"
    return ""


def _still_read(entries: Mapping[str, Entry], names: Collection[str]) -> str:
    """Return why these may not be deleted: a topic has subscriptions, or a stream, with their messages."""
    for name in names:
        left = {n for n, e in entries.items() if _is_below(n, name) and e.alive}
        if left := left - {*names}:
            return f"{name} is read: delete {', '.join(sorted(left))} first"
    return ""


def _below(topic: Topic, standing: Mapping[str, Options], count: object) -> Iterator[str]:
    """Yield the subscriptions and the stream of a topic with another number of partitions."""
    for name, options in standing.items():
        if _is_below(name, str(topic)) and options.get(PARTITIONS, 0) != count:
            yield name


def _is_below(name: str, topic: str) -> bool:
    return name.startswith(f"{topic}/") or name == f"{STREAM_PREFIX}{topic}"


def _level(options: Options) -> str:
    return str(options.get("durability", FSYNC))
