"""What every body of a measured run carries in its first bytes, so that its fate can be known.

Which publisher sent it, its number there, when it was intended, and a checksum of all that. The
same for every system, whether it has ids or not; the audit goes by these, not by counts.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple, Self

__all__ = ["STAMP_BYTES", "Filler", "Stamp", "read", "stamped"]

_FIELDS = struct.Struct(">HIQ")
_CHECK = struct.Struct(">I")
_WHOLE = struct.Struct(">HIQI")
STAMP_BYTES = _WHOLE.size
_CHECK_AT = _FIELDS.size

# A plain one: to make a NamedTuple takes as long as all the rest of reading but the checksum.
Stamp = tuple[int, int, int]
"""Publisher, its number in the run; sequence; intended_ns, on the clock of the publisher's host."""


class Filler(NamedTuple):
    """What stands behind the stamp, and its checksum, which is made once for many messages."""

    tail: bytes
    check: int

    @classmethod
    def of(cls, body: bytes) -> Self:
        """For bodies of that length, `STAMP_BYTES` at least, with the end of that one."""
        tail = body[STAMP_BYTES:]
        return cls(tail, zlib.crc32(tail))


def stamped(filler: Filler, publisher: int, sequence: int, intended_ns: int) -> bytes:
    """One body."""
    head = _FIELDS.pack(publisher, sequence, intended_ns)
    return head + _CHECK.pack(zlib.crc32(head, filler.check)) + filler.tail


def read(body: bytes) -> Stamp | None:
    """None for a body that is not as it was sent, or was never stamped."""
    if len(body) < STAMP_BYTES:
        return None
    publisher, sequence, intended_ns, check = _WHOLE.unpack_from(body)
    if zlib.crc32(body[:_CHECK_AT], zlib.crc32(memoryview(body)[STAMP_BYTES:])) != check:
        return None
    return publisher, sequence, intended_ns
