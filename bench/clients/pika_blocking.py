"""pika's BlockingConnection under load: every publish waits for its confirm, as pika documents it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pika
import pika.spec
from pika.exceptions import AMQPError, NackError, UnroutableError

from bench.clients.rabbitmq import Peer, durability_direct, started_direct
from bench.clients.threaded import receiver_of, sender_of
from bench.harness.outcomes import CONFIRMED, OTHERWISE, UNKNOWN
from bench.load.profile import KEY_HEADER
from messagebus import Broker, Secret
from messagebus.topology import Declarations

started, durability, PeerFault = started_direct, durability_direct, AMQPError


def channel_at(broker: Broker, user: str, password: Secret, vhost: str = "/") -> Any:
    """Open a connection of pika's and a channel on it."""
    credentials = pika.PlainCredentials(user, password.reveal())
    parameters = pika.ConnectionParameters(broker.host, broker.port, vhost, credentials)
    return pika.BlockingConnection(parameters).channel()


def declare_at_once(channel: Any, wanted: Iterable[Declarations]) -> None:
    """Declare and bind all of these without waiting for an answer before the next request.

    It is the least that RabbitMQ can be asked for the same: one channel, one exchange for each topic.
    """
    wanted, kinds = list(wanted), pika.spec
    requests = {
        each.name: kinds.Exchange.Declare(exchange=each.name, type=each.type, durable=each.durable)
        for part in wanted
        for each in part.exchanges
    }
    requests |= {
        each.name: kinds.Queue.Declare(queue=each.name, durable=True, arguments=each.arguments)
        for part in wanted
        for each in part.queues
    }
    bindings = [
        kinds.Queue.Bind(queue=each.queue, exchange=each.exchange, routing_key=each.routing_key)
        for part in wanted
        for each in part.bindings
    ]
    answers = list[Any]()
    oks = [kinds.Exchange.DeclareOk, kinds.Queue.DeclareOk, kinds.Queue.BindOk]
    channel._impl.add_callback(answers.append, oks, one_shot=False)
    for request in (*requests.values(), *bindings):
        channel._impl._send_method(request)
    while len(answers) < len(requests) + len(bindings):
        channel.connection.process_data_events(time_limit=1)


class _Publishing:
    def __init__(self, peer: Peer) -> None:
        self._exchange = peer.exchange
        self._channel = channel_at(peer.address, peer.user, peer.password)
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
        self._channel.connection.close()


class _Consuming:
    def __init__(self, peer: Peer, prefetch: int, needs_ack: bool) -> None:
        self._channel = channel_at(peer.address, peer.user, peer.password)
        self._needs_ack, self._had = needs_ack, list[bytes]()
        self._channel.basic_qos(prefetch_count=prefetch)
        self._channel.basic_consume(peer.queue, self._on_message, auto_ack=not needs_ack)

    def take(self, max_wait_s: float) -> list[bytes]:
        self._channel.connection.process_data_events(time_limit=max_wait_s)
        had, self._had = self._had, []
        return had

    def close(self) -> None:
        self._channel.connection.close()

    def _on_message(self, channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        self._had.append(body)
        if self._needs_ack:
            channel.basic_ack(method.delivery_tag)


Sender, Receiver = sender_of(_Publishing), receiver_of(_Consuming)
