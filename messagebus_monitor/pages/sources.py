"""Values of the pages about subscriptions and queues."""

from __future__ import annotations

from collections.abc import Sequence

from messagebus.terminal import plural
from messagebus_monitor import told
from messagebus_monitor.board import Board, Place, Source
from messagebus_monitor.eventlog import Event
from messagebus_monitor.history import History
from messagebus_monitor.pages.matrix import source_table
from messagebus_monitor.pages.shared import (
    CLIENTS_SHOWN,
    DAY_S,
    MS_PER_S,
    ROWS_A_PAGE,
    Link,
    Links,
    Query,
    Row,
    Settings,
    Text,
    Tile,
    Values,
    attention,
    big_age,
    broker_href,
    event_lines,
    freshness,
    is_about,
    link_figures,
    links_of,
    missing_note,
    parked_note,
    place_figures,
    row_of,
    source_href,
    where_oldest,
)
from messagebus_tools.observing.rules import reason
from messagebus_tools.observing.snapshot import Bus

ALIKE = "The brokers are alike, so the cause is with the consumers."


def subscriptions(board: Board, query: Query, settings: Settings) -> Values:
    """Return the values of the list of subscriptions and queues."""
    return {"title": "Subscriptions", **source_table(board, query, settings, ROWS_A_PAGE)}


def subscription(
    board: Board,
    name: str,
    query: Query,
    settings: Settings,
    *,
    events: Sequence[Event] = (),
) -> Values | None:
    """Return the values of one subscription's or queue's page; None for one that no agent knows."""
    source = board.sources.get(name)
    if source is None:
        return None
    view = board.view
    topic, slash, rest = name.partition("/")
    clients = _clients_of(board, name)
    return {
        "title": name,
        "name": name,
        "topic": topic,
        "slash": slash,
        "rest": rest,
        "facts": _source_facts(source, board),
        "needs": attention(board, settings, (each for each in view.raised if is_about(each, name))),
        "say": _say(source, board.view.bus, settings),
        "tiles": _source_tiles(source, board, settings),
        "places": [_place_row(place, board, settings) for place in source.places],
        "clients": clients[:CLIENTS_SHOWN],
        "client_note": f"{source.sum.consumers:,}, list generation {view.bus.generation}",
        "series": f"{source_href(name)}/series",
        "span": query.get("span", "3600"),
        "spans": [
            Link(text, f"?span={seconds}", query.get("span", "3600") == seconds)
            for text, seconds in (("10 min", "600"), ("1 h", "3600"), ("6 h", "21600"), ("24 h", "86400"))
        ],
        "course": _course_table(view.history, name, view.now_ms) if query.get("table") else [],
        "parked": source.sum.parked,
        "parked_note": parked_note(source, settings),
        "events": event_lines(events, settings),
    }  # fmt: skip


def _source_facts(source: Source, board: Board) -> list[tuple[str, str]]:
    answering = len(board.view.bus.answers)
    here = sum(place.state == "there" for place in source.places)
    kind = "queue" if source.name.startswith("queue:") else "subscription"
    return [
        ("kind", kind),
        ("there on", f"{here} of {answering} brokers that answer"),
        ("consumers", f"{source.sum.consumers:,}"),
    ]


def _say(source: Source, bus: Bus, settings: Settings) -> tuple[str, str, str]:
    """Return tone, sentence and reason where no rule has said anything."""
    arriving, leaving = source.sum.came, source.sum.left
    if not source.answering:
        return "warn", "No broker that has it answers.", "Its figures are not known just now."
    if source.sum.waiting and not source.sum.consumers:
        return (
            "warn",
            f"Nobody consumes it: {source.sum.waiting:,} messages wait.",
            "Messages are kept until a consumer attaches.",
        )
    if arriving is not None and leaving is not None and arriving > leaving * 1.05 + 0.5:
        why = reason(bus, source.name, leaving)
        because = f"{why[0].upper()}{why[1:]}." if why != "not known" else ALIKE
        if source.lacking:
            names = ", ".join(settings.labels.get(each, each) for each in source.lacking)
            because = f"No consumer is attached on {names}."
        return (
            "warn" if (source.oldest_s or 0) >= told.WARN_S else "",
            f"Out is slower than in: the backlog grows by {told.rate(arriving - leaving)}/s.",
            because,
        )
    return "", "", ""


def _source_tiles(source: Source, board: Board, settings: Settings) -> list[Tile]:
    arriving, leaving = source.sum.came, source.sum.left
    note = missing_note(board, settings)
    empty, empty_note, tone = _until_empty(source)
    unacked = told.count(source.sum.unacked)
    return [
        Tile("Oldest message", big_age(source.oldest_s),
             where_oldest(source, settings).removeprefix(f"{source.name} ")
             if source.oldest_s
             else "nothing waits",
             told.age_class(source.oldest_s), None, "tile.oldest"),
        Tile("Waiting", ((f"{source.sum.waiting:,}", ""),),
             note or f"{source.sum.ready:,} ready · {unacked} unacked", "", None, "tile.waiting"),
        Tile("In", ((told.rate(arriving), "/s"),), "arrive on all brokers together", "", None,
             "tile.in"),
        Tile("Out", ((told.rate(leaving), "/s"),), "answered by consumers",
             "warn" if tone else "", None, "tile.out"),
        Tile("Until empty", empty, empty_note, tone, None, "tile.empty"),
        Tile("Parked", ((f"{source.sum.parked:,}", ""),),
             "given up by handlers or brokers" if source.sum.parked else "nothing was given up",
             "warn" if source.sum.parked else "", None, "tile.parked"),
    ]  # fmt: skip


def _until_empty(source: Source) -> tuple[tuple[tuple[str, str], ...], str, str]:
    if not source.sum.ready:
        return ((told.NOTHING, ""),), "nothing waits for a consumer", ""
    if source.sum.came is None or source.sum.left is None:
        return ((told.UNKNOWN, ""),), "rates are not known yet", ""
    surplus = source.sum.left - source.sum.came
    if surplus <= 0.05:
        missing = f"no consumer on {plural(len(source.lacking), 'broker')}"
        return (("never", ""),), missing if source.lacking else "out is not quicker than in", "warn"
    return big_age(source.sum.ready / surplus), "at the rates of this moment", ""


def _place_row(place: Place, board: Board, settings: Settings) -> Row:
    seen = board.view.bus.find(place.broker)
    answer = seen.answer if seen else None
    note = ""
    if place.state == "silent":
        note = "silent"
    elif place.state == "missing":
        note = "not there"
    elif answer is not None and answer.state.draining:
        note = "draining"
    label = settings.labels.get(place.broker, place.broker)
    return row_of(
        "place",
        place.broker,
        Text(label, "name", broker_href(place.broker), note=note),
        Text(told.age(place.oldest_s), f"r {told.age_class(place.oldest_s)}"),
        *place_figures(place, board.view.now_ms),
        row_class=freshness(place, board),
    )


def _clients_of(board: Board, name: str) -> list[Row]:
    """Return the clients that ask for the list as its consumers, and those that agents told in detail."""
    found: dict[str, Links] = {
        client.id: ()
        for answer in board.view.bus.answers.values()
        for client in answer.clients
        if client.subscription == name
    }
    found |= {client: several for (client, of), several in links_of(board).items() if of == name}
    applied = {c.id: c.applied for a in board.view.bus.answers.values() for c in a.clients}
    newest, rows = board.view.bus.generation, []
    for client, several in sorted(found.items()):
        at = applied.get(client)
        rows.append(
            row_of(
                "client",
                client,
                Text(client, "name"),
                Text(
                    told.UNKNOWN if at is None else str(at),
                    "r warn" if at is not None and at < newest else "r",
                ),
                *link_figures(several, board),
            )
        )
    return rows


def _course_table(history: History, name: str, now_ms: int) -> list[Row]:
    series = history.of(f"source:{name}")
    if series is None:
        return []
    courses = [series.read(each, now_ms / MS_PER_S, DAY_S) for each in range(4)]
    last = [course.values[-60:] for course in courses]
    begin_s = courses[0].begin_s + courses[0].step_s * (len(courses[0].values) - len(last[0]))
    return [
        Row(
            id=f"minute.{begin_s + i * courses[0].step_s}",
            cells=(
                Text(told.clock((begin_s + i * courses[0].step_s) * MS_PER_S)),
                Text(told.age(ages), "r"),
                *(Text(told.rate(value), "r") for value in rest),
            ),
        )
        for i, (ages, *rest) in enumerate(zip(*last, strict=True))
    ][::-1]
