"""The partitions that are at home on one broker: which of their segments are open, bound and sealed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping

from messagebus.services.agent.broker.applied import Applied
from messagebus.services.agent.broker.link import OwnLink
from messagebus.services.agent.broker.plan import wanted_of
from messagebus.services.agent.topology.homes import (
    MARK,
    expanded,
    homes_of,
    is_first,
    segment_name,
    segments,
)
from messagebus.services.agent.topology.register import Entry, Register
from messagebus.topology import STREAM_PREFIX, topic_of

log = logging.getLogger("messagebus.agent")


class Partitions:
    """The segments of one broker. It asks nobody.

    me: the broker's name. on_change: called when segments are to be applied.
    unsealed: names of segments that still take publishes, though the map has them sealed: the next home
    prepares.
    """

    def __init__(
        self,
        me: str,
        register: Register,
        applied: Applied,
        link: OwnLink,
        on_change: Callable[[], None],
    ) -> None:
        self._me, self._register, self._applied, self._link = me, register, applied, link
        self._on_change = on_change
        self._opened: dict[str, int] = {}  # partitioned topics -> number of the entry
        self._expanded: tuple[int, Mapping[str, Entry]] | None = None
        self.unsealed: set[str] = set()

    @property
    def entries(self) -> Mapping[str, Entry]:
        """The map, with the segments whose home this broker is."""
        version = self._register.version
        if self._expanded is None or self._expanded[0] != version:
            entries = self._register.entries
            self._expanded = version, expanded(entries, self._me, self.is_open, self.unsealed)
        return self._expanded[1]

    def is_open(self, entry: Entry) -> bool:
        """Return whether publishes may enter the segments of a topic here; True of all else."""
        if not entry.alive or MARK in entry.wanted or not homes_of(entry):
            return True
        if self._opened.get(entry.wanted) == entry.number:
            return True
        first = next((each for each, _ in segments(entry, self._me) if is_first(each)), None)
        if first is None:  # the others' business
            return True
        if self._applied.held.get(segment_name(entry.wanted, first)) == entry.number:
            self._opened[entry.wanted] = entry.number  # before a start of this agent
            return True
        return False

    def look_for_open(self) -> None:
        """Open the segments of new topics whose homes every agent on the list agrees on."""
        for entry in self._register.entries.values():
            if not self.is_open(entry) and self._register.is_unanimous(entry):
                log.info("partitions open topic=%s", entry.wanted)
                self._opened[entry.wanted] = entry.number
                self._register.version += 1  # whatever is being applied now lacks them
                self._on_change()

    def segment_queues(self, name: str) -> dict[str, str]:
        """Return the segments of a subscription whose home this broker is -> their queues."""
        below = segment_name(name, "")
        return {
            each.removeprefix(below): wanted_of(entry).queues[-1].name
            for each, entry in self.entries.items()
            if each.startswith(below) and entry.alive
        }

    def newly_sealed(self) -> Iterator[Entry]:
        """Yield the segments of living topics that the map has sealed and the broker has not."""
        for name, entry in self.entries.items():
            if MARK in name and "/" not in name and not entry.alive:
                topic = self.entries.get(_topic_of(entry.wanted))
                if topic is not None and topic.alive and not self._applied.has(entry):
                    yield entry

    def unbound(self, topic: str) -> dict[str, bool]:
        """Return the segments of a topic here -> whether nothing enters them, as far as it is known."""
        found = dict[str, bool]()
        for segment, _ in segments(self._register.entries[topic], self._me):
            entry = self.entries.get(segment_name(topic, segment))
            is_gone = entry is not None and self._applied.has(entry) and not entry.alive
            found[segment] = self._link.is_open and is_gone
        return found

    def bound(self, topic: str) -> list[str]:
        """Return the segments of a topic that publishes enter here, and are kept by all its subscriptions."""
        is_known = self._link.is_open and not self._applied.vanished
        found = dict[str, bool]()
        for name, entry in self.entries.items():
            if MARK in name and _topic_of(name) == topic:
                segment = name.partition(MARK)[2]
                is_there = is_known and self._applied.has(entry)
                is_way_in = entry.alive or not name.startswith(segment_name(topic, ""))
                found[segment] = found.get(segment, True) and is_there and is_way_in
        return [segment for segment, is_bound in found.items() if is_bound]


def _topic_of(segment: str) -> str:
    return topic_of(segment.partition(MARK)[0].removeprefix(STREAM_PREFIX))
