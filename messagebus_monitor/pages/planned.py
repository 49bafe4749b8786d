"""Values of the page of a plan: what it would touch, and what became of it."""

from __future__ import annotations

from messagebus.terminal import plural
from messagebus_monitor import told
from messagebus_monitor.board import Board
from messagebus_monitor.pages.shared import (
    MS_PER_S,
    Row,
    Settings,
    Text,
    Values,
    broker_href,
    row_of,
    short,
    source_href,
)
from messagebus_monitor.plans import Line, Plan
from messagebus_monitor.told import NOTHING

TONES = {"done": "info", "failed": "page", "cancelled": "warn"}


def plan(board: Board, plan: Plan, settings: Settings) -> Values:
    """Return the values of a plan's page."""
    order, found, kind = plan.order, plan.found, plan.kind
    label = settings.labels.get(order.about, order.about)
    if order.kind in ("drain", "undrain"):
        back, crumb = broker_href(order.about), "Brokers"
    elif order.kind == "declare":
        back, crumb = "/topology", "List and topology"
    else:
        back, crumb = source_href(order.about), order.about
    many = plural(found.total, "message") if found.total else ""
    where = f" on {plural(len(found.lines), 'broker')}" if many else ""
    return {
        "title": f"{kind.title} {label}",
        "plan": plan,
        "kind": kind,
        "label": label,
        "back": back,
        "crumb": crumb,
        "facts": _facts(plan, settings),
        "state": _state(plan, settings),
        "lines": [_row(line, board.view.now_ms, settings) for line in found.lines],
        "keeps": found.keeps,
        "faults": [short(each, settings) for each in found.faults],
        "blocked": short(found.blocked, settings),
        "button": f"{kind.title}{f': {many}{where}' if many else ''}",
        "is_narrow": order.kind in ("redrive", "drop"),
        "brokers": [(name, settings.labels.get(name, name)) for name in board.brokers],
    }


def _facts(plan: Plan, settings: Settings) -> list[tuple[str, str]]:
    order = plan.order
    made = [("planned by", plan.by), ("at", told.clock(plan.made_ms))]
    if order.broker:
        made.append(("only on", settings.labels.get(order.broker, order.broker)))
    if order.reason:
        made.append(("only with the reason", order.reason))
    if plan.kind.is_paced:
        made.append(("at most", f"{order.rate_per_s:,} a second"))
    return made


def _state(plan: Plan, settings: Settings) -> tuple[str, str, str]:
    """Return tone, sentence and result."""
    if plan.state == "open":
        return "", "Nothing has been done yet.", ""
    done = f" {plan.moved:,} of {plan.found.total:,} messages." if plan.found.total else ""
    if plan.is_busy:
        return "warn", f"{plan.run_by} runs it since {told.clock(plan.began_ms)}.{done}", ""
    took = told.age(max(0.1, (plan.ended_ms - plan.began_ms) / MS_PER_S))
    words = {"done": "Done", "failed": "Not done, or not all of it", "cancelled": "Cancelled"}
    said = f"{words[plan.state]}: {plan.run_by} ran it at {told.clock(plan.began_ms)}, in {took}."
    return TONES[plan.state], said, short(plan.result, settings)


def _row(line: Line, now_ms: int, settings: Settings) -> Row:
    oldest = None if line.oldest_ms is None else (now_ms - line.oldest_ms) / MS_PER_S
    return row_of(
        "line",
        line.broker,
        Text(settings.labels.get(line.broker, line.broker), "name", broker_href(line.broker)),
        Text(NOTHING if line.count is None else f"{line.count:,}", "r"),
        Text(NOTHING if oldest is None else told.age(oldest), "r"),
        Text(line.note, "wrap"),
    )
