"""The columns of recorded publishes and deliveries: one definition for recorders, bench and spark.

A run is a folder: ``manifest.json``, and per process and kind one file of JSON lines,
``published-<process>.ndjson``, ``delivered-<process>.ndjson`` or ``sampled-<process>.ndjson``. The
first line of a file names its `SCHEMA` and is its clock anchor,
``{"schema": 1, "anchor": {"host", "process", "wall_minus_monotonic_ns", "boot"}}``; every other line is
one row whose keys are the names below. A crash loses at most the last line. The same columns may come
as ``<kind>-<process>.parquet``, with that first line as the file's metadata, under ``messagebus``.

Times are nanoseconds of the writing host's monotonic clock, which ``boot`` names: files of one boot
share it, whatever their hosts are called. Identifiers of 16 bytes are 32 hex digits in JSON and 16
bytes in Parquet. A publish whose outcome is confirmed has a ``confirmed_ns``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "ACKS",
    "DELIVERED",
    "EVENTS",
    "FAULTS",
    "OUTCOMES",
    "PUBLISHED",
    "SAMPLED",
    "SCHEMA",
    "Column",
    "body_hash",
]

# Version of the columns below. A new optional column keeps it; a change that older readers would get wrong
# raises it, and they leave such files out and say so. A file without a version is of schema 1.
SCHEMA = 1

Kind = Literal["text", "id16", "long", "int"]


@dataclass(frozen=True, slots=True)
class Column:
    """Column of a row. name: key in JSON, column in Parquet. required: a row without it is bad."""

    name: str
    kind: Kind
    required: bool = True

    @property
    def is_count(self) -> bool:
        """True for a number that is no time: it counts something, and no value is below 0."""
        return self.kind in ("long", "int") and not self.name.endswith("_ns")


OUTCOMES = ("confirmed", "refused", "unroutable", "unknown", "spooled")
# acked: sent while the link lived; stale: the link had ended; none: never answered.
ACKS = ("acked", "stale", "none")

PUBLISHED = (
    Column("run_id", "text"),
    Column("message_id", "id16"),
    Column("topic", "text"),
    Column("broker", "text"),
    Column("publisher", "text"),
    Column("sequence", "long"),
    Column("key", "text", required=False),
    Column("size", "int"),
    Column("body_hash", "id16"),
    Column("outcome", "text"),
    Column("attempts", "int"),
    Column("intended_ns", "long"),
    Column("sent_ns", "long"),
    Column("confirmed_ns", "long", required=False),
)

DELIVERED = (
    Column("run_id", "text"),
    Column("message_id", "id16"),
    Column("topic", "text"),
    Column("subscription", "text"),
    Column("broker", "text"),
    Column("consumer", "text"),
    Column("publisher", "text", required=False),
    Column("sequence", "long", required=False),
    Column("key", "text", required=False),
    Column("size", "int"),
    Column("body_hash", "id16"),
    Column("redelivered", "int"),
    Column("ack", "text"),
    Column("received_ns", "long"),
    Column("acknowledged_ns", "long", required=False),
)

# Messages that a broker holds for a subscription, by its own count.
SAMPLED = (
    Column("run_id", "text"),
    Column("broker", "text"),
    Column("topic", "text"),
    Column("subscription", "text"),
    Column("ready", "long"),
    Column("unacked", "long", required=False),
    Column("at_ns", "long"),
)

EVENTS = {"published": PUBLISHED, "delivered": DELIVERED, "sampled": SAMPLED}
"""Kind, the first word of a file's name -> its columns."""

FAULTS: Mapping[str, str] = {
    "lost": "confirmed and never delivered",
    "altered": "delivered with another body",
    "unexplained": "delivered again without an explanation",
    "orphan": "delivered and never published",
    "unexpected": "delivered to a subscription of another topic",
    "reused": "published under an id that was confirmed before, or that another body or topic has",
    "refused_delivered": "refused or unroutable, and delivered",
    "early": "delivered before it was sent",
    "pending": "not delivered, under a grace that leaves too little to judge by",
    "late": "delivered after a later one of the same publisher and key",
    "unjudged": "confirmed to a topic of which the manifest names no subscription",
    "unconfirmed": "published without a confirm",
    "bad": "lines not understood",
    "missing": "without a row, by the numbers of their publishers",
    "absent": "files absent between others, by their numbers",
    "unread": "files not read, whose rows are in no number",
    "dropped": "rows dropped by recorders",
    "deleted": "files deleted by recorders to make room",
    "shares": "recorders that took unlike shares of the messages",
    "silent": "publishers of the manifest without a row",
    "unlisted": "confirmed by a broker that is not in the manifest",
    "clocks": "samples below zero: clocks differ by more than a latency can bear",
    "backlog": "queues not empty at the end",
    "incomplete": "the run did not end in order",
    "nothing": "nothing was published, or nothing confirmed",
}
"""Faults that an audit or report of a run may find: the name by which each may be allowed -> in words.

The rules are in docs/MEASURING.md. Every one of them fails the verdict.
"""


def body_hash(body: bytes) -> str:
    """Return 32 hex digits: BLAKE2b of 16 bytes. It is compared beside the size, within one run.

    No checksum will do: a body that ends with its own CRC-32 has a CRC-32 that all such bodies share.
    BLAKE2b costs 0.3 us at 100 bytes and 1.1 us at 1 KB, twice what CRC-32 does.
    """
    return hashlib.blake2b(body, digest_size=16).hexdigest()
