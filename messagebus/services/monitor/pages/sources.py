"""Values of the pages about subscriptions and queues."""

from __future__ import annotations

from collections.abc import Sequence

from messagebus.clock import MS_PER_S
from messagebus.observing.rules import UNKNOWN_REASON, reason
from messagebus.observing.snapshot import Bus
from messagebus.observing.totals import UNKNOWN, at_least
from messagebus.services.monitor import figures
from messagebus.services.monitor.board import Board, Source
from messagebus.services.monitor.eventlog import Event
from messagebus.services.monitor.history import FIELDS, History
from messagebus.services.monitor.pages.matrix import source_table
from messagebus.services.monitor.pages.shared import (
    CLIENTS_SHOWN,
    ROWS_A_PAGE,
    Attached,
    Link,
    Query,
    Settings,
    Tile,
    Values,
    attached,
    attention,
    big_age,
    is_about,
    list_words,
    missing_note,
    parked_note,
    source_href,
    where_oldest,
    without,
)
from messagebus.terminal import plural

DAY_S, MINUTES_SHOWN = 86_400, 60
ALIKE = "All brokers behave alike, so look at the consumers."


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
        "places": [(place.broker, place) for place in source.places],
        "draining": [broker for broker, a in view.bus.answers.items() if a.state.draining],
        "clients": clients[:CLIENTS_SHOWN],
        "newest": view.bus.generation,
        "client_note": f"{_consumers(source)}, {list_words(board)}",
        "course_note": f"at least, {note}" if (note := missing_note(board, settings)) else "",
        "series": f"{source_href(name)}/series",
        "span": query.get("span", "3600"),
        "spans": [
            Link(text, f"?span={seconds}", query.get("span", "3600") == seconds)
            for text, seconds in (("10 min", "600"), ("1 h", "3600"), ("6 h", "21600"), ("24 h", "86400"))
        ],
        "course": _course_table(view.history, name, view.now_ms) if query.get("table") else [],
        "parked": source.sum.parked,
        "parked_note": parked_note(source, settings),
        "events": events,
    }  # fmt: skip


def _source_facts(source: Source, board: Board) -> list[tuple[str, str]]:
    answering = len(board.view.bus.answers)
    here = sum(place.state == "there" for place in source.places)
    kind = "queue" if source.name.startswith("queue:") else "subscription"
    return [
        ("kind", kind),
        ("present on", f"{here} of {answering} brokers that answer"),
        ("consumers", _consumers(source)),
    ]


def _consumers(source: Source) -> str:
    return at_least(source.sum.consumers, source.sum.is_least, figures.count)


def _say(source: Source, bus: Bus, settings: Settings) -> tuple[str, str, str]:
    """Return tone, sentence and reason where no rule has said anything."""
    arriving, leaving = source.sum.came, source.sum.left
    on = " on the brokers that answer" if source.sum.is_least else ""
    if not source.answering:
        return "warn", "No broker that has it answers.", "Its figures are unknown until one does."
    if source.sum.waiting and not source.sum.consumers:
        return (
            "warn",
            f"It has no consumer{on}: {source.sum.waiting:,} messages wait.",
            "Messages are kept until a consumer attaches.",
        )
    if arriving is not None and leaving is not None and arriving > leaving * 1.05 + 0.5:
        why = reason(bus, source.name, leaving)
        because = f"{why[0].upper()}{why[1:]}." if why != UNKNOWN_REASON else ALIKE
        if source.lacking:
            names = ", ".join(settings.label(each) for each in source.lacking)
            because = f"No consumer is attached on {names}."
        return (
            "warn" if (source.oldest_s or 0) >= figures.WARN_S else "",
            f"Out is slower than in{on}: each second {figures.rate(arriving - leaving)} more wait.",
            because,
        )
    return "", "", ""


def _source_tiles(source: Source, board: Board, settings: Settings) -> list[Tile]:
    arriving, leaving = source.sum.came, source.sum.left
    note, is_least = without(board, settings), source.sum.is_least
    empty, empty_note, tone = _until_empty(source, note)
    ready, unacked = figures.count(source.sum.ready), figures.count(source.sum.unacked)
    waiting = at_least(source.sum.waiting, is_least, figures.count)
    parked = at_least(source.sum.parked, is_least, figures.count)
    return [
        Tile("Oldest message", big_age(source.oldest_s, source.sum.oldest_is_least),
             where_oldest(source, settings).removeprefix(f"{source.name} ")
             if source.oldest_s
             else note or ("" if source.sum.oldest_is_least else "no message waits"),
             figures.age_class(source.oldest_s), None, "tile.oldest"),
        Tile("Waiting", ((waiting, ""),), note or f"{ready} ready · {unacked} unacked", "", None,
             "tile.waiting"),
        Tile("In", ((at_least(arriving, is_least, figures.rate), "/s"),),
             note or "arriving, all brokers together", "", None, "tile.in"),
        Tile("Out", ((at_least(leaving, is_least, figures.rate), "/s"),),
             note or "answered by consumers",
             "warn" if tone else "", None, "tile.out"),
        Tile("Until empty", empty, empty_note, tone, None, "tile.empty"),
        Tile("Parked", ((parked, ""),),
             "parked by handlers or brokers" if source.sum.parked else note or "no message is parked",
             "warn" if source.sum.parked else "", None, "tile.parked"),
    ]  # fmt: skip


def _until_empty(source: Source, missing: str) -> tuple[tuple[tuple[str, str], ...], str, str]:
    if missing:
        return ((UNKNOWN, ""),), missing, ""
    if not source.sum.ready:
        return ((figures.NOTHING, ""),), "no message waits for a consumer", ""
    if source.sum.came is None or source.sum.left is None:
        return ((UNKNOWN, ""),), "rates are not known yet", ""
    surplus = source.sum.left - source.sum.came
    if surplus <= 0.05:
        missing = f"no consumer on {plural(len(source.lacking), 'broker')}"
        return (("never", ""),), missing if source.lacking else "out is not faster than in", "warn"
    return big_age(source.sum.ready / surplus), "at the present rates", ""


def _clients_of(board: Board, name: str) -> list[tuple[str, Values]]:
    """Return the clients that ask for the list as its consumers, and those that agents name in detail."""
    answers = board.view.bus.answers.values()
    named = {each.id for a in answers for each in a.clients if each.subscription == name}
    found: dict[str, Attached | None] = dict.fromkeys(named)
    found |= {client: each for (client, of), each in attached(board).items() if of == name}
    applied = {each.id: each.applied for answer in answers for each in answer.clients}
    return [
        (client, {"name": client, "applied": applied.get(client), "attached": each})
        for client, each in sorted(found.items(), key=lambda item: item[0])
    ]


def _course_table(history: History, name: str, now_ms: int) -> list[tuple[str, Values]]:
    """Return the last hour by the minute, the newest first; of `figures` as of `history.FIELDS`."""
    series = history.of(f"source:{name}")
    if series is None:
        return []
    courses = [series.read(each, now_ms / MS_PER_S, DAY_S) for each in range(len(FIELDS))]
    begin_s, step_s = courses[0].begin_s, courses[0].step_s
    steps = enumerate(zip(*(course.values for course in courses), strict=True))
    return [
        (str(at_s), {"at_ms": at_s * MS_PER_S, "figures": values})
        for at_s, values in ((begin_s + number * step_s, values) for number, values in steps)
    ][: -MINUTES_SHOWN - 1 : -1]
