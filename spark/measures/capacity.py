"""The model of what a message costs a broker, fitted from measured runs; without a session.

The cost is CPU time of a broker, since that is what brokers that share nothing run out of first. It is a sum
of six parts: a broker at rest, a message, a delivery, for both of the latter each kilobyte, and a sync of the
disk. The last one stands for the size of a broker's batches: a busy machine or a slow disk has fewer and
larger ones, and the same messages cost half. For each durability the parts are fitted from the runs, relative
to the cost of each run. The error is that of predicting each run, by its load and its syncs, from the runs at
other rates alone: so the lowest and the highest rate are predicted from what is below or above all that was
seen.

A run that did not keep up shows no cost, since its deliveries are missing, and no capacity. It is a bound: a
broker that would get as much or more is a fault of the answer.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from messagebus.recording.manifest import RunInvalid
from messagebus.terminal import plural
from reports.text import per_second, significant

# Each part of the cost, in its unit. A run tells no two of them apart; some runs of unlike shape do.
PARTS = {
    "a broker at rest": "cores",
    "a message": "µs",
    "a delivery": "µs",
    "a kB of a message": "µs",
    "a kB of a delivery": "µs",
    "a sync of the disk": "µs",
}
RUNS_LEAST = len(PARTS) + 1
KB = 1000.0
# Rates that differ by less are one: what was confirmed is never quite what was asked for.
SAME_RATE = 0.05
BROKERS_MAX = 100_000
# Names of runs beside each reason why they are left out.
NAMES_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A load. rate_per_s: published messages. size: bytes. fan_out: subscriptions that get each message.

    syncs: of a broker's disk, for each message.
    """

    rate_per_s: float
    size: float
    fan_out: float
    syncs: float = 0.0

    def __str__(self) -> str:
        copies = f"{self.fan_out:g} subscription{'' if self.fan_out == 1 else 's'}"
        return f"{per_second(self.rate_per_s)} of {self.size:,.0f} B to {copies}"

    @property
    def parts(self) -> tuple[float, ...]:
        """The quantity of each of `PARTS` in a message, at this rate of one broker."""
        kb = self.size / KB
        return (1e6 / self.rate_per_s, 1.0, self.fan_out, kb, kb * self.fan_out, self.syncs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A measured run. load: of one broker. cpu_us, written_bytes: of a message, in a broker.

    machine_cores: of the machine; 0: not known. limit: what did not keep up, as bench says it; "": nothing.
    is_faulty: whether bench found any other fault, such as a load that was late itself.
    """

    name: str
    durability: str
    load: Load
    cpu_us: float
    written_bytes: float
    machine_cores: int = 0
    limit: str = ""
    is_faulty: bool = False

    @property
    def busy(self) -> float:
        """The cores that a broker used."""
        return self.cpu_us * self.load.rate_per_s / 1e6


@dataclass(frozen=True, slots=True)
class Grid:
    """The runs below some folders.

    runs: what a message costs. bounds: brokers that did not keep up. left: name -> why it says nothing.
    """

    runs: list[Measured] = field(default_factory=list)
    bounds: list[Measured] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)

    def of(self, durability: str) -> Grid:
        """Return the runs of this durability. Raises RunInvalid where there are too few."""
        own = Grid(_with(self.runs, durability), _with(self.bounds, durability), self.left)
        if len(own.runs) >= RUNS_LEAST:
            return own
        others = sorted({run.durability for run in self.runs} - {durability})
        raise RunInvalid(
            ". ".join(
                (
                    f"{plural(len(own.runs), 'run')} with durability {durability}: {RUNS_LEAST} at least "
                    f"are required, so {RUNS_LEAST - len(own.runs)} more"
                    + (f"; there are runs of: {', '.join(others)}" if others else ""),
                    *own.notes,
                )
            )
        )

    @property
    def notes(self) -> list[str]:
        """Say which runs say nothing of the cost, by reason."""
        names: dict[str, list[str]] = defaultdict(list)
        for name, why in (*self.left.items(), *((run.name, run.limit) for run in self.bounds)):
            names[why].append(name)
        return [
            f"Left out, {why}: {', '.join(own[:NAMES_SHOWN])}"
            + (f" and {len(own) - NAMES_SHOWN} more" if len(own) > NAMES_SHOWN else "")
            for why, own in names.items()
        ]


def _with(runs: Iterable[Measured], durability: str) -> list[Measured]:
    return [run for run in runs if run.durability == durability]


@dataclass(frozen=True, slots=True)
class Model:
    """Costs of each of `PARTS` in a broker.

    syncs_per_s, syncs_per_copy: most syncs of a disk a second, and for each subscription of a message.
    """

    costs: tuple[float, ...]
    syncs_per_s: float
    syncs_per_copy: float

    def cpu_us(self, load: Load) -> float:
        """Return the CPU time of a message at one broker that has this load, its rest included."""
        return float(np.dot(self.costs, load.parts))

    def share(self, load: Load, brokers: int) -> Load:
        """Return the load of one of this many brokers, with the most syncs that there may be."""
        rate_per_s = load.rate_per_s / brokers
        syncs = min(self.syncs_per_s / rate_per_s, self.syncs_per_copy * load.fan_out)
        return dataclasses.replace(load, rate_per_s=rate_per_s, syncs=syncs)

    def busy(self, load: Load, brokers: int) -> float:
        """Return the cores that each of this many brokers needs."""
        share = self.share(load, brokers)
        return self.cpu_us(share) * share.rate_per_s / 1e6

    def queue(self, load: Load, brokers: int) -> float:
        """Return the cores that each queue of a broker needs: one process, so there is one core for it.

        A subscription is a queue, which takes each message: it needs what a broker with this subscription
        alone needs, without its rest. So no subscription more makes a queue cheaper.
        """
        share = self.share(dataclasses.replace(load, fan_out=min(1.0, load.fan_out)), brokers)
        rest = self.costs[0] / share.rate_per_s * 1e6
        return (self.cpu_us(share) - rest) * share.rate_per_s / 1e6

    def is_enough(self, load: Load, brokers: int, *, cores: float, busy_max: float) -> bool:
        """Return whether each broker, and each queue in it, has no more to do than it may."""
        busy = self.busy(load, brokers) <= cores * busy_max
        return busy and self.queue(load, brokers) <= min(1.0, cores) * busy_max

    def limit(self, load: Load, brokers: int, *, busy_max: float) -> str:
        """Return why fewer than this least number are not enough: cores, or queue; "" for one broker.

        It is the queue where fewer brokers were not enough with any number of cores.
        """
        if brokers == 1:
            return ""
        is_of_queue = self.queue(load, brokers - 1) > busy_max
        return "queue" if is_of_queue else "cores"

    def brokers(self, load: Load, *, cores: float, busy_max: float) -> int:
        """Return how many brokers a load needs. cores: of each; busy_max: the part of them, 0 to 1.

        Raises RunInvalid where no number of them is enough.
        """
        room, rest = cores * busy_max, self.busy(load, BROKERS_MAX)
        if rest > room:
            raise RunInvalid(
                f"{cores:g} cores, {busy_max:.0%} of them busy: each of {BROKERS_MAX:,} brokers "
                f"needs {rest:.2f}"
            )
        # More brokers never make one of them busier.
        return (
            bisect.bisect_left(
                range(1, BROKERS_MAX),
                True,
                key=lambda n: self.is_enough(load, n, cores=cores, busy_max=busy_max),
            )
            + 1
        )


def fitted(runs: Sequence[Measured]) -> Model:
    """Fit the costs, none below 0, so that the squares of the relative errors are least."""
    rows = np.array([run.load.parts for run in runs]) / np.array([[run.cpu_us] for run in runs])
    used = list(range(len(PARTS)))
    while True:
        found = np.linalg.lstsq(rows[:, used], np.ones(len(runs)), rcond=None)[0]
        if (found >= 0).all() or len(used) == 1:
            break
        del used[int(np.argmin(found))]
    costs = [0.0] * len(PARTS)
    for number, cost in zip(used, found, strict=True):
        costs[number] = max(0.0, float(cost))
    return Model(
        tuple(costs),
        syncs_per_s=max(run.load.syncs * run.load.rate_per_s for run in runs),
        syncs_per_copy=max(run.load.syncs / run.load.fan_out for run in runs),
    )


def unseen(runs: Sequence[Measured]) -> list[tuple[Measured, float]]:
    """Return each run with the cost that the runs at other rates predict, in us.

    Raises RunInvalid where there are none.
    """
    found = []
    for run in runs:
        others = [each for each in runs if not _is_at(each, run.load.rate_per_s)]
        if not others:
            raise RunInvalid(f"all runs are at {per_second(run.load.rate_per_s)}: add others")
        found.append((run, fitted(others).cpu_us(run.load)))
    return found


def _is_at(run: Measured, rate_per_s: float) -> bool:
    return abs(run.load.rate_per_s / rate_per_s - 1) < SAME_RATE


def to_add(runs: Sequence[Measured]) -> str:
    """Say which runs would tell the parts of the cost apart: of a second size, or at a higher rate."""
    rates: list[float] = []
    for rate in sorted(run.load.rate_per_s for run in runs):
        if not rates or rate / rates[-1] - 1 >= SAME_RATE:
            rates.append(rate)
    single = [
        per_second(rate)
        for rate in rates
        if len({run.load.size for run in runs if _is_at(run, rate)}) == 1
    ]
    sizes = f"of a second size at {', '.join(single)}, and " if single else ""
    return f"add runs {sizes}above {per_second(rates[-1])}"


def at_ends(tests: Sequence[tuple[Measured, float]]) -> dict[str, tuple[float, float]]:
    """Return lowest, highest -> the rate, and the mean error of the runs at it. tests: of `unseen`."""
    rates = sorted(run.load.rate_per_s for run, _ in tests)
    return {
        name: (
            rate,
            float(np.mean([error_of(*each) for each in tests if _is_at(each[0], rate)])),
        )
        for name, rate in (("lowest", rates[0]), ("highest", rates[-1]))
    }


def error_of(run: Measured, predicted_us: float) -> float:
    return abs(predicted_us - run.cpu_us) / run.cpu_us


def written(runs: Sequence[Measured], load: Load) -> float:
    """Return the bytes that a broker writes for a message, in proportion to those that were measured."""
    ratios = [run.written_bytes / (run.load.size * run.load.fan_out + KB) for run in runs]
    return float(np.median(ratios)) * (load.size * load.fan_out + KB)


@dataclass(frozen=True, slots=True)
class Range:
    """The range of the loads that runs have shown; beyond it a model is a guess."""

    grid: Grid
    model: Model

    def beyond(self, load: Load, brokers: int) -> dict[str, str]:
        """Return what of a load on this many brokers no run has shown -> a sentence about it."""
        return {**self._of_message(load), **self._of_broker(load, brokers)}

    def bound(self, load: Load, brokers: int) -> str:
        """Return the sentence on what one broker fewer than this number would exceed; "" for nothing."""
        return next(iter(self._of_broker(load, brokers - 1).values()), "") if brokers > 1 else ""

    def brokers(self, load: Load, least: int) -> int | None:
        """Return how many brokers, this many at least, get no more than runs have shown; None: no number."""
        if self.beyond(load, BROKERS_MAX):
            return None
        # More brokers never give one of them more.
        return (
            bisect.bisect_left(
                range(least, BROKERS_MAX), True, key=lambda n: not self._of_broker(load, n)
            )
            + least
        )

    def _of_message(self, load: Load) -> dict[str, str]:
        found = {}
        for what, asked, seen in (
            ("bytes", load.size, [run.load.size for run in self.grid.runs]),
            ("subscriptions", load.fan_out, [run.load.fan_out for run in self.grid.runs]),
        ):
            if not min(seen) <= asked <= max(seen):
                found[what] = (
                    f"{asked:,.10g} {what}: measured were {min(seen):,.10g} to {max(seen):,.10g} only; "
                    f"add runs of {math.ceil(asked):,} {what}"
                )
        return found

    def _of_broker(self, load: Load, brokers: int) -> dict[str, str]:
        share, runs = self.model.share(load, brokers), self.grid.runs
        fastest = max(runs, key=lambda run: run.load.rate_per_s)
        most = fastest.load.rate_per_s
        delivered = share.rate_per_s * max(1.0, load.fan_out)
        # One queue for each subscription at each broker.
        widest = max(runs, key=lambda run: run.load.rate_per_s * max(1.0, run.load.fan_out))
        delivered_most = widest.load.rate_per_s * max(1.0, widest.load.fan_out)
        # By one measure for both: with the most syncs that there may be.
        busy, busy_most = (
            self.model.busy(load, brokers),
            max(self.model.busy(run.load, 1) for run in runs),
        )
        found = {}
        if share.rate_per_s > most:
            found["rate"] = (
                f"each broker would get {per_second(share.rate_per_s)}: measured were up to "
                f"{per_second(most)} only, in the run {fastest.name}"
            )
        elif delivered > delivered_most:
            found["deliveries"] = (
                f"each broker would deliver {per_second(delivered)}: measured were up to "
                f"{per_second(delivered_most)} only, in the run {widest.name}"
            )
        if busy > busy_most:
            found["cores"] = (
                f"each broker would use {significant(busy)} cores: of no run does the model predict more "
                f"than {significant(busy_most)}"
            )
        for run in self.grid.bounds:
            if is_as_much(share, run.load):
                found["did not keep up"] = (
                    f"each broker would get {per_second(share.rate_per_s)}: in the run {run.name} "
                    f"{run.limit} with {run.load}"
                )
        return found


def is_as_much(load: Load, other: Load) -> bool:
    """Return whether a load is no less than another one, in rate, size and subscriptions."""
    return (
        load.rate_per_s >= other.rate_per_s
        and load.size >= other.size
        and load.fan_out >= other.fan_out
    )
