"""Several messages as the body of one: docs/WIRE.md, section "Batches", in code.

A body is a row of entries, each a message as it would travel alone: the length of its property list
as four bytes, the list, the length of its body as four bytes, the body. Pure.
"""

from __future__ import annotations

from struct import Struct

__all__ = ["BATCH_TYPE", "BatchDamaged", "EntryShape", "decode_batch", "encode_entry"]

BATCH_TYPE = "application/vnd.messagebus.batch"
"""The content type that says that a body is a batch."""
# More than any publisher packs: `config.Batching`.
ENTRIES_MAX = 10_000

_LENGTH = Struct(">I")
SIZES_MAX = 4096


class BatchDamaged(ValueError):
    """Raised for a body that is no row of whole entries."""


def encode_entry(out: list[bytes], properties: bytes, body: bytes) -> None:
    """Append one entry."""
    out += (_LENGTH.pack(len(properties)), properties, _LENGTH.pack(len(body)), body)


class EntryShape:
    """Entries that differ in id and body only: their pieces are kept for each size of body."""

    def __init__(self, shape: tuple[bytes, bytes], id_size: int) -> None:
        before, self._after = shape
        self._head = _LENGTH.pack(len(before) + id_size + len(self._after)) + before
        self._sizes: dict[int, bytes] = {}

    def add(self, out: list[bytes], message_id: bytes, body: bytes) -> None:
        size = len(body)
        between = self._sizes.get(size)
        if between is None:
            if len(self._sizes) >= SIZES_MAX:
                self._sizes.clear()
            between = self._sizes[size] = self._after + _LENGTH.pack(size)
        out += (self._head, message_id, between, body)


def decode_batch(body: bytes) -> list[tuple[bytes, bytes]]:
    """Property list and body of each entry. Raises BatchDamaged, with where."""
    entries: list[tuple[bytes, bytes]] = []
    at, end, length_of = 0, len(body), _LENGTH.unpack_from
    while at < end:
        middle = stop = end + 1
        if at + 4 <= end:
            middle = at + 4 + length_of(body, at)[0]
        if middle + 4 <= end:
            stop = middle + 4 + length_of(body, middle)[0]
        if stop > end or middle - at < 6:
            raise BatchDamaged(f"entry {len(entries) + 1} at byte {at} of {end} is not whole")
        if len(entries) == ENTRIES_MAX:
            raise BatchDamaged(f"more than {ENTRIES_MAX} entries")
        entries.append((body[at + 4 : middle], body[middle + 4 : stop]))
        at = stop
    if not entries:
        raise BatchDamaged("no entries")
    return entries
