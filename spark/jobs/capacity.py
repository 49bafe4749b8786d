"""The brokers that a load needs, by what measured runs cost; without a session, and without Java.

    python -m bench run capacity --dir out/capacity
    python -m spark capacity --runs out/capacity --rate 800 --size 2000 --cores 8 --out out/plan

The cost is CPU time of a broker, since that is what brokers that share nothing run out of first. It is a sum
of six parts: a broker at rest, a message, a delivery, for both of the latter each kilobyte, and a sync of the
disk. The last one stands for the size of a broker's batches: a busy machine or a slow disk has fewer and
larger ones, and the same messages cost half. For each durability the parts are fitted from the runs, relative
to the cost of each run. The error is that of predicting each run, by its load and its syncs, from the runs at
other rates alone: so the lowest and the highest rate are predicted from what is below or above all that was
seen.
"""

from __future__ import annotations

import bisect
import dataclasses
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    # spark-submit puts this folder on the path, and not the checkout.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import click
import numpy as np

from messagebus.commands.exits import HELP
from messagebus.commands.options import NumberRange
from messagebus.recording.manifest import RunInvalid
from messagebus.terminal import plural
from reports.page import Bar, Bars, Figure, Page, Section, section_of
from reports.text import Columns, cell, per_second, significant
from spark.command import Answer, exit_code, in_one_line, out_option, write

# Each part of the cost, in its unit. A run tells no two of them apart; some runs of unlike shape do.
PARTS = {
    "a broker at rest": "cores",
    "a message": "us",
    "a delivery": "us",
    "a kB of a message": "us",
    "a kB of a delivery": "us",
    "a sync of the disk": "us",
}
RUNS_LEAST = len(PARTS) + 1
RESULT = "result.json"
KB = 1000.0
# Rates that differ by less are one: what was confirmed is never quite what was asked for.
SAME_RATE = 0.05
BROKERS_MAX = 100_000
WORDS = {
    "brokers needed": "the least number of brokers of which each needs at most the allowed part of its "
    "cores for its share of the load, and the brokers that may be away in addition.",
    "CPU of a message": "CPU time of a broker of the measured machine for a message and all of its "
    "deliveries. A faster core needs less.",
    "error": "the cost of each run is predicted from the runs at other rates alone. This is the mean "
    "error of these predictions.",
    "a sync of the disk": "with all work that a broker does once for a batch. A busy broker has larger "
    "batches and fewer syncs for a message; --syncs is the largest number of syncs a second of its disk.",
    "not in it": "clients, the balancer, network and disk. Compare the written megabytes with your disks. "
    "A queue, one for each subscription, is one process of its broker and uses one core at most. The "
    "answer has so many brokers that no queue needs more than the allowed part of that core.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A load. rate_per_s: published messages. size: bytes. fan_out: subscriptions that get each message.

    syncs: of a broker's disk, for each message.
    """

    rate_per_s: float
    size: float
    fan_out: float
    syncs: float = 0.0

    @property
    def parts(self) -> tuple[float, ...]:
        """The quantity of each of `PARTS` in a message, at this rate of one broker."""
        kb = self.size / KB
        return (1e6 / self.rate_per_s, 1.0, self.fan_out, kb, kb * self.fan_out, self.syncs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A measured run. load: of one broker. cpu_us, written_bytes: of a message, in a broker."""

    name: str
    durability: str
    load: Load
    cpu_us: float
    written_bytes: float


@dataclass(frozen=True, slots=True)
class Model:
    """Costs of each of `PARTS` in a broker.

    syncs_per_s, syncs_each: syncs of a disk at most, a second, and for each subscription of a message.
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


def read_runs(folders: Iterable[Path]) -> tuple[list[Measured], list[str]]:
    """Read the runs below the folders, and why others are left out. Raises RunInvalid without any."""
    found: list[Measured] = []
    left: list[str] = []
    for folder in folders:
        paths = [folder / RESULT] if (folder / RESULT).exists() else sorted(folder.rglob(RESULT))
        if not paths:
            raise RunInvalid(f"{folder}: no run of the bench in it: python -m bench run capacity")
        for path in paths:
            try:
                result = json.loads(path.read_text())
                found.append(_measured(path.parent.name, result))
            except _Unfit as why:
                left.append(f"{path.parent.name}: {why}")
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as fault:
                raise RunInvalid(f"{path}: not the result of a run: {fault!r}") from fault
    return found, left


class _Unfit(Exception):
    """Raised for a run that says nothing of the cost of a message."""


def _measured(name: str, result: Mapping[str, Any]) -> Measured:
    profile = result["profile"]
    load, messages, system = (profile[each] for each in ("load", "messages", "system"))
    brokers = [*result["brokers"].values()]
    confirmed = result["confirmed_per_s"] * result["measured_s"]
    # Faults of a load that was late are none of the cost.
    checks = {
        "cut short": result["complete"],
        "of another system": system["name"] == "messagebus",
        "with disturbances": not profile["disturbances"],
        "in batches": load["batch"] == 1,
        "of many sizes": not (messages["sizes"] or messages["file"]),
        "nothing confirmed": confirmed,
        "not consumed meanwhile": load["consumers"] and not load["consume_from_s"],
        "CPU time or syncs of a broker not known": len(brokers) == system["brokers"]
        and all(each.get("messages_cpu_s") and each.get("syncs") is not None for each in brokers),
    }
    for why, holds in checks.items():
        if not holds:
            raise _Unfit(why)
    places = messages["places"]
    fan_out = len(places) / len({str(each).partition("/")[0] for each in places}) if places else 0
    return Measured(
        name=name,
        durability=system["durability"],
        load=Load(
            rate_per_s=result["confirmed_per_s"] / system["brokers"],
            size=messages["size"],
            fan_out=fan_out or messages["subscriptions"],
            syncs=sum(each["syncs"] for each in brokers) / confirmed,
        ),
        cpu_us=sum(each["messages_cpu_s"] for each in brokers) / confirmed * 1e6,
        written_bytes=sum(each["written_bytes"] for each in brokers) / confirmed,
    )


def measure(
    runs: Sequence[Measured],
    load: Load,
    *,
    durability: str,
    cores: float,
    busy_max: float,
    spare: int,
    error_max: float,
    syncs_per_s: float | None = None,
) -> Answer:
    """Answer how many brokers a load needs. Raises RunInvalid where too few runs are of its durability.

    syncs_per_s: of each broker's disk; None: the most of any run.
    """
    own = [run for run in runs if run.durability == durability]
    if len(own) < RUNS_LEAST:
        known = ", ".join(sorted({run.durability for run in runs})) or "none"
        raise RunInvalid(
            f"{plural(len(own), 'run')} with durability {durability}: {RUNS_LEAST} at least are wanted; "
            f"there are runs of: {known}"
        )
    model, tests = fitted(own), unseen(own)
    if syncs_per_s is not None:
        model = dataclasses.replace(model, syncs_per_s=syncs_per_s)
    errors = sorted(error_of(run, predicted) for run, predicted in tests)
    count = model.brokers(load, cores=cores, busy_max=busy_max)
    share = model.share(load, count)
    found: dict[str, Any] = {
        "brokers": count + spare,
        "spare": spare,
        "cpu_us": model.cpu_us(share),
        "busy": model.busy(load, count) / cores,
        "queue_cores": model.queue(load, count),
        "syncs_per_s": share.syncs * share.rate_per_s,
        "written_mb_per_s": _written(own, load) * share.rate_per_s / 1e6,
        "costs": dict(zip(PARTS, model.costs, strict=True)),
        "error_p50": float(np.median(errors)),
        "error_mean": float(np.mean(errors)),
        "error_max": errors[-1],
        "error_at": at_ends(tests),
        "runs": [
            {
                "run": run.name,
                "rate": run.load.rate_per_s,
                "bytes": run.load.size,
                "subscriptions": run.load.fan_out,
                "syncs": run.load.syncs,
                "measured us": run.cpu_us,
                "predicted us": predicted,
                "error": error_of(run, predicted),
            }
            for run, predicted in tests
        ],
        "rate_per_broker": share.rate_per_s,
        "variants": [*_variants(model, load, cores=cores, busy_max=busy_max, spare=spare)],
    }
    faults = [*_beyond(own, load, share)]
    if found["error_mean"] > error_max:
        faults.append(
            f"the runs do not carry a model: it is {found['error_mean']:.0%} off on runs that it has not "
            f"seen, more than {error_max:.0%}"
        )
    return Answer(found, _page(found, load, durability, cores, busy_max, tuple(faults)))


def _written(runs: Sequence[Measured], load: Load) -> float:
    """Return the bytes that a broker writes for a message, in proportion to those that were measured."""
    ratios = [run.written_bytes / (run.load.size * run.load.fan_out + KB) for run in runs]
    return float(np.median(ratios)) * (load.size * load.fan_out + KB)


def _beyond(runs: Sequence[Measured], load: Load, share: Load) -> Iterator[str]:
    """Say which quantity of a load is beyond all runs: there a model is a guess. share: of one broker."""
    most = max(run.load.rate_per_s for run in runs)
    if share.rate_per_s > most:
        yield (
            f"each broker would get {per_second(share.rate_per_s)}: measured were up to "
            f"{per_second(most)} only"
        )
    # One queue for each subscription at each broker.
    own, queue = (
        share.rate_per_s * max(1.0, load.fan_out),
        max(run.load.rate_per_s * max(1.0, run.load.fan_out) for run in runs),
    )
    if own > queue and share.rate_per_s <= most:
        yield (
            f"each broker would deliver {per_second(own)}: measured were up to {per_second(queue)} only"
        )
    for what, wanted, seen in (
        ("bytes", load.size, [run.load.size for run in runs]),
        ("subscriptions", load.fan_out, [run.load.fan_out for run in runs]),
    ):
        if not min(seen) <= wanted <= max(seen):
            yield f"{wanted:,.0f} {what}: measured were {min(seen):,.0f} to {max(seen):,.0f} only"


def _variants(
    model: Model, load: Load, *, cores: float, busy_max: float, spare: int
) -> Iterator[dict[str, Any]]:
    changes = {
        "as asked": (1.0, 1.0, 0),
        "half the rate": (0.5, 1.0, 0),
        "twice the rate": (2.0, 1.0, 0),
        "twice the size": (1.0, 2.0, 0),
        "one subscription more": (1.0, 1.0, 1),
    }
    for name, (rate, size, more) in changes.items():
        other = Load(
            rate_per_s=load.rate_per_s * rate, size=load.size * size, fan_out=load.fan_out + more
        )
        count = model.brokers(other, cores=cores, busy_max=busy_max) + spare
        yield {
            "load": name,
            "rate": other.rate_per_s,
            "bytes": other.size,
            "subscriptions": other.fan_out,
            "brokers": count,
        }


def _page(
    measured: Mapping[str, Any],
    load: Load,
    durability: str,
    cores: float,
    busy_max: float,
    faults: tuple[str, ...],
) -> Page:
    return Page(
        kind="capacity",
        title=f"{per_second(load.rate_per_s)} of {load.size:,.0f} B to {load.fan_out:g}, {durability}",
        meta=(
            f"Brokers of {cores:g} cores, each busy for {busy_max:.0%} at most.",
            f"Fitted from {plural(len(measured['runs']), 'run')}.",
        ),
        verdict=plural(measured["brokers"], "broker")
        + (f", {measured['spare']} of which may be away." if measured["spare"] else ".")
        + f" On runs that it has not seen the model is {measured['error_mean']:.0%} off on average.",
        faults=faults,
        figures=_figures(measured),
        sections=_sections(measured),
        words=WORDS,
        footer="Numbers: capacity.json beside this page.",
    )


def _figures(measured: Mapping[str, Any]) -> tuple[Figure, ...]:
    count, spare = measured["brokers"], measured["spare"]
    written, syncs = measured["written_mb_per_s"], measured["syncs_per_s"]
    return (
        Figure(cell(count), "brokers needed", f"{spare} spare" if spare else ""),
        Figure(
            f"{measured['busy']:.0%}",
            "of a broker's cores are busy",
            f"of {count - spare}; {measured['queue_cores']:.0%} of a core by each queue",
        ),
        Figure(f"{measured['cpu_us']:,.0f} µs", "CPU of a message"),
        Figure(
            f"{written:,.1f} MB/s", "written by each broker", f"with {syncs:,.0f} syncs a second"
        ),
        Figure(
            f"{measured['error_mean']:.1%}",
            "error",
            ", ".join(
                f"{error:.0%} at the {name} rate, {per_second(rate)}"
                for name, (rate, error) in measured["error_at"].items()
            )
            + f"; at most {measured['error_max']:.0%} in one run",
        ),
    )


VARIANTS = ("load", "rate", "bytes", "subscriptions", "brokers")
COSTS: Columns = {"part": "part", "costs": lambda row: f"{significant(row['cost'])} {row['unit']}"}
RUNS: Columns = {
    **{name: name for name in ("run", "rate", "bytes", "subscriptions")},
    "syncs": lambda row: f"{row['syncs']:.2f}",
    "measured us": "measured us",
    "predicted us": "predicted us",
    "error": lambda row: f"{row['error']:.1%}",
}


def _sections(measured: Mapping[str, Any]) -> tuple[Section, ...]:
    variants = measured["variants"]
    costs = [
        {"part": part, "cost": measured["costs"][part], "unit": unit}
        for part, unit in PARTS.items()
    ]
    bars = Bars(
        tuple(Bar.of(each["load"], each["brokers"], cell(each["brokers"])) for each in variants)
    )
    return (
        section_of("If the load were another", variants, VARIANTS, bars=bars),
        section_of("What costs", costs, COSTS),
        section_of("Runs, each predicted from those at other rates", measured["runs"], RUNS),
    )


_PART = NumberRange(min=0, max=1, min_open=True)


@click.command(
    "capacity",
    epilog="Example: python -m spark capacity --runs out/capacity --rate 800 --out out/plan",
    context_settings=HELP,
    short_help="Say how many brokers a load needs.",
)
@click.option(
    "--runs",
    "folders",
    multiple=True,
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder with runs, as of python -m bench run capacity; several may be given.",
)
@click.option(
    "--rate",
    "rate_per_s",
    required=True,
    type=NumberRange(min=0, min_open=True),
    help="Messages published a second.",
)
@click.option(
    "--size",
    default=1000,
    type=click.IntRange(min=1),
    show_default=True,
    help="Bytes of a message.",
)
@click.option(
    "--fan-out",
    default=1,
    type=NumberRange(min=0),
    show_default=True,
    help="Subscriptions that get each message; a mean may be given.",
)
@click.option(
    "--durability",
    default="fsync",
    type=click.Choice(["fsync", "page-cache", "none"]),
    show_default=True,
    help="Of the topic.",
)
@click.option(
    "--cores",
    default=4,
    type=NumberRange(min=0, min_open=True),
    show_default=True,
    help="Of each broker.",
)
@click.option(
    "--busy-max", default=0.6, type=_PART, show_default=True, help="Part of them in use at most."
)
@click.option(
    "--spare",
    default=1,
    type=click.IntRange(min=0),
    show_default=True,
    help="Brokers that may be away at this rate.",
)
@click.option(
    "--syncs",
    "syncs_per_s",
    type=NumberRange(min=0),
    help="A second, of each broker's disk. Default: the most of any run.",
)
@click.option(
    "--error-max",
    default=0.15,
    type=_PART,
    show_default=True,
    help="Mean error of a model to trust.",
)
@out_option
def command(
    folders: tuple[Path, ...],
    rate_per_s: float,
    size: int,
    fan_out: float,
    durability: str,
    cores: float,
    busy_max: float,
    spare: int,
    syncs_per_s: float | None,
    error_max: float,
    out: Path,
) -> int:
    """Say how many brokers a load needs, by the CPU time that measured runs cost, with the model's error.

    Exits with 7 when the load is beyond all runs, or the model is too far off on runs it has not seen.
    """

    def work() -> int:
        if not all(map(math.isfinite, (rate_per_s, fan_out, cores, syncs_per_s or 0))):
            raise click.UsageError("--rate, --fan-out, --cores, --syncs: finite numbers")
        runs, left = read_runs(folders)
        answer = measure(
            runs,
            Load(rate_per_s=rate_per_s, size=size, fan_out=fan_out),
            durability=durability,
            cores=cores,
            busy_max=busy_max,
            spare=spare,
            error_max=error_max,
            syncs_per_s=syncs_per_s,
        )
        notes = [f"Left out: {'; '.join(left)}."] if left else []
        return write("capacity", answer, out, notes=notes)

    return in_one_line("capacity", work)


if __name__ == "__main__":
    sys.exit(exit_code(command, None, prog_name="capacity"))
