"""Values of the pages about parked messages, clients, the list, events and rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from messagebus.clock import MS_PER_S
from messagebus.observing.rules import Raised, Rule
from messagebus.observing.snapshot import Bus, Client
from messagebus.observing.totals import counted
from messagebus.services.monitor import figures
from messagebus.services.monitor.board import Board, Source, oldest
from messagebus.services.monitor.eventlog import Event
from messagebus.services.monitor.figures import NOTHING
from messagebus.services.monitor.pages.shared import (
    BLIND,
    CLIENTS_SHOWN,
    NAMES_SHOWN,
    ROWS_A_PAGE,
    Link,
    Query,
    Settings,
    Values,
    attached,
    list_words,
    manual_link,
    missing_note,
    parked_note,
    with_query,
)
from messagebus.services.monitor.playbooks import Playbook
from messagebus.terminal import plural

# Kinds of events -> their names in the journal.
JOURNAL_KINDS = {
    "": "All",
    "broker": "Brokers",
    "agent": "Agents",
    "balancer": "Balancers",
    "list": "List",
    "topology": "Topology",
    "consumers": "Consumers",
    "loss": "Losses",
    "rule": "Alerts",
    "action": "Actions",
    "look": "Bodies read",
}
TONES = {"page": "bad", "warn": "warn", "info": "info"}


def parked(board: Board, query: Query, settings: Settings) -> Values:
    """Return the values of the page of parked messages."""
    found = [each for each in board.sources.values() if each.sum.parked]
    found.sort(key=lambda each: -each.sum.parked)
    total = f"{board.parked or 0:,} in {plural(len(found), 'queue')}" if found else ""
    return {
        "title": "Parked",
        "lines": [
            (
                each.name,
                {
                    "name": each.name,
                    "count": each.sum.parked,
                    "oldest": _oldest_parked(each, board),
                    "is_least": each.sum.is_least,
                    "where": parked_note(each, settings),
                },
            )
            for each in found
        ],
        "note": "; ".join(filter(None, (total, missing_note(board, settings)))),
        "empty": "No message is parked on the brokers that answer."
        if board.without
        else "No message is parked.",
    }


def _oldest_parked(source: Source, board: Board) -> tuple[float | None, bool]:
    """Return the age of its oldest parked message, and whether one may be older."""
    rows = [
        row
        for answer in counted(board.view.bus).values()
        if (row := answer.rows.get((source.name, "park"))) is not None and row.waiting
    ]
    ages = [oldest(row, board.view.now_ms) for row in rows]
    is_least = source.sum.is_least or None in ages or any(row.oldest_is_least for row in rows)
    return max((age for age in ages if age is not None), default=None), is_least


def clients(board: Board, query: Query, settings: Settings) -> Values:
    """Return the values of the page of clients."""
    newest, text = board.view.bus.generation, query.get("q", "").strip().lower()
    heard, is_behind = _heard(board), bool(query.get("behind"))
    behind = sum(each.applied < newest for each in heard)
    # Until agents are asked for all they name those that are behind, and numbers.
    counts = (answer.client_count for answer in board.view.bus.answers.values())
    counted = len(heard) if len(heard) > behind else sum(counts)
    shown = [
        each
        for each in heard
        if text in f"{each.id} {each.subscription}".lower()
        and (not is_behind or each.applied < newest)
    ]
    consumers = attached(board)
    known = {"q": query["q"]} if query.get("q") else {}
    return {
        "title": "Clients",
        "lines": [
            (
                f"{each.id} {each.subscription}",
                {"client": each, "attached": consumers.get((each.id, each.subscription))},
            )
            for each in shown[:CLIENTS_SHOWN]
        ],
        "newest": newest,
        "sources": board.sources,
        "note": BLIND if board.is_blind else f"{counted:,} ask the agents; {list_words(board)}",
        "q": query.get("q", ""),
        "hidden": [("behind", "1")] if is_behind else [],
        "empty": f"Not known: {BLIND}."
        if board.is_blind
        else f"No client {'is behind' if is_behind else 'asks an agent'}"
        + (", of the agents that answer." if board.view.bus.silent else "."),
        "views": [
            Link("All", with_query(known), not is_behind),
            Link("Behind", with_query(known, behind="1"), is_behind, f"{behind:,}" if behind else ""),
        ],
    }  # fmt: skip


def _heard(board: Board) -> list[Client]:
    """Return the clients that ask agents, as heard last, once for each name that they consume."""
    heard: dict[tuple[str, str], Client] = {}
    for answer in board.view.bus.answers.values():
        for each in answer.clients:
            key = each.id, each.subscription
            if key not in heard or each.age_ms < heard[key].age_ms:
                heard[key] = each
    return sorted(heard.values(), key=lambda each: (each.age_ms, each.id))


def _list_facts(bus: Bus) -> list[tuple[str, str]]:
    digests = {answer.state.topology for answer in bus.answers.values()}
    same = "the same on all agents" if len(digests) == 1 else "differs between agents"
    return [
        ("generation", str(bus.generation)),
        ("brokers", str(len(bus.brokers))),
        ("list read", f"{figures.roughly(bus.list_age_ms / MS_PER_S)} ago"),
        ("topology", same if digests else "not known: no agent answers"),
    ]


def topology(
    board: Board, query: Query, settings: Settings, *, events: Sequence[Event] = ()
) -> Values:
    """Return the values of the page of the list and the topology."""
    bus = board.view.bus
    incomplete = [(each.name, each) for each in board.sources.values() if each.missing]
    return {
        "title": "List and topology",
        "lines": [(seen.broker, seen) for seen in bus.brokers],
        "generation": bus.generation,
        "facts": [
            ("cluster", bus.cluster or NOTHING),
            *([("list", BLIND)] if board.is_blind else _list_facts(bus)),
        ],
        "incomplete": incomplete[:ROWS_A_PAGE],
        "coverage": BLIND
        if board.is_blind
        else f"{len(board.sources) - len(incomplete)} of {len(board.sources)} are on every broker that "
        "answers",
        "events": events,
    }


def journal(
    board: Board,
    query: Query,
    settings: Settings,
    *,
    events: Sequence[Event] = (),
    note: str = "",
    playbooks: Sequence[Playbook] = (),
) -> Values:
    """Return the values of the journal."""
    kind = query.get("kind", "")
    known = {"about": query["about"]} if query.get("about") else {}
    return {
        "title": "Journal",
        "events": events,
        "note": note,
        "playbooks": [(f"{number} {each.name}", each) for number, each in enumerate(playbooks)],
        "about": query.get("about", ""),
        "views": [
            Link(words, with_query(known, kind=each), each == kind)
            for each, words in JOURNAL_KINDS.items()
        ],
    }


@dataclass(frozen=True, slots=True)
class RuleRow:
    """One rule in a table. tone, words: its state. cases: what it has found, or why it is not watched."""

    rule: Rule
    tone: str
    words: str
    cases: str
    has_cases: bool
    manual: str


def rules(board: Board, query: Query, settings: Settings, table: Sequence[Rule]) -> Values:
    """Return the values of the page of rules."""
    view = board.view
    rows = [
        _rule_row(
            rule,
            [each for each in view.raised if each.rule.name == rule.name],
            [each for each in view.noticed if each.rule.name == rule.name],
            board,
            settings,
        )
        for rule in table
    ]
    raised = {each.rule.name for each in view.raised}
    note = f"{len(raised)} of {len(table)} are firing"
    if view.noticed:
        note += f"; {plural(len(view.noticed), 'case')} not firing yet"
    return {"title": "Rules", "lines": [(row.rule.name, row) for row in rows], "note": note}


def _rule_row(
    rule: Rule, raised: Sequence[Raised], early: Sequence[Raised], board: Board, settings: Settings
) -> RuleRow:
    unwatched = rule.unwatched(board.view.bus)
    if raised:
        tone, words = TONES[rule.severity], plural(len(raised), "case")
    elif early:
        since_ms = min(each.since_ms for each in early)
        tone = "info"
        words = f"seen for {figures.roughly((board.view.now_ms - since_ms) / MS_PER_S)}"
    elif unwatched:
        tone, words = "unknown", "not watched"
    else:
        tone, words = "ok", "all is well"
    cases = " ".join(f"{settings.short(each.text)}." for each in [*raised, *early][:NAMES_SHOWN])
    return RuleRow(
        rule=rule,
        tone=tone,
        words=words,
        cases=cases or settings.short(unwatched),
        has_cases=bool(cases),
        manual=manual_link(rule.manual, settings),
    )
