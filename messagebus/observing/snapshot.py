"""Values of an observation: one agent's answer to `GET /observe`, and the whole bus at one time.

Pure values. A broker whose agent did not answer is still in its `Bus`, with the reason and with its last
answer; nothing of it is ever taken for 0. Agents tell ages, so that their clocks do not matter. `read_answer`
turns ages into times of the asker's wall clock. All times are whole milliseconds of that clock, and all
ages whole milliseconds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from itertools import chain
from types import NoneType, UnionType
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from messagebus.core.homes import Chain as Chain
from messagebus.core.homes import joined, read_chains

Kind = Literal["sub", "queue", "park", "delay", "tap"]
"""Kind of a row: a subscription, a queue, the parking queue of one of these, a step of the delays, a tap."""
KINDS: frozenset[str] = frozenset(get_args(Kind))

COLUMNS = (
    *("name", "kind", "ready", "unacked", "consumers", "arrived", "departed"),
    *("oldest_ms", "counted_ms", "swept_ms", "oldest_is_least"),
)
NO_LINK = "no AMQP link to the broker"
"""Reason of an agent that answers while its broker is down."""
LOSES = "loses messages by"
"""Part of the reason of a broker that is ready, where a policy loses messages of the library's queues."""
ROWS_MAX = 100_000
CLIENTS_MAX = 20_000
TEXT_MAX = 4_096
# Larger numbers are lies, and overflow where they are divided.
NUMBER_MAX = 1 << 53


@dataclass(frozen=True, slots=True)
class Row:
    """One queue on one broker.

    name: of the subscription or queue as users know it, ``orders/billing``, ``queue:jobs``; a parking queue
    has its source's. ready: waiting messages; consumers: attached here. Both as of counted_at_ms.
    unacked: delivered and not answered. arrived, departed: counters that only grow within one
    `Answer.life`; arrived - departed changes as ready + unacked does. All three as of swept_at_ms; None:
    not known (no management API, or a queue that was just made).
    oldest_at_ms: arrival of the oldest message; None when empty or not known. oldest_is_least: the message
    was there before the agent looked first, so it is older than that by an unknown time.
    """

    name: str
    kind: Kind
    ready: int
    unacked: int | None
    consumers: int
    arrived: int | None
    departed: int | None
    oldest_at_ms: int | None
    counted_at_ms: int
    swept_at_ms: int | None
    oldest_is_least: bool = False

    @property
    def waiting(self) -> int:
        """Messages that no consumer has answered: ready, and unacknowledged as far as known."""
        return self.ready + (self.unacked or 0)

    def oldest_ms(self, now_ms: int) -> int | None:
        """Return the least age of the oldest message: 0 when there is none, None when it is not known."""
        if not self.waiting:
            return 0
        return None if self.oldest_at_ms is None else max(0, now_ms - self.oldest_at_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """The disk's mirror. copies: up to date ones, 0 to 2. alone: split, or cut by order."""

    copies: int
    connected: bool
    alone: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A queue, binding or exchange that vanished. repaired: made again. noticed_at_ms: agent's clock."""

    wanted: str
    what: str
    name: str
    noticed_at_ms: int
    repaired: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of a broker, as its agent knows it; it is told within a second of a change.

    version: another number after each change. verdict: ``ready``, ``drain`` or ``down``; reason: "" when all
    is well. linked: the agent has an AMQP link; without it all figures are old. gate: it takes publishes.
    settled: the whole topology is there, on disk. informed: its agent has read a majority. alarm, draining:
    reason, "" for none. generation: of the list served, -1 without one. topology: a digest, equal where the
    maps are. entries: living names of the map; missing: some of those that are not on the broker now,
    missing_count of all. lost: vanished since the agent's start. certificate_s: until it ends. rabbitmq,
    agent: versions, "" when not known.
    """

    version: int
    verdict: Literal["ready", "drain", "down"]
    reason: str = ""
    linked: bool = False
    gate: bool = False
    settled: bool = False
    informed: bool = False
    alarm: str = ""
    draining: str = ""
    cluster: str = ""
    generation: int = -1
    topology: str = ""
    entries: int = 0
    missing: tuple[str, ...] = ()
    missing_count: int = 0
    losses: tuple[Loss, ...] = ()
    lost: int = 0
    mirror: Mirror | None = None
    certificate_s: int | None = None
    rabbitmq: str = ""
    agent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Disk and memory in bytes, with the limits at which the broker raises its alarm; its connections."""

    disk_free: int
    disk_limit: int
    memory_used: int
    memory_limit: int
    connections: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counters of the broker, which only grow within one life."""

    published: int = 0
    confirmed: int = 0
    delivered: int = 0
    acked: int = 0
    returned: int = 0
    redelivered: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A client that asks this agent for the list. applied: the generation that it works by, 0: none yet.

    age_ms: since it was heard last; a waiting one is heard all the time.
    """

    id: str
    subscription: str
    applied: int
    age_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """A consumer of a row that was asked for by name. client: its connection's name, "" when not known.

    prefetch: 0 for no bound. owed: delivered to it and not answered, None when not known. version: of
    its library, "" when not known.
    """

    name: str
    client: str
    peer: str
    prefetch: int
    owed: int | None
    active: bool
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One agent's answer about its own broker.

    life: counters of two answers compare only within one. at_ms: the agent's clock. mark: what rows have
    changed since this answer is asked by it, as `since`. received_at_ms: ours.
    counted_at_ms: of the last count of all queues; a row may be newer. swept_at_ms: of the last
    management statistics, None without any. whole: all rows are in it.
    clients: those that work by an older list, or of the names that were asked for, or all where that was
    asked for; client_count: of all that ask this agent.
    """

    broker: str
    life: str
    at_ms: int
    received_at_ms: int
    state: State
    rows: Mapping[tuple[str, Kind], Row]
    mark: str = ""
    counted_at_ms: int | None = None
    swept_at_ms: int | None = None
    room: Room | None = None
    totals: Totals | None = None
    clients: tuple[Client, ...] = ()
    client_count: int = 0
    consumers: tuple[Consumer, ...] = ()
    whole: bool = True

    def counted_age_ms(self, row: Row, now_ms: int) -> int:
        """Return the age of a row's ready and consumers."""
        return max(0, now_ms - max(row.counted_at_ms, self.counted_at_ms or 0))

    def swept_at(self, row: Row) -> int | None:
        """Return the time of a row's unacked, counters and age; a row is not sent again while unchanged."""
        if row.swept_at_ms is None or self.swept_at_ms is None:
            return row.swept_at_ms
        return max(row.swept_at_ms, self.swept_at_ms)

    @property
    def clients_behind(self) -> tuple[Client, ...]:
        """Clients that work by an older list than the agent serves."""
        return tuple(each for each in self.clients if each.applied < self.state.generation)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedBroker:
    """One broker of the list at one time. fault: why its agent did not answer; "" when it did.

    last: its last answer, also an old one; None when there was none. silent_since_ms: of the first failure
    since then. skew_ms: its agent's clock is so far ahead of ours. is_refused_for_broker: the fault is that
    its broker, which checks logins, has no link to the agent.
    """

    broker: str
    fault: str = ""
    last: Answer | None = None
    draining: bool = False
    silent_since_ms: int | None = None
    skew_ms: int | None = None
    is_refused_for_broker: bool = False

    @property
    def is_away(self) -> bool:
        """True when its agent answers and says that the broker does not."""
        return self.is_refused_for_broker or bool(self.answer and not self.answer.state.linked)

    @property
    def answer(self) -> Answer | None:
        """The answer, None while the agent is silent: only this may be counted."""
        return None if self.fault else self.last

    @property
    def is_stale(self) -> bool:
        """True when no figure of it is of now."""
        return self.answer is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One broker as one balancer has it. status: HAProxy's, ``UP``, ``DOWN``, ``DRAIN``, ``MAINT``, ....

    check, agent: HAProxy's words on the gate check and the agent-check. limit: of sessions, 0 for none.
    changed_s: since the status changed.
    """

    name: str
    status: str
    check: str = ""
    agent: str = ""
    sessions: int = 0
    limit: int = 0
    changed_s: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Balancer:
    """One HAProxy. fault: why its statistics are not known; then servers are its last ones."""

    url: str
    fault: str = ""
    servers: tuple[Server, ...] = ()
    silent_since_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """Publishes with an unknown outcome, by Prometheus: (client, number in ten minutes), the most first.

    fault: why they are not known; then `unknown` are the last ones.
    """

    url: str
    fault: str = "not asked yet"
    unknown: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bus:
    """The whole bus at one time.

    brokers: every broker of the list, in its order, answered or not. list_age_ms: since the list was
    fetched; list_fault: why it is not newer, "" when it is. outcomes: None where no Prometheus is asked.
    """

    at_ms: int
    brokers: tuple[ObservedBroker, ...]
    cluster: str = ""
    generation: int = 0
    list_age_ms: int = 0
    list_fault: str = ""
    balancers: tuple[Balancer, ...] = ()
    outcomes: Outcomes | None = None

    @property
    def answers(self) -> dict[str, Answer]:
        """The answers of brokers that are not silent, by name."""
        return {seen.broker: seen.answer for seen in self.brokers if seen.answer}

    @property
    def silent(self) -> tuple[str, ...]:
        """The brokers whose agents did not answer."""
        return tuple(seen.broker for seen in self.brokers if not seen.answer)

    @property
    def sources(self) -> tuple[str, ...]:
        """All subscriptions and queues that any agent tells or told of, sorted."""
        lasts = [seen.last.rows for seen in self.brokers if seen.last]
        kinds = ("sub", "queue")
        return tuple(sorted({name for name, kind in chain.from_iterable(lasts) if kind in kinds}))

    def find(self, broker: str) -> ObservedBroker | None:
        """Return what was seen of a broker, ``host:port``; None for one that is not on the list."""
        return next((seen for seen in self.brokers if seen.broker == broker), None)


def merged(old: Answer | None, new: Answer) -> Answer:
    """Return a new answer completed with the rows of an older one that it does not repeat."""
    if new.whole or old is None or old.life != new.life:
        return new
    return replace(new, rows={**old.rows, **new.rows}, whole=True)


# As JSON.


def answer_to_json(answer: Answer, now_ms: int) -> dict[str, Any]:
    """Return the body of an answer, with ages instead of times. now_ms: the clock of its times."""
    told = {each.name: getattr(answer, each.name) for each in fields(answer)}
    for key in ("received_at_ms", "counted_at_ms", "swept_at_ms", "rows"):
        del told[key]
    for key in ("state", "room", "totals"):
        told[key] = asdict(told[key]) if told[key] else None
    for key in ("clients", "consumers"):
        told[key] = [asdict(each) for each in told[key]]
    return {
        **told,
        "counted_ms": _age(answer.counted_at_ms, now_ms),
        "swept_ms": _age(answer.swept_at_ms, now_ms),
        "columns": COLUMNS,
        "queues": [_row_to_json(row, now_ms) for row in answer.rows.values()],
    }


def read_answer(raw: Any, *, received_at_ms: int) -> Answer:
    """Read an agent's answer. Unknown keys and columns are passed over.

    Raises ValueError for everything that is none: agents of other versions, or none at all, may answer.
    """
    if not isinstance(raw, dict):
        raise ValueError("an object wanted")
    columns, rows = raw.get("columns"), raw.get("queues")
    if not isinstance(columns, list) or not isinstance(rows, list) or len(rows) > ROWS_MAX:
        raise ValueError(f"columns, and at most {ROWS_MAX} queues wanted")
    try:
        places = [columns.index(name) for name in COLUMNS]
    except ValueError as fault:
        raise ValueError(f"columns: {fault}") from None
    read = [_row(each, places, received_at_ms) for each in rows]
    counted_ms, swept_ms = raw.get("counted_ms"), raw.get("swept_ms")
    return Answer(
        broker=_value(str, raw.get("broker"), "broker"),
        life=_value(str, raw.get("life"), "life"),
        at_ms=_value(int, raw.get("at_ms"), "at_ms"),
        received_at_ms=received_at_ms,
        state=_object(State, raw.get("state"), "state"),
        rows={(row.name, row.kind): row for row in read},
        mark=_value(str, raw.get("mark", ""), "mark"),
        counted_at_ms=_at(_value(int | None, counted_ms, "counted_ms"), received_at_ms),
        swept_at_ms=_at(_value(int | None, swept_ms, "swept_ms"), received_at_ms),
        room=_value(Room | None, raw.get("room"), "room"),
        totals=_value(Totals | None, raw.get("totals"), "totals"),
        clients=_value(tuple[Client, ...], raw.get("clients", []), "clients"),
        consumers=_value(tuple[Consumer, ...], raw.get("consumers", []), "consumers"),
        client_count=_value(int, raw.get("client_count", 0), "client_count"),
        whole=_value(bool, raw.get("whole", True), "whole"),
    )


def _row_to_json(row: Row, now_ms: int) -> list[Any]:
    ages = (_age(at, now_ms) for at in (row.oldest_at_ms, row.counted_at_ms, row.swept_at_ms))
    first = (row.name, row.kind, row.ready, row.unacked, row.consumers, row.arrived, row.departed)
    return [*first, *ages, row.oldest_is_least]


def _row(raw: Any, places: list[int], received_at_ms: int) -> Row:
    if not isinstance(raw, list) or len(raw) <= max(places):
        raise ValueError("queues: rows as long as columns wanted")
    cells = [raw[at] for at in places]
    name, kind, ready, unacked, consumers, arrived, departed, *ages, is_least = cells
    if not (type(name) is str and len(name) <= TEXT_MAX and name.isascii()):
        name = _value(str, name, "queues: a name")
    # One text for all brokers and observations: they are many.
    name = sys.intern(name)
    if kind not in KINDS:
        raise ValueError("queues: a kind wanted")
    for count in (ready, consumers):
        if type(count) is not int or not 0 <= count <= NUMBER_MAX:
            raise ValueError(f"{name}: counts wanted")
    for count in (unacked, arrived, departed, *ages):
        if count is not None and (type(count) is not int or not 0 <= count <= NUMBER_MAX):
            raise ValueError(f"{name}: counts or null wanted")
    if type(is_least) is not bool:
        raise ValueError(f"{name}: oldest_is_least: true or false wanted")
    oldest, counted, swept = [None if age is None else received_at_ms - age for age in ages]
    if counted is None:
        raise ValueError(f"{name}: counted_ms wanted")
    return Row(
        name,
        cast(Kind, kind),
        *(ready, unacked, consumers, arrived, departed, oldest, counted, swept, is_least),
    )


def _at(age_ms: int | None, now_ms: int) -> int | None:
    return None if age_ms is None else now_ms - age_ms


def _age(at_ms: int | None, now_ms: int) -> int | None:
    return None if at_ms is None else max(0, now_ms - at_ms)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _object(kind: Any, raw: Any, where: str) -> Any:
    """Read a dataclass; a key that is not there has its default. Raises ValueError."""
    if not isinstance(raw, dict):
        raise ValueError(f"{where}: an object wanted")
    known = {
        key: _value(hint, raw[key], f"{where}.{key}")
        for key, hint in _hints(kind).items()
        if key in raw
    }
    try:
        return kind(**known)
    except TypeError as fault:
        raise ValueError(f"{where}: {fault}") from None


def _value(hint: Any, raw: Any, where: str) -> Any:
    """Read a value of a field's type. Raises ValueError."""
    match get_origin(hint), get_args(hint):
        case origin, (each, *_) if origin is tuple:
            return _several(each, raw, where)
        case origin, choices if origin is Literal:
            if raw in choices:
                return raw
        case origin, (inner, other) if origin is UnionType and other is NoneType:
            return None if raw is None else _value(inner, raw, where)
        case _ if hint in (int, bool, str):
            if type(raw) is hint and not (hint is int and abs(raw) > NUMBER_MAX):
                if hint is not str:
                    return raw
                if len(raw) <= TEXT_MAX:
                    # Half a surrogate pair has no place in UTF-8.
                    return raw.encode("utf-8", "replace").decode()
        case _:
            return _object(hint, raw, where)
    raise ValueError(f"{where}: not a {getattr(hint, '__name__', hint)}")


def _several(hint: Any, raw: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(raw, list) or len(raw) > CLIENTS_MAX:
        raise ValueError(f"{where}: at most {CLIENTS_MAX} wanted")
    return tuple(_value(hint, one, where) for one in raw)


def rows_of(bus: Bus, name: str, kinds: Iterable[Kind] = ("sub", "queue")) -> dict[str, Row]:
    """Return the rows of one name by broker, of answers alone: a silent broker has none."""
    found, keys = dict[str, Row](), [(name, kind) for kind in kinds]
    for seen in bus.brokers:
        if answer := seen.answer:
            for key in keys:
                if (row := answer.rows.get(key)) is not None:
                    found[seen.broker] = row
    return found


def chains_in(entries: Iterable[Mapping[str, Any]]) -> dict[str, tuple[Chain, ...]]:
    """Return the segments of every partitioned topic, of entries in the maps of several agents."""
    counts, homes = dict[str, int](), dict[str, str]()
    for entry in entries:
        if entry["alive"] and "/" not in entry["wanted"] and entry.get("homes"):
            topic, told = str(entry["wanted"]), str(entry["homes"])
            counts[topic] = int(entry["partitions"])
            homes[topic] = joined(homes.get(topic, told), told, counts[topic])
    return {topic: read_chains(told, counts[topic]) for topic, told in homes.items()}
