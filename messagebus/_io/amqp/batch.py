"""The encoding of several messages as the body of one: docs/WIRE.md, section "Batches", in code.

A body is a sequence of entries, each a message as it would travel alone: the length of its property list
as four bytes, the list, the length of its body as four bytes, the body. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from struct import error as StructError

BATCH_TYPE = "application/vnd.messagebus.batch"
"""The content type of a batch."""
# Larger than any publisher's batch: `config.Batching`.
ENTRIES_MAX = 10_000

_LENGTH = Struct(">I")
SIZES_MAX = 4096


class BatchDamaged(ValueError):
    """Raised for a body that is no sequence of whole entries."""


def encode_entry(out: list[bytes], properties: bytes, body: bytes) -> None:
    """Append one entry."""
    out += (_LENGTH.pack(len(properties)), properties, _LENGTH.pack(len(body)), body)


class EntryShape:
    """Entries that differ in id and body only. Their common parts are cached by body size."""

    def __init__(self, shape: tuple[bytes, bytes], id_size: int) -> None:
        before, self._after = shape
        self._head = _LENGTH.pack(len(before) + id_size + len(self._after)) + before
        self._sizes: dict[int, bytes] = {}

    def add(self, out: list[bytes], ids: Iterable[str], bodies: Iterable[bytes]) -> None:
        """Append entries with these ids and bodies, as many of both."""
        head, sizes = self._head, self._sizes
        for message_id, body in zip(ids, bodies, strict=True):
            size = len(body)
            out += (head, message_id.encode(), sizes.get(size) or self._between(size), body)

    def _between(self, size: int) -> bytes:
        """Return the bytes between an id and a body of this size."""
        if len(self._sizes) >= SIZES_MAX:
            self._sizes.clear()
        between = self._sizes[size] = self._after + _LENGTH.pack(size)
        return between


def decode_batch(body: bytes) -> list[tuple[bytes, bytes]]:
    """Return property list and body of each entry. Raises BatchDamaged, which names the place."""
    if not body:
        raise BatchDamaged("no entries")
    entries: list[tuple[bytes, bytes]] = []
    at, end, length_of = 0, len(body), _LENGTH.unpack_from
    for number in range(1, ENTRIES_MAX + 1):
        try:
            middle = at + 4 + length_of(body, at)[0]
            stop = middle + 4 + length_of(body, middle)[0]
        except StructError:  # beyond the end
            stop = end + 1
        if stop > end or middle - at < 6:
            raise BatchDamaged(f"entry {number} at byte {at} of {end} is not whole")
        entries.append((body[at + 4 : middle], body[middle + 4 : stop]))
        if stop == end:
            return entries
        at = stop
    raise BatchDamaged(f"more than {ENTRIES_MAX} entries")
