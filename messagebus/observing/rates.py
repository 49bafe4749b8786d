"""Rates from counters of two observations of the same queue or broker.

Pure. A rate is only made of two samples of one life, of different sweeps, at most SPAN_MAX_MS apart. Over a
reset, a gap or a silence there is none: None, which is not 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from messagebus.observing.snapshot import Answer, Bus, Kind

# Longer gaps hide what happened between; agents sweep every 5 to 10 s.
SPAN_MAX_MS = 60_000


@dataclass(frozen=True, slots=True)
class Rates:
    """Messages a second. came, left: of a queue; of a broker published and acknowledged."""

    came: float
    left: float


def row_rates(old: Bus, new: Bus) -> dict[tuple[str, str, Kind], Rates]:
    """Return the rates of every (broker, name, kind) that has them."""
    found = dict[tuple[str, str, Kind], Rates]()
    for broker, (before, after) in _pairs(old, new).items():
        for key in after.rows:
            if rates := _row_rate(before, after, key):
                found[broker, *key] = rates
    return found


def _row_rate(before: Answer, after: Answer, key: tuple[str, Kind]) -> Rates | None:
    last, row = before.rows.get(key), after.rows[key]
    if last is None:
        return None
    pairs = ((last.arrived, row.arrived), (last.departed, row.departed))
    return _rates(pairs, before.swept_at(last), after.swept_at(row))


def broker_rates(old: Bus, new: Bus) -> dict[str, Rates]:
    """Return by broker how many messages a second it took from publishers, and had acknowledged."""
    found = dict[str, Rates]()
    for broker, (before, after) in _pairs(old, new).items():
        if before.totals and after.totals:
            published = (before.totals.published, after.totals.published)
            acked = (before.totals.acked, after.totals.acked)
            if rates := _rates((published, acked), before.swept_at_ms, after.swept_at_ms):
                found[broker] = rates
    return found


def _pairs(old: Bus, new: Bus) -> dict[str, tuple[Answer, Answer]]:
    before = old.answers
    return {
        broker: (before[broker], answer)
        for broker, answer in new.answers.items()
        if broker in before and before[broker].life == answer.life
    }


def _rates(
    counters: tuple[tuple[int | None, int | None], ...], began_ms: int | None, ended_ms: int | None
) -> Rates | None:
    if began_ms is None or ended_ms is None or not 0 < ended_ms - began_ms <= SPAN_MAX_MS:
        return None
    rates = list[float]()
    for old, new in counters:
        if old is None or new is None or new < old:
            return None
        rates.append((new - old) * 1000 / (ended_ms - began_ms))
    return Rates(*rates)
