"""A RabbitMQ, or a RabbitMQ cluster, that is no broker of a bus: its queues and exchanges as they are.

Nothing is declared there. A cluster is reached by one address: a balancer, or a name with the addresses of
its nodes. Its broker may call itself as it likes. On a broker of the bus only what belongs to the bus is
refused.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from messagebus._io.admin.queues import answered, opened, ready_messages
from messagebus._io.amqp.copy_headers import PROPERTIES_BYTES_MAX, to_forward
from messagebus._io.amqp.link import Link
from messagebus._io.amqp_wire import AmqpWire
from messagebus._io.publish.targets import Address, Target
from messagebus._io.wire import Follower, Registration
from messagebus.aio import AsyncPublisher
from messagebus.broker import Broker, BrokerList
from messagebus.config import BusConfig, PublisherConfig
from messagebus.destination import Delay, Destination, Queue, Subscription
from messagebus.errors import (
    NOT_FOUND,
    ChannelRefused,
    ConfigError,
    LinkLost,
    MessageBusError,
    MessageInvalid,
    NameInvalid,
    NotFound,
)
from messagebus.message import BODY_BYTES_MAX, Delivery, Message
from messagebus.stats import Durability, Published
from messagebus.topology import Wanted

# Begins the names that the bus has on its brokers.
OF_THE_BUS = "mb."
# Of AMQP, for a queue, an exchange, a routing key.
AMQP_NAME_BYTES_MAX = 255
DIAL_TIMEOUT_MS = 5_000
# Older ones lack what the library relies on: docs/reference/versions.md.
OLDEST = (3, 10)


@dataclass(frozen=True, slots=True, order=True)
class ForeignQueue(Queue):
    """Queue of another RabbitMQ, to be consumed under its own name."""

    def __post_init__(self) -> None:
        check_amqp_name("queue", self.name)

    @property
    def amqp_queue(self) -> str:
        """The name of the queue inside its broker."""
        return self.name

    def __str__(self) -> str:
        return self.name


def check_amqp_name(kind: str, name: str) -> None:
    """Raise NameInvalid for a name that no queue or exchange can have."""
    if not 0 < len(name.encode()) <= AMQP_NAME_BYTES_MAX:
        raise NameInvalid(f"{kind} {name!r}: 1 to {AMQP_NAME_BYTES_MAX} bytes")


class AsItIs:
    """Topology of another RabbitMQ: everything is there, or is not for us to make."""

    async def register(
        self,
        wanted: Sequence[Wanted],
        *,
        timeout_ms: int,
        enough: bool = False,
        on_answer: Callable[[Registration], None] | None = None,
    ) -> Registration:
        found = Registration(True)
        if on_answer is not None:
            on_answer(found)
        return found

    async def exists(self, queue: Queue, *, timeout_ms: int) -> bool:
        return True

    async def plain_sources(self, destinations: Collection[str]) -> list[str]:
        return []

    async def homes(self, topic: str, known: str, *, wait_s: int) -> str:
        raise LinkLost(topic, "another RabbitMQ has no partitions")

    async def verify(
        self, link: Link, destinations: Iterable[Destination | Delay]
    ) -> Mapping[Destination | Delay, MessageBusError]:
        return {}

    async def delete(self, source: Subscription, *, timeout_ms: int) -> None:
        return None


class ForeignWire:
    """Wire to another RabbitMQ."""

    def __init__(self, bus: BusConfig) -> None:
        self._wire = AmqpWire(bus)
        self.redial_first_ms = self._wire.redial_first_ms

    def topology(self) -> AsItIs:
        return AsItIs()

    def follow(
        self, *, subscription: str, interval_s: int, on_list: Callable[[BrokerList], None]
    ) -> Follower:
        return self._wire.follow(subscription=subscription, interval_s=interval_s, on_list=on_list)

    async def dial(self, broker: Broker | None, *, timeout_ms: int) -> Link:
        return await self._wire.dial(broker, timeout_ms=timeout_ms)

    async def dial_to_publish(self, broker: Broker, *, timeout_ms: int, waits: bool) -> Link:
        raise LinkLost(broker.name, "another RabbitMQ has no gate")


class ForeignPublisher:
    """Publisher to one exchange and routing key of another RabbitMQ, with confirms."""

    def __init__(
        self, bus: BusConfig, config: PublisherConfig, exchange: str, routing_key: str
    ) -> None:
        self._publisher = AsyncPublisher(bus, config, _wire=ForeignWire(bus))
        name = f"{exchange} {routing_key}".strip()
        self._address = Address(name, exchange, routing_key, Durability.FSYNC)
        self._targets: dict[str, Target] = {}

    async def start(self, *, require: str | None, timeout_s: float) -> None:
        """Start, as `AsyncPublisher.start` does."""
        await self._publisher.start(require=require, timeout_s=timeout_s)

    async def stop(self, timeout_s: float) -> int:
        """Stop, as `AsyncPublisher.stop` does."""
        return await self._publisher.stop(timeout_s)

    async def submit(self, _to: object, message: Message) -> asyncio.Future[Published]:
        """Accept a publish. Raises BacklogFull, Stopped."""
        # One for each content type that comes, of which an application has a few.
        target = self._targets.get(message.content_type)
        if target is None:
            self._targets.clear()
            target = self._targets[message.content_type] = Target(
                self._address, message.content_type
            )
        admission, call = self._publisher._admission, (target, message.body, message)
        future = admission.new_future()
        if admission.enter(call, None, future) is None:
            await admission.admit(call, None, future)
        return future


def moved(delivery: Delivery) -> Message:
    """Return the message of a delivery to publish elsewhere. Raises MessageInvalid where nobody takes it."""
    return going_on(delivery, ",".join(delivery.path))


def going_on(delivery: Delivery, path: str) -> Message:
    """Return the message of a delivery to publish elsewhere with this path.

    Raises MessageInvalid for what no broker would take.
    """
    if len(delivery.body) > BODY_BYTES_MAX:
        raise MessageInvalid(f"body of {len(delivery.body)} bytes: at most {BODY_BYTES_MAX}")
    size = len(delivery._properties) + len(path)
    if size > PROPERTIES_BYTES_MAX:
        raise MessageInvalid(f"properties of {size} bytes: at most {PROPERTIES_BYTES_MAX}")
    message = delivery.message
    message_id = message.message_id or secrets.token_hex(16)
    return to_forward(delivery._properties, message, message_id, path, delivery.first_ms)


async def look_at(
    bus: BusConfig, *, queue: str = "", exchange: str = "", ours: Collection[str] = ()
) -> str:
    """Check another RabbitMQ before anything moves. Returns a warning, "" for none.

    queue, exchange: must be there. ours: names of the brokers of the bus with the same virtual host, where
    the bus's own queues and exchanges are refused: messages would go round.
    Raises ConfigError, NotFound, LinkError.
    """
    async with opened(bus, bus.broker, timeout_ms=DIAL_TIMEOUT_MS, is_named=False) as link:
        if link.broker in ours and (name := exchange or queue).startswith(OF_THE_BUS):
            raise ConfigError(
                f"{bus.broker} says that it is {link.broker}, a broker of this bus, "
                f"to which {name!r} belongs"
            )
        if queue and await ready_messages(link, queue) is None:
            raise NotFound(f"{bus.broker} has no queue {queue!r} in virtual host {bus.vhost!r}")
        if exchange:
            await _look_for_exchange(bus, link, exchange)
        return told_of_version(bus.broker, link.connection.server_properties or {})


async def _look_for_exchange(bus: BusConfig, link: Link, exchange: str) -> None:
    try:
        await answered(link.try_call("exchange_declare", exchange=exchange, passive=True), link)
    except ChannelRefused as refused:
        if refused.code != NOT_FOUND:
            raise
        told = f"{bus.broker} has no exchange {exchange!r} in virtual host {bus.vhost!r}"
        raise NotFound(told) from refused


def told_of_version(broker: str, properties: Mapping[str, object]) -> str:
    """Return a warning about a server by what its handshake says, "" where it is known to work."""
    product, version = (_text(properties.get(key)) for key in ("product", "version"))
    numbers = version.split(".")[:2]
    if product != "RabbitMQ" or not all(each.isdecimal() for each in numbers):
        return f"{broker} says that it is {product[:40]} {version[:40]}: only RabbitMQ is tested"
    if tuple(map(int, numbers)) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return f"{broker} is RabbitMQ {version[:40]}: only {oldest} and later are tested"
    return ""


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "?")
