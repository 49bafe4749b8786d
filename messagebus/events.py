"""The columns of recorded publishes and deliveries: one definition for recorders, bench and spark.

A run is a folder: ``manifest.json``, and per process and kind one file of JSON lines,
``published-<process>.ndjson`` or ``delivered-<process>.ndjson``. The first line of a file is its
clock anchor, ``{"anchor": {"host", "process", "wall_minus_monotonic_ns"}}``; every other line is one
row whose keys are the names below. A crash loses at most the last line.

Times are nanoseconds of the writing host's monotonic clock. Identifiers of 16 bytes are 32 hex digits
in JSON and 16 bytes in Parquet.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

__all__ = ["ACKS", "DELIVERED", "OUTCOMES", "PUBLISHED", "Column", "body_hash"]

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


def body_hash(body: bytes) -> str:
    """32 hex digits: BLAKE2b of 16 bytes."""
    return hashlib.blake2b(body, digest_size=16).hexdigest()
