"""Values of the first page."""

from __future__ import annotations

from collections.abc import Sequence

from messagebus.observing.totals import at_least
from messagebus.services.monitor import figures
from messagebus.services.monitor.board import Board
from messagebus.services.monitor.eventlog import Event
from messagebus.services.monitor.figures import Spark
from messagebus.services.monitor.pages.brokers import balancers, broker_rows, brokers_note
from messagebus.services.monitor.pages.matrix import source_table
from messagebus.services.monitor.pages.shared import (
    ARRIVING,
    BLIND,
    BUS,
    LEAVING,
    NEEDS_MAX,
    OLDEST,
    ROWS_A_PAGE,
    TILE_SPARK,
    WAITING,
    Query,
    Settings,
    Tile,
    Values,
    attention,
    big_age,
    curve,
    where_oldest,
    without,
)
from messagebus.services.monitor.playbooks import Playbook
from messagebus.terminal import plural

OVERVIEW_ROWS, OVERVIEW_BROKERS, OVERVIEW_EVENTS = 20, 12, 9
WORST_BROKERS = 9


def overview(
    board: Board,
    query: Query,
    settings: Settings,
    *,
    events: Sequence[Event] = (),
    playbooks: Sequence[Playbook] = (),
) -> Values:
    """Return the values of the first page."""
    rows = broker_rows(board)
    worst = sorted(rows, key=lambda row: -row.rank)[:WORST_BROKERS]
    are_many = len(rows) > OVERVIEW_BROKERS
    raised = board.view.raised
    return {
        "title": "Overview",
        "needs": attention(board, settings, raised),
        "needs_more": max(0, len(raised) - NEEDS_MAX),
        "rules": settings.rules,
        "noticed": len(board.view.noticed),
        "is_partial": bool(board.without),
        "troubled": sum(each.is_troubled for each in board.sources.values()),
        "unwell": [row.observed.broker for row in rows if row.state == "bad"],
        "tiles": _bus_tiles(board, settings),
        "brokers": [(row.observed.broker, row) for row in (worst if are_many else rows)],
        "broker_note": brokers_note(board) + (f", the {WORST_BROKERS} worst" if are_many else ""),
        "balancers": balancers(board),
        "events": events[:OVERVIEW_EVENTS],
        "playbooks": [each for each in playbooks if not each.ended],
        **source_table(board, query, settings, ROWS_A_PAGE if query.get("q") else OVERVIEW_ROWS),
    }


def _bus_tiles(board: Board, settings: Settings) -> list[Tile]:
    is_least = bool(board.without)
    series = board.view.history.of(BUS)
    note, sources = without(board, settings), board.sources.values()
    unacked = sum(each.sum.unacked or 0 for each in sources)
    complete = sum(not each.missing for each in sources)
    bare = sum(not each.sum.consumers for each in sources)

    def line(figure: int) -> Spark:
        return curve(series, figure, board, *TILE_SPARK)

    def number(value: float | None) -> tuple[tuple[str, str], ...]:
        return ((at_least(value, is_least, figures.count), ""),)

    def rate(value: float | None) -> tuple[tuple[str, str], ...]:
        return ((at_least(value, is_least, figures.rate), "/s"),)

    parked_in = sum(bool(each.sum.parked) for each in sources)
    return [
        _oldest_tile(board, settings, note, line(OLDEST)),
        Tile("Waiting", number(board.waiting), note or f"{unacked:,} of them unacked",
             "", line(WAITING), "tile.waiting"),
        Tile("Published", rate(board.published),
             note or f"to {plural(len(board.view.bus.answers), 'broker')}", "", line(ARRIVING),
             "tile.published"),
        Tile("Handled", rate(board.handled),
             note or f"by {plural(sum(each.sum.consumers for each in sources), 'consumer')}", "",
             line(LEAVING), "tile.handled"),
        Tile("Parked", number(board.parked),
             f"in {plural(parked_in, 'queue')}" if parked_in else note or "no message is parked",
             "warn" if board.parked else "", None, "tile.parked"),
        Tile("Coverage",
             (("?", ""),) if board.is_blind else ((f"{complete} of {len(sources)}", "names"),),
             _covered(board, bare),
             "bad" if complete < len(sources) else "warn" if is_least else "",
             None, "tile.coverage"),
    ]  # fmt: skip


def _covered(board: Board, bare: int) -> str:
    """Say on which brokers names are complete: a broker that does not answer may lack any of them."""
    silent = len(board.without)
    if board.is_blind:
        return BLIND
    if silent:
        answering = len(board.view.bus.brokers) - silent
        does = "does" if silent == 1 else "do"
        return (
            f"on {plural(answering, 'broker')} of {answering + silent}; {silent} {does} not answer"
        )
    return "on every broker" + (f"; {bare} without consumers" if bare else "")


def _oldest_tile(board: Board, settings: Settings, note: str, line: Spark) -> Tile:
    worst, is_least = board.worst, board.oldest_is_least
    oldest_s = worst.oldest_s if worst else None if board.without or board.is_blind else 0.0
    where = where_oldest(worst, settings) if worst and oldest_s else ""
    none = "" if is_least else "no message waits"
    text, kind = where or note or none, figures.age_class(oldest_s)
    return Tile("Oldest message", big_age(oldest_s, is_least), text, kind, line, "tile.oldest")
