"""Values of the page of a plan: what it would touch, and what became of it."""

from __future__ import annotations

from messagebus.clock import MS_PER_S
from messagebus.services.monitor import figures
from messagebus.services.monitor.board import Board
from messagebus.services.monitor.pages.shared import (
    Settings,
    Values,
    broker_href,
    source_href,
)
from messagebus.services.monitor.plans import Plan
from messagebus.terminal import plural

TONES = {"done": "info", "failed": "page", "cancelled": "warn"}


def plan(board: Board, plan: Plan, settings: Settings) -> Values:
    """Return the values of a plan's page."""
    order, found, kind = plan.order, plan.effects, plan.kind
    label = settings.label(order.about)
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
        "back": back,
        "crumb": crumb,
        "facts": _facts(plan, settings),
        "state": _state(plan, settings),
        "lines": [(line.broker, line) for line in found.lines],
        "keeps": found.keeps,
        "faults": [settings.short(each) for each in found.faults],
        "blocked": settings.short(found.blocked),
        "button": f"{kind.title}{f': {many}{where}' if many else ''}",
        "is_narrow": order.kind in ("redrive", "drop"),
        "brokers": [(name, settings.label(name)) for name in board.brokers],
    }


def _facts(plan: Plan, settings: Settings) -> list[tuple[str, str]]:
    order = plan.order
    made = [("planned by", plan.by), ("at", figures.clock(plan.created_ms))]
    if order.broker:
        made.append(("only on", settings.label(order.broker)))
    if order.reason:
        made.append(("only with the reason", order.reason))
    if plan.kind.is_paced:
        made.append(("at most", f"{order.rate_per_s:,} a second"))
    return made


def _state(plan: Plan, settings: Settings) -> tuple[str, str, str]:
    """Return tone, sentence and result."""
    if plan.state == "open":
        return "", "Nothing has been done yet.", ""
    done = f" {plan.moved:,} of {plan.effects.total:,} messages." if plan.effects.total else ""
    if plan.is_busy:
        return (
            "warn",
            f"{plan.run_by} has been running it since {figures.clock(plan.began_ms)}.{done}",
            "",
        )
    took = figures.age(max(0.1, (plan.ended_ms - plan.began_ms) / MS_PER_S))
    words = {"done": "Done", "failed": "Failed, or done in part", "cancelled": "Cancelled"}
    said = (
        f"{words[plan.state]}: {plan.run_by} ran it at {figures.clock(plan.began_ms)}, in {took}."
    )
    return TONES[plan.state], said, settings.short(plan.result)
