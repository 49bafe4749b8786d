"""Values of the pages about parked messages, clients, the list, events and rules."""

from __future__ import annotations

from collections.abc import Sequence

from messagebus.terminal import plural
from messagebus_monitor import told
from messagebus_monitor.board import Board, oldest
from messagebus_monitor.eventlog import Event
from messagebus_monitor.pages.shared import (
    CLIENTS_SHOWN,
    MS_PER_S,
    NAMES_TOLD,
    ROWS_A_PAGE,
    Link,
    Query,
    Settings,
    Text,
    Values,
    broker_href,
    event_lines,
    link_figures,
    links_of,
    manual_link,
    missing_note,
    parked_note,
    playbook_lines,
    row_of,
    short,
    source_href,
    with_query,
)
from messagebus_monitor.playbooks import Playbook
from messagebus_monitor.told import NOTHING
from messagebus_tools.observing.rules import Raised, Rule
from messagebus_tools.observing.snapshot import Client

# A client that consumes nothing has none.
NO_LINKS = Text(NOTHING, "r muted"), Text(NOTHING, "r muted")


def parked(board: Board, query: Query, settings: Settings) -> Values:
    """Return the values of the page of parked messages."""
    rows = []
    found = [each for each in board.sources.values() if each.sum.parked]
    for source in sorted(found, key=lambda each: -each.sum.parked):
        ages = [
            oldest(row, board.view.now_ms) or 0
            for answer in board.view.bus.answers.values()
            if (row := answer.rows.get((source.name, "park"))) is not None
        ]
        rows.append(
            row_of(
                "parked",
                source.name,
                Text(source.name, "name", source_href(source.name)),
                Text(f"{source.sum.parked:,}", "r warn"),
                Text(told.age(max(ages, default=None)), "r"),
                Text(parked_note(source, settings)),
                Text("Read the reasons", "", f"{source_href(source.name)}?parked=1#parked"),
            )
        )
    note = missing_note(board, settings)
    total = f"{board.parked:,} in {plural(len(rows), 'queue')}" if rows else ""
    return {"title": "Parked", "lines": rows, "note": "; ".join(filter(None, (total, note)))}


def clients(board: Board, query: Query, settings: Settings) -> Values:
    """Return the values of the page of clients; who asks several agents is there once for a name."""
    newest, text = board.view.bus.generation, query.get("q", "").strip().lower()
    heard: dict[tuple[str, str], Client] = {}
    for answer in board.view.bus.answers.values():
        for each in answer.clients:
            key = each.id, each.subscription
            if key not in heard or each.age_ms < heard[key].age_ms:
                heard[key] = each
    found = [
        each
        for each in heard.values()
        if text in f"{each.id} {each.subscription}".lower()
        and (not query.get("behind") or each.applied < newest)
    ]
    found.sort(key=lambda each: (each.age_ms, each.id))
    behind = sum(each.applied < newest for each in heard.values())
    # Until agents are asked for all they tell those that are behind, and numbers.
    counts = (answer.client_count for answer in board.view.bus.answers.values())
    counted = len(heard) if len(heard) > behind else sum(counts)
    links = links_of(board)
    rows = [
        row_of(
            "client",
            f"{each.id} {each.subscription}",
            Text(each.id, "name"),
            Text(
                each.subscription or NOTHING,
                "",
                source_href(each.subscription) if each.subscription in board.sources else "",
            ),
            Text(str(each.applied), "r warn" if each.applied < newest else "r"),
            *(link_figures(several, board, settings.labels) if each.subscription else NO_LINKS),
            Text(", ".join(sorted({link.version for _, link in several}))),
            Text(f"{told.roughly(each.age_ms / MS_PER_S)} ago", "r muted"),
        )
        for each in found[:CLIENTS_SHOWN]
        for several in [links.get((each.id, each.subscription), ())]
    ]
    known = {"q": query["q"]} if query.get("q") else {}
    return {
        "title": "Clients",
        "lines": rows,
        "note": f"{counted:,} ask the agents; the list is at generation {newest}",
        "q": query.get("q", ""),
        "hidden": [("behind", "1")] if query.get("behind") else [],
        "empty": "No client is behind." if query.get("behind") else "No client asks an agent.",
        "views": [
            Link("All", with_query(known), not query.get("behind")),
            Link(
                "Behind",
                with_query(known, behind="1"),
                bool(query.get("behind")),
                f"{behind:,}" if behind else "",
            ),
        ],
    }


def topology(
    board: Board, query: Query, settings: Settings, *, events: Sequence[Event] = ()
) -> Values:
    """Return the values of the page of the list and the topology."""
    bus = board.view.bus
    digests = {answer.state.topology for answer in bus.answers.values()}
    rows = []
    for seen in bus.brokers:
        state = seen.answer.state if seen.answer else None
        serves = state.generation if state else None
        behind = len(seen.answer.clients_behind) if seen.answer else None
        rows.append(
            row_of(
                "served",
                seen.broker,
                Text(
                    settings.labels.get(seen.broker, seen.broker),
                    "name",
                    broker_href(seen.broker),
                ),
                Text("draining" if seen.draining else "consumed from"),
                Text(
                    told.count(serves),
                    "r warn" if serves is not None and serves != bus.generation else "r",
                ),
                Text(told.count(behind), "r warn" if behind else "r"),
                Text(told.count(state.entries if state else None), "r"),
                Text(
                    told.count(state.missing_count if state else None),
                    "r bad" if state and state.missing_count else "r",
                ),
                Text(
                    "yes" if state and state.settled else told.UNKNOWN if not state else "no",
                    "" if state and state.settled else "warn",
                ),
                Text((state.topology[:12] if state else "") or told.UNKNOWN, "mono muted"),
                row_class="" if state else "stale",
            )
        )
    incomplete = [each for each in board.sources.values() if each.missing]
    return {
        "title": "List and topology",
        "lines": rows,
        "facts": [
            ("cluster", bus.cluster or NOTHING),
            ("generation", str(bus.generation)),
            ("brokers", str(len(bus.brokers))),
            ("list read", f"{told.roughly(bus.list_age_ms / MS_PER_S)} ago"),
            ("topology", "the same everywhere" if len(digests) < 2 else "not the same everywhere"),
        ],
        "incomplete": [
            row_of(
                "incomplete",
                each.name,
                Text(each.name, "name", source_href(each.name)),
                Text(", ".join(settings.labels.get(b, b) for b in each.missing), "bad"),
            )
            for each in incomplete[:ROWS_A_PAGE]
        ],
        "entries": len(board.sources),
        "complete": len(board.sources) - len(incomplete),
        "events": event_lines(events, settings),
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
    kinds = ("", "broker", "list", "topology", "consumer", "rule", "action")
    kind = query.get("kind", "")
    known = {"about": query["about"]} if query.get("about") else {}
    return {
        "title": "Journal",
        "events": event_lines(events, settings),
        "note": note,
        "playbooks": playbook_lines(playbooks, settings, board.view.now_ms),
        "about": query.get("about", ""),
        "views": [
            Link(each.capitalize() or "All", with_query(known, kind=each), each == kind)
            for each in kinds
        ],
    }


def rules(board: Board, query: Query, settings: Settings, table: Sequence[Rule]) -> Values:
    """Return the values of the page of rules."""
    holding, noticed = dict[str, list[Raised]](), dict[str, list[Raised]]()
    for some, by_rule in ((board.view.raised, holding), (board.view.noticed, noticed)):
        for each in some:
            by_rule.setdefault(each.rule.name, []).append(each)
    rows = []
    for rule in table:
        raised, early = holding.get(rule.name, []), noticed.get(rule.name, [])
        tone = {"page": "bad", "warn": "warn", "info": "info"}[rule.severity]
        manual = manual_link(rule.manual, settings)
        unwatched = rule.unwatched(board.view.bus)
        words = plural(len(raised), "case")
        if early and not raised:
            since_ms = min(each.since_ms for each in early)
            held = told.roughly((board.view.now_ms - since_ms) / MS_PER_S)
            tone, words = "info", f"seen for {held}"
        elif unwatched and not raised:
            tone, words = "unknown", "not watched"
        elif not raised:
            tone, words = "ok", "all is well"
        shown = [*raised, *early]
        cases = " ".join(f"{short(each.text, settings)}." for each in shown[:NAMES_TOLD])
        rows.append(
            row_of(
                "rule",
                rule.name,
                Text(rule.name, "name"),
                Text("", chip=tone, note=words),
                Text(_SEVERITY_WORDS[rule.severity]),
                Text(told.roughly(rule.for_s) if rule.for_s else "at once", "r"),
                Text(cases or short(unwatched, settings), "wrap"),
                Text(rule.first.replace("`", "") if shown else "", "wrap muted"),
                Text("Manual" if manual else "", "", manual),
            )
        )
    note = f"{len(holding)} of {len(table)} are raised"
    if board.view.noticed:
        note += f"; {plural(len(board.view.noticed), 'case')} seen, not yet for long"
    return {"title": "Rules", "lines": rows, "note": note}


_SEVERITY_WORDS = {"page": "urgent", "warn": "warning", "info": "note"}
