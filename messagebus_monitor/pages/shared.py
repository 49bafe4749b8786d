"""The common part of the pages: values of rows and cells, names and addresses of brokers and sources."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from messagebus_monitor import told
from messagebus_monitor.board import Board, Place, Source
from messagebus_monitor.eventlog import Event
from messagebus_monitor.history import Series
from messagebus_monitor.playbooks import Playbook
from messagebus_monitor.told import NOTHING, Spark
from messagebus_tools.observing.rules import Raised
from messagebus_tools.observing.snapshot import Consumer

ROWS_A_PAGE = 50
CLIENTS_SHOWN, QUEUES_SHOWN, NAMES_TOLD, NEEDS_MAX = 200, 50, 5, 8
# Indices of history.FIELDS.
OLDEST, WAITING, ARRIVING, LEAVING = range(4)
BUS = "bus:"
MS_PER_S = 1_000
DAY_S = 86_400
# What rules about no name of their own lead to.
PAGE_OF_RULE = {
    "ClientBehind": "/clients?behind=1",
    "ListsDiffer": "/topology",
    "TopologiesDiffer": "/topology",
}
Query = Mapping[str, str]
Links = tuple[tuple[str, Consumer], ...]
Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure. parts: figures with small units. note: a line below. tone: ``warn``, ``bad`` or ""."""

    key: str
    parts: tuple[tuple[str, str], ...]
    note: str
    tone: str = ""
    spark: Spark | None = None
    id: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of the matrix: classes of its colour, and its words."""

    kind: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a plain table: texts of its cells, with classes and an address for each."""

    id: str
    cells: tuple[Any, ...]
    row_class: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """One cell. tone: its classes. href: where it leads; "" for nowhere. spark: instead of a text."""

    text: str
    tone: str = ""
    href: str = ""
    chip: str = ""
    note: str = ""
    spark: Spark | None = None
    is_spark: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """One choice among several. note: a count behind it."""

    text: str
    href: str
    is_chosen: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """One head of a table. sorts: the word in an address; "" for a column that cannot be sorted by."""

    title: str
    sorts: str = ""
    align: str = ""
    href: str = ""
    direction: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """One line of what needs attention. subject: the name in its text that is shown as a link."""

    id: str
    severity: str
    before: str
    subject: str
    after: str
    href: str
    reason: str
    since: str
    first: str
    manual: str


@dataclass(frozen=True, slots=True)
class Settings:
    """Facts of the installation that pages show. manual: address that sections are appended to."""

    manual: str = ""
    rules: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)


def labels(brokers: Sequence[str]) -> dict[str, str]:
    """Return short names of brokers that are still different: without the port or domain that all share."""
    hosts = [name.rpartition(":")[0] for name in brokers]
    ports = {name.rpartition(":")[2] for name in brokers}
    if len(set(hosts)) < len(hosts) or len(ports) > 1:
        return {name: name for name in brokers}
    firsts = [host.partition(".")[0] for host in hosts]
    are_names = all(host[:1].isalpha() for host in hosts)
    return dict(
        zip(
            brokers,
            firsts if are_names and len(set(firsts)) == len(firsts) else hosts,
            strict=True,
        )
    )


def heads(names: Iterable[str]) -> list[str]:
    """Return the ends of names without what all begin with, up to a separator: for narrow columns."""
    several = list(names)
    if len(several) < 2 or max(map(len, several)) <= 5:
        return several
    low, high = min(several), max(several)
    same = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    while same and low[same - 1] not in ".-:_":
        same -= 1
    return [name[max(0, same - 1) :] for name in several]


def source_href(name: str) -> str:
    """Return the address of a subscription's or queue's page."""
    if name.startswith("queue:"):
        return "/queues/" + quote(name.removeprefix("queue:"), safe="", errors="surrogatepass")
    return "/subscriptions/" + quote(name, safe="/", errors="surrogatepass")


def broker_href(name: str) -> str:
    """Return the address of a broker's page."""
    return "/brokers/" + quote(name, safe="", errors="surrogatepass")


def with_query(query: Query, **changes: str) -> str:
    merged = {**query, **changes}
    text = urlencode({k: v for k, v in merged.items() if v}, errors="surrogatepass")
    return f"?{text}" if text else "?"


def row_id(kind: str, name: str) -> str:
    return f"{kind}.{quote(name, safe='', errors='surrogatepass')}"


def row_of(kind: str, name: str, *cells: Text, row_class: str = "") -> Row:
    """Return a row of a table about something of that kind and name."""
    return Row(id=row_id(kind, name), cells=cells, row_class=row_class)


def attention(board: Board, settings: Settings, raised: Iterable[Raised]) -> list[Need]:
    """Return what needs attention, as lines, in its order: the first NEEDS_MAX of them."""
    return [_need(each, board, settings) for each in itertools.islice(raised, NEEDS_MAX)]


def _need(each: Raised, board: Board, settings: Settings) -> Need:
    about = each.subject
    href, is_named = PAGE_OF_RULE.get(each.rule.name, ""), True
    if about in board.sources:
        href = source_href(about)
    elif board.view.bus.find(about) is not None:
        href = broker_href(about)
    else:
        is_named = False
    text = short(each.text, settings)
    said, _, reason = text.partition(" Reason: ")
    subject = settings.labels.get(about, about)
    before, found, after = said.partition(subject) if is_named else (said, "", "")
    return Need(
        id=row_id("need", f"{each.rule.name} {each.about}"),
        severity=each.rule.severity,
        before=before,
        subject=found,
        after=after,
        href=href,
        reason=f"Reason: {reason}" if reason else "",
        since=f"for {told.roughly((board.view.now_ms - each.since_ms) / MS_PER_S)}"
        if each.is_seen
        else "as last seen",
        first=each.rule.first,
        manual=manual_link(each.rule.manual, settings),
    )


def short(text: str, settings: Settings) -> str:
    """Return a sentence with the short names of brokers."""
    for name, label in settings.labels.items():
        text = text.replace(name, label)
    return text


def is_about(each: Raised, name: str) -> bool:
    """Return whether a rule that holds is about this subscription or queue, or seen on this broker."""
    return name in (each.about, each.subject, *each.on)


def manual_link(section: str, settings: Settings) -> str:
    return f"{settings.manual}{section}" if section and settings.manual else ""


def chrome(board: Board) -> Values:
    """Return what the bar at the top shows on every page."""
    bus, now_ms = board.view.bus, board.view.now_ms
    heard = [seen.last.received_at_ms for seen in bus.brokers if seen.last and not seen.fault]
    return {
        "cluster": bus.cluster or "messagebus",
        "parked_count": board.parked,
        "at_ms": max(heard, default=0),
        "fault": board.view.fault or ("no agent answers" if bus.brokers and not heard else ""),
        "list_note": f"the list is {told.roughly(bus.list_age_ms / MS_PER_S)} old: {bus.list_fault}"
        if bus.list_fault
        else "",
        "now": told.day(now_ms),
        "zone": told.zone(now_ms),
    }


def missing_note(board: Board, settings: Settings) -> str:
    """Return which brokers are left out of all sums; "" when none is."""
    silent, bus = board.view.bus.silent, board.view.bus
    if not silent:
        return ""
    names = ", ".join(settings.labels.get(name, name) for name in silent[:NAMES_TOLD])
    more = f" and {len(silent) - NAMES_TOLD} more" if len(silent) > NAMES_TOLD else ""
    return (
        f"on {len(bus.brokers) - len(silent)} of {len(bus.brokers)} brokers, without {names}{more}"
    )


def big_age(seconds: float | None) -> tuple[tuple[str, str], ...]:
    words = told.age(seconds).split()
    if len(words) < 2:
        return ((words[0], ""),)
    return tuple(zip(words[::2], words[1::2], strict=False))


def where_oldest(source: Source, settings: Settings) -> str:
    place = max(source.places, key=lambda each: each.oldest_s or 0)
    return f"{source.name} on {settings.labels.get(place.broker, place.broker)}"


def curve(
    series: Series | None, figure: int, board: Board, width: int = 84, height: int = 20
) -> Spark:
    if series is None:
        return told.spark((), width, height)
    return told.spark(series.spark(figure, board.view.now_ms / MS_PER_S), width, height)


def links_of(board: Board) -> dict[tuple[str, str], Links]:
    """Return what agents told of consumers, by client and name: the broker and the consumer of each."""
    found: dict[tuple[str, str], Links] = {}
    for broker, answer in board.view.bus.answers.items():
        for each in answer.consumers:
            key = each.client or each.peer, each.name
            found[key] = (*found.get(key, ()), (broker, each))
    return found


def link_figures(
    several: Links, board: Board, labels: Mapping[str, str] | None = None
) -> tuple[Text, Text]:
    """Return the cells of a client's brokers, and of what it has not answered of its prefetch.

    labels: short names, by which a single broker that it lacks is told.
    """
    if not several:
        return Text(told.UNKNOWN, "r muted"), Text(told.UNKNOWN, "r muted")
    owed = [each.owed for _, each in several if each.owed is not None]
    prefetch = sum(each.prefetch for _, each in several)
    on, of = len({broker for broker, _ in several}), len(board.view.bus.answers)
    words = f"{sum(owed):,} of {prefetch:,}" if prefetch else told.count(sum(owed))
    is_full = prefetch > 0 and sum(owed) >= prefetch
    lacking = {*board.view.bus.answers} - {broker for broker, _ in several}
    (one,) = lacking if len(lacking) == 1 else ("",)
    note = f"not {labels.get(one, one)}" if one and labels is not None else ""
    return (
        Text(f"{on} of {of}", "r warn" if on < of else "r", note=note),
        Text(words if owed else told.UNKNOWN, "r warn" if is_full else "r"),
    )


def place_figures(place: Place, now_ms: int) -> tuple[Text, ...]:
    row = place.row
    if row is None:
        return tuple(Text(told.UNKNOWN, "r muted") for _ in range(6))
    return (
        Text(told.count(row.ready), "r"),
        Text(told.count(row.unacked), "r"),
        Text(told.rate(place.flow.came if place.flow else None), "r"),
        Text(told.rate(place.flow.left if place.flow else None), "r"),
        Text(str(row.consumers), "r bad" if place.alone else "r"),
        Text(
            f"{place.parked:,}" if place.parked else NOTHING,
            "r warn" if place.parked else "r muted",
        ),
    )


def freshness(place: Place, board: Board) -> str:
    seen = board.view.bus.find(place.broker)
    if seen is None or seen.answer is None or place.row is None:
        return "stale"
    return "stale" if seen.answer.counted_age_ms(place.row, board.view.now_ms) > 10_000 else ""


def parked_note(source: Source, settings: Settings) -> str:
    on = [place for place in source.places if place.parked]
    if not on:
        return "nothing is parked"
    told_on = ", ".join(
        f"{place.parked:,} on {settings.labels.get(place.broker, place.broker)}"
        for place in on[:NAMES_TOLD]
    )
    return told_on + (" and more" if len(on) > NAMES_TOLD else "")


def playbook_lines(runs: Iterable[Playbook], settings: Settings, now_ms: int) -> list[Row]:
    rows = []
    for number, each in enumerate(runs):
        state = each.ended or "open"
        tone = "bad" if each.fault else "ok" if each.ended else "warn"
        last = each.steps[-1] if each.steps else ""
        since = told.roughly((now_ms - each.last_ms) / MS_PER_S) if each.last_ms else told.UNKNOWN
        words = each.fault or " ".join(
            filter(None, (last, f"({each.proof})" if each.proof else ""))
        )
        cells = (
            Text(each.name, "name"),
            Text("", chip=tone, note="unreadable" if each.fault else state),
            Text(f"{len(each.steps)}", "r"),
            Text(short(words, settings), "wrap"),
            Text(f"{since} ago", "r"),
            Text(each.who),
        )
        rows.append(Row(id=row_id("playbook", f"{number} {each.name}"), cells=cells))
    return rows


def event_lines(events: Iterable[Event], settings: Settings) -> list[Values]:
    return [
        {
            "id": f"event.{each.at_ms}.{number}",
            "at": told.clock(each.at_ms),
            "day": told.day(each.at_ms),
            "kind": each.kind,
            "about": settings.labels.get(each.about, each.about),
            "text": short(each.text, settings),
            "by": each.by,
        }
        for number, each in enumerate(events)
    ]
