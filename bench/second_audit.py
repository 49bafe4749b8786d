"""Comparison of an audit with Spark's of the same run: each number that both count."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.audit import DOUBLED, Audit, SubscriptionAudit
from bench.errors import BenchError

# Numbers that both count, and their names in Spark's audit.
PAIR_COUNTS = {
    **{name: name for name in ("expected", "delivered", "deliveries", "lost", "altered")},
    "orphans": "orphan_deliveries",
}
BROKER_COUNTS = ("confirmed", "deliveries", "lost")
PUBLISHER_COUNTS = ("published", "confirmed", "retried")


def read_report(folder: Path) -> dict[str, Any]:
    """Read Spark's audit from the report's folder. Raises BenchError when there is none."""
    try:
        found: dict[str, Any] = json.loads((folder / "audit.json").read_text())
    except (OSError, ValueError) as fault:
        raise BenchError(f"{folder}: no audit by Spark: {fault}") from fault
    return found


def disagreements(ours: Audit, theirs: Mapping[str, Any]) -> list[str]:
    """Describe every number that differs; empty when the audits agree."""
    return [
        f"{what}: {own} here, {other} there"
        for what, own, other in _numbers(ours, theirs)
        if own != other
    ]


def _numbers(ours: Audit, theirs: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, our number, theirs); None for a number that one of them does not have."""
    yield "published", ours.published, theirs.get("published")
    yield "confirmed", ours.confirmed, theirs.get("confirmed")
    yield "bad lines", sum(ours.bad_lines.values()), theirs.get("lines", {}).get("bad")
    pairs = _by(theirs, "subscriptions", "topic", "subscription")
    for entry in ours.subscriptions:
        other = pairs.pop((entry.topic, entry.subscription), {})
        yield from _pair_numbers(entry, other)
    for topic, subscription in pairs:
        yield f"{topic}/{subscription}", None, "there"
    brokers = _by(theirs, "brokers", "broker")
    for name, broker in ours.brokers.items():
        if name:
            for count in BROKER_COUNTS:
                other = brokers.get((name,), {})
                yield f"{name} {count}", getattr(broker, count), other.get(count)
    publishers = _by(theirs, "publishers", "publisher")
    for name, publisher in ours.publishers.items():
        for count in PUBLISHER_COUNTS:
            other = publishers.get((name,), {})
            yield f"{name} {count}", getattr(publisher, count), other.get(count)


def _pair_numbers(
    entry: SubscriptionAudit, other: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    where = f"{entry.topic}/{entry.subscription}"
    for count, theirs in PAIR_COUNTS.items():
        yield f"{where} {count}", getattr(entry, count), other.get(theirs)
    for kind in DOUBLED:
        yield f"{where} doubled {kind}", entry.doubled[kind], other.get(kind)


def _by(report: Mapping[str, Any], table: str, *keys: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {tuple(row.get(key) for key in keys): row for row in report.get(table, ())}
