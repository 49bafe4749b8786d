"""The report of an audit: tables for the terminal, and each number that differs from Spark's audit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench.audit import DOUBLED, Audit, SubscriptionAudit
from bench.errors import BenchError
from bench.harness.outcomes import Gap
from messagebus.recording.manifest import Manifest, in_order

# Shown only when there are any.
RARE = {
    "unexpected": "of another topic",
    "late": "after a later one",
    "pending": "pending at the end",
    "unconfirmed": "unconfirmed, came",
}


def print_audit(result: Audit, manifest: Manifest, console: Console | None = None) -> None:
    console = console or Console(highlight=False)
    console.print(audit_tables(result, manifest))
    console.print(verdict(result), soft_wrap=True)


def audit_tables(result: Audit, manifest: Manifest) -> RenderableType:
    """Return the tables of subscriptions, brokers and publishers."""
    return Group(_subscriptions(result), _brokers(result), _publishers(result, manifest))


def verdict(result: Audit) -> Text:
    """Return one line: holds, or what is wrong, and the faults that were found and are allowed."""
    allowed = [f"allowed: {', '.join(result.put_up_with)}"] if result.put_up_with else []
    if not result.holds:
        return Text(
            f"audit does NOT hold: {'; '.join([*result.faults, *allowed])}", style="bold red"
        )
    told = (
        f"audit holds: {result.confirmed:,} confirmed, {result.total('delivered'):,} of "
        f"{result.total('expected'):,} expected deliveries, 0 lost, 0 altered"
    )
    return Text("; ".join([told, *allowed]), style="bold green")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table


def _subscriptions(result: Audit) -> Table:
    """Return a table with counts down and subscriptions across; it must fit into 80 columns."""
    names = [f"{entry.topic}/{entry.subscription}" for entry in result.subscriptions]
    table = _table("Every confirmed message against every subscription", "messages", *names)

    def row(title: str, counts: list[int], *, zero: bool = False) -> None:
        table.add_row(title, *(_must_be_zero(n) if zero else f"{n:,}" for n in counts))

    def of(name: str) -> list[int]:
        return [getattr(entry, name) for entry in result.subscriptions]

    row("expected", of("expected"))
    row("delivered", of("delivered"))
    row("lost", of("lost"), zero=True)
    row("altered", of("altered"), zero=True)
    row("never published", of("orphans"), zero=True)
    for name, title in RARE.items():
        if any(of(name)):
            row(title, of(name), zero=name == "unexpected")
    for kind in DOUBLED:
        counts = [entry.doubled[kind] for entry in result.subscriptions]
        row(f"doubled: {kind.replace('_', ' ')}", counts, zero=kind == "unexplained")
    return table


def _brokers(result: Audit) -> Table:
    table = _table("Brokers", "broker", "confirmed", "deliveries", "doubled", "lost")
    for name, broker in sorted(result.brokers.items()):
        table.add_row(
            name or "not identified",
            f"{broker.confirmed:,}",
            f"{broker.deliveries:,}",
            f"{broker.doubled:,}",
            _must_be_zero(broker.lost),
        )
    return table


def _publishers(result: Audit, manifest: Manifest) -> Table:
    has_holes = any(each.missing for each in result.publishers.values())
    table = _table(
        "Publishers",
        *("publisher", "published", "confirmed", "again", "longest gap", "when"),
        *(("without a row",) if has_holes else ()),
    )
    for name, publisher in sorted(result.publishers.items()):
        table.add_row(
            name,
            f"{publisher.published:,}",
            f"{publisher.confirmed:,}",
            f"{publisher.retried:,}",
            f"{publisher.gap.length_ns / 1e9:.3f} s{'' if publisher.gap.ended else ', no end'}",
            _when(publisher.gap, manifest),
            *([_must_be_zero(publisher.missing)] if has_holes else []),
        )
    return table


def _when(gap: Gap, manifest: Manifest) -> str:
    """Return the gap's start in seconds since the run's start, and its incidents, the latest first.

    A narrow terminal cuts the others.
    """
    if not gap.length_ns:
        return ""
    during = [
        incident.kind
        for incident, last_ns in reversed(in_order(manifest.incidents))
        if gap.start_ns <= last_ns and gap.start_ns + gap.length_ns >= incident.at_ns
    ]
    since_start = (gap.start_ns - manifest.start_ns) / 1e9
    return f"{since_start:.1f} s{', ' if during else ''}{', '.join(during)}"


def _must_be_zero(count: int) -> Text:
    return Text(f"{count:,}", style="bold red" if count else "green")


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
