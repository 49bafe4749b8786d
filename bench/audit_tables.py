"""An audit as tables for a person."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench.audit import Audit, Gap
from bench.manifest import Incident, Manifest

__all__ = ["audit_tables", "print_audit", "verdict"]

# A gap that began within that time after an incident is shown with it.
ECHO_NS = 3_000_000_000


def print_audit(result: Audit, manifest: Manifest, console: Console | None = None) -> None:
    (console or Console(highlight=False)).print(audit_tables(result, manifest))


def audit_tables(result: Audit, manifest: Manifest) -> RenderableType:
    """Subscriptions, brokers, publishers, and the verdict."""
    return Group(
        _subscriptions(result), _brokers(result), _publishers(result, manifest), verdict(result)
    )


def verdict(result: Audit) -> Text:
    """One line: holds, or what is wrong."""
    if result.holds:
        return Text(
            f"audit holds: {result.confirmed:,} confirmed, {result.total('delivered'):,} of "
            f"{result.total('expected'):,} expected deliveries, 0 lost, 0 altered",
            style="bold green",
        )
    return Text(f"audit does NOT hold: {'; '.join(result.faults)}", style="bold red")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", header_style="")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    return table


def _subscriptions(result: Audit) -> Table:
    table = _table(
        "Every confirmed message against every subscription",
        "subscription",
        "expected",
        "delivered",
        "deliveries",
        "lost",
        "altered",
        "doubled: owed",
        "unknown",
        "acked without proof",
        "unexplained",
    )
    for entry in result.subscriptions:
        table.add_row(
            f"{entry.topic}/{entry.subscription}",
            f"{entry.expected:,}",
            f"{entry.delivered:,}",
            f"{entry.deliveries:,}",
            _must_be_zero(entry.lost),
            _must_be_zero(entry.altered),
            f"{entry.doubled['owed']:,}",
            f"{entry.doubled['unknown']:,}",
            f"{entry.doubled['acked_without_proof']:,}",
            _must_be_zero(entry.doubled["unexplained"]),
        )
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
    table = _table(
        "Publishers", "publisher", "published", "confirmed", "retried", "longest gap", "when"
    )
    for name, publisher in sorted(result.publishers.items()):
        table.add_row(
            name,
            f"{publisher.published:,}",
            f"{publisher.confirmed:,}",
            f"{publisher.retried:,}",
            f"{publisher.gap.length_ns / 1e9:.3f} s",
            _when(publisher.gap, manifest),
        )
    return table


def _when(gap: Gap, manifest: Manifest) -> str:
    """Seconds since the start, and the incident that the gap belongs to."""
    if not gap.length_ns:
        return ""
    during = [
        _label(incident)
        for incident in manifest.incidents
        if incident.at_ns <= gap.start_ns + gap.length_ns
        and gap.start_ns <= (incident.done_ns or incident.at_ns) + ECHO_NS
    ]
    since_start = (gap.start_ns - manifest.start_ns) / 1e9
    return f"{since_start:.1f} s{', ' if during else ''}{', '.join(during)}"


def _label(incident: Incident) -> str:
    return f"{incident.kind} {incident.broker}".rstrip()


def _must_be_zero(count: int) -> Text:
    return Text(f"{count:,}", style="bold red" if count else "green")
