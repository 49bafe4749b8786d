"""The bodies and keys of a run's messages, drawn once and reused, and the stamp in each body.

A stamp is the last bytes of a body: the publisher's number, the message's number there, the intended time,
and a checksum of the whole body. It is the same for every system, with or without message ids; the audit
uses stamps, not counts.
"""

from __future__ import annotations

import itertools
import random
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self

from bench.environment import CHECKOUT
from bench.load.profile import Messages
from bench.load.records import key_of, records
from bench.load.schedule import striped

_FIELDS = struct.Struct(">HIQ")
_CHECK = struct.Struct("<I")
STAMP_BYTES = _FIELDS.size + _CHECK.size
# The CRC-32 of any bytes that end with their own CRC-32, least byte first. One call checks a whole body,
# 0.3 us faster than cutting it.
_RESIDUE = 0x2144DF1C

# A plain tuple: making a NamedTuple takes as long as the rest of reading without the checksum.
Stamp = tuple[int, int, int]
"""Publisher, its number in the run; sequence; intended_ns, on the clock of the publisher's host."""


class Filler(NamedTuple):
    """The bytes before the stamp, and their checksum, which is made once for many messages."""

    head: bytes
    check: int

    @classmethod
    def of(cls, body: bytes) -> Self:
        """Make a filler from the beginning of a body.

        Bodies with it have that body's length, >= `STAMP_BYTES`.
        """
        head = body[: len(body) - STAMP_BYTES]
        return cls(head, zlib.crc32(head))


def stamped(filler: Filler, publisher: int, sequence: int, intended_ns: int) -> bytes:
    """Return one body with its stamp."""
    fields = _FIELDS.pack(publisher, sequence, intended_ns)
    return filler.head + fields + _CHECK.pack(zlib.crc32(fields, filler.check))


def read(body: bytes) -> Stamp | None:
    """Return the stamp of a body; None if the body was altered or never stamped."""
    at = len(body) - STAMP_BYTES
    if at < 0 or zlib.crc32(body) != _RESIDUE:
        return None
    return _FIELDS.unpack_from(body, at)


# The number of different bodies of each size, within a limit of bytes. A single body would be too easy for
# a broker that compresses, and for a cache.
FILLERS, FILLERS_LEAST = 64, 2
FILLERS_BYTES_MAX = 64 << 20
# Randomly drawn sizes, reused: enough to include one in a thousand.
DRAWN = 4096
RECORDS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Drawer:
    """A source of bodies and keys. seed: of all random choices; different in each process.

    part: (number, of) where `of` publishers share the records of the file, and send each of them once.
    """

    messages: Messages
    seed: int
    part: tuple[int, int] | None = None

    def fillers(self) -> Iterator[Filler]:
        """Return bodies, without end but for a part. Raises InputInvalid for a file without records."""
        chance = random.Random(self.seed)
        if self.messages.file:
            found = (Filler.of(each.ljust(STAMP_BYTES, b" ")) for each in self._records())
            return (
                found if self.part else itertools.cycle(list(itertools.islice(found, RECORDS_MAX)))
            )
        parts = self.messages.sizes or ((1.0, self.messages.size),)
        sizes = [size for _, size in parts]
        pools = {
            size: [Filler.of(chance.randbytes(size)) for _ in range(_count(size))] for size in sizes
        }
        drawn = chance.choices(sizes, [part for part, _ in parts], k=DRAWN)
        return itertools.cycle([chance.choice(pools[size]) for size in drawn])

    def keys(self) -> Iterator[str]:
        """Return keys, "" without keys. Key k0 is the most frequent, by 1 / rank ** skew.

        Records of a part have their packages for keys.
        """
        count, skew = self.messages.keys, self.messages.key_skew
        if self.part and self.messages.file and not count:
            return map(key_of, self._records())
        if not count:
            return itertools.repeat("")
        chance = random.Random(self.seed + 1)
        names = [f"k{number}" for number in range(count)]
        weights = list(itertools.accumulate(1 / (rank**skew) for rank in range(1, count + 1)))
        return (chance.choices(names, cum_weights=weights)[0] for _ in itertools.count())

    def _records(self) -> Iterator[bytes]:
        number, of = self.part or (0, 1)
        return striped(records(str(CHECKOUT / self.messages.file)), number=number, of=of)


def _count(size: int) -> int:
    """Return the number of different bodies of that size."""
    return max(FILLERS_LEAST, min(FILLERS, FILLERS_BYTES_MAX // size))
