"""What must exist on every broker: the pure description, for whoever declares it.

An agent brings it about on its own broker; without agents the library declares it itself. Both
read it from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from messagebus.destination import Queue, Source, Subscription, Topic, parse_destination
from messagebus.errors import NameInvalid

__all__ = [
    "BORN",
    "GATE",
    "Binding",
    "Declarations",
    "Exchange",
    "QueueSpec",
    "Wanted",
    "declarations",
    "parse_wanted",
]

# The mark in a broker that it may take publishes: a non-durable exchange, so a killed broker loses it.
GATE = "mb.ready"
# Argument of every queue: the number of the topology entry when it was declared. RabbitMQ stores
# unknown arguments and does not compare them at redeclaration.
BORN = "mb-born"
# Without a limit RabbitMQ 3.10 sends a requeued message to the back, -1 loses it, and RabbitMQ 4
# drops after 20. Half of 2**31 - 1: never reached by a healthy consumer.
DELIVERY_LIMIT = 1_000_000_000

Wanted = Topic | Source
"""What an entry of the topology asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    name: str
    type: str = "fanout"
    durable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSpec:
    """A durable quorum queue. arguments: as given to queue.declare, x-queue-type among them."""

    name: str
    arguments: Mapping[str, str | int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    exchange: str
    queue: str
    routing_key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declarations:
    """What to declare: exchanges, then queues, and the bindings only when the queues are settled.

    So a bound queue is a settled one, and no confirm can come from one that is not.
    """

    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[QueueSpec, ...] = field(default=())
    bindings: tuple[Binding, ...] = ()


def declarations(wanted: Wanted, *, born: int = 0) -> Declarations:
    """What one entry needs on a broker.

    born: number of the entry, kept in the queue (0: not kept, no agent).
    """
    match wanted:
        case Topic():
            return Declarations(exchanges=(Exchange(name=wanted.exchange),))
        case Subscription(topic=topic):
            return Declarations(
                exchanges=(Exchange(name=topic.exchange),),
                queues=_queue_with_parking(wanted, born),
                bindings=(Binding(exchange=topic.exchange, queue=wanted.amqp_queue),),
            )
        case Queue():
            return Declarations(
                exchanges=(Exchange(name=wanted.exchange),),
                queues=_queue_with_parking(wanted, born),
                bindings=(Binding(exchange=wanted.exchange, queue=wanted.amqp_queue),),
            )


def _queue_with_parking(source: Source, born: int) -> tuple[QueueSpec, QueueSpec]:
    """The queue and the one that keeps what reached the delivery limit.

    At-least-once dead-lettering needs the overflow policy reject-publish.
    """
    mark = {BORN: born} if born else {}
    arguments: dict[str, str | int] = {
        "x-queue-type": "quorum",
        "x-delivery-limit": DELIVERY_LIMIT,
        "x-overflow": "reject-publish",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": source.parking_queue,
        "x-dead-letter-strategy": "at-least-once",
    }
    return (
        QueueSpec(name=source.parking_queue, arguments={"x-queue-type": "quorum", **mark}),
        QueueSpec(name=source.amqp_queue, arguments={**arguments, **mark}),
    )


def parse_wanted(text: str) -> Wanted:
    """Read ``orders`` (a topic), ``orders/billing`` (a subscription) or ``queue:jobs``; str() of it back."""
    if "/" not in text:
        return parse_destination(text)
    topic, _, name = text.partition("/")
    parsed = parse_destination(topic)
    if not isinstance(parsed, Topic):
        raise NameInvalid(f"{text!r}: only a topic has subscriptions")
    return Subscription(parsed, name)
