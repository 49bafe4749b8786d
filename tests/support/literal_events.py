"""Events of one small run as rows written out; only unusual values are named."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from messagebus.recording.events import Column
from messagebus.recording.files import Anchor
from messagebus.recording.manifest import Incident, Manifest

SECOND = 1_000_000_000
KILL_NS = 100 * SECOND
BODY, OTHER_BODY = b"b" * 16, b"x" * 16
RUN = Manifest(
    run_id="r",
    topics={"orders": ("audit", "billing")},
    brokers=("mb1", "mb2"),
    anchor=Anchor("h", "c", 0),
    start_ns=0,
    end_ns=200 * SECOND,
    grace_ns=0,
    publishers=("p1",),
    consumers=(),
    prefetch=None,
    incidents=(Incident("kill", "mb1", KILL_NS, KILL_NS),),
    complete=True,
)


def publish(message: str, **changed: Any) -> dict[str, Any]:
    return {
        "run_id": "r",
        "date": "2026-11-21",
        "message_id": message.encode(),
        "topic": "orders",
        "broker": "mb1",
        "publisher": "p1",
        "sequence": 1,
        "key": None,
        "size": 5,
        "body_hash": BODY,
        "outcome": "confirmed",
        "attempts": 1,
        "intended_ns": 1 * SECOND,
        "sent_ns": 1 * SECOND,
        "confirmed_ns": 2 * SECOND,
    } | changed


def delivery(message: str, subscription: str = "billing", **changed: Any) -> dict[str, Any]:
    at_ns = changed.get("received_ns", 3 * SECOND)
    return {
        "run_id": "r",
        "date": "2026-11-22",
        "message_id": message.encode(),
        "topic": "orders",
        "subscription": subscription,
        "broker": "mb1",
        "consumer": "c1",
        "publisher": "p1",
        "sequence": 1,
        "key": None,
        "size": 5,
        "body_hash": BODY,
        "redelivered": 0,
        "ack": "acked",
        "received_ns": at_ns,
        "acknowledged_ns": at_ns + 1,
    } | changed


def ddl(columns: Iterable[Column]) -> str:
    kinds = {"text": "string", "id16": "binary", "long": "long", "int": "int"}
    return ", ".join(
        ["date string", *[f"{column.name} {kinds[column.kind]}" for column in columns]]
    )
