"""One observation of the bus, added up by subscription and by broker for the pages.

Pure. A silent broker has no part in any sum. A value that cannot be known is None, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from messagebus.clock import MS_PER_S
from messagebus.observing.rates import Rates
from messagebus.observing.rules import Raised
from messagebus.observing.snapshot import Answer, Bus, Kind, ObservedBroker, Row
from messagebus.observing.totals import Sum, counted, known, totals, uncounted
from messagebus.services.monitor.history import History

State = Literal["ok", "warn", "bad", "unknown"]
# Older figures than that are grey.
OLD_MS = 10_000
# A message that waits longer is worth a look.
OLD_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All that the pages show, at one time.

    flows: rates by broker, name and kind. through: rates of brokers. raised: worst first.
    noticed: what holds, but not for long enough to be raised. fault: why nothing newer is known; "" when
    all is well.
    """

    bus: Bus
    now_ms: int
    history: History
    flows: Mapping[tuple[str, str, Kind], Rates] = field(default_factory=dict)
    through: Mapping[str, Rates] = field(default_factory=dict)
    raised: tuple[Raised, ...] = ()
    noticed: tuple[Raised, ...] = ()
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """One subscription or queue on one broker. state: ``silent`` or ``missing`` have no figures.

    oldest_is_least: its oldest message may be older. alone: no consumer here, though there are some
    elsewhere. is_stale: its figures are older than OLD_MS.
    """

    broker: str
    state: Literal["there", "silent", "missing"]
    row: Row | None = None
    oldest_s: float | None = None
    flow: Rates | None = None
    parked: int = 0
    alone: bool = False
    is_stale: bool = True
    oldest_is_least: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """One subscription or queue over all brokers that count; each of its figures is that of `Sum`.

    lacking: brokers where nothing consumes though elsewhere something does, or messages wait and nothing
    consumes anywhere. missing: brokers that answer and do not have it. answering: number of brokers that have
    it and answer. view: its observation.
    """

    name: str
    sum: Sum
    lacking: tuple[str, ...]
    missing: tuple[str, ...]
    answering: int
    view: View = field(repr=False, compare=False)

    @property
    def places(self) -> tuple[Place, ...]:
        """It on each broker of the list; made anew each time, for those that somebody looks at."""
        return tuple(self.at(seen) for seen in self.view.bus.brokers)

    def at(self, observed: ObservedBroker) -> Place:
        """Return it on one broker."""
        return _place(self.name, observed, self.view, self.lacking)

    @property
    def oldest_s(self) -> float | None:
        """The age of the oldest message; None when nobody knows it."""
        return None if self.sum.oldest_ms is None else self.sum.oldest_ms / MS_PER_S

    @property
    def is_troubled(self) -> bool:
        """True when an operator should look at it."""
        is_old = (self.oldest_s or 0) >= OLD_S
        return bool(self.lacking or self.missing or self.sum.parked or is_old)


@dataclass(frozen=True, slots=True)
class BrokerSum:
    """The messages that wait on one broker; None: they are not known.

    oldest_of: name of the subscription or queue of the oldest. oldest_is_least: one may be older.
    """

    waiting: int | None
    parked: int | None
    oldest_s: float | None
    oldest_of: str = ""
    oldest_is_least: bool = False


@dataclass(frozen=True, slots=True)
class Board:
    """All sources by name, and all brokers in the order of the list."""

    view: View
    sources: Mapping[str, Source]
    brokers: Mapping[str, BrokerSum]

    @property
    def without(self) -> Mapping[str, str]:
        """The brokers that no sum counts, each with the reason: then all sums are lower bounds."""
        return uncounted(self.view.bus)

    @property
    def is_blind(self) -> bool:
        """True when no list has been read: then nothing is known, and counts of what is known say nothing."""
        return not self.view.bus.brokers

    @property
    def waiting(self) -> int | None:
        """Messages that wait on brokers that are counted; None when that says nothing."""
        return _sum(each.waiting for each in self.brokers.values())

    @property
    def parked(self) -> int | None:
        """Parked messages on brokers that are counted; None when that says nothing."""
        return _sum(each.parked for each in self.brokers.values())

    @property
    def worst(self) -> Source | None:
        """The subscription or queue with the oldest message of a known age; None without any."""
        return max(self.sources.values(), key=lambda each: each.oldest_s or 0, default=None)

    @property
    def oldest_is_least(self) -> bool:
        """True when a message may be older than the oldest one of `worst`."""
        return bool(self.without) or any(s.sum.oldest_is_least for s in self.sources.values())

    @property
    def published(self) -> float | None:
        """Messages published a second, to brokers that answer."""
        return total(each.came for each in self.view.through.values())

    @property
    def handled(self) -> float | None:
        """Messages answered by consumers a second, on brokers that answer."""
        return total(each.left for each in self.view.through.values())


def board(view: View) -> Board:
    """Add one observation up."""
    counts = counted(view.bus)
    brokers = {
        seen.broker: _broker(counts.get(seen.broker), view.now_ms) for seen in view.bus.brokers
    }
    sums = totals(view.bus, view.flows)
    return Board(
        view, {name: _source(name, each, view, counts) for name, each in sums.items()}, brokers
    )


def _broker(answer: Answer | None, now_ms: int) -> BrokerSum:
    if answer is None:
        return BrokerSum(None, None, None)
    waiting, parked, first_ms, oldest_of, is_least = 0, 0, now_ms, "", False
    for (name, kind), row in answer.rows.items():
        if kind == "park":
            parked += row.waiting  # a search among them holds them for a while
        elif kind != "tap" and (here := row.ready + (row.unacked or 0)):
            waiting += here
            if kind == "delay":
                continue
            is_least = is_least or row.oldest_at_ms is None or row.oldest_is_least
            if (row.oldest_at_ms or now_ms) < first_ms:
                first_ms, oldest_of = row.oldest_at_ms or now_ms, name
    oldest_s = known((now_ms - first_ms) / MS_PER_S, is_least)
    return BrokerSum(waiting, parked, oldest_s, oldest_of, is_least)


def _source(name: str, sums: Sum, view: View, counts: Mapping[str, Answer]) -> Source:
    is_wanted, key = sums.consumers > 0 or sums.ready > 0, _key(name)
    lacking, missing, answering = list[str](), list[str](), 0
    for broker, answer in counts.items():
        row = answer.rows.get(key)
        if row is None:
            missing.append(broker)
            continue
        answering += 1
        if is_wanted and not row.consumers:
            lacking.append(broker)
    return Source(name, sums, tuple(lacking), tuple(missing), answering, view)


def _key(name: str) -> tuple[str, Kind]:
    return name, "queue" if name.startswith("queue:") else "sub"


def _place(name: str, observed: ObservedBroker, view: View, lacking: tuple[str, ...]) -> Place:
    answer = observed.answer
    if answer is None or not answer.state.linked:
        return Place(observed.broker, "silent")
    rows = answer.rows
    row = rows.get(_key(name))
    park = rows.get((name, "park"))
    parked = park.waiting if park else 0
    if row is None:
        return Place(observed.broker, "missing", parked=parked)
    return Place(
        observed.broker,
        "there",
        row,
        oldest(row, view.now_ms),
        view.flows.get((observed.broker, name, row.kind)),
        parked,
        alone=observed.broker in lacking,
        is_stale=answer.counted_age_ms(row, view.now_ms) > OLD_MS,
        oldest_is_least=row.oldest_is_least,
    )


def oldest(row: Row, now_ms: int) -> float | None:
    """Return the age of a row's oldest message in seconds; 0 without any, None when it is not known."""
    age_ms = row.oldest_ms(now_ms)
    return None if age_ms is None else age_ms / MS_PER_S


def _sum(values: Iterable[int | None]) -> int | None:
    """Return the sum of what is known; None when nothing is, and for 0 when something is not known."""
    several = list(values)
    return known(sum(value or 0 for value in several), None in several or not several)


def total(values: Iterable[float | None]) -> float | None:
    """Return the sum of what is known; None when nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
