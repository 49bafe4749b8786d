"""What happened on a bus in memory: every publish and how it ended, every answer to a delivery.

Not thread-safe: the brokers hold the lock. It forgets what is older than the last ENTRIES_MAX entries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from messagebus._io.batch import BatchDamaged, decode_batch
from messagebus._io.properties import ALONE, IN_BATCH, is_batch, read_message_id
from messagebus.destination import Destination, Source
from messagebus.message import Message

__all__ = ["Answer", "Journal", "Publish", "ids_of", "messages_of"]

ENTRIES_MAX = 1_000_000
PARK_REASON = "mb-park-reason"
REJECTED = "rejected"


Publish = tuple[str, str, str, bytes, bytes, str]
"""One AMQP message: broker, exchange, routing key, properties, body; confirmed, refused or unroutable."""
Answer = tuple[str, bytes, bytes, str]
"""Of one AMQP message: queue, properties, body; ack, requeue, reject, retry or park."""


def messages_of(raw: bytes, body: bytes) -> list[Message]:
    """The message, or those of a batch; a damaged batch is one message."""
    if is_batch(raw):
        try:
            return [IN_BATCH.message(*entry) for entry in decode_batch(body)]
        except BatchDamaged:
            pass
    return [ALONE.message(raw, body)]


def ids_of(raw: bytes, body: bytes) -> list[str]:
    if is_batch(raw):
        try:
            return [read_message_id(entry) for entry, _ in decode_batch(body)]
        except BatchDamaged:
            pass
    return [read_message_id(raw)]


class Journal:
    """All of one bus."""

    def __init__(self) -> None:
        self.publishes: deque[Publish] = deque(maxlen=ENTRIES_MAX)
        self.answers: deque[Answer] = deque(maxlen=ENTRIES_MAX)
        # By queue and id: what was copied elsewhere, and waits for the ack of its original.
        self._copied: dict[str, dict[str, str]] = {}

    # ------------------------------------------------------------------ told by the brokers
    def copied(self, queue: str, kind: str, raw: bytes) -> None:
        """A copy of something that this queue delivered is stored elsewhere; kind: as `Answer`."""
        self._copied.setdefault(queue, {})[read_message_id(raw)] = kind

    def answered(self, queue: str, raw: bytes, body: bytes, answer: str) -> None:
        noted = self._copied.get(queue) if answer == "ack" else None
        if not noted:
            self.answers.append((queue, raw, body, answer))
            return
        for entry, its_body in _entries(raw, body):
            kind = noted.pop(read_message_id(entry), "ack")
            self.answers.append((queue, entry, its_body, kind))

    # ------------------------------------------------------------------ questions
    def published(self, destination: Destination, outcome: str = "confirmed") -> list[Message]:
        exchange = destination.exchange
        return [
            message
            for each in self.publishes
            if each[5] == outcome and first_publish_to(each) == exchange
            for message in messages_of(each[3], each[4])
        ]

    def destinations(self) -> dict[tuple[str, str], int]:
        """How many messages were published, by exchange and outcome."""
        counts: dict[tuple[str, str], int] = {}
        for each in self.publishes:
            if exchange := first_publish_to(each):
                entry = (exchange, each[5])
                counts[entry] = counts.get(entry, 0) + len(ids_of(each[3], each[4]))
        return counts

    def answers_of(self, source: Source) -> list[tuple[str, str]]:
        """Id and answer, in the order in which the brokers got them."""
        return [
            (message_id, answer)
            for queue, raw, body, answer in self.answers
            if queue == source.amqp_queue
            for message_id in ids_of(raw, body)
        ]


def _entries(raw: bytes, body: bytes) -> Iterator[tuple[bytes, bytes]]:
    if is_batch(raw):
        try:
            yield from decode_batch(body)
            return
        except BatchDamaged:
            pass
    yield raw, body


def first_publish_to(publish: Publish) -> str:
    """The exchange of the destination that an application published to; "" for a copy."""
    _, exchange, key, raw, _, _ = publish
    if exchange.startswith("mb.delay/"):
        return "" if copy_of(exchange, key, raw) else key
    return exchange


def copy_of(exchange: str, key: str, raw: bytes) -> tuple[str, str] | None:
    """Of what queue it is a copy, and what that means for its original; None for no copy."""
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
    """A part of a batch cannot be rejected but by a copy."""
    name = PARK_REASON.encode()
    return bytes((len(name),)) + name + b"S\x00\x00\x00\x08" + REJECTED.encode() in raw
