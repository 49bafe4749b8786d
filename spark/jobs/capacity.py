"""The brokers that a load needs, by what measured runs cost; without a session, and without Java.

    python -m bench run capacity --dir out/capacity
    python -m spark capacity --runs out/capacity --rate 800 --size 2000 --cores 8 --out out/plan

The model is that of `spark.measures.capacity`. This job reads the runs and writes the page.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from reports.text import NONE, Columns, cell, per_second, significant
from spark.command import Answer, exit_code, in_one_line, out_option, write
from spark.measures.capacity import (
    PARTS,
    Grid,
    Load,
    Measured,
    Model,
    Range,
    at_ends,
    error_of,
    fitted,
    to_add,
    unseen,
    written,
)

RESULT = "result.json"
NOT_TO_BE_USED = "not to be used: the runs do not carry a model"
# Below it bench gives no CPU time of a broker.
MEASURED_LEAST_S = 10
# Texts in the faults of a run, as bench gives them: what was late, and that its load or machine was to blame.
BEHIND, CONSUMERS_BEHIND = "did not keep up:", "consumers did not keep up:"
OF_LOAD = ("was the bottleneck", "intended messages: too slow")
WORDS = {
    "brokers needed": "the least number of brokers of which each needs at most the allowed part of its "
    "cores for its share of the load, and each queue at most that part of one core; and the brokers that may "
    "be away in addition.",
    "limited by": "what would exceed the allowed part with one broker fewer. A queue, one for each "
    "subscription at each broker, is one process and uses one core at most.",
    "CPU of a message": "CPU time of a broker of the measured machine for a message and all of its "
    "deliveries. A faster core needs less.",
    "error": "the cost of each run is predicted from the runs at other rates alone. This is the mean "
    "error of these predictions.",
    "a sync of the disk": "with all work that a broker does once for a batch. At a higher rate, and on a "
    "busier machine, batches are larger: a message has fewer syncs and costs less. The answer counts the "
    "most syncs a second of any run, so it is rather too many brokers than too few. --syncs sets it.",
    "did not keep up": "a broker or its consumers took less than was sent. Such a run shows no cost and no "
    "capacity: a broker that would get as much or more is a fault of this answer.",
    "beyond the runs": "quantities of the load that no run had as large: what a broker gets, delivers or "
    "uses of its cores, the bytes or the subscriptions of a message. There the number is a guess. Cores are "
    "predicted, of the runs too, with the most syncs of the disk that there may be.",
    "not in it": "clients, the balancer, network and disk. Compare the written megabytes with your disks.",
}


def read_runs(folders: Iterable[Path]) -> Grid:
    """Read the runs below the folders. Raises RunInvalid without any."""
    found = Grid()
    for folder in folders:
        paths = [folder / RESULT] if (folder / RESULT).exists() else sorted(folder.rglob(RESULT))
        if not paths:
            raise RunInvalid(f"{folder}: no run of the bench in it: python -m bench run capacity")
        for path in paths:
            try:
                run = _measured(path.parent.name, json.loads(path.read_text()))
            except _Unfit as why:
                found.left[path.parent.name] = str(why)
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as fault:
                raise RunInvalid(f"{path}: not the result of a run: {fault!r}") from fault
            else:
                (found.bounds if run.limit else found.runs).append(run)
    return found


class _Unfit(Exception):
    """Raised for a run that says nothing of the cost of a message."""


def _measured(name: str, result: Mapping[str, Any]) -> Measured:
    profile = result["profile"]
    load, messages, system = (profile[each] for each in ("load", "messages", "system"))
    brokers = [*result["brokers"].values()]
    confirmed = result["confirmed_per_s"] * result["measured_s"]
    checks = {
        "cut short": result["complete"],
        "of another system": system["name"] == "messagebus",
        "with disturbances": not profile["disturbances"],
        "in batches": load["batch"] == 1,
        "of many sizes": not (messages["sizes"] or messages["file"]),
        "nothing confirmed": confirmed,
        "not consumed meanwhile": load["consumers"] and not load["consume_from_s"],
        f"measured for less than {MEASURED_LEAST_S} s": result["measured_s"] >= MEASURED_LEAST_S,
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
        machine_cores=result.get("environment", {}).get("cores") or 0,
        limit=_limit(result["faults"]),
        is_faulty=bool(result["faults"]),
    )


def _limit(faults: Sequence[str]) -> str:
    """Return what did not keep up, in words; "" where all did.

    A load that was late itself is no limit of a broker, and what it published has its cost. Raises _Unfit
    where deliveries are missing because of it.
    """
    is_of_load = any(text in fault for fault in faults for text in OF_LOAD)
    if any(fault.startswith(CONSUMERS_BEHIND) for fault in faults):
        if is_of_load:
            raise _Unfit("its load was too slow, and deliveries are missing")
        return "consumers did not keep up"
    if not is_of_load and any(fault.startswith(BEHIND) for fault in faults):
        return "the broker did not keep up"
    return ""


def measure(
    grid: Grid,
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
    grid = grid.of(durability)
    own = grid.runs
    model, tests = fitted(own), unseen(own)
    if syncs_per_s is not None:
        model = dataclasses.replace(model, syncs_per_s=syncs_per_s)
    errors = sorted(error_of(run, predicted) for run, predicted in tests)
    count = model.brokers(load, cores=cores, busy_max=busy_max)
    share, range_ = model.share(load, count), Range(grid, model)
    found: dict[str, Any] = {
        "brokers": count + spare,
        "spare": spare,
        "limited_by": model.limit(load, count, busy_max=busy_max),
        "cpu_us": model.cpu_us(share),
        "busy": model.busy(load, count) / cores,
        "queue_cores": model.queue(load, count),
        "syncs_per_s": share.syncs * share.rate_per_s,
        "written_mb_per_s": written(own, load) * share.rate_per_s / 1e6,
        "written_times": written(own, load) / (load.size * load.fan_out) if load.fan_out else None,
        "costs": dict(zip(PARTS, model.costs, strict=True)),
        "error_p50": float(np.median(errors)),
        "error_mean": float(np.mean(errors)),
        "error_max": errors[-1],
        "error_at": at_ends(tests),
        "machine_cores": sorted({run.machine_cores for run in own if run.machine_cores}),
        "busy_cores_measured": max(run.busy for run in own),
        "runs": [
            {**_row(run), "predicted us": predicted, "error": error_of(run, predicted)}
            for run, predicted in tests
        ],
        "bounds": [{**_row(run), "limit": run.limit} for run in grid.bounds],
        "rate_per_broker": share.rate_per_s,
        "variants": [*_variants(model, load, range_, cores=cores, busy_max=busy_max, spare=spare)],
    }
    faults = [*range_.beyond(load, count).values()]
    within = range_.brokers(load, count)
    found["brokers_within_runs"] = None if within is None else within + spare
    found["bound_within_runs"] = "" if within is None else range_.bound(load, within)
    found["is_carried"] = found["error_mean"] <= error_max
    if not found["is_carried"]:
        faults.append(
            f"the runs do not carry a model: it is {found['error_mean']:.0%} off on runs that it has not "
            f"seen, more than {error_max:.0%}; its numbers are not to be used; {to_add(own)}"
        )
    page = _page(found, load, durability, cores, busy_max, tuple(faults))
    notes = (*_faulty(own), *(f"{each}." for each in grid.notes))
    page = dataclasses.replace(page, meta=(*page.meta, *notes))
    return Answer(found, page, unshown=f"{_unshown(found)}{_limited(found, busy_max)}")


def _faulty(runs: Sequence[Measured]) -> list[str]:
    """Say how many of the runs bench itself does not trust."""
    count = sum(run.is_faulty for run in runs)
    text = (
        f"{count} of {plural(len(runs), 'run')} failed the verdict of bench, for example because the load was"
        " late. Their latencies are not to be trusted; their CPU costs count."
    )
    return [text] if count else []


def _limited(measured: Mapping[str, Any], busy_max: float) -> str:
    """Return a sentence on what limits the answer; "" for one broker."""
    match measured["limited_by"]:
        case "queue":
            return (
                f" Limited by one queue ({measured['queue_cores']:.0%} of the one core that it can use, of "
                f"{busy_max:.0%} allowed): more cores do not help."
            )
        case "cores":
            return f" Limited by cores ({measured['busy']:.0%} busy, of {busy_max:.0%} allowed)."
    return ""


def _unshown(measured: Mapping[str, Any]) -> str:
    """Return the verdict where the runs do not bear out the answer."""
    within, count = measured["brokers_within_runs"], measured["brokers"]
    text = f"By the model {plural(count, 'broker')}, which the runs do not show."
    if within is not None and within > count:
        text += f" With {within:,}, each broker would get no more than a run has shown."
        if bound := measured["bound_within_runs"]:
            text += f" With one fewer, {bound}."
    return text


def _row(run: Measured) -> dict[str, Any]:
    return {
        "run": run.name,
        "rate": run.load.rate_per_s,
        "bytes": run.load.size,
        "subscriptions": run.load.fan_out,
        "syncs": run.load.syncs,
        "measured us": run.cpu_us,
    }


def _variants(
    model: Model, load: Load, range_: Range, *, cores: float, busy_max: float, spare: int
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
        try:
            count = model.brokers(other, cores=cores, busy_max=busy_max)
            beyond = [*range_.beyond(other, count)]
        except RunInvalid:
            count, beyond = None, ["no number of brokers is enough"]
        yield {
            "load": name,
            "rate": other.rate_per_s,
            "bytes": other.size,
            "subscriptions": other.fan_out,
            "brokers": None if count is None else count + spare,
            "beyond": beyond,
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
        title=f"{load}, {durability}",
        meta=(
            f"Brokers of {cores:g} cores, each busy for {busy_max:.0%} at most.",
            f"Fitted from {plural(len(measured['runs']), 'run')}{_machine(measured)}.",
        ),
        verdict=plural(measured["brokers"], "broker")
        + (f", {measured['spare']} of which may be away." if measured["spare"] else ".")
        + _limited(measured, busy_max)
        + f" On runs that it has not seen the model is {measured['error_mean']:.0%} off on average.",
        faults=faults,
        figures=_figures(measured),
        sections=_sections(measured),
        words=WORDS,
        footer="Numbers: capacity.json beside this page.",
    )


def _machine(measured: Mapping[str, Any]) -> str:
    """Say on what the runs were measured."""
    cores = " and ".join(f"{each}" for each in measured["machine_cores"])
    where = f" on a machine of {cores} cores" if cores else ""
    used = significant(measured["busy_cores_measured"])
    return f"{where}, in which a broker was measured to use up to {used} cores"


def _figures(measured: Mapping[str, Any]) -> tuple[Figure, ...]:
    count, spare = measured["brokers"], measured["spare"]
    written, syncs = measured["written_mb_per_s"], measured["syncs_per_s"]
    figures = (
        Figure(cell(count), "brokers needed", f"{spare} spare" if spare else ""),
        Figure(
            f"{measured['busy']:.0%}",
            "of a broker's cores are busy",
            f"{_left(count, spare)}; {measured['queue_cores']:.0%} of a core by each queue",
        ),
        Figure(f"{measured['cpu_us']:,.0f} µs", "CPU of a message"),
        Figure(
            f"{written:,.1f} MB/s",
            "written by each broker",
            f"{_left(count, spare)}; {_times(measured)}with {syncs:,.0f} syncs a second",
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
    if measured["is_carried"]:
        return figures
    *unused, error = figures
    return (*(dataclasses.replace(each, more=NOT_TO_BE_USED) for each in unused), error)


def _times(measured: Mapping[str, Any]) -> str:
    """Say how many times the bytes of its messages a broker writes; "" where nothing is stored."""
    times = measured["written_times"]
    return f"{times:.1f} x the bytes of the copies in its queues, " if times else ""


def _left(count: int, spare: int) -> str:
    """Say for which brokers a load was computed: those that are left while the spare ones are away."""
    if not spare:
        return f"of {plural(count, 'broker')}"
    return f"when {spare} of {plural(count, 'broker')} {'is' if spare == 1 else 'are'} away"


VARIANTS: Columns = {
    **{name: name for name in ("load", "rate", "bytes", "subscriptions", "brokers")},
    "beyond the runs": lambda row: ", ".join(row["beyond"]) or NONE,
}
COSTS: Columns = {"part": "part", "costs": lambda row: f"{significant(row['cost'])} {row['unit']}"}
RUNS: Columns = {
    **{name: name for name in ("run", "rate", "bytes", "subscriptions")},
    "syncs a message": lambda row: f"{row['syncs']:.2f}",
    "measured µs": "measured us",
    "predicted µs": "predicted us",
    "error": lambda row: f"{row['error']:.1%}",
}
BOUNDS = ("run", "limit", "rate", "bytes", "subscriptions")


def _sections(measured: Mapping[str, Any]) -> tuple[Section, ...]:
    variants = measured["variants"]
    costs = [
        {"part": part, "cost": measured["costs"][part], "unit": unit}
        for part, unit in PARTS.items()
    ]
    bars = Bars(
        tuple(
            Bar.of(each["load"], each["brokers"] or 0, cell(each["brokers"])) for each in variants
        )
    )
    return (
        section_of("If the load were another", variants, VARIANTS, bars=bars),
        section_of("What costs", costs, COSTS),
        section_of(
            "Runs: CPU of a message, predicted from those at other rates", measured["runs"], RUNS
        ),
        section_of("Runs that did not keep up", measured["bounds"], BOUNDS, left=2),
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
    help="Syncs a second of each broker's disk. Default: the most of any run.",
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
        grid = read_runs(folders)
        answer = measure(
            grid,
            Load(rate_per_s=rate_per_s, size=size, fan_out=fan_out),
            durability=durability,
            cores=cores,
            busy_max=busy_max,
            spare=spare,
            error_max=error_max,
            syncs_per_s=syncs_per_s,
        )
        return write("capacity", answer, out)

    return in_one_line("capacity", work)


if __name__ == "__main__":
    sys.exit(exit_code(command, None, prog_name="capacity"))
