"""Where messages go, and what the names are called inside a broker.

A *topic* gives every subscription a copy; a *queue* has one set of competing consumers. The
spelling of exchanges and queues is part of the wire format (docs/WIRE.md).

Every destination is published to through an exchange of its own, a queue too: a queue is bound to its
exchange only when it is settled, so what cannot survive yet cannot be confirmed either.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from messagebus.errors import NameInvalid

__all__ = [
    "NAME_BYTES_MAX",
    "Destination",
    "Queue",
    "Source",
    "Subscription",
    "Topic",
    "parse_destination",
]

# AMQP allows 255 bytes for the longest composed name, "mb.park/<topic>/<subscription>".
NAME_BYTES_MAX = 120
# RabbitMQ's, ours, and spellings of `parse_destination` that a name could be mistaken for.
RESERVED_PREFIXES = ("amq.", "mb.", "jms.topic.", "jms.queue.")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


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


@dataclass(frozen=True, slots=True, order=True)
class Topic:
    """Every subscription of it gets a copy of each message."""

    name: str

    def __post_init__(self) -> None:
        check_name("topic", self.name)

    @property
    def exchange(self) -> str:
        return f"mb.topic/{self.name}"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, order=True)
class Queue:
    """One set of competing consumers."""

    name: str

    def __post_init__(self) -> None:
        check_name("queue", self.name)

    @property
    def exchange(self) -> str:
        return f"mb.queue/{self.name}"

    @property
    def amqp_queue(self) -> str:
        return f"mb.queue/{self.name}"

    @property
    def parking_queue(self) -> str:
        return f"mb.park/{self.name}"

    def __str__(self) -> str:
        return f"queue:{self.name}"


@dataclass(frozen=True, slots=True, order=True)
class Subscription:
    """A named, durable reader of a topic; its consumers compete."""

    topic: Topic
    name: str

    def __post_init__(self) -> None:
        check_name("subscription", self.name)

    @property
    def amqp_queue(self) -> str:
        return f"mb.sub/{self.topic.name}/{self.name}"

    @property
    def parking_queue(self) -> str:
        return f"mb.park/{self.topic.name}/{self.name}"

    def __str__(self) -> str:
        return f"{self.topic.name}/{self.name}"


Destination = Topic | Queue
"""What can be published to."""
Source = Subscription | Queue
"""What can be consumed from."""

_PREFIXES: dict[str, type[Topic] | type[Queue]] = {
    "topic:": Topic,
    "queue:": Queue,
    "jms.topic.": Topic,
    "jms.queue.": Queue,
}


def parse_destination(text: str) -> Destination:
    """Read ``orders`` or ``topic:orders`` (a topic) or ``queue:jobs``.

    The spellings ``jms.topic.orders`` and ``jms.queue.jobs`` mean the same. Raises NameInvalid.
    """
    for prefix, kind in _PREFIXES.items():
        if text.startswith(prefix):
            return kind(text.removeprefix(prefix))
    return Topic(text)
