"""Destinations, and their names inside a broker.

A *topic* gives every subscription a copy; a *queue* has one set of competing consumers. The
spelling of exchanges and queues is part of the wire format (docs/WIRE.md).

Every destination, a queue too, is published to through an exchange of its own. A queue is bound to its
exchange only when it is settled, so a message that could not survive yet cannot be confirmed either.
RabbitMQ grants rights by name, whatever the thing is: a user who may read the source and write to the
target may bind and unbind. So no exchange has a name that an application may read, and no queue of a reader
one that it may write.
"""

from __future__ import annotations

import bisect
import functools
import re
import secrets
from dataclasses import dataclass, field

from messagebus.errors import MessageInvalid, NameInvalid
from messagebus.stats import Durability

__all__ = [
    "DELAY_STEPS_MS",
    "EPHEMERAL_EXPIRES_S",
    "NAME_BYTES_MAX",
    "Delay",
    "Destination",
    "Queue",
    "Source",
    "Stream",
    "Subscription",
    "Topic",
    "delay_step",
    "expires",
    "parse_destination",
]

# AMQP allows 255 bytes for the longest composed name, "mb.park/<topic>/<subscription>".
NAME_BYTES_MAX = 120
# That of a segment's queue, "mb.seg/<topic>/<subscription>/1023.999999", is longer.
PARTITIONED_NAME_BYTES_MAX = 110
PARTITIONS_MAX = 1_024
# RabbitMQ's, ours, and spellings of `parse_destination` that a name could be mistaken for.
RESERVED_PREFIXES = ("amq.", "mb.", "jms.topic.", "jms.queue.")
PARKING_PREFIX = "mb.park/"
# A partitioned topic's exchange; a foreign publisher finds no "mb.topic/" there, and does not lose the order.
PARTS, SEGMENTS, GROUPS = "mb.part/", "mb.seg/", "mb.group/"
# Keeps messages that came out of the delay ladder and found no queue. No name of ours begins with "mb.".
UNDELIVERED_QUEUE = f"{PARKING_PREFIX}mb.due"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
# Time that an ephemeral subscription outlives a consumer that was cut off: short cuts are survived.
EPHEMERAL_EXPIRES_S = 300
# RabbitMQ's timers end at 2**32 - 1 ms.
EXPIRES_S_MAX = 4_294_967
# Without a limit RabbitMQ 3.10 sends a requeued message to the back, -1 loses it, and RabbitMQ 4
# drops after 20. Half of 2**31 - 1: never reached by a healthy consumer.
DELIVERY_LIMIT_MAX = 1_000_000_000
# Of a stream: a week, and 10 GB on each broker.
# RabbitMQ keeps the time to live of a queue in 32 bits of milliseconds.
TTL_S_MAX = ((1 << 32) - 1) // 1000
STREAM_KEEP_S, STREAM_KEEP_BYTES = 7 * 86_400, 10_000_000_000
STREAM_KEEP_S_RANGE, STREAM_KEEP_BYTES_RANGE = (60, 10 * 366 * 86_400), (1_000_000, 10**15)
_SECOND_MS, _MINUTE_MS, _HOUR_MS, _DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000
# One queue per step and broker, so there are few of them; each is 1.5 to 2.5 times the one before.
DELAY_STEPS_MS = (
    *(n * _SECOND_MS for n in (1, 2, 5, 10, 20, 30)),
    *(n * _MINUTE_MS for n in (1, 2, 5, 10, 20, 30)),
    *(n * _HOUR_MS for n in (1, 2, 4, 8, 12)),
    *(n * _DAY_MS for n in (1, 2, 4, 7)),
)
"""The delays that exist, in ascending order; any other is rounded up to the next of them."""


def check_name(kind: str, name: str) -> str:
    """Return the name unchanged. Raises NameInvalid: letters, digits, ``_ . -``; RESERVED_PREFIXES."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise NameInvalid(
            f"{kind} name {name!r}: letters, digits and _ . - (not . or - at the start)"
        )
    if len(name.encode()) > NAME_BYTES_MAX:
        raise NameInvalid(f"{kind} name of {len(name.encode())} bytes: at most {NAME_BYTES_MAX}")
    if name.startswith(RESERVED_PREFIXES):
        raise NameInvalid(f"{kind} name {name!r}: {', '.join(RESERVED_PREFIXES)} are reserved")
    return name


def _check_partitioned(name: str) -> None:
    if len(name) > PARTITIONED_NAME_BYTES_MAX:
        raise NameInvalid(
            f"name of {len(name)} bytes with partitions: at most {PARTITIONED_NAME_BYTES_MAX}"
        )


def _check_durability(durability: object) -> None:
    if not isinstance(durability, Durability):
        allowed = ", ".join(f"Durability.{each.name}" for each in Durability)
        raise NameInvalid(f"durability {durability!r}: one of {allowed}")


def _check_delivery_limit(limit: object, durability: Durability) -> None:
    if type(limit) is not int or not 0 <= limit <= DELIVERY_LIMIT_MAX:
        raise NameInvalid(f"delivery_limit {limit!r}: a whole number, 0 to {DELIVERY_LIMIT_MAX}")
    if limit and durability is not Durability.FSYNC:
        raise NameInvalid(f"delivery_limit needs durability fsync, not {durability.value}")


@dataclass(frozen=True, slots=True, order=True)
class Topic:
    """Topic: every subscription receives a copy of each message.

    name: 1 to 120 characters, of letters, digits and ``_ . -``; at most 110 with partitions.
    durability: what a confirmed message survives; it applies to all subscriptions of the topic.
    partitions: 1 to 1,024, permanent; 0: none. Each partition has one broker, its home, and keeps the order
    of its keys through every change of brokers (docs/explanation/order.md). homes: set by the agents.
    mqtt: True: the topic receives what MQTT clients publish under its name (docs/guides/stomp.md); None:
    leave it as it is. deflate: True: publishers compress its batches, with a checksum; all its consumers must
    read that (docs/guides/publishing.md). Two topics are equal if their names are.
    """

    name: str
    durability: Durability = field(default=Durability.FSYNC, compare=False)
    partitions: int = field(default=0, compare=False, kw_only=True)
    homes: str = field(default="", compare=False, kw_only=True, repr=False)
    mqtt: bool | None = field(default=None, compare=False, kw_only=True)
    deflate: bool = field(default=False, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        check_name("topic", self.name)
        _check_durability(self.durability)
        if type(self.partitions) is not int or not 0 <= self.partitions <= PARTITIONS_MAX:
            raise NameInvalid(
                f"partitions {self.partitions!r}: a whole number, 0 to {PARTITIONS_MAX}"
            )
        if self.partitions:
            _check_partitioned(self.name)
            if self.durability is not Durability.FSYNC:
                raise NameInvalid(f"partitions need durability fsync, not {self.durability.value}")
        if self.mqtt is not None and (type(self.mqtt) is not bool or self.partitions):
            raise NameInvalid(f"mqtt {self.mqtt!r}: True or False, and none with partitions")
        if type(self.deflate) is not bool or (self.deflate and self.partitions):
            raise NameInvalid(f"deflate {self.deflate!r}: True or False, and False with partitions")

    @property
    def exchange(self) -> str:
        """The exchange that messages for it are published to, inside a broker."""
        return f"{PARTS if self.partitions else 'mb.topic/'}{self.name}"

    @property
    def due_key(self) -> str:
        """The routing key of its messages in the delay ladder."""
        return self.exchange

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, order=True)
class Queue:
    """Queue: each message goes to one of its consumers.

    name: as of a `Topic`. durability: what a confirmed message survives. delivery_limit, plain,
    single_active: as of a `Subscription`. create: True: a publish creates the queue; False: a publish is
    unroutable until the queue is declared or consumed. Two queues are equal if their names are.
    """

    name: str
    durability: Durability = field(default=Durability.FSYNC, compare=False)
    delivery_limit: int = field(default=0, compare=False)
    plain: bool = field(default=False, compare=False, kw_only=True)
    create: bool = field(default=False, compare=False, kw_only=True)
    single_active: bool = field(default=False, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        check_name("queue", self.name)
        _check_durability(self.durability)
        _check_delivery_limit(self.delivery_limit, self.durability)
        for name in ("create", "plain", "single_active"):
            if type(value := getattr(self, name)) is not bool:
                raise NameInvalid(f"{name} {value!r}: True or False")

    @property
    def exchange(self) -> str:
        """The exchange that messages for it are published to, inside a broker."""
        return f"mb.to/{self.name}"

    @property
    def due_key(self) -> str:
        """The routing key of its messages in the delay ladder."""
        return self.amqp_queue

    @property
    def amqp_queue(self) -> str:
        """The name of its queue inside a broker."""
        return f"mb.queue/{self.name}"

    @property
    def parking_queue(self) -> str:
        """The name of its parking queue inside a broker."""
        return f"{PARKING_PREFIX}{self.name}"

    def __str__(self) -> str:
        return f"queue:{self.name}"


@dataclass(frozen=True, slots=True, order=True)
class Subscription:
    """Subscription of a topic: a copy of each message goes to one of its consumers.

    topic: the topic, or its name. name: as of a `Topic`. Its durability is the topic's.
    single_active: True: only one consumer at a time receives messages *from each broker*. With several
    brokers several consumers may be active, each for other brokers.
    expires_s: seconds without a consumer after which the subscription and its messages are deleted on all
    brokers; 0: never. It has no parking queue then: rejected messages are dropped.
    goes_with_consumer: True: its consumer deletes it at the stop. For a subscription that several consumers
    share, or that a consumer uses again, set expires_s only.
    delivery_limit: a message that returned without an answer more often than this is parked, such as one
    that kills its consumer; so are the other deliveries that the consumer held as often. 0: never.
    plain: True: its consumers cannot read batches; publishers that batch to its topic fail at their start.
    ttl_s: whole seconds, at most 4,294,967, after which a message that still waits is parked; 0: never. A
    message that is tried again, or put back, waits anew.
    ordered: for a topic with partitions: True keeps their order, with a queue for each; False: one queue on
    each broker, without order. Two subscriptions are equal if their names are.
    """

    topic: Topic
    name: str
    single_active: bool = field(default=False, compare=False)
    expires_s: int = field(default=0, compare=False)
    goes_with_consumer: bool = field(default=False, compare=False)
    delivery_limit: int = field(default=0, compare=False)
    plain: bool = field(default=False, compare=False, kw_only=True)
    ordered: bool = field(default=True, compare=False, kw_only=True)
    ttl_s: int = field(default=0, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        topic: object = self.topic
        if not isinstance(topic, Topic):
            raise NameInvalid(f"topic {topic!r}: a Topic wanted, such as Topic('orders')")
        check_name("subscription", self.name)
        _check_delivery_limit(self.delivery_limit, self.durability)
        for name in ("single_active", "plain", "ordered"):
            if type(value := getattr(self, name)) is not bool:
                raise NameInvalid(f"{name} {value!r}: True or False")
        if type(self.expires_s) is not int or not 0 <= self.expires_s <= EXPIRES_S_MAX:
            raise NameInvalid(f"expires_s {self.expires_s!r}: whole seconds, 0 to {EXPIRES_S_MAX}")
        if type(self.ttl_s) is not int or not 0 <= self.ttl_s <= TTL_S_MAX:
            raise NameInvalid(f"ttl_s {self.ttl_s!r}: whole seconds, 0 to {TTL_S_MAX}")
        if self.ttl_s and self.expires_s:
            raise NameInvalid(
                f"{self}: ttl_s parks messages, and with expires_s there is no parking queue"
            )
        if self.topic.partitions:
            _check_partitioned(self.name)
            if self.expires_s:
                raise NameInvalid(f"{self}: a subscription of a partitioned topic does not expire")
        if self.goes_with_consumer and not self.expires_s:
            raise NameInvalid(
                "goes_with_consumer without expires_s: who was killed deletes nothing"
            )

    @classmethod
    def ephemeral(cls, topic: Topic | str, *, expires_s: int = EPHEMERAL_EXPIRES_S) -> Subscription:
        """Create a subscription with a unique name, for one consumer.

        It is deleted when that consumer stops; if the consumer was killed, after expires_s without use.
        """
        parsed = topic if isinstance(topic, Topic) else parse_destination(topic)
        if not isinstance(parsed, Topic):
            raise NameInvalid(f"{topic!r}: only a topic has subscriptions")
        name = f"ephemeral-{secrets.token_hex(16)}"
        return cls(parsed, name, expires_s=expires_s, goes_with_consumer=True)

    @property
    def durability(self) -> Durability:
        """The topic's durability."""
        return self.topic.durability

    @property
    def amqp_queue(self) -> str:
        """The name of its queue inside a broker."""
        return f"mb.sub/{self.topic.name}/{self.name}"

    @property
    def parking_queue(self) -> str:
        """The name of its parking queue inside a broker."""
        return f"{PARKING_PREFIX}{self.topic.name}/{self.name}"

    @property
    def has_segments(self) -> bool:
        """True where each segment of its topic is a queue of its own."""
        return bool(self.topic.partitions) and self.ordered

    @property
    def group_queue(self) -> str:
        """The name of the queue that counts its consumers where its topic has partitions."""
        return f"{GROUPS}{self.topic.name}/{self.name}"

    def segment_queue(self, segment: str) -> str:
        """Return the name of the queue of one segment of its topic, such as ``7.1``."""
        return f"{SEGMENTS}{self.topic.name}/{self.name}/{segment}"

    def __str__(self) -> str:
        return f"{self.topic.name}/{self.name}"


@dataclass(frozen=True, slots=True, order=True)
class Stream:
    """Stream of a topic: keeps each of its messages for a time, to be read again by a `Replay`.

    topic: the topic, or its name. keep_s: seconds, 60 to 10 years. keep_bytes: bytes on each broker, from
    1 MB. Messages are deleted when either limit is reached, in segments of a twentieth of keep_bytes.
    Its messages survive a kill of the broker; a power-off may lose the last of them. Headers that are lists
    or tables are lost, except those of messages in batches.
    """

    topic: Topic
    keep_s: int = field(default=STREAM_KEEP_S, compare=False)
    keep_bytes: int = field(default=STREAM_KEEP_BYTES, compare=False)

    def __init__(
        self,
        topic: Topic | str,
        keep_s: int = STREAM_KEEP_S,
        keep_bytes: int = STREAM_KEEP_BYTES,
    ) -> None:
        if not isinstance(topic, Topic):
            topic = Topic(topic)
        for name, value, (least, most) in (
            ("keep_s", keep_s, STREAM_KEEP_S_RANGE),
            ("keep_bytes", keep_bytes, STREAM_KEEP_BYTES_RANGE),
        ):
            if type(value) is not int or not least <= value <= most:
                raise NameInvalid(f"{name} {value!r}: a whole number, {least} to {most}")
        object.__setattr__(self, "topic", topic)
        object.__setattr__(self, "keep_s", keep_s)
        object.__setattr__(self, "keep_bytes", keep_bytes)

    @property
    def durability(self) -> Durability:
        """The level of the destinations beside it; its own is less."""
        return Durability.FSYNC

    @property
    def amqp_queue(self) -> str:
        """The name of its queue inside a broker."""
        return f"mb.stream/{self.topic.name}"

    def __str__(self) -> str:
        return f"stream:{self.topic.name}"


@dataclass(frozen=True, slots=True, order=True)
class Delay:
    """Step of the delay ladder: a message published to it comes out `ms` later.

    A message waits in it under its destination's `due_key` as routing key. Made by `delay_step`.
    """

    ms: int

    def __post_init__(self) -> None:
        if self.ms not in DELAY_STEPS_MS:
            raise NameInvalid(f"delay of {self.ms!r} ms: there are {DELAY_STEPS_MS}")

    @property
    def durability(self) -> Durability:
        return Durability.FSYNC

    @property
    def exchange(self) -> str:
        return f"mb.delay/{self.ms}"

    @property
    def amqp_queue(self) -> str:
        return f"mb.delay/{self.ms}"

    def __str__(self) -> str:
        return f"delay:{self.ms}"


def delay_step(delay_ms: int) -> Delay:
    """Return the step for a delay, rounded up; the first step also for less than a second.

    Raises MessageInvalid when the delay is longer than the last step.
    """
    place = bisect.bisect_left(DELAY_STEPS_MS, delay_ms)
    if place == len(DELAY_STEPS_MS):
        raise MessageInvalid(
            f"delay of {delay_ms} ms: at most {DELAY_STEPS_MS[-1]} ms ({DELAY_STEPS_MS[-1] // _DAY_MS} days)"
        )
    return Delay(DELAY_STEPS_MS[place])


Destination = Topic | Queue
"""Target of a publish."""
Source = Subscription | Queue
"""Source of deliveries."""


def expires(source: object) -> bool:
    """Return whether a source is deleted when it has no consumer for a while: it has no parking queue."""
    return isinstance(source, Subscription) and source.expires_s > 0


_PREFIXES: dict[str, type[Topic] | type[Queue]] = {
    "topic:": Topic,
    "queue:": Queue,
    "jms.topic.": Topic,
    "jms.queue.": Queue,
}


@functools.lru_cache(maxsize=1_000)
def parse_destination(text: str) -> Destination:
    """Read ``orders`` or ``topic:orders`` (a topic) or ``queue:jobs``.

    The spellings ``jms.topic.orders`` and ``jms.queue.jobs`` mean the same. Raises NameInvalid.
    """
    for prefix, kind in _PREFIXES.items():
        if text.startswith(prefix):
            return kind(text.removeprefix(prefix))
    topic, slash, _name = text.partition("/")
    if slash and topic:
        raise NameInvalid(f"{text!r} is a subscription, and a topic is wanted: {topic!r}")
    return Topic(text)
