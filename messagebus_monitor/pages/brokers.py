"""Values of the pages about brokers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from messagebus.terminal import plural
from messagebus_monitor import told
from messagebus_monitor.board import Board, Place, State, View
from messagebus_monitor.eventlog import Event
from messagebus_monitor.pages.shared import (
    ARRIVING,
    LEAVING,
    MS_PER_S,
    NAMES_TOLD,
    OLDEST,
    QUEUES_SHOWN,
    WAITING,
    Query,
    Row,
    Settings,
    Text,
    Tile,
    Values,
    attention,
    big_age,
    broker_href,
    curve,
    event_lines,
    freshness,
    is_about,
    place_figures,
    row_id,
    row_of,
    source_href,
)
from messagebus_monitor.told import Spark
from messagebus_tools.observing.snapshot import Answer, Seen


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRow:
    """One broker in a table. disk_used: share of the way to the alarm, 0 to 1, None when not known.

    draw: makes its curve; of many brokers a few are shown.
    """

    id: str
    href: str
    name: str
    state: State
    words: str
    published: str
    draw: Callable[[], Spark]
    waiting: str
    age: str
    tone: str
    links: str
    disk: str
    disk_used: float | None
    disk_tone: str
    mirror: str
    mirror_tone: str
    version: str
    rank: float
    row_class: str = ""

    @property
    def spark(self) -> Spark:
        """Its curve of published messages."""
        return self.draw()


def _came(view: View, broker: str) -> float | None:
    rates = view.through.get(broker)
    return rates.came if rates else None


def _left(view: View, broker: str) -> float | None:
    rates = view.through.get(broker)
    return rates.left if rates else None


def brokers(board: Board, query: Query, settings: Settings) -> Values:
    """Return the values of the brokers' page."""
    rows, faults = broker_rows(board, settings)
    return {
        "title": "Brokers",
        "brokers": rows,
        "broker_note": f"{len(rows)} on list generation {board.view.bus.generation}",
        "balancers": balancers(board),
        "faults": faults,
    }


def broker_rows(board: Board, settings: Settings) -> tuple[list[BrokerRow], list[str]]:
    rows = [_broker_row(seen, board, settings) for seen in board.view.bus.brokers]
    faults = [
        f"{settings.labels.get(seen.broker, seen.broker)}: {seen.fault}"
        for seen in board.view.bus.brokers
        if seen.fault
    ]
    return rows, faults


def state_of(seen: Seen, waiting: int | None, now_ms: int) -> tuple[State, str]:
    """Return the state of a broker, with words."""
    if seen.answer is None:
        since_ms = seen.silent_since_ms
        if since_ms is None:
            return "unknown", "agent silent"
        return "unknown", f"agent silent for {told.roughly((now_ms - since_ms) / MS_PER_S)}"
    state = seen.answer.state
    if not state.linked:
        return "bad", "broker does not answer"
    if state.alarm:
        return "bad", f"alarm: {state.alarm}"
    if state.draining or seen.draining:
        return "warn", f"draining, {waiting:,} left" if waiting else "drained"
    if not state.gate:
        return "bad", "gate shut"
    if state.verdict != "ready":
        return ("warn" if state.verdict == "drain" else "bad"), state.reason or state.verdict
    if not state.settled:
        return "warn", "settling"
    return "ok", "serving"


def _broker_row(seen: Seen, board: Board, settings: Settings) -> BrokerRow:
    sums, view = board.brokers[seen.broker], board.view
    answer, last = seen.answer, seen.last
    state, words = state_of(seen, sums.waiting, view.now_ms)
    room = last.room if last else None
    mirror = answer.state.mirror if answer else None
    used = room.disk_limit / room.disk_free if room and room.disk_free else None
    tone = "" if sums.oldest_s is None else told.age_class(sums.oldest_s)
    series = view.history.of(f"broker:{seen.broker}")
    clients = answer.client_count if answer else None
    links = room.connections if answer and room else None
    bad_mirror = mirror is not None and (mirror.copies < 2 or mirror.alone)
    return BrokerRow(
        id=row_id("broker", seen.broker),
        href=broker_href(seen.broker),
        name=settings.labels.get(seen.broker, seen.broker),
        state=state,
        words=words,
        published=told.rate(_came(view, seen.broker)) if answer else told.UNKNOWN,
        draw=partial(curve, series, ARRIVING, board),
        waiting=told.count(sums.waiting),
        age=told.age(sums.oldest_s),
        tone=tone,
        links=told.count(links if links is not None else clients),
        disk=told.size(room.disk_free) if room else told.UNKNOWN,
        disk_used=None if used is None else min(1.0, used),
        disk_tone="warn" if used is not None and used > 1 / 3 else "",
        mirror=(
            told.UNKNOWN
            if answer is None
            else "none"
            if mirror is None
            else "two disks"
            if mirror.copies > 1
            else "one disk"
        ),
        mirror_tone="bad" if bad_mirror else "",
        version=(last.state.rabbitmq if last else "") or told.UNKNOWN,
        rank=("ok", "unknown", "warn", "bad").index(state) * 1e9 + (sums.oldest_s or 0),
        row_class="stale" if answer is None else "",
    )


def balancers(board: Board) -> list[Values]:
    """Return one entry for each HAProxy, with what it says in words."""
    made = []
    for each in board.view.bus.balancers:
        up = sum(server.status.startswith("UP") for server in each.servers)
        sessions = sum(server.sessions for server in each.servers)
        all_up = up == len(each.servers)
        words = f"{up} of {plural(len(each.servers), 'broker')} up"
        made.append(
            {
                "name": each.url.partition("//")[2].rstrip("/"),
                "state": "unknown" if each.fault else "ok" if all_up else "warn",
                "words": "silent" if each.fault else words,
                "more": each.fault or plural(sessions, "session"),
            }
        )
    return made


def broker(
    board: Board, name: str, query: Query, settings: Settings, *, events: Sequence[Event] = ()
) -> Values | None:
    """Return the values of one broker's page; None for a broker that is not on the list."""
    seen = board.view.bus.find(name)
    if seen is None:
        return None
    sums, view = board.brokers[name], board.view
    answer = seen.answer
    state, words = state_of(seen, sums.waiting, view.now_ms)
    row, last = _broker_row(seen, board, settings), seen.last
    series = view.history.of(f"broker:{name}")
    tiles = [
        Tile("Oldest message", big_age(sums.oldest_s), sums.oldest_of, row.tone,
             curve(series, OLDEST, board, 200, 26), "tile.oldest"),
        Tile("Waiting", ((row.waiting, ""),), "ready or unacked", "",
             curve(series, WAITING, board, 200, 26), "tile.waiting"),
        Tile("Published", ((row.published, "/s"),), "", "",
             curve(series, ARRIVING, board, 200, 26), "tile.published"),
        Tile("Handled", ((told.rate(_left(view, name)) if answer else told.UNKNOWN, "/s"),),
             "", "", curve(series, LEAVING, board, 200, 26), "tile.handled"),
        Tile("Parked", ((told.count(sums.parked), ""),), "", "warn" if sums.parked else "", None,
             "tile.parked"),
        Tile("Links", ((row.links, ""),), _clients_note(answer), "", None, "tile.links"),
    ]  # fmt: skip
    queues = _queues_of(board, seen)
    return {
        "title": row.name,
        "name": name,
        "state": state,
        "words": words,
        "needs": attention(board, settings, (e for e in view.raised if is_about(e, name))),
        "fault": seen.fault,
        "tiles": tiles,
        "facts": _broker_facts(seen),
        "queues": queues[:QUEUES_SHOWN],
        "queue_note": f"{len(queues)}, the oldest message first",
        "losses": [
            {
                "at": told.day(loss.noticed_at_ms),
                "text": f"{loss.what} {loss.name} ({loss.wanted})",
                "state": "made again" if loss.repaired else "not made again yet",
            }
            for loss in (last.state.losses if last else ())
        ],
        "events": event_lines(events, settings),
    }


def _clients_note(answer: Answer | None) -> str:
    return "" if answer is None else f"{plural(answer.client_count, 'client')} ask its agent"


def _broker_facts(seen: Seen) -> list[tuple[str, str]]:
    facts = [("Address", seen.broker)]
    last = seen.last
    if last is None:
        return [*facts, ("Answer", f"none yet: {seen.fault}")]
    state, room = last.state, last.room
    facts += [
        ("Verdict", f"{state.verdict}{f': {state.reason}' if state.reason else ''}"),
        ("Gate", "open" if state.gate else "shut"),
        ("Topology", _topology_words(last)),
        ("List", f"generation {state.generation}"),
    ]
    if room is not None:
        facts += [
            ("Disk", f"{told.size(room.disk_free)} free, alarm at {told.size(room.disk_limit)}"),
            ("Memory", f"{told.size(room.memory_used)} of {told.size(room.memory_limit)}"),
        ]
    if state.mirror is None:
        facts.append(("Mirror", "none: its messages are on this disk alone"))
    else:
        link = "connected" if state.mirror.connected else "not connected"
        disks = "up to date on two disks" if state.mirror.copies > 1 else "messages on one disk"
        facts.append(("Mirror", f"{disks}, {link}"))
    if state.certificate_s is not None:
        facts.append(("Certificate", f"ends in {told.roughly(state.certificate_s)}"))
    if seen.skew_ms is not None:
        facts.append(("Clock", f"{seen.skew_ms / MS_PER_S:+.1f} s beside this host's"))
    facts += [("Versions", f"RabbitMQ {state.rabbitmq or '?'}, agent {state.agent or '?'}")]
    return facts


def _topology_words(answer: Answer) -> str:
    state = answer.state
    if state.missing_count:
        names = ", ".join(state.missing[:NAMES_TOLD])
        return f"{state.missing_count} of {state.entries} entries missing: {names}"
    return f"all {state.entries} entries are there" + ("" if state.settled else ", not yet settled")


def _queues_of(board: Board, seen: Seen) -> list[Row]:
    found = [
        (source, place)
        for source in board.sources.values()
        for place in (source.at(seen),)
        if place.row is not None
    ]
    found.sort(key=lambda each: (-(each[1].oldest_s or 0), -_waiting(each[1]), each[0].name))
    return [
        row_of(
            "queue",
            source.name,
            Text(source.name, "name", source_href(source.name)),
            Text(told.age(place.oldest_s), f"r {told.age_class(place.oldest_s)}"),
            *place_figures(place, board.view.now_ms),
            row_class=freshness(place, board),
        )
        for source, place in found
    ]


def _waiting(place: Place) -> int:
    return place.row.waiting if place.row else 0
