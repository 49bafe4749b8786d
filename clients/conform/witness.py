"""A plain AMQP client that sees what brokers hold, past the client under test. One thread at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

TIMEOUT_S = 15.0
BATCH_TYPE = "application/vnd.messagebus.batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Message as a broker holds it."""

    id: str
    headers: dict[str, Any] = field(default_factory=dict)
    body: bytes = b""
    properties: pika.BasicProperties


class Encoded(pika.BasicProperties):  # type: ignore[misc]
    """Properties whose encoding is given: pika writes only some of the types of header values."""

    def __init__(self, raw: bytes) -> None:
        super().__init__()
        self._raw = raw

    def encode(self) -> list[bytes]:
        return [self._raw]


class Witness:
    """A witness at these brokers, ``host:port`` each."""

    def __init__(self, brokers: list[str], user: str, password: str) -> None:
        self.brokers = brokers
        self._login = pika.PlainCredentials(user, password)

    @contextlib.contextmanager
    def channel(self, broker: int) -> Iterator[BlockingChannel]:
        """Open a channel to a broker, by its number from 0, for a moment."""
        host, _, port = self.brokers[broker].rpartition(":")
        connection = pika.BlockingConnection(
            pika.ConnectionParameters(
                host, int(port), credentials=self._login, blocked_connection_timeout=TIMEOUT_S
            )
        )
        try:
            yield connection.channel()
        finally:
            connection.close()

    def publish(
        self,
        broker: int,
        queue: str,
        ids: list[str],
        *,
        headers: dict[str, Any] | None = None,
        content_type: str = "text/plain",
        timestamp: int | None = 1_700_000_000,
    ) -> None:
        """Put messages into a queue, confirmed; their body is `body_of` their id."""
        with self.channel(broker) as channel:
            channel.confirm_delivery()
            for each in ids:
                properties = pika.BasicProperties(
                    message_id=each,
                    content_type=content_type,
                    delivery_mode=2,
                    timestamp=timestamp,
                    headers=headers,
                )
                channel.basic_publish("", queue, body_of(each), properties, mandatory=True)

    def publish_raw(
        self, broker: int, queue: str, properties: pika.BasicProperties, body: bytes
    ) -> None:
        """Put one message into a queue as it is, confirmed."""
        with self.channel(broker) as channel:
            channel.confirm_delivery()
            channel.basic_publish("", queue, body, properties, mandatory=True)

    def ready(self, broker: int, queue: str) -> int:
        """Return how many messages wait in a queue, without those that a consumer holds."""
        return self._count(broker, queue)[0]

    def consumers(self, broker: int, queue: str) -> int:
        return self._count(broker, queue)[1]

    def _count(self, broker: int, queue: str) -> tuple[int, int]:
        with self.channel(broker) as channel:
            told = channel.queue_declare(queue, passive=True).method
            return told.message_count, told.consumer_count

    def take(self, queue: str, *brokers: int) -> list[Held]:
        """Take all ready messages of a queue out of these brokers, all if none is said."""
        found: list[Held] = []
        for broker in brokers or range(len(self.brokers)):
            with self.channel(broker) as channel:
                while True:
                    method, properties, body = channel.basic_get(queue, auto_ack=True)
                    if method is None:
                        break
                    headers = dict(properties.headers or {})
                    found.append(
                        Held(
                            id=properties.message_id or "",
                            headers=headers,
                            body=body,
                            properties=properties,
                        )
                    )
        return found


def body_of(message_id: str, size: int = 0) -> bytes:
    """Return the body of a message: its id, over and over, in this many bytes; 0: once."""
    raw = message_id.encode()
    return (raw * (size // max(1, len(raw)) + 1))[:size] if size else raw


def batch_of(entries: list[tuple[pika.BasicProperties, bytes]]) -> bytes:
    """Return the body of a batch."""
    parts: list[bytes] = []
    for properties, body in entries:
        head = b"".join(properties.encode())
        parts += [len(head).to_bytes(4, "big"), head, len(body).to_bytes(4, "big"), body]
    return b"".join(parts)
