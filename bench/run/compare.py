"""Two arms, pair by pair: each pair ran one after the other, so what disturbs the machine meets both.

Ratios are taken within a pair; what is told is their geometric mean with its 95 % interval. A pair
counts only when both its runs say something; `why_left_out` decides that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.errors import InputInvalid
from bench.run.numbers import NUMBERS, Number, numbers_of
from bench.run.ratios import Ratio, is_worse, ratio_of
from bench.run.rounds import middle
from bench.run.tables import text_table
from bench.run.tables import told as told_value

__all__ = ["PAIRS_MIN", "Compared", "Comparison", "compare", "told", "why_left_out"]

Run = Mapping[str, Any]
"""What a ``result.json`` has."""
# One pair says nothing about chance.
PAIRS_MIN = 2


@dataclass(frozen=True, slots=True)
class Compared:
    """One number of both arms, of each pair in order; None where a run does not have it.

    is_due: whether b has it as soon as messages come.
    """

    number: Number
    a: tuple[float | None, ...]
    b: tuple[float | None, ...]
    is_due: bool = True

    @property
    def ratio(self) -> Ratio | None:
        both = [(x, y) for x, y in self._pairs if x is not None and y is not None]
        return ratio_of([x for x, _ in both], [y for _, y in both])

    @property
    def vanished(self) -> bool:
        """Whether a pair has it in a alone: b delivers nothing, where a did."""
        nothing = (None, 0.0) if self.number.more_is_better else (None,)
        return self.is_due and any(bool(x) and y in nothing for x, y in self._pairs)

    def is_regression(self, bound: float) -> bool:
        if not self.number.judged or self.vanished:
            return self.number.judged
        ratio, better = self.ratio, self.number.more_is_better
        return ratio is not None and is_worse(ratio, more_is_better=better, bound=bound)

    @property
    def in_words(self) -> str:
        """The ratio, or why there is none."""
        if not any(self.b):
            return "only the first has it"
        if not any(self.a):
            return "only the second has it"
        if (ratio := self.ratio) is None:
            return "no pair has both"
        partly = f", {ratio.pairs} of {len(self.a)} pairs" if ratio.pairs < len(self.a) else ""
        return f"{ratio}{partly}"

    @property
    def _pairs(self) -> list[tuple[float | None, float | None]]:
        return list(zip(self.a, self.b, strict=True))


@dataclass(frozen=True, slots=True)
class Comparison:
    """left_out: of pairs that say nothing, their number and why."""

    numbers: list[Compared]
    pairs: int
    left_out: list[str]

    def regressions(self, bound: float) -> list[str]:
        return [each.number.name for each in self.numbers if each.is_regression(bound)]


def compare(a: Sequence[Run], b: Sequence[Run]) -> Comparison:
    """Pair by pair. Raises InputInvalid for different counts, or with too few pairs that say something."""
    if len(a) != len(b):
        raise InputInvalid(f"{len(a)} and {len(b)} repetitions cannot be paired")
    pairs, left_out = [], []
    for number, (x, y) in enumerate(zip(a, b, strict=True), start=1):
        if why := why_left_out(x, y):
            left_out.append(f"pair {number} is left out: {why}")
        else:
            pairs.append((x, y))
    if len(pairs) < PAIRS_MIN:
        raise InputInvalid(
            f"{len(pairs)} of {len(a)} pairs can be compared, {PAIRS_MIN} are wanted; "
            + "; ".join(left_out)
        )
    is_own = not any(y.get("outside") for _, y in pairs)
    ones, others = ([numbers_of(pair[side]) for pair in pairs] for side in (0, 1))
    every = [
        Compared(
            number,
            tuple(each.get(number.name) for each in ones),
            tuple(each.get(number.name) for each in others),
            is_due=is_own and number.of_messages,
        )
        for number in NUMBERS
    ]
    return Comparison([each for each in every if any((*each.a, *each.b))], len(pairs), left_out)


def why_left_out(x: Run, y: Run) -> str:
    """In words, why nothing follows from a pair; "" when something does.

    A second that confirms nothing where the first did is a finding, not a fault of the measurement.
    """
    if why := _unusable(x):
        return f"the first: {why}"
    if not x["confirmed_per_s"]:
        return "the first confirmed nothing"
    why = _unusable(y) if y.get("confirmed_per_s") else _broken(y)
    return f"the second: {why}" if why else ""


def _unusable(run: Run) -> str:
    """A closed loop that keeps its client busy is what is compared; an open one is late by it."""
    closed = run["profile"]["load"]["schedule"]["kind"] == "closed"
    return _broken(run) or ("" if closed else "; ".join(run["faults"]))


def _broken(run: Run) -> str:
    """Whatever was measured: it did not end in order, or did not keep its promise."""
    if not run.get("complete"):
        return "; ".join(run["faults"]) or "it is incomplete"
    return "; ".join((run.get("fates") or {}).get("faults", []))


def told(compared: Comparison, names: tuple[str, str], bound: float) -> list[str]:
    """As a table of text."""
    rows = []
    for each in compared.numbers:
        mark = "REGRESSION" if each.is_regression(bound) else ""
        values = (told_value(middle(arm)) for arm in (each.a, each.b))
        rows.append((each.number.name, *values, each.in_words, mark))
    table = text_table(
        (f"medians of {compared.pairs} pairs", *names, "second / first, 95 %", ""), rows
    )
    return [*table, *compared.left_out]
