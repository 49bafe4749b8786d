"""Values of the pages about brokers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from messagebus.clock import MS_PER_S
from messagebus.observing.rates import Rates
from messagebus.observing.snapshot import LOSES, NO_LINK, Answer, Mirror, ObservedBroker, Room
from messagebus.observing.totals import UNKNOWN
from messagebus.services.monitor import figures
from messagebus.services.monitor.board import Board, BrokerSum, Place, State
from messagebus.services.monitor.eventlog import Event
from messagebus.services.monitor.figures import Spark
from messagebus.services.monitor.pages.shared import (
    ARRIVING,
    BLIND,
    LEAVING,
    NAMES_SHOWN,
    OLDEST,
    QUEUES_SHOWN,
    TILE_SPARK,
    WAITING,
    Query,
    Settings,
    Tile,
    Values,
    attention,
    big_age,
    curve,
    is_about,
    list_words,
)
from messagebus.terminal import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRow:
    """One broker in a table. state, words: as of `state_of`. rates: None where they are not known."""

    observed: ObservedBroker
    sums: BrokerSum
    state: State
    words: str
    rates: Rates | None
    board: Board

    @property
    def is_stale(self) -> bool:
        return self.observed.answer is None or self.observed.is_away

    @property
    def spark(self) -> Spark:
        """Its curve of published messages, made for the rows that are shown."""
        return curve(
            self.board.view.history.of(f"broker:{self.observed.broker}"), ARRIVING, self.board
        )

    @property
    def room(self) -> Room | None:
        return self.observed.last.room if self.observed.last else None

    @property
    def connections(self) -> int | None:
        """Its connections; where they are not known, the clients that ask its agent."""
        answer = self.observed.answer
        if answer is None or self.observed.is_away:
            return None
        known = answer.room.connections if answer.room else None
        return answer.client_count if known is None else known

    @property
    def disk_used(self) -> float | None:
        """The share of the way to the disk's alarm, 0 to 1; None when not known."""
        room = self.room
        return min(1.0, room.disk_limit / room.disk_free) if room and room.disk_free else None

    @property
    def mirror(self) -> Mirror | None:
        return self.observed.answer.state.mirror if self.observed.answer else None

    @property
    def version(self) -> str:
        return self.observed.last.state.rabbitmq if self.observed.last else ""

    @property
    def rank(self) -> float:
        """Larger for a broker that is worse."""
        state = ("ok", "unknown", "warn", "bad").index(self.state)
        return state * 1e9 + (self.sums.oldest_s or 0)


def brokers_note(board: Board) -> str:
    """Return what stands above the brokers."""
    return BLIND if board.is_blind else f"{len(board.brokers)} on {list_words(board)}"


def brokers(board: Board, query: Query, settings: Settings) -> Values:
    """Return the values of the brokers' page."""
    rows = broker_rows(board)
    return {
        "title": "Brokers",
        "brokers": [(row.observed.broker, row) for row in rows],
        "broker_note": brokers_note(board),
        "balancers": balancers(board),
        "faults": [seen for seen in board.view.bus.brokers if seen.fault and not seen.is_away],
    }


def broker_rows(board: Board) -> list[BrokerRow]:
    return [broker_row(seen, board) for seen in board.view.bus.brokers]


def broker_row(observed: ObservedBroker, board: Board) -> BrokerRow:
    sums, view = board.brokers[observed.broker], board.view
    state, words = state_of(observed, sums.waiting, view.now_ms)
    rates = view.through.get(observed.broker) if observed.answer else None
    return BrokerRow(
        observed=observed, sums=sums, state=state, words=words, rates=rates, board=board
    )


def state_of(observed: ObservedBroker, waiting: int | None, now_ms: int) -> tuple[State, str]:
    """Return the state of a broker, with words."""
    if observed.is_away:
        return "bad", "broker does not answer"
    if observed.answer is None:
        since_ms = observed.silent_since_ms
        if since_ms is None:
            return "unknown", "agent silent"
        return "unknown", f"agent silent for {figures.roughly((now_ms - since_ms) / MS_PER_S)}"
    state = observed.answer.state
    if state.alarm:
        return "bad", state.alarm
    if state.draining or observed.draining:
        return "warn", f"draining, {waiting:,} left" if waiting else "drained"
    if not state.gate:
        return "bad", "gate shut"
    if state.verdict != "ready":
        return ("warn" if state.verdict == "drain" else "bad"), state.reason or state.verdict
    if LOSES in state.reason:
        return "warn", state.reason
    if not state.settled:
        return "warn", "settling"
    return "ok", "ready"


def balancers(board: Board) -> list[Values]:
    """Return one entry for each HAProxy, with what it says in words."""
    found = []
    for each in board.view.bus.balancers:
        up = sum(server.status.startswith("UP") for server in each.servers)
        sessions = sum(server.sessions for server in each.servers)
        state = "ok" if up == len(each.servers) else "warn"
        words = f"{up} of {plural(len(each.servers), 'broker')} up"
        found.append(
            {
                "name": each.url.partition("//")[2].rstrip("/"),
                "state": "unknown" if each.fault else state,
                "words": "silent" if each.fault else words,
                "more": each.fault or plural(sessions, "session"),
            }
        )
    return found


def broker(
    board: Board, name: str, query: Query, settings: Settings, *, events: Sequence[Event] = ()
) -> Values | None:
    """Return the values of one broker's page; None for a broker that is not on the list."""
    seen = board.view.bus.find(name)
    if seen is None:
        return None
    row, last = broker_row(seen, board), seen.last
    queues = [(source.name, source.at(seen)) for source in board.sources.values()]
    queues = [each for each in queues if each[1].row]
    queues.sort(key=lambda each: (-(each[1].oldest_s or 0), -_waiting(each[1]), each[0]))
    return {
        "title": settings.label(name),
        "name": name,
        "state": row.state,
        "words": row.words,
        "needs": attention(board, settings, (e for e in board.view.raised if is_about(e, name))),
        "fault": seen.fault,
        "tiles": _tiles(row),
        "facts": _broker_facts(seen, board.view.now_ms),
        "queues": queues[:QUEUES_SHOWN],
        "queue_note": f"{len(queues)}, the oldest message first",
        "losses": last.state.losses if last else (),
        "events": events,
    }


def _waiting(place: Place) -> int:
    return place.row.waiting if place.row else 0


def _tiles(row: BrokerRow) -> list[Tile]:
    sums, rates, answer, board = row.sums, row.rates, row.observed.answer, row.board
    series = board.view.history.of(f"broker:{row.observed.broker}")

    def line(figure: int) -> Spark:
        return curve(series, figure, board, *TILE_SPARK)

    count = answer.client_count if answer else 0
    clients = (
        f"{plural(count, 'client')} {'asks' if count == 1 else 'ask'} its agent" if answer else ""
    )
    return [
        Tile("Oldest message", big_age(sums.oldest_s, sums.oldest_is_least), sums.oldest_of,
             figures.age_class(sums.oldest_s), line(OLDEST), "tile.oldest"),
        Tile("Waiting", ((figures.count(sums.waiting), ""),), "ready or unacked", "",
             line(WAITING), "tile.waiting"),
        Tile("Published", ((figures.rate(rates.came if rates else None), "/s"),), "", "",
             line(ARRIVING), "tile.published"),
        Tile("Handled", ((figures.rate(rates.left if rates else None), "/s"),), "", "",
             line(LEAVING), "tile.handled"),
        Tile("Parked", ((figures.count(sums.parked), ""),), "", "warn" if sums.parked else "", None,
             "tile.parked"),
        Tile("Connections", ((figures.count(row.connections), ""),), clients, "", None, "tile.connections"),
    ]  # fmt: skip


def _broker_facts(observed: ObservedBroker, now_ms: int) -> list[tuple[str, str]]:
    facts = [("Address", observed.broker)]
    last = observed.last
    if last is None:
        return [*facts, ("Answer", f"none yet: {observed.fault}")]
    state, room = last.state, last.room
    if observed.answer is None:
        heard = figures.roughly((now_ms - last.received_at_ms) / MS_PER_S)
        facts += [
            ("Verdict", f"down: {NO_LINK}" if observed.is_away else UNKNOWN),
            ("Gate", "shut" if observed.is_away else UNKNOWN),
            ("Last answer", f"{heard} ago; the facts below are from then"),
        ]
    else:
        facts += [
            ("Verdict", f"{state.verdict}{f': {state.reason}' if state.reason else ''}"),
            ("Gate", "open" if state.gate else "shut"),
        ]
    facts += [
        ("Topology", _topology_words(last)),
        ("List", f"generation {state.generation}"),
    ]
    if room is not None:
        facts += [
            (
                "Disk",
                f"{figures.size(room.disk_free)} free, alarm at {figures.size(room.disk_limit)}",
            ),
            ("Memory", f"{figures.size(room.memory_used)} of {figures.size(room.memory_limit)}"),
        ]
    if state.mirror is None:
        facts.append(("Mirror", "none: its messages are on one disk only"))
    else:
        link = "connected" if state.mirror.connected else "not connected"
        disks = "up to date on two disks" if state.mirror.copies > 1 else "messages on one disk"
        facts.append(("Mirror", f"{disks}, {link}"))
    if state.certificate_s is not None:
        facts.append(("Certificate", f"ends in {figures.roughly(state.certificate_s)}"))
    if observed.skew_ms is not None:
        # 0.0 added: a difference that is rounded to nothing has no sign.
        skew_s = round(observed.skew_ms / MS_PER_S, 1) + 0.0
        facts.append(("Clock", f"{skew_s:+.1f} s against this host's"))
    facts += [("Versions", f"RabbitMQ {state.rabbitmq or '?'}, agent {state.agent or '?'}")]
    return facts


def _topology_words(answer: Answer) -> str:
    state = answer.state
    if state.missing_count:
        names = ", ".join(state.missing[:NAMES_SHOWN])
        return f"{state.missing_count} of {state.entries} entries missing: {names}"
    return f"all {state.entries} entries are present" + (
        "" if state.settled else ", not yet settled"
    )
