"""The comparison of two arms, pair by pair, as ratios with confidence intervals.

An arm comes from runs by turns, or from a folder of results. The runs of a pair follow each other, so a
disturbance of the machine affects both. Arms with different loads, different meanings of a confirm or on
different machines are refused. Ratios are taken within a pair; the printed one is their geometric mean
with its 95 % interval. A pair is left out only if its first run has nothing to compare with, or if the load
was the limit of it; `why_left_out` decides that. Client and load share a process, so a second run whose load
alone was the limit is compared. A fault that the second has more often than the first is a regression.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.analysis.result import NUMBERS, RESULT, Number, numbers_of
from bench.analysis.series import Step, middle
from bench.analysis.verdict import is_of_load
from bench.errors import InputInvalid
from bench.load.profile import COMPARED, Profile, unlike
from reports.text import Table, significant, text_table

# Student's t, two-sided 95 %, for 1, 2, ... degrees of freedom. Beyond, two terms of its expansion in
# 1 / freedom around the normal distribution's (Abramowitz and Stegun 26.7.5), right to 0.001.
# fmt: off
T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045,
)
# fmt: on
T95_FAR = 1.960


@dataclass(frozen=True, slots=True)
class Ratio:
    """The ratio of b to a: the geometric mean over the pairs, and its 95 % confidence interval."""

    value: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        if self.pairs == 1:
            return f"{self.value:.3f} (of one pair)"
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


def ratio_of(a: Sequence[float], b: Sequence[float]) -> Ratio | None:
    """Return the ratio of pairs that ran under the same conditions. None without positive pairs.

    The interval is Student's t on the logarithms: a disturbance of a pair multiplies both its members.
    """
    logs = [math.log(y / x) for x, y in zip(a, b, strict=True) if x > 0 and y > 0]
    if not logs:
        return None
    middle = statistics.fmean(logs)
    if len(logs) == 1:
        return Ratio(math.exp(middle), 0.0, math.inf, 1)
    freedom = len(logs) - 1
    half = _t95(freedom) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(middle), math.exp(middle - half), math.exp(middle + half), len(logs))


def _t95(freedom: int) -> float:
    if freedom <= len(T95):
        return T95[freedom - 1]
    z = T95_FAR
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


def is_worse(ratio: Ratio, *, more_is_better: bool, bound: float) -> bool:
    """Return whether b is worse than a by more than the bound (0.1: a tenth), and not by chance alone.

    The whole interval must lie beyond 1, and the mean beyond the bound.
    """
    if more_is_better:
        return ratio.value < 1 - bound and ratio.high < 1
    return ratio.value > 1 + bound and ratio.low > 1


Run = Mapping[str, Any]
"""The content of a ``result.json``."""
DURABILITY = "system.durability"


def paired_steps(a: Profile, b: Profile, repeat: int) -> list[Step]:
    """Return pairs of steps; each arm is the first of a pair as often as the other."""
    arms = [("a", a), ("b", b)]
    return [
        Step(f"{arm}/{number + 1:02}", profile)
        for number in range(repeat)
        for arm, profile in (arms if number % 2 == 0 else reversed(arms))
    ]


def read_arm(folder: Path) -> list[dict[str, Any]]:
    """Read the results of a folder: its own, or one of each folder in it, by name. Raises InputInvalid."""
    paths = [folder / RESULT] if (folder / RESULT).exists() else sorted(folder.glob(f"*/{RESULT}"))
    if not paths:
        raise InputInvalid(f"{folder}: no results in it; `python -m bench run` makes some")
    try:
        found = [json.loads(path.read_text()) for path in paths]
    except ValueError as fault:
        raise InputInvalid(f"{folder}: not results: {fault}") from fault
    if not all(isinstance(each, dict) and "profile" in each for each in found):
        raise InputInvalid(f"{folder}: not results of runs")
    return found


def profile_of_arm(name: str, runs: Sequence[Run]) -> Profile:
    """Return the common profile of these runs. Raises InputInvalid if they have several."""
    first, *others = [Profile.from_values(each["profile"], name) for each in runs]
    for other in others:
        if differences := unlike(first, other, free=()):
            raise InputInvalid(f"{name}: not repetitions of one profile: {'; '.join(differences)}")
    return first


def refuse_unlike(a: Profile, b: Profile, *, any_durability: bool) -> None:
    """Check two profiles. Raises InputInvalid for different loads, or different meanings of a confirm."""
    if differences := unlike(a, b, free=(*COMPARED, DURABILITY)):
        raise InputInvalid(f"these are not alike: {'; '.join(differences)}")
    if not any_durability and (differences := unlike(a, b)):
        raise InputInvalid(
            f"a confirm means something else, {'; '.join(differences)}; "
            "--unlike-durability compares them all the same"
        )


def refuse_unlike_machines(a: Sequence[Run], b: Sequence[Run]) -> None:
    """Check that all runs come from one kind of machine, with load from the same hosts.

    Raises InputInvalid.
    """
    machines = {_machine(each["environment"]): None for each in (*a, *b)}
    if len(machines) > 1:
        raise InputInvalid(f"measured on machines that are not alike: {'; '.join(machines)}")


def _machine(environment: Mapping[str, Any]) -> str:
    hosts = [f"load from {line.partition(': ')[0]}" for line in environment.get("load_hosts", ())]
    cores = f"{environment.get('cores')} cores"
    return ", ".join([environment.get("cpu", "unknown"), cores, *sorted(hosts)])


def are_by_turns(a: Sequence[Run], b: Sequence[Run]) -> bool:
    """Return whether the runs came in pairs of both arms, one pair after the other."""
    every = [(each["environment"].get("at", ""), arm) for arm in (0, 1) for each in (a, b)[arm]]
    order = [arm for _, arm in sorted(every)]
    return all({*order[at : at + 2]} == {0, 1} for at in range(0, len(order), 2))


def about_arm(name: str, runs: Sequence[Run]) -> str:
    """Describe an arm in one line: the commit that measured it, and the meaning of its confirms."""
    commits = dict.fromkeys(str(each["environment"].get("commit")) for each in runs)
    means = dict.fromkeys(str(each.get("durability")) for each in runs)
    return f"{name}: commit {', '.join(commits)}; a confirm means: {'; '.join(means)}"


# One pair says nothing about chance.
PAIRS_MIN = 2


@dataclass(frozen=True, slots=True)
class Compared:
    """One number of both arms, for each pair in order; None where a run does not have it.

    is_due: whether b must have it if a has it.
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
        """True if a has it in some pair and b does not, for example deliveries."""
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
class Fault:
    """One kind of fault.

    a, b: the number of pairs in which each side has it. messages_a, messages_b: affected messages.
    """

    words: str
    a: int
    b: int
    messages_a: int = 0
    messages_b: int = 0

    def is_regression(self, bound: float) -> bool:
        return self.b > self.a or self.messages_b > self.messages_a * (1 + bound)

    def in_words(self, pairs: int) -> str:
        return f"{self.words}: in {self.a} and {self.b} of {pairs} pairs"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a comparison. pairs: the number of pairs compared.

    left_out: the number of each pair that was left out, and the reason.
    """

    numbers: list[Compared]
    faults: list[Fault]
    pairs: int
    left_out: list[str]

    def regressions(self, bound: float) -> list[str]:
        worse = [each.number.name for each in self.numbers if each.is_regression(bound)]
        return worse + [
            each.in_words(self.pairs) for each in self.faults if each.is_regression(bound)
        ]


def compare(a: Sequence[Run], b: Sequence[Run]) -> Comparison:
    """Compare two arms pair by pair. Raises InputInvalid for unequal counts, or too few usable pairs."""
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
    # A second run that did not come to its end has a fault, and no numbers.
    whole = [(x, y) for x, y in pairs if y.get("complete")]
    is_own = not any(y.get("outside") for _, y in whole)
    ones, others = ([numbers_of(pair[side]) for pair in whole] for side in (0, 1))
    every = [
        Compared(
            number,
            tuple(each.get(number.name) for each in ones),
            tuple(each.get(number.name) for each in others),
            is_due=is_own and number.of_messages,
        )
        for number in NUMBERS
    ]
    return Comparison(
        [each for each in every if any((*each.a, *each.b))],
        _faults(pairs),
        len(pairs),
        left_out,
    )


def why_left_out(x: Run, y: Run) -> str:
    """Return why a pair allows no conclusion; "" when it allows one.

    A failure of the second run alone is a finding, not a fault of the measurement; so is a load that was
    the limit there alone: a client that stalls or is slow delays the pacer in its process.
    """
    if not x.get("complete"):
        return f"the first: {_ending(x)}"
    if not x["confirmed_per_s"]:
        return "the first confirmed nothing"
    if of_load := [each for each in _counting_faults(x) if is_of_load(each)]:
        return f"the first: {'; '.join(of_load)}"
    return ""


def _counting_faults(run: Run) -> list[str]:
    """Return the faults that count. In a closed loop a busy client is no fault: that is what is compared."""
    closed = run["profile"]["load"]["schedule"]["kind"] == "closed"
    faults = [*run["faults"], *(run.get("fates") or {}).get("faults", [])]
    return [each for each in dict.fromkeys(faults) if not (closed and is_of_load(each))]


def _ending(run: Run) -> str:
    return "; ".join(run["faults"]) or "it is incomplete"


def _faults(pairs: Iterable[tuple[Run, Run]]) -> list[Fault]:
    """Count each kind of fault on either side. Faults that differ only in their numbers are of one kind."""
    had: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    messages: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for pair in pairs:
        for side, run in enumerate(pair):
            if not run.get("complete"):
                had[side]["did not come to its end"] += 1
                continue
            for fault in _counting_faults(run):
                count, words = _counted(fault)
                had[side][words] += 1
                messages[side][words] += count
    return [
        Fault(words, had[0][words], had[1][words], messages[0][words], messages[1][words])
        for words in sorted({*had[0], *had[1]})
    ]


def _counted(fault: str) -> tuple[int, str]:
    """Split a fault into its leading count of messages, 0 if there is none, and its words without numbers."""
    count = re.match(r"[\d,]+ ", fault)
    words = re.sub(r"\d[\d,.]*", "N", fault.removeprefix(count[0] if count else ""))
    return int(count[0].replace(",", "")) if count else 0, words


def table_of(compared: Comparison, names: tuple[str, str], bound: float) -> list[str]:
    """Format a comparison as a table of text."""
    rows = []
    for each in compared.numbers:
        mark = "REGRESSION" if each.is_regression(bound) else ""
        values = (significant(middle(arm)) for arm in (each.a, each.b))
        rows.append((each.number.name, *values, each.in_words, mark))
    left_out = f", {len(compared.left_out)} left out" if compared.left_out else ""
    whole = len(compared.numbers[0].a) if compared.numbers else 0
    head = (f"medians of {whole} pairs{left_out}", *names, "second / first, 95 %", "")
    faults = [
        f"  ! {each.in_words(compared.pairs)}{'  REGRESSION' if each.is_regression(bound) else ''}"
        for each in compared.faults
    ]
    return [*text_table(Table(head, tuple(rows)), indent=""), *faults, *compared.left_out]
