"""Outcome of a publish, and the durability that was promised for it."""

from __future__ import annotations

import enum
from typing import NamedTuple

__all__ = ["Durability", "Outcome", "Published"]


class Outcome(enum.Enum):
    """End of a publish. Every publish ends in exactly one of these."""

    CONFIRMED = "confirmed"
    """A broker took responsibility."""
    REFUSED = "refused"
    """A broker said no (basic.nack), or the deadline passed before anything was sent."""
    UNROUTABLE = "unroutable"
    """No queue took it (basic.return)."""
    UNKNOWN = "unknown"
    """The link ended first: it may or may not be stored. Publish again with the same id."""


class Durability(enum.Enum):
    """Level of what a confirmed message survives. It belongs to a destination, on every broker.

    No level survives the loss of the broker's disk.
    """

    FSYNC = "fsync"
    """Kill and power-off of the broker: written and fsynced to settled quorum queues before the confirm."""
    PAGE_CACHE = "page-cache"
    """Kill of the broker's process, not a power-off of its machine: handed to the operating system for
    durable classic queues before the confirm. That RabbitMQ 3.10 fsyncs them too is not promised."""
    NONE = "none"
    """Nothing: no confirm was waited for. What the broker had not read yet is gone with the link, what
    stood in its memory with its process, and nobody is told. The queues are those of page-cache."""


class Published(NamedTuple):
    """Result of one publish. A named tuple: it costs 0.15 us to make, a frozen dataclass 0.9.

    message_id: the one it has now, made or given. durability: what it survives if it is confirmed; NONE
    if it is not. reason: in words, where the broker or the library gave one. broker: the broker that
    answered as ``host:port``, "" where none did or it is not identified.
    attempts: how often it was sent; above 1 an earlier copy may be stored too, under the same id.
    sent_ns, settled_ns: time.monotonic_ns() of the last send (0: never sent) and of the outcome.
    """

    message_id: str
    outcome: Outcome
    durability: Durability
    broker: str = ""
    attempts: int = 1
    sent_ns: int = 0
    settled_ns: int = 0
    reason: str = ""
