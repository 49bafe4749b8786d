"""The common part of the pages: tiles, what needs attention, names and addresses of brokers and sources."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from messagebus.clock import MS_PER_S
from messagebus.observing.rules import Raised
from messagebus.observing.snapshot import Consumer
from messagebus.observing.totals import at_least
from messagebus.services.monitor import figures
from messagebus.services.monitor.board import Board, Source
from messagebus.services.monitor.figures import Spark
from messagebus.services.monitor.history import Series
from messagebus.terminal import plural

ROWS_A_PAGE = 50
CLIENTS_SHOWN, QUEUES_SHOWN, NAMES_SHOWN, NEEDS_MAX = 200, 50, 5, 8
# Indices of history.FIELDS.
OLDEST, WAITING, ARRIVING, LEAVING = range(4)
TILE_SPARK = 200, 26
BUS = "bus:"
BLIND = "no broker is known"
# What rules about no name of their own lead to.
PAGE_OF_RULE = {
    "ClientBehind": "/clients?behind=1",
    "ListsDiffer": "/topology",
    "TopologiesDiffer": "/topology",
}
Query = Mapping[str, str]
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
class Link:
    """One choice among several. note: a count behind it."""

    text: str
    href: str
    is_chosen: bool = False
    note: str = ""


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
    """Facts of the installation that pages show.

    manual: address that sections are appended to. rules: number of those that are watched. labels: short
    names of brokers.
    """

    manual: str = ""
    rules: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)

    def label(self, broker: str) -> str:
        """Return the short name of a broker; any other text as it is."""
        return self.labels.get(broker, broker)

    def short(self, text: str) -> str:
        """Return a sentence with the short names of brokers."""
        for name, label in self.labels.items():
            text = text.replace(name, label)
        return text


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


def attention(board: Board, settings: Settings, raised: Iterable[Raised]) -> list[Need]:
    """Return what needs attention, as lines, in its order: the first NEEDS_MAX of them."""
    return [_need(each, board, settings) for each in itertools.islice(raised, NEEDS_MAX)]


def _need(raised: Raised, board: Board, settings: Settings) -> Need:
    about = raised.subject
    href, is_named = PAGE_OF_RULE.get(raised.rule.name, ""), True
    if about in board.sources:
        href = source_href(about)
    elif board.view.bus.find(about) is not None:
        href = broker_href(about)
    else:
        is_named = False
    said, _, reason = settings.short(raised.text).partition(" Reason: ")
    before, found, after = said.partition(settings.label(about)) if is_named else (said, "", "")
    return Need(
        id=figures.row_id("need", f"{raised.rule.name} {raised.about}"),
        severity=raised.rule.severity,
        before=before,
        subject=found,
        after=after,
        href=href,
        reason=f"Reason: {reason}" if reason else "",
        since=f"for {figures.roughly((board.view.now_ms - raised.since_ms) / MS_PER_S)}"
        if raised.is_present
        else "as last seen",
        first=raised.rule.first,
        manual=manual_link(raised.rule.manual, settings),
    )


def is_about(raised: Raised, name: str) -> bool:
    """Return whether a rule that holds is about this subscription or queue, or seen on this broker."""
    return name in (raised.about, raised.subject, *raised.on)


def manual_link(section: str, settings: Settings) -> str:
    return f"{settings.manual}{section}" if section and settings.manual else ""


def chrome(board: Board, settings: Settings) -> Values:
    """Return what every page has: the bar at the top, and the short names of brokers.

    page_fault: why the page shows nothing newer; "" while it does, whatever is wrong with the bus.
    """
    bus, now_ms = board.view.bus, board.view.now_ms
    heard = [seen.last.received_at_ms for seen in bus.brokers if seen.last and not seen.fault]
    are_away = any(seen.is_away for seen in bus.brokers)
    return {
        "label": settings.label,
        "short": settings.short,
        "cluster": bus.cluster or "messagebus",
        "parked_count": board.parked,
        "at_ms": max(heard, default=bus.at_ms if are_away else 0),
        "page_fault": board.view.fault
        or ("no agent answers" if bus.brokers and not heard and not are_away else ""),
        "list_note": f"the list is {figures.roughly(bus.list_age_ms / MS_PER_S)} old: {bus.list_fault}"
        if bus.list_fault
        else "",
        "now_ms": now_ms,
        "zone": figures.zone(now_ms),
    }


def list_words(board: Board) -> str:
    """Return the list's generation in words."""
    return BLIND if board.is_blind else f"list generation {board.view.bus.generation}"


def missing_note(board: Board, settings: Settings) -> str:
    """Return which brokers are left out of all sums; "" when none is."""
    missing, brokers = list(board.without), len(board.view.bus.brokers)
    if board.is_blind:
        return BLIND
    if not missing:
        return ""
    names = ", ".join(settings.label(name) for name in missing[:NAMES_SHOWN])
    more = f" and {len(missing) - NAMES_SHOWN} more" if len(missing) > NAMES_SHOWN else ""
    return f"on {brokers - len(missing)} of {plural(brokers, 'broker')}, without {names}{more}"


def without(board: Board, settings: Settings) -> str:
    """Return the same in the few words that a tile has room for."""
    missing = list(board.without)
    if board.is_blind:
        return BLIND
    if not missing:
        return ""
    what = settings.label(missing[0]) if len(missing) == 1 else plural(len(missing), "broker")
    return f"without {what}"


def big_age(seconds: float | None, is_least: bool = False) -> tuple[tuple[str, str], ...]:
    """Return an age as the parts of a tile. is_least: a lower bound."""
    words = at_least(seconds, is_least, figures.age).replace("≥ ", "≥\N{NO-BREAK SPACE}").split(" ")
    if len(words) < 2:
        return ((words[0], ""),)
    return tuple(zip(words[::2], words[1::2], strict=False))


def where_oldest(source: Source, settings: Settings) -> str:
    place = max(source.places, key=lambda each: each.oldest_s or 0)
    return f"{source.name} on {settings.label(place.broker)}"


def curve(
    series: Series | None, figure: int, board: Board, width: int = 84, height: int = 20
) -> Spark:
    if series is None:
        return figures.spark((), width, height)
    return figures.spark(series.spark(figure, board.view.now_ms / MS_PER_S), width, height)


@dataclass(frozen=True, slots=True)
class Attached:
    """One client's consumers of one name, as agents report them.

    on, of: brokers that it consumes from, of those that answer. lacking: the one that it does not consume
    from; "" for none or several. owed: deliveries that it has not answered, None when nobody knows.
    prefetch: at most so many of these; 0 for no bound. versions: of its library.
    """

    on: int
    of: int
    lacking: str
    owed: int | None
    prefetch: int
    versions: tuple[str, ...]

    @property
    def is_full(self) -> bool:
        return self.prefetch > 0 and (self.owed or 0) >= self.prefetch


def attached(board: Board) -> dict[tuple[str, str], Attached]:
    """Return by client and name what agents report of its consumers."""
    answers = board.view.bus.answers
    found: dict[tuple[str, str], dict[str, list[Consumer]]] = {}
    for broker, answer in answers.items():
        for each in answer.consumers:
            on = found.setdefault((each.client or each.peer, each.name), {})
            on.setdefault(broker, []).append(each)
    return {key: _attached(on, answers) for key, on in found.items()}


def _attached(on: Mapping[str, Sequence[Consumer]], brokers: Iterable[str]) -> Attached:
    consumers = list(itertools.chain.from_iterable(on.values()))
    owed = [each.owed for each in consumers if each.owed is not None]
    lacking = [broker for broker in brokers if broker not in on]
    return Attached(
        on=len(on),
        of=len(on) + len(lacking),
        lacking=lacking[0] if len(lacking) == 1 else "",
        owed=sum(owed) if owed else None,
        prefetch=sum(each.prefetch for each in consumers),
        versions=tuple(sorted({each.version for each in consumers})),
    )


def parked_note(source: Source, settings: Settings) -> str:
    """Return on which brokers messages of it are parked."""
    on = [place for place in source.places if place.parked]
    if not on:
        return "nothing is known of" if source.sum.is_least else "nothing is parked"
    named = ", ".join(
        f"{place.parked:,} on {settings.label(place.broker)}" for place in on[:NAMES_SHOWN]
    )
    return named + (" and more" if len(on) > NAMES_SHOWN else "")
