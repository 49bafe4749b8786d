"""The snapshot of the pages as JSON, and figures of the monitor itself for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from messagebus import MessageBusError
from messagebus.clock import MS_PER_S
from messagebus.observing.totals import known
from messagebus.observing.trace import rows_of
from messagebus.services.monitor.board import OLD_MS, Board, Source
from messagebus.services.monitor.people import Principal

if TYPE_CHECKING:
    from messagebus.services.monitor.web import Monitor

EVENTS_MAX = 1_000


def source_row(source: Source) -> dict[str, Any]:
    """Return one subscription or queue over all brokers; None is what is not known.

    While brokers are missing, which ``brokers_missing`` counts, all other figures are lower bounds.
    """
    is_least = source.sum.is_least
    return {
        "name": source.name,
        "oldest_s": known(source.oldest_s, source.sum.oldest_is_least),
        "waiting": known(source.sum.waiting, is_least) if source.answering else None,
        "owed": known(source.sum.unacked, is_least),
        "in_per_s": known(source.sum.came, is_least),
        "out_per_s": known(source.sum.left, is_least),
        "consumers": known(source.sum.consumers, is_least),
        "parked": known(source.sum.parked, is_least),
        "brokers_answering": source.answering,
        "brokers_missing": len(source.sum.without),
    }


def _sources(board: Board) -> list[dict[str, Any]]:
    return [
        {**source_row(each), "brokers": [asdict(place) for place in each.places]}
        for each in board.sources.values()
    ]


def _brokers(board: Board) -> list[dict[str, Any]]:
    return [
        {
            "broker": seen.broker,
            "fault": seen.fault,
            "draining": seen.draining,
            **asdict(board.brokers[seen.broker]),
            "state": asdict(seen.answer.state) if seen.answer else None,
            "room": asdict(seen.answer.room) if seen.answer and seen.answer.room else None,
        }
        for seen in board.view.bus.brokers
    ]


def _overview(board: Board) -> dict[str, Any]:
    bus = board.view.bus
    return {
        "cluster": bus.cluster,
        "generation": None if board.is_blind else bus.generation,
        "at_ms": bus.at_ms,
        "fault": board.view.fault,
        "silent": bus.silent,
        "without": board.without,
        "waiting": board.waiting,
        "parked": board.parked,
        "published_per_s": board.published,
        "handled_per_s": board.handled,
        "attention": _rules(board),
    }


def _rules(board: Board) -> list[dict[str, Any]]:
    return [
        {"rule": e.rule.name, "severity": e.rule.severity, "about": e.about, "text": e.text,
         "since_ms": e.since_ms}
        for e in board.view.raised
    ]  # fmt: skip


def _clients(board: Board) -> list[dict[str, Any]]:
    answers = board.view.bus.answers.items()
    return [{"agent": name, **asdict(each)} for name, a in answers for each in a.clients]


OF: dict[str, Callable[[Board], Any]] = {
    "overview": _overview,
    "brokers": _brokers,
    "subscriptions": _sources,
    "clients": _clients,
    "rules": _rules,
}


async def answer_part(monitor: Monitor, request: Request, who: Principal) -> Response:
    """Answer with one part of the snapshot, or the last events."""
    what = request.path_params["what"]
    monitor.watch.looking(all_clients=what == "clients")
    if what == "events":
        events = monitor.watch.events.recent(EVENTS_MAX, kind=request.query_params.get("kind", ""))
        return JSONResponse([asdict(each) for each in events])
    if what not in OF:
        return JSONResponse({"error": f"one of {', '.join([*OF, 'events', 'trace/ID'])}"}, 404)
    return JSONResponse(OF[what](monitor.watch.board))


async def depth(monitor: Monitor, request: Request, who: Principal) -> Response:
    """Answer with the messages of one subscription or queue over all brokers, for autoscalers.

    503 while that is not known, so that an autoscaler does not take a part for the whole.
    """
    name, board = request.query_params.get("source", ""), monitor.watch.board
    monitor.watch.looking()
    bus, source = board.view.bus, board.sources.get(name)
    if board.view.fault or time.time() * MS_PER_S - bus.at_ms > OLD_MS:
        told = board.view.fault or "nothing was observed lately"
        return JSONResponse({"error": told}, 503)
    if without := dict(board.without):
        return JSONResponse({"error": "some brokers do not answer", "without": without}, 503)
    if source is None:
        return JSONResponse({"error": f"no subscription or queue {name!r}"}, 404)
    found = source_row(source)
    keys = ("waiting", "owed", "consumers", "oldest_s", "in_per_s", "out_per_s", "parked")
    return JSONResponse({"source": name, **{key: found[key] for key in keys}, "at_ms": bus.at_ms})


async def trace(monitor: Monitor, request: Request, who: Principal) -> Response:
    """Answer with what is known of one message."""
    id, topic = request.path_params["id"], request.query_params.get("topic", "")
    try:
        found = await monitor.tracing.find(id, monitor.watch.board.view.bus, who, topic=topic)
    except (MessageBusError, ValueError) as fault:
        return JSONResponse({"error": str(fault)}, 422)
    return JSONResponse({"answer": found.answer, "lines": list(rows_of(found))})


PREFIX = "messagebus_monitor_"
# Name -> help. docs/reference/metrics.md has the same texts, and what is alarming.
FIGURES = {
    "observations_total": "Observations of the bus since the start.",
    "observation_age_seconds": "Time since the last observation.",
    "list_age_seconds": "Time since the last valid consumer list.",
    "brokers": "Brokers of the consumer list.",
    "brokers_silent": "Brokers whose agents do not answer.",
    "rules_raised": "Alerts that are firing.",
    "streams": "Open pages that receive updates.",
    "events_durable": "1 while the journal of events is stored on disk.",
}


async def metrics(monitor: Monitor, request: Request, who: Principal) -> Response:
    """Answer with figures of the monitor itself; those of the bus are its agents'."""
    board = monitor.watch.board
    bus = board.view.bus
    figures = {
        "observations_total": monitor.watch.number,
        "observation_age_seconds": max(0.0, time.time() - bus.at_ms / MS_PER_S),
        "list_age_seconds": bus.list_age_ms / MS_PER_S,
        "brokers": len(bus.brokers),
        "brokers_silent": len(bus.silent),
        "rules_raised": len(board.view.raised),
        "streams": monitor.streams,
        "events_durable": int(monitor.watch.events.is_durable),
    }
    return PlainTextResponse(text_of(figures), media_type="text/plain; version=0.0.4")


def text_of(figures: Mapping[str, float]) -> str:
    """Return all of FIGURES in Prometheus' text format, with these values."""
    lines = (
        f"# HELP {PREFIX}{name} {text}\n"
        f"# TYPE {PREFIX}{name} {'counter' if name.endswith('_total') else 'gauge'}\n"
        f"{PREFIX}{name} {figures[name]}\n"
        for name, text in FIGURES.items()
    )
    return "".join(lines)
