"""The table of subscriptions and queues with one cell for each broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from messagebus_monitor import told
from messagebus_monitor.board import Board, Place, Source
from messagebus_monitor.pages.shared import (
    WAITING,
    Cell,
    Column,
    Link,
    Query,
    Settings,
    Values,
    curve,
    heads,
    row_id,
    source_href,
    with_query,
)
from messagebus_monitor.told import NOTHING, Spark

DENSE_FROM = 17
WORST, BY_NAME = "-worst", "name"
STEP_S = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    """One subscription or queue in a table."""

    id: str
    href: str
    topic: str
    rest: str
    age: str
    tone: str
    waiting: str
    spark: Spark
    arriving: str
    leaving: str
    consumers: str
    consumers_tone: str
    parked: str
    cells: tuple[Cell, ...]
    words: str
    row_class: str = ""


_SORTS: dict[str, Callable[[Source], Any]] = {
    "oldest": lambda each: each.oldest_s or 0,
    "waiting": lambda each: each.sum.waiting,
    "in": lambda each: each.sum.came or 0,
    "out": lambda each: each.sum.left or 0,
    "consumers": lambda each: each.sum.consumers,
    "parked": lambda each: each.sum.parked,
}


def _worst(each: Source) -> tuple[Any, ...]:
    tone, size = told.age_class(each.oldest_s), len(str(each.sum.waiting))
    trouble = bool(each.missing), bool(each.lacking) or tone == "bad", tone == "warn"
    # In steps, so that rows do not change places all the time.
    return (*trouble, size, int((each.oldest_s or 0) // STEP_S), each.sum.parked > 0, each.name)


def chosen(board: Board, query: Query) -> list[Source]:
    """Return the sources that a query's filter takes, in its order; both are harmless whatever they say."""
    text, sort = query.get("q", "").strip().lower(), query.get("sort", WORST)
    found = [each for name, each in board.sources.items() if text in name.lower()]
    if query.get("problem"):
        found = [each for each in found if each.is_troubled]
    field_name = sort.removeprefix("-")
    if field_name == "name":
        return found if sort == BY_NAME else found[::-1]
    return sorted(found, key=_SORTS.get(field_name, _worst), reverse=sort.startswith("-"))


def source_table(board: Board, query: Query, settings: Settings, a_page: int) -> Values:
    found = chosen(board, query)
    pages = max(1, -(-len(found) // a_page))
    number = int(page) if (page := query.get("page", "")).isdecimal() and len(page) < 6 else 1
    number = min(max(1, number), pages)
    shown = found[(number - 1) * a_page : number * a_page]
    names = list(board.brokers)
    is_dense = len(names) >= DENSE_FROM
    known = {key: query[key] for key in ("q", "sort", "problem") if query.get(key)}
    begin = (number - 1) * a_page
    return {
        "lines": [_source_row(each, board, settings) for each in shown],
        "columns": _columns(known),
        "is_dense": is_dense,
        "heads": heads(settings.labels.get(name, name) for name in names),
        "source_note": f"{len(board.sources)}, one cell for each broker, coloured by the age of its oldest",
        "range": f"{begin + 1 if shown else 0} to {begin + len(shown)} of {len(found)}",
        "before": with_query(known, page=str(number - 1)) if number > 1 else "",
        "after": with_query(known, page=str(number + 1)) if number < pages else "",
        "q": query.get("q", ""),
        "hidden": [(key, value) for key, value in known.items() if key != "q"],
        "views": _views(board, known),
    }


def _views(board: Board, query: Query) -> list[Link]:
    troubled = sum(each.is_troubled for each in board.sources.values())
    sort, problem = query.get("sort", WORST), query.get("problem")
    return [
        Link("Worst first", with_query(query, sort="", problem=""), sort == WORST and not problem),
        Link(
            "With problems",
            with_query(query, sort="", problem="1"),
            bool(problem),
            f"{troubled:,}" if troubled else "",
        ),
        Link(
            "By name", with_query(query, sort="name", problem=""), sort == BY_NAME and not problem
        ),
    ]


def _columns(query: Query) -> list[Column]:
    sort = query.get("sort", WORST)
    made = [
        _column("Subscription", "name", "", query, sort),
        _column("Oldest", "oldest", "r", query, sort),
        _column("Waiting", "waiting", "r", query, sort),
        Column("30 min", hint="messages waiting"),
        _column("In/s", "in", "r", query, sort),
        _column("Out/s", "out", "r", query, sort),
        _column("Consumers", "consumers", "r", query, sort),
        _column("Parked", "parked", "r", query, sort),
    ]
    return made


def _column(title: str, word: str, align: str, query: Query, sort: str) -> Column:
    is_down, is_up = sort == f"-{word}", sort == word
    if word == "oldest" and sort == WORST:
        is_down = True
    first = word if word == "name" else f"-{word}"
    other = {word: f"-{word}", f"-{word}": word}
    href = with_query(query, sort=other.get(sort, first))
    return Column(
        title, word, align, href, "descending" if is_down else "ascending" if is_up else ""
    )


def _source_row(source: Source, board: Board, settings: Settings) -> SourceRow:
    topic, _, rest = source.name.partition("/")
    series = board.view.history.of(f"source:{source.name}")
    if source.lacking and source.sum.consumers:
        consumers = f"{source.answering - len(source.lacking)} of {source.answering} brokers"
    else:
        consumers = f"{source.sum.consumers:,}" if source.sum.consumers else "none"
    places = source.places
    cells = tuple(_cell(place, settings) for place in places)
    silent = [place.broker for place in places if place.state == "silent"]
    return SourceRow(
        id=row_id("source", source.name),
        href=source_href(source.name),
        topic=topic,
        rest=rest,
        age=told.age(source.oldest_s),
        tone=told.age_class(source.oldest_s),
        waiting=f"{source.sum.waiting:,}" if source.answering else told.UNKNOWN,
        spark=curve(series, WAITING, board),
        arriving=told.rate(source.sum.came),
        leaving=told.rate(source.sum.left),
        consumers=consumers if source.answering else told.UNKNOWN,
        consumers_tone="bad"
        if source.lacking
        else "warn"
        if source.answering and not source.sum.consumers
        else "",
        parked=f"{source.sum.parked:,}" if source.sum.parked else NOTHING,
        cells=cells,
        words=f"{source.name}: {_matrix_words(source, silent, settings)}",
    )


def _matrix_words(source: Source, silent: list[str], settings: Settings) -> str:
    def named(brokers: Iterable[str]) -> str:
        return ", ".join(settings.labels.get(each, each) for each in brokers)

    said = [f"oldest {told.age(source.oldest_s)}"]
    if source.lacking:
        said.append(f"no consumer on {named(source.lacking)}")
    if source.missing:
        said.append(f"not there on {named(source.missing)}")
    return "; ".join([*said, f"{named(silent)} did not answer"] if silent else said)


def _cell(place: Place, settings: Settings) -> Cell:
    label = settings.labels.get(place.broker, place.broker)
    if place.state == "silent":
        return Cell("silent", f"{label}: did not answer")
    if place.state == "missing":
        return Cell("miss", f"{label}: not there")
    waiting = place.row.waiting if place.row else 0
    words = f"{label}: {waiting:,} waiting, oldest {told.age(place.oldest_s)}"
    kind = told.bucket(place.oldest_s)
    if place.alone:
        return Cell(f"{kind} none".strip(), f"{words}, no consumer")
    return Cell(kind, words)
