"""The map of wanted topics, queues and subscriptions, as one agent keeps it.

Decides; stores and sends nothing. One entry per name is a quorum register: a change is written to,
and an agent after its start reads from, a majority of the agents on the list. No election, no
leader. Of two entries for one name the larger ``(number, origin, alive)`` stands; a deleted name
leaves a *tombstone*, so that a map from before the deletion cannot bring it back.

States of an agent's map:

- not *intact*: new, wiped or adopted again. It takes part, but counts for nothing in a majority.
- intact: everything acknowledged up to `current_at_ms` is in it.
- *informed*: a majority (itself too, if intact) was read since this life of the broker began.

A map that missed more than AWAY_MS may lack tombstones that the others have dropped since; it is
never merged into a newer one, and its owner forgets it and adopts the newer one. What counts is the
difference between two maps, not the time on the wall: a cluster that was off as a whole for a month
keeps its map.

Sources: reference/topology.md, rules 1 and 6 to 8.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

__all__ = ["AWAY_MS", "TOMB_KEPT_MS", "Entry", "Options", "Register", "Snapshot", "majority"]

# An agent that had no contact with a majority for a week starts again from the others' map.
AWAY_MS = 7 * 24 * 3600 * 1000
# Twice as long, so that whoever may still be merged has seen the tombstone.
TOMB_KEPT_MS = 2 * AWAY_MS

Options = Mapping[str, str | int | bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One wanted topic, queue or subscription.

    wanted: as `messagebus.topology.parse_wanted` reads it.
    number: grows over all entries of the map with each change.
    origin: broker name of the agent that made the change; decides between equal numbers.
    tomb: number of the last deletion, 0 for none; queues born before it belong to an earlier life.
    changed_at_ms: wall clock of the change.
    options: what was asked beside the name, as it began to live; pairs in the order of their keys.
    """

    wanted: str
    number: int
    origin: str
    alive: bool
    tomb: int
    changed_at_ms: int
    options: tuple[tuple[str, str | int | bool], ...] = ()

    @property
    def rank(self) -> tuple[int, str, bool]:
        return (self.number, self.origin, self.alive)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """An agent's map at one moment, as it is stored and as peers read it.

    floor: largest number of a tombstone that was forgotten; numbers never start again below it.
    """

    intact: bool
    current_at_ms: int = 0
    floor: int = 0
    entries: tuple[Entry, ...] = ()


class Register:
    """The map of one agent. Not thread-safe.

    me: broker name of this agent. kept: what it stored before its start, None for nothing.
    """

    def __init__(self, me: str, kept: Snapshot | None = None) -> None:
        self.me = me
        self.version = 1
        self._voters: frozenset[str] = frozenset()
        self._entries = {entry.wanted: entry for entry in kept.entries} if kept else {}
        self._intact = kept is not None and kept.intact
        self._current_at_ms = kept.current_at_ms if kept else 0
        self._floor = kept.floor if kept else 0
        self._life = 0
        self._heard: dict[str, tuple[int, int]] = {}

    @property
    def entries(self) -> Mapping[str, Entry]:
        return self._entries

    @property
    def intact(self) -> bool:
        return self._intact

    @property
    def current_at_ms(self) -> int:
        """Wall clock: what was acknowledged before is in this map, if it is intact."""
        return self._current_at_ms

    @property
    def floor(self) -> int:
        """Once informed: a queue that nothing wants and that was born up to this is an orphan."""
        return self._floor

    @property
    def voters(self) -> frozenset[str]:
        return self._voters

    @property
    def life(self) -> int:
        """Give this to `heard` with an answer that was asked for after now."""
        return self._life

    @property
    def informed(self) -> bool:
        """A majority was read in this life of the broker."""
        return self._is_majority(
            name for name, (life, _asked) in self._heard.items() if life == self._life
        )

    @property
    def snapshot(self) -> Snapshot:
        entries = tuple(self._entries[name] for name in sorted(self._entries))
        return Snapshot(
            intact=self._intact,
            current_at_ms=self._current_at_ms,
            floor=self._floor,
            entries=entries,
        )

    def listed(self, voters: Iterable[str]) -> None:
        """The consumer list names these brokers; their agents are the majority's whole."""
        self._voters = frozenset(voters)
        self._heard = {name: when for name, when in self._heard.items() if name in self._voters}

    def life_began(self) -> None:
        """The broker came up without a gate: what was read before says nothing about now."""
        self._life += 1

    def heard(self, peer: str, snapshot: Snapshot, *, life: int, asked_at_ms: int) -> None:
        """Merge the whole map of a peer.

        life: as `self.life` was, and asked_at_ms: the wall clock, when the question was sent.
        """
        if not self._admit(snapshot):
            return
        self._merge(snapshot.entries)
        if peer in self._voters and peer != self.me:
            self._heard[peer] = (life, asked_at_ms)
        self._read_on(asked_at_ms)

    def alone(self, now_ms: int) -> None:
        """No peer answered; where nobody else is listed an intact map is a majority by itself."""
        self._read_on(now_ms)

    def told(self, snapshot: Snapshot) -> bool:
        """Merge entries that a peer changed. Returns False when its map must not be merged."""
        if not self._admit(snapshot):
            return False
        self._merge(snapshot.entries)
        return True

    def change(
        self,
        names: Iterable[str],
        *,
        alive: bool,
        answered: Iterable[str],
        now_ms: int,
        options: Mapping[str, Options] | None = None,
    ) -> tuple[Entry, ...] | None:
        """Create or delete names. Returns their entries in the order of names.

        answered: peers whose maps were merged for this change; None is returned unless they are a
        majority. What lives already gets no new number and keeps its options.
        """
        if not self._is_majority(answered):
            return None
        asked = options or {}
        return tuple(self._changed(name, alive, now_ms, asked.get(name, {})) for name in names)

    def forget_tombs(self) -> None:
        """Drop tombstones that every map that may still be merged has seen."""
        if not self._intact:
            return
        old = [
            entry.wanted
            for entry in self._entries.values()
            if not entry.alive and self._current_at_ms - entry.changed_at_ms > TOMB_KEPT_MS
        ]
        for name in old:
            self._floor = max(self._floor, self._entries.pop(name).number)
            self.version += 1

    def _changed(self, name: str, alive: bool, now_ms: int, options: Options) -> Entry:
        old = self._entries.get(name)
        if old is not None and old.alive and alive:
            return old
        number = 1 + max(self._floor, *(entry.number for entry in self._entries.values()), 0)
        # Of a name that is not here the tombstone may be forgotten, but a broker that was away may
        # still have its queue: whatever was born below the floor is of an earlier life.
        tomb = (old.tomb if old else self._floor) if alive else number
        entry = Entry(
            wanted=name,
            number=number,
            origin=self.me,
            alive=alive,
            tomb=tomb,
            changed_at_ms=now_ms,
            options=tuple(sorted(options.items())) if alive else (),
        )
        self._entries[name] = entry
        self.version += 1
        return entry

    def _admit(self, other: Snapshot) -> bool:
        if not other.intact:
            return False
        missed_ms = other.current_at_ms - self._current_at_ms
        if self._current_at_ms and missed_ms < -AWAY_MS:
            return False
        if self._current_at_ms and missed_ms > AWAY_MS:
            self._forget_all()
        if not self._intact:
            self._current_at_ms = max(self._current_at_ms, other.current_at_ms)
        self._floor = max(self._floor, other.floor)
        return True

    def _forget_all(self) -> None:
        self._entries, self._heard = {}, {}
        self._intact, self._current_at_ms, self._floor = False, 0, 0
        self.version += 1

    def _merge(self, entries: Iterable[Entry]) -> None:
        for theirs in entries:
            ours = self._entries.get(theirs.wanted)
            merged = theirs if ours is None else _larger(ours, theirs)
            if merged != ours:
                self._entries[theirs.wanted] = merged
                self.version += 1

    def _read_on(self, now_ms: int) -> None:
        if not self._intact and self.informed:
            self._intact = True
            self.version += 1
        if self._intact:
            self._current_at_ms = max(self._current_at_ms, self._majority_asked_at_ms(now_ms))

    def _majority_asked_at_ms(self, now_ms: int) -> int:
        """Since when at least a majority has been read: what was acknowledged before is known."""
        asked = [asked_at_ms for _life, asked_at_ms in self._heard.values()]
        if self._counts_itself:
            asked.append(now_ms)
        asked.sort(reverse=True)
        needed = majority(len(self._voters))
        return asked[needed - 1] if 0 < needed <= len(asked) else 0

    def _is_majority(self, peers: Iterable[str]) -> bool:
        names = (set(peers) & self._voters) - {self.me}
        count = len(names) + self._counts_itself
        return bool(self._voters) and count >= majority(len(self._voters))

    @property
    def _counts_itself(self) -> bool:
        return self._intact and self.me in self._voters


def majority(voters: int) -> int:
    """How many of so many agents are more than half."""
    return voters // 2 + 1


def _larger(ours: Entry, theirs: Entry) -> Entry:
    entry = theirs if theirs.rank > ours.rank else ours
    return replace(entry, tomb=max(ours.tomb, theirs.tomb))
