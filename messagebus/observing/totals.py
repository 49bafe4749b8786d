"""Sums over brokers that know what is missing in them.

Pure. A sum is of brokers that were counted: their agents answered, and have a link to them. It names all
others, with the reason. So a silent broker is never counted, as 0 or otherwise, and a sum that lacks a broker
is a lower bound, which is shown as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from messagebus.observing.rates import Rates
from messagebus.observing.snapshot import NO_LINK, Answer, Bus, Kind, Row
from messagebus.terminal import plural

SOURCES: tuple[Kind, ...] = ("sub", "queue")
UNKNOWN = "?"
N = TypeVar("N", int, float)


def known(value: N | None, is_least: bool) -> N | None:
    """Return a figure, None where it is not known. is_least: it is a lower bound; that of 0 says nothing."""
    return None if is_least and not value else value


def at_least(value: float | None, is_least: bool, words: Callable[[float], str]) -> str:
    """Return a figure in words: "?" where it is not known, "≥ 12" of a lower bound."""
    value = known(value, is_least)
    if value is None:
        return UNKNOWN
    return f"≥ {words(value)}" if is_least else words(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """The sum of some rows. unacked, oldest_ms, came, left: None when no counted broker knows them.

    oldest_on: the broker of the oldest message. oldest_is_least: a message may have waited for longer.
    of: brokers on the list; without: broker -> why it is not in.
    unconsumed: counted brokers where nobody consumes. parked: messages in the parking queues. came and left
    are of brokers that have rates, which may be fewer.
    """

    ready: int = 0
    unacked: int | None = None
    consumers: int = 0
    parked: int = 0
    oldest_ms: int | None = None
    oldest_on: str = ""
    oldest_is_least: bool = False
    came: float | None = None
    left: float | None = None
    of: int = 0
    without: Mapping[str, str] = field(default_factory=dict)
    unconsumed: tuple[str, ...] = ()

    @property
    def waiting(self) -> int:
        return self.ready + (self.unacked or 0)

    @property
    def is_least(self) -> bool:
        """True when brokers are missing in it: every figure is a lower bound."""
        return bool(self.without)

    @property
    def coverage(self) -> str:
        """The brokers that the sum is of, in words; "" when nothing is missing."""
        if not self.without:
            return ""
        names = ", ".join(sorted(self.without))
        return f"on {self.of - len(self.without)} of {plural(self.of, 'broker')}, without {names}"


def uncounted(bus: Bus) -> dict[str, str]:
    """Return the brokers that no sum counts -> the reason."""
    return {
        seen.broker: NO_LINK if seen.is_away else seen.fault
        for seen in bus.brokers
        if seen.answer is None or not seen.answer.state.linked
    }


def counted(bus: Bus) -> dict[str, Answer]:
    """Return the answers of the brokers that sums count."""
    return {broker: each for broker, each in bus.answers.items() if each.state.linked}


def total(
    bus: Bus,
    names: Iterable[str] | None = None,
    rates: Mapping[tuple[str, str, Kind], Rates] | None = None,
) -> Sum:
    """Return the sum over these subscriptions and queues, of all without names."""
    answers = counted(bus)
    wanted = None if names is None else set(names)
    rows = [
        (broker, row)
        for broker, answer in answers.items()
        for row in answer.rows.values()
        if wanted is None or row.name in wanted
    ]
    return _sum(bus, rows, uncounted(bus), rates or {})


def totals(bus: Bus, rates: Mapping[tuple[str, str, Kind], Rates] | None = None) -> dict[str, Sum]:
    """Return the sum of every subscription and queue by name, also of those that only silent brokers had."""
    names = bus.sources
    rows: dict[str, list[tuple[str, Row]]] = {name: [] for name in names}
    for broker, answer in counted(bus).items():
        for row in answer.rows.values():
            rows.setdefault(row.name, []).append((broker, row))
    without = uncounted(bus)
    return {name: _sum(bus, rows[name], without, rates or {}) for name in names}


def _sum(
    bus: Bus,
    rows: list[tuple[str, Row]],
    without: dict[str, str],
    rates: Mapping[tuple[str, str, Kind], Rates],
) -> Sum:
    # One pass: 64 brokers of 500 names have 32,000 rows, every other second.
    ready = consumers = parked = 0
    unacked: int | None = None
    came = left = None
    oldest_ms: int | None = None
    oldest_on, bare, fed = "", set[str](), set[str]()
    is_least = bool(without)
    for broker, row in rows:
        if row.kind not in SOURCES:
            if row.kind == "park":
                parked += row.waiting
            continue
        ready += row.ready
        consumers += row.consumers
        (fed if row.consumers else bare).add(broker)
        if row.unacked is not None:
            unacked = (unacked or 0) + row.unacked
        if each := rates.get((broker, row.name, row.kind)):
            came, left = (came or 0.0) + each.came, (left or 0.0) + each.left
        if not (row.ready or row.unacked):  # as of most
            oldest_ms = oldest_ms or 0
            continue
        age_ms = row.oldest_ms(bus.at_ms)
        is_least = is_least or age_ms is None or row.oldest_is_least
        if age_ms is not None and (oldest_ms is None or (age_ms, broker) > (oldest_ms, oldest_on)):
            oldest_ms, oldest_on = age_ms, broker
    return Sum(
        ready=ready,
        unacked=unacked,
        consumers=consumers,
        parked=parked,
        oldest_ms=oldest_ms,
        oldest_on=oldest_on if oldest_ms else "",
        oldest_is_least=is_least,
        came=came,
        left=left,
        of=len(bus.brokers),
        without=without,
        unconsumed=tuple(sorted(bare - fed)),
    )
