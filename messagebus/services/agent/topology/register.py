"""The map of wanted topics, queues and subscriptions of one agent, and the end of a change.

Decides; stores and sends nothing, and knows no time. One entry per name is a quorum register: a
change is written to, and an agent after its start reads from, a majority of the agents on the list.
No election, no leader. Of two entries for one name the larger ``(number, origin, alive)`` wins; a
deleted name leaves a *tombstone*, so that a map from before the deletion cannot bring it back.

States of an agent's map:

- not *intact*: new, wiped or unreadable. It takes part, but counts for nothing in a majority.
- intact: every acknowledged change that it was told of is in it.
- *informed*: a majority (itself too, if intact) was read since this life of the broker began.

No clock decides anything, since a clock that is wrong for a second would decide it for ever. Entries
age by `round_ended`, which the agent calls after each round of questions to its peers:

- A tombstone is dropped when, a whole sweep of SWEEP_ROUNDS after it was known, every agent on the
  list was heard to have it or to have dropped it. Its number becomes the *floor*: every name that is
  not in the map and has a number up to it was deleted. So an agent that comes back with an older map,
  after any time, brings nothing back.
- The tombstone of a name that expires by itself is dropped after that time though some agents were not
  heard: a map that still has the name costs a queue that expires once more, and many come and go each
  minute.
- A name that this map has and that others lack is forgotten only when a majority of agents, without
  this one, say so by their floors. No single peer makes anybody forget.

Sources: reference/topology.md, rules 1 and 6 to 8; the floor is the causal context of an observed-
remove set (Bieniusa et al., An optimized conflict-free replicated set, 2012), cut down to one number.

The end of a change (`completion`): *complete* means that no broker can take a publish without having the
wanted queue. A broker is safe when its agent holds the change (`HELD`), when its agent has stored it and
the broker's gate is shut (`LATER`), or when nobody answers and its node is proved dead (`DEAD`: a
broker that boots has no gate until its agent has read a majority). A port that does not answer, or
refuses, proves nothing. And a majority of agents must have stored the change, or it could be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from messagebus.core.homes import joined

# Rounds take a second or less each, so a tombstone lives for one to two minutes. A longer life would make
# every change dearer: the map is written, and read by every peer, as a whole. Any value is safe.
SWEEP_ROUNDS = 60
# Numbers are 64 bits in a queue's arguments. A peer that claims to be further ahead than this is not
# believed: a forged number could use up the whole range.
NUMBERS_AHEAD_MAX = 1_000_000
# Number of tombstones of expiring names to keep, the newest. Those of 10,000 consumers that are replaced
# within a minute are not kept for the next one. 60,000 of them were 10 MB in every answer to a peer, which
# took longer to send and to read than peers wait.
EXPIRED_KEPT = 1_000

# A broker that was away needs them to delete what belongs to a deleted name.
KEPT_OPTIONS = ("expires_s", "partitions", "homes", "ordered", "mqtt")

Options = Mapping[str, str | int | bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One wanted topic, queue or subscription.

    wanted: as `messagebus.topology.parse_wanted` reads it.
    number: grows over all entries of the map with each change.
    origin: broker name of the agent that made the change; decides between equal numbers.
    tomb: number of the last deletion, 0 for none; queues born before it belong to an earlier life.
    options: requested with the name when it was created, `mqtt` since; pairs in the order of their keys. A
    tombstone keeps those of KEPT_OPTIONS.
    """

    wanted: str
    number: int
    origin: str
    alive: bool
    tomb: int
    options: tuple[tuple[str, str | int | bool], ...] = ()

    @property
    def rank(self) -> tuple[int, str, bool]:
        return (self.number, self.origin, self.alive)

    @property
    def expires(self) -> bool:
        return any(key == "expires_s" for key, _value in self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """An agent's map at one moment, as it is stored and as peers read it.

    floor: a name that is not in `entries` and has a number up to this was deleted.
    dropped: largest number of any tombstone that was dropped; numbers never start again below it.
    """

    intact: bool
    floor: int = 0
    dropped: int = 0
    entries: tuple[Entry, ...] = ()


class Voters:
    """The agents of the brokers on the consumer list, and the maps that were heard of them.

    Majorities count these agents. A map that was heard before this life of the broker does not inform.
    """

    def __init__(self, me: str) -> None:
        self._me = me
        self.names: frozenset[str] = frozenset()
        """The brokers that the list names."""
        self.life = 0
        """The number of this life of the broker; `Register.heard` gets the one in which it was asked."""
        self.maps: dict[str, Snapshot] = {}
        """Peer -> its last map."""
        self._heard: dict[str, int] = {}  # peer -> life in which it was heard
        self._heard_in_sweep: set[str] = set()

    @property
    def others(self) -> frozenset[str]:
        """The voters but this agent."""
        return self.names - {self._me}

    @property
    def has_me(self) -> bool:
        """True when this agent is a voter."""
        return self._me in self.names

    def listed(self, names: Iterable[str]) -> None:
        """Set the voters: the brokers that the consumer list names."""
        self.names = frozenset(names)
        for peer in self._heard.keys() - self.names:
            del self._heard[peer]
            self.maps.pop(peer, None)

    def life_began(self) -> None:
        """Begin a new life: the broker came up without a gate, so earlier reads no longer count."""
        self.life += 1

    def heard(self, peer: str, snapshot: Snapshot, life: int) -> bool:
        """Keep the map of a peer. Returns whether it is a voter."""
        if peer not in self.others:
            return False
        self.maps[peer], self._heard[peer] = snapshot, life
        self._heard_in_sweep.add(peer)
        return True

    def heard_in_life(self) -> list[str]:
        """Return the peers that were heard in this life."""
        return [peer for peer, life in self._heard.items() if life == self.life]

    def is_majority(self, peers: Iterable[str], *, counts_me: bool) -> bool:
        """Return whether these, and this agent if it counts, are more than half of the voters."""
        count = len(self.others.intersection(peers)) + (counts_me and self.has_me)
        return bool(self.names) and count >= majority(len(self.names))

    def sweep_ended(self) -> None:
        """Forget the maps of those that were not heard in this sweep: they are merged when heard again."""
        heard, self._heard_in_sweep = self._heard_in_sweep, set()
        for peer in self.others - heard:
            self.maps.pop(peer, None)


class Register:
    """The map of one agent. Not thread-safe.

    me: broker name of this agent. kept: the map stored before its start, None for none.
    """

    def __init__(self, me: str, kept: Snapshot | None = None) -> None:
        self.me = me
        self._version = 1
        self.on_change: Callable[[], None] = lambda: None
        self.voters = Voters(me)
        self._entries = {entry.wanted: entry for entry in kept.entries} if kept else {}
        self._intact = kept is not None and kept.intact
        self._floor = kept.floor if kept else 0
        self._dropped = max(kept.dropped, kept.floor) if kept else 0
        self._top = max((entry.number for entry in self._entries.values()), default=0)
        self._round = 0
        self._version_pruned = 0
        self._tombs_at_sweep: dict[str, Entry] = {}

    @property
    def version(self) -> int:
        """The number of changes. Setting it calls `on_change`."""
        return self._version

    @version.setter
    def version(self, version: int) -> None:
        self._version = version
        self.on_change()

    @property
    def entries(self) -> Mapping[str, Entry]:
        return self._entries

    @property
    def intact(self) -> bool:
        return self._intact

    @property
    def floor(self) -> int:
        """The floor. Once informed: an unwanted queue that was born up to this number is an orphan."""
        return self._floor

    @property
    def dropped(self) -> int:
        """The largest dropped number. A change that is not here already with a number up to it is refused."""
        return self._dropped

    @property
    def informed(self) -> bool:
        """True when a majority was read in this life of the broker."""
        return self.voters.is_majority(self.voters.heard_in_life(), counts_me=self._intact)

    @property
    def snapshot(self) -> Snapshot:
        entries = tuple(self._entries[name] for name in sorted(self._entries))
        return Snapshot(
            intact=self._intact, floor=self._floor, dropped=self._dropped, entries=entries
        )

    def heard(self, peer: str, snapshot: Snapshot, *, life: int) -> bool:
        """Merge the whole map of a peer. Returns False when it does not count.

        life: `voters.life` when the question was sent. A snapshot that is the same object as
        before costs nothing.
        """
        if not snapshot.intact:
            return False
        if self.voters.maps.get(peer) is not snapshot:
            self._merge(snapshot.entries)
        if self.voters.heard(peer, snapshot, life):
            self._adopt()
        return True

    def receive(self, snapshot: Snapshot) -> bool:
        """Merge entries that a peer changed. Returns False when at least one was refused.

        A change that was under way while tombstones of larger numbers were dropped may be a deleted
        one: it must be made again, with a number above `dropped`.
        """
        if not snapshot.intact:
            return False
        known = [e for e in snapshot.entries if not self._comes_too_late(e)]
        self._merge(known)
        return len(known) == len(snapshot.entries)

    def adopt(self, snapshot: Snapshot) -> None:
        """Merge a map that an operator vouches for, and become intact: the map counts from now on."""
        self._merge(snapshot.entries)
        self._rise(snapshot.floor, snapshot.dropped)
        self._intact = True
        self.version += 1

    def change(
        self,
        names: Iterable[str],
        *,
        alive: bool,
        answered: Iterable[str],
        above: int = 0,
        options: Mapping[str, Options] | None = None,
    ) -> tuple[Entry, ...] | None:
        """Create or delete names. Returns their entries in the order of names.

        answered: peers whose maps were merged for this change; None is returned unless they are a
        majority. A name that already lives, or is already deleted, keeps its options but `mqtt`.
        Where that stays, it keeps its number too if that is above `above`: the largest number dropped by a
        peer that did not take the change.
        """
        if not self.voters.is_majority(answered, counts_me=self._intact):
            return None
        above = above if above <= self._top + NUMBERS_AHEAD_MAX else 0
        asked = options or {}
        return tuple(self._changed(name, alive, above, asked.get(name, {})) for name in names)

    def homes_changed(self, topic: str, homes: str) -> Entry:
        """Take what this agent has decided of the homes of a living topic. Returns the entry."""
        entry = _with_homes(self._entries[topic], homes)
        if entry != self._entries[topic]:
            self._entries[topic] = entry
            self.version += 1
        return entry

    def is_unanimous(self, entry: Entry) -> bool:
        """Return whether every agent on the list was heard to hold this entry as it is here."""
        maps = self.voters.maps
        return (
            self._intact
            and self.voters.has_me
            and self._entries.get(entry.wanted) == entry
            and all(p in maps and entry in maps[p].entries for p in self.voters.others)
        )

    def round_ended(self) -> None:
        """End a round, in which all peers were asked, or as many as a round asks. Drop old tombstones."""
        self._round += 1
        if self._version_pruned != self.version:
            self._prune()
        if self._round % SWEEP_ROUNDS == 0:
            self._sweep()

    def _prune(self) -> None:
        """Drop the oldest tombstones of expiring names above EXPIRED_KEPT, known to peers or not."""
        expired = [e for e in self._entries.values() if e.expires and not e.alive]
        if len(expired) > EXPIRED_KEPT:
            expired.sort(key=lambda e: e.number)
            for entry in expired[:-EXPIRED_KEPT]:
                del self._entries[entry.wanted]
                self._rise(0, entry.number)
            self.version += 1
            # If a peer still has such a name alive, it is merged again, and expires again.
            self.voters.maps.clear()
        self._version_pruned = self.version

    def _sweep(self) -> None:
        old = [e for e in self._tombs_at_sweep.values() if self._entries.get(e.wanted) == e]
        self._tombs_at_sweep = {n: e for n, e in self._entries.items() if not e.alive}
        self.voters.sweep_ended()
        maps = self.voters.maps
        if not (old and self._intact and self.informed):
            return
        seen = [(m.floor, {e.wanted: e for e in m.entries}) for m in maps.values()]
        everybody = self.voters.others <= maps.keys()
        for tomb in old:
            agreed = everybody and all(_knows(tomb, floor, theirs) for floor, theirs in seen)
            if agreed or (tomb.expires and not any(_older(tomb, theirs) for _, theirs in seen)):
                del self._entries[tomb.wanted], self._tombs_at_sweep[tomb.wanted]
                self._rise(tomb.number if agreed else 0, tomb.number)
                self.version += 1

    def _changed(self, name: str, alive: bool, above: int, options: Options) -> Entry:
        old = self._entries.get(name)
        mqtt = _mqtt(old, options) if alive else ()
        if old is not None and old.alive and mqtt and mqtt[0] not in old.options:
            above = max(above, old.number)  # it is switched
        if old is not None and old.alive == alive and old.number > above:
            return old
        self._top = number = 1 + max(self._top, self._dropped, above)
        if old is not None and old.alive == alive:
            kept = tuple(sorted({**dict(old.options), **dict(mqtt)}.items()))
            entry = replace(old, number=number, origin=self.me, options=kept)
        elif alive:
            # The tombstone of an unknown name may have been dropped, here or by others, but a broker
            # that was away may still have its queue: every queue born before is of an earlier life.
            dropped = max(self._dropped, *(m.dropped for m in self.voters.maps.values()), 0)
            entry = Entry(
                wanted=name,
                number=number,
                origin=self.me,
                alive=True,
                tomb=old.tomb if old else min(dropped, number - 1),
                options=tuple(sorted({**options, **dict(mqtt)}.items())),
            )
        else:
            entry = Entry(
                wanted=name,
                number=number,
                origin=self.me,
                alive=False,
                tomb=number,
                options=tuple(o for o in old.options if o[0] in KEPT_OPTIONS) if old else (),
            )
        self._entries[name] = entry
        self.version += 1
        return entry

    def _merge(self, entries: Iterable[Entry]) -> None:
        for theirs in entries:
            ours = self._entries.get(theirs.wanted)
            if ours is None:
                expired = theirs.expires and not theirs.alive and theirs.number <= self._dropped
                if theirs.number <= self._floor or expired:
                    continue
            merged = theirs if ours is None else _larger(ours, theirs)
            if merged != ours:
                self._entries[theirs.wanted] = merged
                self._top = max(self._top, merged.number)
                self.version += 1

    def _comes_too_late(self, entry: Entry) -> bool:
        is_new = entry.wanted not in self._entries
        return is_new and entry.alive and entry.number <= self._dropped

    def _adopt(self) -> None:
        """Take the floor, and become intact, by the maps of a majority of the others."""
        maps = self.voters.maps
        peers = [maps[peer] for peer in self.voters.heard_in_life() if peer in maps]
        needed = majority(len(self.voters.names))
        if len(peers) >= needed:
            floor = sorted((m.floor for m in peers), reverse=True)[needed - 1]
            if floor > self._floor:
                self._forget(floor, [m for m in peers if m.floor >= floor])
            dropped = sorted((m.dropped for m in peers), reverse=True)[needed - 1]
            self._rise(floor, dropped)
        if not self._intact and self.informed:
            self._intact = True
            self.version += 1

    def _forget(self, floor: int, agreeing: Iterable[Snapshot]) -> None:
        """Drop names that none of these peers have, who know all deletions up to floor."""
        kept = {entry.wanted for snapshot in agreeing for entry in snapshot.entries}
        for name, entry in list(self._entries.items()):
            if entry.number <= floor and name not in kept:
                del self._entries[name]
                self.version += 1

    def _rise(self, floor: int, dropped: int) -> None:
        before = (self._floor, self._dropped)
        self._floor = max(self._floor, floor)
        self._dropped = max(self._dropped, self._floor, dropped)
        if before != (self._floor, self._dropped):
            self.version += 1


def _mqtt(old: Entry | None, options: Options) -> tuple[tuple[str, bool], ...]:
    """Return the option `mqtt` of a living name: off where an earlier life had it and nothing is asked."""
    asked = options.get("mqtt")
    if isinstance(asked, bool):
        return (("mqtt", asked),)
    had = old is not None and not old.alive and "mqtt" in dict(old.options)
    return (("mqtt", False),) if had and "partitions" not in options else ()


def majority(voters: int) -> int:
    """Return the smallest number of agents that is more than half of the voters."""
    return voters // 2 + 1


def _knows(tomb: Entry, floor: int, theirs: Mapping[str, Entry]) -> bool:
    """Return whether an agent with this map has the tombstone, or something newer, or has dropped it."""
    entry = theirs.get(tomb.wanted)
    return entry.rank >= tomb.rank if entry else floor >= tomb.number


def _older(tomb: Entry, theirs: Mapping[str, Entry]) -> bool:
    entry = theirs.get(tomb.wanted)
    return entry is not None and entry.rank < tomb.rank


def _larger(ours: Entry, theirs: Entry) -> Entry:
    # An agent of another version forgets options that it does not know.
    is_more = (theirs.rank, len(theirs.options)) > (ours.rank, len(ours.options))
    entry, other = (theirs, ours) if is_more else (ours, theirs)
    is_one_life = ours.tomb == theirs.tomb or not entry.alive
    if is_one_life and ours.options != theirs.options:
        entry = _with_homes(entry, dict(other.options).get("homes", ""))
    return replace(entry, tomb=max(ours.tomb, theirs.tomb))


def _with_homes(entry: Entry, homes: object) -> Entry:
    """Return an entry that knows of these homes too: a partition that moves has one decider."""
    options = dict(entry.options)
    known, count = options.get("homes", ""), options.get("partitions", 0)
    if not (known and homes and isinstance(count, int)):
        return entry
    options["homes"] = joined(str(known), str(homes), count)
    return replace(entry, options=tuple(sorted(options.items())))


class Answer(Enum):
    """The known state of one broker after a change was sent to its agent."""

    HELD = "held"
    LATER = "later"
    DEAD = "dead"
    NO = "no"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One broker's answer. stored: its agent has it on disk, in a map that counts.

    above: the change was not taken; one with a number above this would be. 0 for any other answer.
    """

    answer: Answer
    stored: bool = False
    reason: str = ""
    above: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The end of a change, over all its names. missing: broker -> the reason that it prevents completion.

    created: names that did not exist before it.
    """

    complete: bool
    held: tuple[str, ...]
    later: tuple[str, ...]
    missing: Mapping[str, str]
    created: tuple[str, ...] = ()


def completion(listed: Iterable[str], replies: Mapping[str, Reply]) -> Completion:
    """Judge the replies of the listed brokers; one without a reply prevents completion."""
    names = sorted(set(listed))
    silent = Reply(answer=Answer.NO, reason="no answer")
    by_name = {name: replies.get(name, silent) for name in names}
    held = tuple(name for name in names if by_name[name].answer is Answer.HELD)
    later = tuple(name for name in names if by_name[name].answer in (Answer.LATER, Answer.DEAD))
    missing = {
        name: by_name[name].reason or "refused it"
        for name in names
        if by_name[name].answer is Answer.NO
    }
    stored = sum(reply.stored for reply in by_name.values())
    if stored < majority(len(names)):
        missing |= {
            name: f"not stored by its agent, and only {stored} of {len(names)} agents stored it"
            for name in names
            if not by_name[name].stored and name not in missing
        }
    return Completion(complete=not missing and bool(names), held=held, later=later, missing=missing)
