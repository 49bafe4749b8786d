"""Values of the page of a trace."""

from __future__ import annotations

from messagebus.observing.trace import Trace
from messagebus.services.monitor.board import Board
from messagebus.services.monitor.pages.shared import Query, Settings, Values

AGO_S = (
    ("", "unknown"),
    ("60", "a minute ago, or earlier"),
    ("600", "10 minutes ago, or earlier"),
    ("3600", "an hour ago, or earlier"),
    ("86400", "a day ago, or earlier"),
)
# Verdict -> the chip's colour, and its words.
VERDICTS = {
    "parked": ("bad", "parked"),
    "done": ("ok", "finished"),
    "published": ("info", "published"),
    "refused": ("bad", "not stored"),
    "delivered": ("info", "delivered"),
    "may wait": ("warn", "may wait"),
    "absent": ("ok", "not found"),
    "id": ("info", "id"),
    "?": ("unknown", "unknown"),
}


def traced(
    board: Board, trace: Trace | None, query: Query, settings: Settings, *, fault: str = ""
) -> Values:
    """Return the values of the page; trace: None before anything was asked for."""
    return {
        "title": "Trace",
        "id": query.get("id", ""),
        "topic": query.get("topic", ""),
        "ago": query.get("ago", ""),
        "agos": AGO_S,
        "answer": settings.short(trace.answer) if trace else "",
        "tone": "page" if trace and trace.answer.startswith("Parked") else "info",
        "not_traced": fault,
        "verdicts": VERDICTS,
        "sources": board.sources,
        "brokers": board.brokers,
        "lines": [(str(number), each) for number, each in enumerate(trace.lines if trace else ())],
    }
