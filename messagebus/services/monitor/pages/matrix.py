"""The table of subscriptions and queues with one cell for each broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from messagebus.observing.totals import at_least
from messagebus.services.monitor import figures
from messagebus.services.monitor.board import Board, Source
from messagebus.services.monitor.figures import Spark
from messagebus.services.monitor.pages.shared import (
    BLIND,
    WAITING,
    Link,
    Query,
    Settings,
    Values,
    curve,
    heads,
    with_query,
)

DENSE_FROM = 17
WORST, BY_NAME = "-worst", "name"
STEP_S = 30


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One subscription or queue in a table. spark: its waiting messages. words: what its cells show."""

    source: Source
    spark: Spark
    words: str


_SORTS: dict[str, Callable[[Source], Any]] = {
    "oldest": lambda each: each.oldest_s or 0,
    "waiting": lambda each: each.sum.waiting,
    "in": lambda each: each.sum.came or 0,
    "out": lambda each: each.sum.left or 0,
    "consumers": lambda each: each.sum.consumers,
    "parked": lambda each: each.sum.parked,
}
# Title -> the word for it in an address, and a class. The one without a word cannot be sorted by.
COLUMNS = {
    "Subscription": ("name", ""),
    "Oldest": ("oldest", "r"),
    "Waiting": ("waiting", "r"),
    "30 min": ("", ""),
    "In/s": ("in", "r"),
    "Out/s": ("out", "r"),
    "Consumers": ("consumers", "r"),
    "Parked": ("parked", "r"),
}


def _worst(source: Source) -> tuple[Any, ...]:
    tone, size = figures.age_class(source.oldest_s), len(str(source.sum.waiting))
    trouble = bool(source.missing), bool(source.lacking) or tone == "bad", tone == "warn"
    # In steps, so that rows do not change places all the time.
    return (
        *trouble,
        size,
        int((source.oldest_s or 0) // STEP_S),
        source.sum.parked > 0,
        source.name,
    )


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
    begin = (number - 1) * a_page
    shown = found[begin : begin + a_page]
    known = {key: query[key] for key in ("q", "sort", "problem") if query.get(key)}
    return {
        "lines": [(each.name, _source_row(each, board, settings)) for each in shown],
        "columns": [_column(title, *of, known) for title, of in COLUMNS.items()],
        "is_dense": len(board.brokers) >= DENSE_FROM,
        "heads": heads(map(settings.label, board.brokers)),
        "source_note": BLIND
        if board.is_blind
        else f"{len(board.sources)}, one cell for each broker, coloured by the age of its oldest",
        "range": f"{begin + 1} to {begin + len(shown)} of {len(found)}" if shown else "",
        "empty": f"Not known: {BLIND}."
        if board.is_blind
        else "No name contains that text."
        if query.get("q")
        else "There is no subscription or queue here.",
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


def _column(title: str, word: str, align: str, query: Query) -> Values:
    """Return the head of a column. direction: as ``aria-sort`` has it; "" while it is not sorted by."""
    sort = query.get("sort", WORST)
    is_down = sort == f"-{word}" or (word == "oldest" and sort == WORST)
    other = {word: f"-{word}", f"-{word}": word}
    first = word if word == "name" else f"-{word}"
    direction = "descending" if is_down else "ascending" if sort == word else ""
    href = with_query(query, sort=other.get(sort, first)) if word else ""
    return {"title": title, "align": align, "href": href, "direction": direction}


def _source_row(source: Source, board: Board, settings: Settings) -> SourceRow:
    series = board.view.history.of(f"source:{source.name}")
    words = f"{source.name}: {_matrix_words(source, settings)}"
    return SourceRow(source, curve(series, WAITING, board), words)


def _matrix_words(source: Source, settings: Settings) -> str:
    def named(brokers: Iterable[str]) -> str:
        return ", ".join(map(settings.label, brokers))

    silent = [place.broker for place in source.places if place.state == "silent"]
    said = [f"oldest {at_least(source.oldest_s, source.sum.oldest_is_least, figures.age)}"]
    if source.lacking:
        said.append(f"no consumer on {named(source.lacking)}")
    if source.missing:
        said.append(f"missing on {named(source.missing)}")
    return "; ".join([*said, f"{named(silent)} did not answer"] if silent else said)
