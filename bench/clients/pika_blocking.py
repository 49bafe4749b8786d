"""pika's BlockingConnection under load: every publish waits for its confirm, as pika documents it."""

from __future__ import annotations

import time
from typing import Any

import pika
from pika.exceptions import AMQPError, NackError, UnroutableError

from bench.clients.rabbitmq import durability_direct, started_direct
from bench.clients.threaded import receiver_of, sender_of
from bench.harness.interface import Where
from bench.harness.outcomes import CONFIRMED, OTHERWISE, UNKNOWN
from bench.load.profile import KEY_HEADER, Profile
from messagebus import Broker, BusConfig, Secret, Subscription, Topic

started, durability = started_direct, durability_direct


class _Publishing:
    def __init__(self, where: Where) -> None:
        self._connection, self._channel, self.broker = _opened(where)
        self._exchange = Topic(where.topic).exchange
        self._channel.confirm_delivery()

    def publish(self, body: bytes, sequence: int, key: str) -> int:
        headers = {KEY_HEADER: key} if key else None
        properties = pika.BasicProperties(
            delivery_mode=2, message_id=str(sequence), headers=headers
        )
        try:
            self._channel.basic_publish(self._exchange, "", body, properties, mandatory=True)
        except (NackError, UnroutableError):
            return OTHERWISE
        except AMQPError:
            return UNKNOWN
        return CONFIRMED

    def close(self) -> None:
        self._connection.close()


class _Consuming:
    def __init__(self, profile: Profile, where: Where) -> None:
        load = profile.load
        self._connection, self._channel, self.broker = _opened(where)
        self._channel.basic_qos(prefetch_count=load.prefetch)
        self._needs_ack = load.ack != "none"
        self._had: list[bytes] = []
        queue = Subscription(Topic(where.topic), where.subscription).amqp_queue
        self._channel.basic_consume(queue, self._on_message, auto_ack=not self._needs_ack)

    def take(self, max_wait_s: float) -> list[bytes]:
        until_s = time.monotonic() + max_wait_s
        self._connection.process_data_events(time_limit=max(0.0, until_s - time.monotonic()))
        had, self._had = self._had, []
        return had

    def close(self) -> None:
        self._connection.close()

    def _on_message(self, channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        self._had.append(body)
        if self._needs_ack:
            channel.basic_ack(method.delivery_tag)


def _opened(where: Where) -> tuple[Any, Any, str]:
    """Connect; return the connection, its channel and the broker's name."""
    bus = BusConfig.from_env(where.env)
    channel = channel_at(bus.address, bus.current_user(), bus.current_password())
    return channel.connection, channel, bus.broker


def channel_at(broker: Broker, user: str, password: Secret) -> Any:
    """Open a connection of pika's and a channel on it."""
    credentials = pika.PlainCredentials(user, password.reveal())
    parameters = pika.ConnectionParameters(
        host=broker.host, port=broker.port, credentials=credentials
    )
    return pika.BlockingConnection(parameters).channel()


Sender, Receiver = sender_of(_Publishing), receiver_of(_Consuming)
