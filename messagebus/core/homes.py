"""The partitions of a topic and their homes, as every client computes them: docs/WIRE.md has vectors.

Decides; asks nobody.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Home(NamedTuple):
    """The one broker that takes the publishes of a partition. epoch: counts its homes, from 1."""

    broker: str
    epoch: int = 1


class Chain(NamedTuple):
    """The unfinished segments of one partition, oldest first: two while it moves, or is read there still.

    is_open: the last one takes the publishes. Else it is to come, and the one before is sealed. done: the
    subscriptions for which nothing is left in the first of two. lost: segments that were given up with their
    disk; the first one of a chain is about to be.
    """

    homes: tuple[Home, ...]
    is_open: bool = True
    done: frozenset[str] = frozenset()
    lost: frozenset[Home] = frozenset()

    @property
    def taking(self) -> Home | None:
        """The segment that takes the publishes; None while these wait."""
        return self.homes[-1] if self.is_open else None

    def first(self, subscription: str) -> Home:
        """Return the first segment that may have something for a subscription."""
        is_done = subscription in self.done and self.is_open
        return self.homes[-1] if is_done else self.homes[0]


def may_publish(taking: Home | None, unanswered: Iterable[int]) -> bool:
    """Return whether a publisher may send to the open segment. unanswered: the epochs of what is sent.

    It may not while anything is unanswered at another home: that comes back, and goes first.
    """
    return taking is not None and all(epoch == taking.epoch for epoch in unanswered)


def partition_of(key: str, partitions: int) -> int:
    """Return the partition of a key, or of the id of a message without one: CRC-32 of its UTF-8, modulo."""
    return zlib.crc32(key.encode()) % partitions


def home_of(key: object, homes: Sequence[Home]) -> tuple[int, Home]:
    """Return the partition of a stored message, and its home.

    key: the message's header, whatever was written there; only text is a key. homes: by partition, not empty.
    """
    partition = partition_of(key if isinstance(key, str) else "", len(homes))
    return partition, homes[partition]


def read_homes(text: str, partitions: int) -> tuple[Home, ...]:
    """Read the last home of each partition, as `read_chains`."""
    return tuple(chain.homes[-1] for chain in read_chains(text, partitions))


def read_chains(text: str, partitions: int) -> tuple[Chain, ...]:
    """Read the segments of each partition: ``mb1:5672 2@mb3:5672``, those of further ones from the beginning.

    An epoch other than 1 stands before an ``@``. Two are ``mb1:5672/billing,2@mb3:5672``, with what is done;
    with a ``>`` in place of the comma while the second is not open. ``2@mb2:5672/!mb1:5672`` names a segment
    that is lost. Raises ValueError for an epoch that is no number.
    """
    told = [_read_chain(word) for word in text.split()]
    return tuple(told[partition % len(told)] for partition in range(partitions)) if told else ()


def _read_chain(word: str) -> Chain:
    sealed, mark, following = word.partition(">" if ">" in word else ",")
    home, *marks = sealed.split("/")
    lost = frozenset(_read_home(each[1:]) for each in marks if each.startswith("!"))
    if not mark:
        return Chain((_read_home(home),), lost=lost)
    done = frozenset(each for each in marks if not each.startswith("!"))
    return Chain((_read_home(home), _read_home(following)), mark == ",", done, lost)


def _read_home(word: str) -> Home:
    epoch, at, broker = word.rpartition("@")
    return Home(broker, int(epoch) if at else 1)


def write_chains(chains: Iterable[Chain]) -> str:
    """Return what `read_chains` reads."""
    words = []
    for homes, is_open, done, lost in chains:
        told = [_write_home(home) for home in homes]
        told[0] = "/".join([told[0], *sorted(done), *(f"!{_write_home(h)}" for h in sorted(lost))])
        words.append(("," if is_open else ">").join(told))
    return " ".join(words)


def _write_home(home: Home) -> str:
    return f"{home.epoch}@{home.broker}" if home.epoch != 1 else home.broker


def joined(mine: str, theirs: str, partitions: int) -> str:
    """Return what both know of the homes of a topic. Each partition has one decider, and only goes on."""
    if mine == theirs:
        return mine
    own = read_chains(mine, partitions)
    both = tuple(map(_later, own, read_chains(theirs, partitions)))
    return mine if both == own else write_chains(both)


def mark_of(homes: str) -> str:
    """Return a short name of what is known of the homes of a topic, to ask for other ones."""
    return hashlib.blake2b(homes.encode(), digest_size=8).hexdigest()


def _later(mine: Chain, theirs: Chain) -> Chain:
    if mine.homes == theirs.homes and mine.is_open == theirs.is_open:
        return mine._replace(done=mine.done | theirs.done, lost=mine.lost | theirs.lost)
    return theirs if _rank(theirs) > _rank(mine) else mine


def _rank(chain: Chain) -> tuple[int, bool, bool, int, str]:
    # What all have decided in place of a lost home counts more than what that one has begun and told nobody.
    # By name last: an agent that lost its disk may have forgotten what it began.
    last = chain.homes[-1]
    in_place = not chain.is_open and last.epoch - 1 in (home.epoch for home in chain.lost)
    return last.epoch, chain.is_open, in_place, chain.homes[0].epoch, last.broker


def segment_of(partition: int, home: Home) -> str:
    """Return the name of what is published to a partition while this is its home: ``7.1``."""
    return f"{partition}.{home.epoch}"
