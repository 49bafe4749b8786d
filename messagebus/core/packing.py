"""Several messages of one destination as one AMQP message: which go together.

Decides; encodes nothing. A batch is bounded by messages and bytes. One that lingers waits for more
outside the backlog until it is full or its time has come; one that does not stands in the backlog at
once and takes what comes until it is sent, so what is waiting anyway travels together. How they are
filled is a part of `core.outbox`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, NamedTuple, Protocol, TypeVar, cast

__all__ = ["Batch", "Packed", "Packing", "bundled"]


class Packing(NamedTuple):
    """Bounds of one lane's batches; linger_ms: 0 packs only what is waiting."""

    count_max: int
    bytes_max: int
    linger_ms: int


class Packed(Protocol):
    message_id: str
    lane: str
    size: int


PackedT = TypeVar("PackedT", bound=Packed)


class Batch(Generic[PackedT]):
    """One publish of several items. message_id: its own on the wire, that of its first item."""

    __slots__ = ("due_ms", "items", "lane", "message_id", "size")

    def __init__(self, first: PackedT) -> None:
        self.items = [first]
        self.lane, self.message_id, self.size = first.lane, first.message_id, first.size
        self.due_ms: int | None = None

    def keep(self, items: list[PackedT]) -> None:
        """Only these are left of it; at least one."""
        self.items, self.message_id = items, items[0].message_id
        self.size = sum(item.size for item in items)


OtherT = TypeVar("OtherT")


def bundled(
    payloads: Iterable[bytes | OtherT], packing: Packing
) -> Iterator[list[bytes] | bytes | OtherT]:
    """What is given together, in order: plain bodies in lists that fill a batch, all else as it is."""
    bodies: list[bytes] = []
    size, count_max, bytes_max = 0, packing.count_max, packing.bytes_max
    for payload in payloads:
        length = len(payload) if isinstance(payload, bytes) else bytes_max
        fits = length < bytes_max
        if bodies and (not fits or len(bodies) == count_max or size + length > bytes_max):
            yield bodies
            bodies, size = [], 0
        if fits:
            bodies.append(cast(bytes, payload))
            size += length
        else:
            yield payload
    if bodies:
        yield bodies
