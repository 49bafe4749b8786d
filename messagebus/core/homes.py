"""The partitions of a topic and their homes, as every client computes them: docs/WIRE.md has vectors.

Decides; asks nobody.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple


class Home(NamedTuple):
    """The one broker that takes the publishes of a partition. epoch: counts its homes, from 1."""

    broker: str
    epoch: int = 1


def partition_of(key: str, partitions: int) -> int:
    """Return the partition of a key, or of the id of a message without one: CRC-32 of its UTF-8, modulo."""
    return zlib.crc32(key.encode()) % partitions


def read_homes(text: str, partitions: int) -> tuple[Home, ...]:
    """Read the home of each partition: ``mb1:5672 2@mb3:5672``, those of further ones from the beginning.

    An epoch other than 1 stands before an ``@``. Raises ValueError for an epoch that is no number.
    """
    told = []
    for each in text.split():
        epoch, at, broker = each.rpartition("@")
        told.append(Home(broker, int(epoch) if at else 1))
    return tuple(told[partition % len(told)] for partition in range(partitions)) if told else ()


def segment_of(partition: int, home: Home) -> str:
    """Return the name of what is published to a partition while this is its home: ``7.1``."""
    return f"{partition}.{home.epoch}"
