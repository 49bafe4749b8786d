"""Two arms by turns: each repetition runs one after the other, so what disturbs the machine meets both.

Ratios are taken within a repetition; what is told is their geometric mean with its 95 % interval.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.errors import InputInvalid
from bench.run.profile import Profile, unlike
from bench.run.ratios import Ratio, is_worse, ratio_of
from bench.run.result import RESULT
from bench.run.tables import text_table

__all__ = ["NUMBERS", "Compared", "Number", "compare", "numbers_of", "order", "read_arm", "told"]


@dataclass(frozen=True, slots=True)
class Number:
    """Of a run's result. judged: whether its getting worse is a regression."""

    name: str
    unit: str
    more_is_better: bool
    judged: bool = True


NUMBERS = (
    Number("confirmed a second", "messages", more_is_better=True),
    Number("delivered a second", "messages", more_is_better=True),
    Number("confirm p50", "ms", more_is_better=False),
    Number("confirm p99", "ms", more_is_better=False),
    Number("delivery p50", "ms", more_is_better=False),
    Number("delivery p99", "ms", more_is_better=False),
    Number("client CPU us", "a message", more_is_better=False),
    Number("broker CPU us", "a message", more_is_better=False, judged=False),
)


@dataclass(frozen=True, slots=True)
class Compared:
    """One number of both arms, of each repetition in order."""

    number: Number
    a: tuple[float, ...]
    b: tuple[float, ...]
    ratio: Ratio | None

    def is_regression(self, bound: float) -> bool:
        better = self.number.more_is_better
        return (
            self.number.judged
            and self.ratio is not None
            and is_worse(self.ratio, more_is_better=better, bound=bound)
        )


def order(repetitions: int) -> list[str]:
    """a and b by turns, each first as often as the other."""
    return [arm for number in range(repetitions) for arm in ("ab" if number % 2 == 0 else "ba")]


def read_arm(folder: Path) -> list[dict[str, Any]]:
    """The results of a folder: its own, or one of each folder in it, by name. Raises InputInvalid."""
    paths = [folder / RESULT] if (folder / RESULT).exists() else sorted(folder.glob(f"*/{RESULT}"))
    if not paths:
        raise InputInvalid(f"{folder}: no results in it; `python -m bench run` makes some")
    try:
        return [json.loads(path.read_text()) for path in paths]
    except ValueError as fault:
        raise InputInvalid(f"{folder}: not results: {fault}") from fault


def compare(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]) -> list[Compared]:
    """Pair by pair. Raises InputInvalid for unlike profiles, different counts, or runs with faults."""
    profiles = [Profile.from_values(each["profile"], "profile") for each in (*a, *b)]
    for other in profiles[1:]:
        if differences := unlike(profiles[0], other):
            raise InputInvalid(f"these are not alike: {'; '.join(differences)}")
    if len(a) != len(b):
        raise InputInvalid(f"{len(a)} and {len(b)} repetitions cannot be paired")
    for each in (*a, *b):
        if each["faults"]:
            raise InputInvalid(f"a run that is not to be trusted: {'; '.join(each['faults'])}")
    ones, others = [numbers_of(each) for each in a], [numbers_of(each) for each in b]
    found = []
    for number in NUMBERS:
        if all(number.name in each for each in (*ones, *others)):
            x = tuple(each[number.name] for each in ones)
            y = tuple(each[number.name] for each in others)
            found.append(Compared(number, x, y, ratio_of(x, y)))
    return found


def numbers_of(result: Mapping[str, Any]) -> dict[str, float]:
    """Of `Result.as_json`."""
    found = {"confirmed a second": float(result["confirmed_per_s"])}
    if delivered := result.get("delivered_per_s"):
        found["delivered a second"] = float(delivered)
    for measure in ("confirm", "delivery"):
        for name in ("p50", "p99"):
            if name in (percentiles := result["percentiles_ms"].get(measure, {})):
                found[f"{measure} {name}"] = float(percentiles[name])
    measured_s = float(result.get("measured_s") or result["profile"]["time"]["measured_s"])
    messages = found["confirmed a second"] * measured_s
    if messages:
        cpu_s = sum(float(each["cpu_share"]) for each in result["clients"]) * measured_s
        found["client CPU us"] = cpu_s / messages * 1e6
        # Without one that was killed, nobody knows what the messages cost.
        confirmed_by = set(result.get("by_broker_ms", {})) - {""}
        if result["brokers"] and confirmed_by <= set(result["brokers"]):
            broker_s = sum(float(each["cpu_s"]) for each in result["brokers"].values())
            found["broker CPU us"] = broker_s / messages * 1e6
    return found


def told(compared: Sequence[Compared], names: tuple[str, str], bound: float) -> list[str]:
    """As a table of text."""
    rows = [
        (
            f"{each.number.name}, {each.number.unit}",
            _told(_middle(each.a)),
            _told(_middle(each.b)),
            str(each.ratio or ""),
            "REGRESSION" if each.is_regression(bound) else "",
        )
        for each in compared
    ]
    return text_table(("median of the runs", *names, "second / first, 95 %", ""), rows)


def _told(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.3g}"


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
