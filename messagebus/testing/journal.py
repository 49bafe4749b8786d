"""Journal of a bus in memory: every publish and how it ended, every answer to a delivery.

The brokers hold their lock when they add to it; questions take that lock. It forgets all but about the last
MESSAGES_MAX of each.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping

from messagebus._io.amqp.batch import BatchDamaged
from messagebus._io.amqp.packed import entries_of
from messagebus._io.amqp.properties import ALONE, IN_BATCH, is_batch, read_message_id
from messagebus.destination import PARTS, Destination, Source
from messagebus.message import Message
from messagebus.testing.queues import Address, Stored

__all__ = ["Journal", "Order", "copy_of", "messages_of"]

MESSAGES_MAX = 1_000_000
PARK_REASON = "mb-park-reason"
REJECTED = "rejected"

Order = tuple[Address, bytes, bytes]
"""One AMQP message as it was published: where, properties, body."""


def messages_of(raw: bytes, body: bytes) -> list[Message]:
    """Return the message, or those of a batch; a damaged batch is one message."""
    if is_batch(raw):
        try:
            return [IN_BATCH.message(*entry) for entry in entries_of(raw, body)]
        except BatchDamaged:
            pass
    return [ALONE.message(raw, body)]


def ids_of(raw: bytes, body: bytes) -> list[str]:
    if is_batch(raw):
        try:
            return [read_message_id(entry) for entry, _ in entries_of(raw, body)]
        except BatchDamaged:
            pass
    return [read_message_id(raw)]


class Journal:
    """Journal of one bus, with one entry for each write of a link."""

    def __init__(self, lock: threading.RLock) -> None:
        """Create it empty. lock: of the brokers."""
        self._lock = lock
        self._publishes: deque[tuple[list[Order], Mapping[int, str]]] = deque()
        self._published = 0
        self._answers: deque[tuple[str, str, list[tuple[bytes, bytes]]]] = deque()
        self._answered = 0
        # Queue -> id -> kind of a copy stored elsewhere that waits for the ack of its original.
        self._copied: dict[str, dict[str, str]] = {}

    # Told by the brokers.
    def published(self, orders: list[Order], bad: Mapping[int, str]) -> None:
        """Note publishes of a link. bad: outcomes that are not confirmed, by place in the list."""
        self._publishes.append((orders, bad))
        self._published += len(orders)
        while self._published > MESSAGES_MAX:
            self._published -= len(self._publishes.popleft()[0])

    def copied(self, queue: str, kind: str, raw: bytes) -> None:
        """Note a copy of a message that this queue delivered, stored elsewhere; kind: as an answer."""
        self._copied.setdefault(queue, {})[read_message_id(raw)] = kind

    def answered(self, queue: str, answer: str, stored: list[Stored]) -> None:
        """Note an answer: ack, requeue or reject. The ack of a message copied before means retry or park."""
        noted = self._copied.get(queue)
        if noted and answer == "ack":
            for each in stored:
                for entry, body in _entries(each.raw, each.body):
                    kind = noted.pop(read_message_id(entry), "ack")
                    self._keep(queue, kind, [(entry, body)])
        else:
            self._keep(queue, answer, [(each.raw, each.body) for each in stored])

    def _keep(self, queue: str, answer: str, contents: list[tuple[bytes, bytes]]) -> None:
        self._answers.append((queue, answer, contents))
        self._answered += len(contents)
        while self._answered > MESSAGES_MAX:
            self._answered -= len(self._answers.popleft()[2])

    # Questions.
    def messages(self, destination: Destination, outcome: str) -> list[Message]:
        """Return messages published there and confirmed, refused or unroutable, without copies."""
        key = destination.due_key
        with self._lock:
            return [
                message
                for (address, raw, body), end in self._ends()
                if end == outcome and first_publish_to(address, raw) == key
                for message in messages_of(raw, body)
            ]

    def destinations(self) -> dict[tuple[str, str], int]:
        """Return how many messages were published, by `due_key` of the destination and outcome."""
        counts: dict[tuple[str, str], int] = {}
        with self._lock:
            for (address, raw, body), end in self._ends():
                if key := first_publish_to(address, raw):
                    counts[key, end] = counts.get((key, end), 0) + len(ids_of(raw, body))
        return counts

    def _ends(self) -> Iterator[tuple[Order, str]]:
        for orders, bad in self._publishes:
            for place, order in enumerate(orders):
                yield order, bad.get(place, "confirmed")

    def answers(self, source: Source) -> list[tuple[str, str]]:
        """Return id and answer, in the order in which the brokers got them."""
        with self._lock:
            return [
                (message_id, answer)
                for queue, answer, contents in self._answers
                if queue == source.amqp_queue
                for raw, body in contents
                for message_id in ids_of(raw, body)
            ]


def _entries(raw: bytes, body: bytes) -> Iterator[tuple[bytes, bytes]]:
    if is_batch(raw):
        try:
            yield from entries_of(raw, body)
            return
        except BatchDamaged:
            pass
    yield raw, body


def first_publish_to(address: Address, raw: bytes) -> str:
    """Return `due_key` of the destination that an application published to; "" for a copy."""
    exchange, key = address.exchange, address.key
    if exchange.startswith("mb.delay/"):
        return "" if copy_of(exchange, key, raw) else key
    return due_key_of(exchange)


def due_key_of(exchange: str) -> str:
    """Return `due_key` of the destination with this exchange."""
    if exchange.startswith(PARTS):
        return f"mb.topic/{exchange.removeprefix(PARTS)}"
    is_queue = exchange.startswith("mb.to/")
    return f"mb.queue/{exchange.removeprefix('mb.to/')}" if is_queue else exchange


def copy_of(exchange: str, key: str, raw: bytes) -> tuple[str, str] | None:
    """Return the queue of which it is a copy, and the answer to its original; None for no copy."""
    if exchange.startswith("mb.delay/"):
        if key.startswith("mb.sub/") or b"mb-attempt" in raw:
            return key, "retry"
        return None
    if exchange:
        return None
    if key.startswith("mb.park/"):
        rest = key.removeprefix("mb.park/")
        kind = "reject" if _says_rejected(raw) else "park"
        return f"mb.{'sub' if '/' in rest else 'queue'}/{rest}", kind
    return key, "retry" if b"mb-attempt" in raw else "requeue"


def _says_rejected(raw: bytes) -> bool:
    """Return whether the copy rejects its original: a part of a batch can be rejected by a copy only."""
    name = PARK_REASON.encode()
    return bytes((len(name),)) + name + b"S\x00\x00\x00\x08" + REJECTED.encode() in raw
