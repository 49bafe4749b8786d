"""Values of the page of a trace."""

from __future__ import annotations

from messagebus_monitor import told
from messagebus_monitor.board import Board
from messagebus_monitor.pages.shared import (
    Query,
    Row,
    Settings,
    Text,
    Values,
    broker_href,
    row_of,
    short,
    source_href,
)
from messagebus_tools.observing.trace import Line, Trace

AGO_S = (
    ("", "not known"),
    ("60", "a minute ago, or earlier"),
    ("600", "10 minutes ago, or earlier"),
    ("3600", "an hour ago, or earlier"),
    ("86400", "a day ago, or earlier"),
)
# Verdict -> the chip's colour, and its words.
VERDICTS = {
    "parked": ("bad", "parked"),
    "done": ("ok", "done with"),
    "published": ("info", "published"),
    "refused": ("bad", "not stored"),
    "delivered": ("info", "delivered"),
    "may wait": ("warn", "may wait"),
    "absent": ("ok", "not there"),
    "id": ("info", "id"),
    "?": ("unknown", "not known"),
}


def traced(
    board: Board, found: Trace | None, query: Query, settings: Settings, *, fault: str = ""
) -> Values:
    """Return the values of the page; found: None before anything was asked for."""
    return {
        "title": "Trace",
        "id": query.get("id", ""),
        "topic": query.get("topic", ""),
        "ago": query.get("ago", ""),
        "agos": AGO_S,
        "answer": short(found.answer, settings) if found else "",
        "tone": "page" if found and found.answer.startswith("Parked") else "info",
        "fault": fault,
        "lines": [_row(number, each, board, settings) for number, each in enumerate(found.lines)]
        if found
        else [],
    }


def _row(number: int, line: Line, board: Board, settings: Settings) -> Row:
    tone, words = VERDICTS.get(line.verdict, ("info", line.verdict))
    broker = settings.labels.get(line.broker, line.broker)
    return row_of(
        "evidence",
        str(number),
        Text("", chip=tone, note=words),
        Text(line.about, "name", source_href(line.about) if line.about in board.sources else ""),
        Text(broker, "", broker_href(line.broker) if line.broker in board.brokers else ""),
        Text(short(line.text, settings), "wrap"),
        Text(told.day(line.at_ms) if line.at_ms else ""),
        Text(line.known, "wrap muted"),
    )
