"""kombu over py-amqp under load: every publish waits for its confirm."""

from __future__ import annotations

import contextlib
from typing import Any

from amqp.exceptions import AMQPError, ChannelError, MessageNacked  # type: ignore[import-untyped]
from kombu.connection import Connection
from kombu.entity import Queue
from kombu.messaging import Consumer, Producer

from bench.clients.rabbitmq import Peer, durability_direct, started_direct
from bench.clients.threaded import receiver_of, sender_of
from bench.harness.outcomes import CONFIRMED, OTHERWISE, UNKNOWN
from bench.load.profile import KEY_HEADER

started, durability = started_direct, durability_direct


class _Publishing:
    def __init__(self, peer: Peer) -> None:
        self._connection, self._exchange = _connected(peer), peer.exchange
        self._producer: Any = Producer(self._connection, auto_declare=False)  # type: ignore[no-untyped-call]

    def publish(self, body: bytes, sequence: int, key: str) -> int:
        try:
            self._producer.publish(
                body,
                exchange=self._exchange,
                routing_key="",
                delivery_mode=2,
                mandatory=True,
                message_id=str(sequence),
                headers={KEY_HEADER: key} if key else None,
                content_type="application/octet-stream",
                content_encoding="binary",
            )
        except (MessageNacked, ChannelError):
            return OTHERWISE
        except (AMQPError, OSError):
            return UNKNOWN
        return CONFIRMED

    def close(self) -> None:
        self._connection.close()


class _Consuming:
    def __init__(self, peer: Peer, prefetch: int, needs_ack: bool) -> None:
        self._connection = _connected(peer)
        self._needs_ack, self._had = needs_ack, list[bytes]()
        self._consumer: Any = Consumer(  # type: ignore[no-untyped-call]
            self._connection.channel(),
            [Queue(peer.queue, no_declare=True)],  # type: ignore[no-untyped-call]
            no_ack=not needs_ack,
            auto_declare=False,
            on_message=self._on_message,
            prefetch_count=prefetch,
        )
        self._consumer.consume()  # type: ignore[no-untyped-call]

    def take(self, max_wait_s: float) -> list[bytes]:
        with contextlib.suppress(TimeoutError):
            self._connection.drain_events(timeout=max_wait_s)
        had, self._had = self._had, []
        return had

    def close(self) -> None:
        self._connection.close()

    def _on_message(self, message: Any) -> None:
        self._had.append(message.body)
        if self._needs_ack:
            message.ack()


def _connected(peer: Peer) -> Any:
    connection: Any = Connection(  # type: ignore[no-untyped-call]
        hostname=peer.host,
        port=peer.port,
        userid=peer.user,
        password=peer.password.reveal(),
        transport="pyamqp",
        transport_options={"confirm_publish": True},
    )
    connection.connect()
    return connection


Sender, Receiver = sender_of(_Publishing), receiver_of(_Consuming)
