"""The columns of recorded publishes and deliveries: one definition for recorders, bench and spark.

A run is a folder: ``manifest.json``, and per process and kind one file of JSON lines,
``published-<process>.ndjson``, ``delivered-<process>.ndjson`` or ``sampled-<process>.ndjson``. The
first line of a file says which `SCHEMA` it is of and is its clock anchor,
``{"schema": 1, "anchor": {"host", "process", "wall_minus_monotonic_ns"}}``; every other line is one
row whose keys are the names below. A crash loses at most the last line. The same columns may come as
``<kind>-<process>.parquet``, with that first line as the file's metadata, under ``messagebus``.

Times are nanoseconds of the writing host's monotonic clock. Identifiers of 16 bytes are 32 hex digits
in JSON and 16 bytes in Parquet.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "ACKS",
    "DELIVERED",
    "EVENTS",
    "OUTCOMES",
    "PUBLISHED",
    "SAMPLED",
    "SCHEMA",
    "Column",
    "body_hash",
]

# Of the columns below. A new optional column keeps it; anything that older readers would get wrong
# raises it, and they leave such files out and say so. A file that names none is of schema 1.
SCHEMA = 1

Kind = Literal["text", "id16", "long", "int"]


@dataclass(frozen=True, slots=True)
class Column:
    """name: key in JSON, column in Parquet. required: a row without it is bad."""

    name: str
    kind: Kind
    required: bool = True


OUTCOMES = ("confirmed", "refused", "unroutable", "unknown")
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

# How many messages a broker holds for a subscription, as it says itself.
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


def body_hash(body: bytes) -> str:
    """32 hex digits: BLAKE2b of 16 bytes."""
    return hashlib.blake2b(body, digest_size=16).hexdigest()
