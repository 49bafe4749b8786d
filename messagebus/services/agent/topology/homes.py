"""The homes of partitions, as the map of the agents has them, and what follows from them for a broker.

Pure. The entry of a partitioned topic has its `homes`: the brokers of the list when it was made, in an
order of its own; partition p is at home on number p modulo their count, in epoch 1. A name such as
``orders#7.1`` is a *segment*: what was published to partition 7 while its first home held it. Segments are no
entries of the map: `expanded` derives them, for the broker that is their home. A partition that moves
(`topology.handover`) has two of them for a while.

A home opens a segment, so that publishes enter it, when every agent on the list holds the very same entry
(`Register.is_unanimous`). With a majority two agents that make one topic at the same time could both see
their own homes opened, and what was confirmed in one of them would have no reader.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from messagebus.core.homes import Chain, Home, read_chains, segment_of
from messagebus.destination import SEGMENTS
from messagebus.services.agent.topology.register import Entry
from messagebus.topology import STREAM_PREFIX

HOMES, PARTITIONS, ORDERED = "homes", "partitions", "ordered"
MARK = "#"


def chosen(topic: str, brokers: Iterable[str]) -> str:
    """Return the homes of a new topic: every broker, begun at a place that depends on the name."""
    names = sorted(brokers)
    first = zlib.crc32(topic.encode()) % len(names) if names else 0
    return " ".join(names[first:] + names[:first])


def homes_of(entry: Entry) -> tuple[Home, ...]:
    """Return the home of each partition; none of a topic without partitions."""
    return tuple(chain.homes[-1] for chain in chains_of(entry))


def chains_of(entry: Entry) -> tuple[Chain, ...]:
    """Return the unfinished segments of each partition; none of a topic without partitions."""
    options = dict(entry.options)
    count = options.get(PARTITIONS, 0)
    return read_chains(str(options.get(HOMES, "")), count if isinstance(count, int) else 0)


def segment_name(name: str, segment: str) -> str:
    """Return the name of a segment of a topic or subscription, such as ``orders/billing#7.1``."""
    return f"{name}{MARK}{segment}"


def has_segments(entry: Entry) -> bool:
    """Return whether each segment is a queue of its own. Streams, and what has no order, have one for all."""
    options = dict(entry.options)
    is_stream = entry.wanted.startswith(STREAM_PREFIX)
    return PARTITIONS in options and options.get(ORDERED, True) is True and not is_stream


def segments(entry: Entry, me: str) -> Iterator[tuple[str, bool]]:
    """Yield the segments of a partitioned topic at home on this broker, such as ``7.1``; is it sealed?"""
    for partition, chain in enumerate(chains_of(entry)):
        for home in chain.homes:
            if home.broker == me:
                yield segment_of(partition, home), home != chain.homes[-1]


def lost_segments(entry: Entry, me: str) -> Iterator[str]:
    """Yield the segments of this broker that were given up: it may come back with its disk."""
    for partition, chain in enumerate(chains_of(entry)):
        for home in chain.lost.difference(chain.homes):
            if home.broker == me:
                yield segment_of(partition, home)


def is_first(segment: str) -> bool:
    """Return whether a segment is the first one of its partition, which is open when all agents agree."""
    return segment.endswith(".1")


def finished(entries: Mapping[str, Entry], queue: str) -> str:
    """Return the exchange of the segment of a queue from which nothing is to be read any more, else ""."""
    topic, _, rest = queue.removeprefix(SEGMENTS).partition("/")
    entry, segment = entries.get(topic), rest.rpartition("/")[2]
    if entry is None or not entry.alive or not queue.startswith(SEGMENTS):
        return ""
    partition, _, epoch = segment.partition(".")
    chains = chains_of(entry)
    if not (partition.isdecimal() and epoch.isdecimal() and int(partition) < len(chains)):
        return ""
    gone = int(epoch) < chains[int(partition)].homes[0].epoch
    return f"{SEGMENTS}{topic}/{segment}" if gone else ""


def expanded(
    entries: Mapping[str, Entry],
    me: str,
    is_open: Callable[[Entry], bool],
    unsealed: Collection[str] = (),
) -> Mapping[str, Entry]:
    """Return the entries with the segments of this broker, each as an entry of its own.

    One that is sealed is dead, so that it is unbound. unsealed: those that still take publishes. Of one that
    is lost its queues are dead, too.
    """
    topics = [entry for entry in entries.values() if homes_of(entry)]
    if not topics:
        return entries
    readers = _readers(entries)
    found = dict(entries)
    for topic in topics:
        of_topic = (
            *_of_segments(topic, readers.get(topic.wanted, ()), me, is_open, unsealed),
            *_of_lost_segments(topic, readers.get(topic.wanted, ()), me),
        )
        found |= {entry.wanted: entry for entry in of_topic}
    return found


def _readers(entries: Mapping[str, Entry]) -> dict[str, list[Entry]]:
    """Return the subscriptions and the stream of each topic."""
    readers = dict[str, list[Entry]]()
    for name, entry in entries.items():
        topic, slash, _ = name.removeprefix(STREAM_PREFIX).partition("/")
        if slash or name != topic:
            readers.setdefault(topic, []).append(entry)
    return readers


def _of_segments(
    topic: Entry,
    readers: Iterable[Entry],
    me: str,
    is_open: Callable[[Entry], bool],
    unsealed: Collection[str],
) -> Iterator[Entry]:
    """Yield the entries of a topic's segments here, and of its readers' parts of them."""
    for segment, is_sealed in segments(topic, me):
        name = segment_name(topic.wanted, segment)
        if not topic.alive or not is_first(segment) or is_open(topic):
            yield _segment(
                topic, name, alive=topic.alive and not (is_sealed and name not in unsealed)
            )
        for entry in readers:
            name, alive = segment_name(entry.wanted, segment), entry.alive and topic.alive
            # One queue for all segments: its own entry deletes one of an earlier life, once.
            tomb = entry.tomb if has_segments(entry) else 0
            yield replace(entry, wanted=name, alive=alive, tomb=tomb)


def _of_lost_segments(topic: Entry, readers: Iterable[Entry], me: str) -> Iterator[Entry]:
    """Yield the entries, all dead, of a topic's segments here that were given up."""
    for segment in lost_segments(topic, me):
        yield _segment(topic, segment_name(topic.wanted, segment), alive=False)
        for entry in filter(has_segments, readers):
            yield replace(entry, wanted=segment_name(entry.wanted, segment), alive=False)


def _segment(topic: Entry, name: str, *, alive: bool) -> Entry:
    options = tuple(each for each in topic.options if each[0] != HOMES)
    return replace(topic, wanted=name, alive=alive, options=options)


def with_segments(entries: Mapping[str, Entry], names: Iterable[str]) -> list[str]:
    """Return these names and those of their segments."""
    wanted = set(names)
    return [*wanted, *(name for name in entries if name.partition(MARK)[0] in wanted - {name})]
