"""kombu over py-amqp under load: every publish waits for its confirm."""

from __future__ import annotations

import contextlib
from typing import Any

from amqp.exceptions import AMQPError, ChannelError, MessageNacked  # type: ignore[import-untyped]
from kombu.connection import Connection
from kombu.entity import Queue
from kombu.messaging import Consumer, Producer

from bench.clients.rabbitmq import durability_direct, started_direct
from bench.clients.threaded import receiver_of, sender_of
from bench.harness.interface import Where
from bench.harness.outcomes import CONFIRMED, OTHERWISE, UNKNOWN
from bench.load.profile import KEY_HEADER, Profile
from messagebus import BusConfig, Subscription, Topic

started, durability = started_direct, durability_direct


class _Publishing:
    def __init__(self, where: Where) -> None:
        self._connection, self.broker = _connected(where)
        self._exchange = Topic(where.topic).exchange
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
    def __init__(self, profile: Profile, where: Where) -> None:
        load = profile.load
        self._connection, self.broker = _connected(where)
        self._had: list[bytes] = []
        name = Subscription(Topic(where.topic), where.subscription).amqp_queue
        queue = Queue(name, no_declare=True)  # type: ignore[no-untyped-call]
        channel = self._connection.channel()
        self._needs_ack = load.ack != "none"
        self._consumer: Any = Consumer(  # type: ignore[no-untyped-call]
            channel,
            [queue],
            no_ack=not self._needs_ack,
            auto_declare=False,
            on_message=self._on_message,
            prefetch_count=load.prefetch,
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


def _connected(where: Where) -> tuple[Any, str]:
    """Connect; return the connection and the broker's name."""
    bus = BusConfig.from_env(where.env)
    connection: Any = Connection(  # type: ignore[no-untyped-call]
        hostname=bus.address.host,
        port=bus.address.port,
        userid=bus.current_user(),
        password=bus.current_password().reveal(),
        transport="pyamqp",
        transport_options={"confirm_publish": True},
    )
    connection.connect()
    return connection, bus.broker


Sender, Receiver = sender_of(_Publishing), receiver_of(_Consuming)
