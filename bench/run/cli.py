"""``python -m bench run``, ``report``, ``compare``, ``knee`` and ``overhead``."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import click

from bench.errors import BenchError, InputInvalid
from bench.figures.cli import RESULTS, keep
from bench.figures.environment import CHECKOUT, describe, load_average
from bench.figures.form import Figure, at_most
from bench.manifest import write_atomically
from bench.run import overhead as overheads
from bench.run import report as reports
from bench.run.compare import compare as compare_results
from bench.run.compare import order, read_arm, told
from bench.run.conduct import conduct
from bench.run.drivers import Running, started
from bench.run.knee import Knee
from bench.run.outside import conduct_outside, render_outside
from bench.run.profile import Profile, System
from bench.run.result import Result, gather, percentiles
from bench.run.schedule import Constant
from bench.run.series import carry_out
from bench.run.summary import page
from bench.run.systems import SYSTEMS
from bench.run.tables import columns_here
from bench.run.workloads import WORKLOADS
from ops.local.layout import DEFAULT_NETWORK

__all__ = ["COMMANDS", "measured"]

PROFILES = CHECKOUT / "bench" / "profiles"
OVERHEAD_MESSAGES = 200_000
GOAL_RECORD_US, GOAL_MESSAGE_US = 1.0, 3.0


def profile_of(named: str) -> Profile:
    """Of a file, or of one of ours by its name. Raises InputInvalid."""
    path = Path(named)
    if not path.suffix and (PROFILES / f"{named}.toml").exists():
        path = PROFILES / f"{named}.toml"
    elif not path.exists():
        known = ", ".join(sorted(each.stem for each in PROFILES.glob("*.toml")))
        raise InputInvalid(f"no profile {named!r}: a TOML file, or one of {known}")
    return Profile.load_file(path)


@click.command(epilog="Example: python -m bench run steady --dir out/steady")
@click.argument("profile")
@click.option("--system", type=click.Choice(list(SYSTEMS)), help="Instead of the profile's.")
@click.option("--dir", "folder", type=click.Path(path_type=Path), help="Default: out/NAME-time.")
@click.option("--repeat", type=click.IntRange(min=1), default=1, show_default=True)
@click.option(
    "--part",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Of a workload: 10 sends a tenth of its messages, or for a tenth of its time.",
)
@click.option("--name", help="Of a results file that keeps the figures of a workload.")
@click.option("--network", default=DEFAULT_NETWORK, show_default=True, help="Of all addresses.")
def run(
    profile: str,
    system: str | None,
    folder: Path | None,
    repeat: int,
    part: int,
    name: str | None,
    network: str,
) -> None:
    """Measure what PROFILE says (a TOML file, or a name of bench/profiles) on a system of its own.

    seed-s1, seed-s2, latency-matrix, fan-in and peers are workloads of several runs; with --dir they go on
    where they were interrupted.

    Exit code 1: the numbers are not to be trusted, and why is on the first lines of the report.
    """
    place = folder or CHECKOUT / "out" / f"{Path(profile).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    if profile in WORKLOADS and system is None:
        results = work_through(profile, place, network, repeat=repeat, part=part, name_of_file=name)
    else:
        wanted = with_system(profile_of(profile), system)
        with started(wanted, network, click.echo) as running:
            results = [
                reported(wanted, place / f"{number + 1:02}" if repeat > 1 else place, running)
                for number in range(repeat)
            ]
    if faults := [fault for result in results for fault in result["faults"]]:
        raise BenchError("; ".join(faults))


def work_through(
    name: str, place: Path, network: str, *, repeat: int, part: int, name_of_file: str | None
) -> list[dict[str, Any]]:
    """A workload of several runs, with what it says in all."""
    workload = WORKLOADS[name]
    steps = workload.steps(profile_of, repeat, part)
    results = carry_out(steps, place, network, reported, click.echo)
    told_of = workload.told(results, repeat)
    (place / "summary.txt").write_text("\n".join(told_of.lines()) + "\n")
    write_atomically(place / "summary.html", page(name, told_of, place, list(results)))
    click.echo("\n".join(["", *told_of.lines(columns_here()), "", str(place / "summary.html")]))
    if name_of_file:
        command = f"python -m bench run {name}"
        command += f" --repeat {repeat}" if repeat > 1 else ""
        command += f" --part {part}" if part > 1 else ""
        # Of the runs, which may be older than this call.
        first, *_, last = (each["environment"] for each in results.values())
        after = {**first, "path": "its own", "part": part, "load_after": last["load_after"]}
        figures = list(workload.figures(results, repeat, command))
        keep(RESULTS / f"{name_of_file}.json", f"measure.{name}", figures, after)
    return list(results.values())


def with_system(profile: Profile, name: str | None) -> Profile:
    """The same load on another system, on as many of its brokers as that one has. Raises InputInvalid."""
    if name is None:
        return profile
    brokers = min(profile.system.brokers, SYSTEMS[name].brokers_max)
    made = dataclasses.replace(profile, system=System(name=name, brokers=brokers))
    if faults := made.faults():
        raise InputInvalid("; ".join(faults))
    return made


@click.command(epilog="Example: python -m bench report out/steady")
@click.argument("folder", type=click.Path(path_type=Path))
def report(folder: Path) -> None:
    """Make the report of a run again from its files; of one that was cut short, of what is there."""
    result = gather(folder)
    result.save()
    click.echo(reports.write(result, columns_here()))
    click.echo(f"\n{folder / 'report.html'}")
    if result.faults:
        raise BenchError(result.faults[0])


@click.command(epilog="Example: python -m bench compare one.toml other.toml --repeat 5")
@click.argument("first")
@click.argument("second")
@click.option("--repeat", type=click.IntRange(min=1), default=5, show_default=True)
@click.option(
    "--bound",
    type=click.FloatRange(min=0),
    default=0.1,
    show_default=True,
    help="Part by which the second may be worse.",
)
@click.option("--dir", "folder", type=click.Path(path_type=Path), help="Default: out/compare-time.")
@click.option("--network", default=DEFAULT_NETWORK, show_default=True, help="Of all addresses.")
def compare(
    first: str, second: str, repeat: int, bound: float, folder: Path | None, network: str
) -> None:
    """Run two profiles by turns, or read two folders of results, and say how the second does.

    The profiles may differ in their [system] alone. Exit code 1: a regression beyond the bound that
    is not chance; 2: they cannot be compared.
    """
    if Path(first).is_dir() and Path(second).is_dir():
        arms = [read_arm(Path(each)) for each in (first, second)]
    else:
        place = folder or CHECKOUT / "out" / f"compare-{time.strftime('%Y%m%d-%H%M%S')}"
        arms = _by_turns([profile_of(each) for each in (first, second)], repeat, place, network)
    compared = compare_results(*arms)
    for line in told(compared, (first, second), bound):
        click.echo(line)
    worse = [each.number.name for each in compared if each.is_regression(bound)]
    if worse:
        raise BenchError(f"worse by more than {bound:.0%}: {', '.join(worse)}")


def _by_turns(
    profiles: list[Profile], repeat: int, place: Path, network: str
) -> list[list[dict[str, Any]]]:
    arms: dict[str, list[dict[str, Any]]] = {"a": [], "b": []}
    wanted = dict(zip("ab", profiles, strict=True))
    for number, arm in enumerate(order(repeat)):
        with started(wanted[arm], network, click.echo) as running:
            result = of_any_load(wanted[arm], place / arm / f"{number + 1:02}", running)
        rate = result["confirmed_per_s"]
        click.echo(f"{arm}, run {number + 1} of {2 * repeat}: {rate:,.0f} confirmed a second")
        arms[arm].append(result)
    return [arms["a"], arms["b"]]


@click.command(epilog="Example: python -m bench knee steady --p99-max-ms 20")
@click.argument("profile")
@click.option("--p99-max-ms", type=click.FloatRange(min=0), default=20.0, show_default=True)
@click.option("--top", type=click.FloatRange(min=1), default=100_000.0, show_default=True)
@click.option("--dir", "folder", type=click.Path(path_type=Path), help="Default: out/knee-time.")
@click.option("--network", default=DEFAULT_NETWORK, show_default=True, help="Of all addresses.")
def knee(profile: str, p99_max_ms: float, top: float, folder: Path | None, network: str) -> None:
    """Find the highest constant rate at which 99 % of PROFILE's confirms come within --p99-max-ms.

    A rate also fails when the load was held back, or when the client was the bottleneck: which of the
    two it was stands in each run's report.
    """
    wanted = profile_of(profile)
    if not isinstance(wanted.load.schedule, Constant):
        raise InputInvalid(f"{wanted.name}: a schedule of kind constant is wanted to begin with")
    if SYSTEMS[wanted.system.name].own_load:
        raise InputInvalid(f"{wanted.system.name}: its load is its own, and has no intended times")
    place = folder or CHECKOUT / "out" / f"knee-{time.strftime('%Y%m%d-%H%M%S')}"
    search = Knee(first=wanted.load.schedule.rate_per_s, top=top)
    with started(wanted, network, click.echo) as running:
        while (rate := search.next_rate()) is not None:
            load = dataclasses.replace(wanted.load, schedule=Constant(rate_per_s=rate))
            one = dataclasses.replace(wanted, load=load)
            result = measured(one, place / f"{rate:09.1f}", running)
            reports.write(result)
            p99 = percentiles(result.bins("confirm")).get("p99", float("inf"))
            holds = not result.faults and p99 <= p99_max_ms
            search.note(rate, holds=holds)
            why = f": {result.faults[0]}" if result.faults else ""
            click.echo(f"{rate:,.0f}/s {'holds' if holds else 'fails'}, p99 {p99:.3g} ms{why}")
    click.echo(f"knee: {search.held:,.0f}/s with p99 within {p99_max_ms:g} ms; runs in {place}")
    if not search.held:
        raise BenchError("no rate holds")


@click.command(epilog="Example: python -m bench overhead --name measure")
@click.option("--messages", type=click.IntRange(min=100), default=OVERHEAD_MESSAGES)
@click.option("--name", help="Of a results file that keeps the figures.")
def overhead(messages: int, name: str | None) -> None:
    """Measure what the harness itself adds to each message: CPU time, against a system that does nothing."""
    environment: dict[str, object] = {**describe(), "path": "no broker"}
    found = overheads.measure(messages)
    figures = [
        Figure(
            id=f"measure.overhead.{part}_us",
            what=f"{what}, CPU time",
            value=value,
            unit="us",
            repeat="python -m bench overhead",
            **at_most(goal, value, "us"),
        )
        for part, what, value, goal in (
            (
                "record",
                "Recording one latency by second and broker",
                found.record_us,
                GOAL_RECORD_US,
            ),
            (
                "publish",
                "What the harness adds to a published message of 1 KB",
                found.publish_us,
                GOAL_MESSAGE_US,
            ),
            (
                "consume",
                "What the harness adds to a consumed message of 1 KB",
                found.consume_us,
                GOAL_MESSAGE_US,
            ),
        )
    ]
    for figure in figures:
        click.echo(f"{figure.value:6.3f} us  {figure.what} (goal {figure.goal})")
    if name:
        after = {**environment, "load_after": load_average()}
        keep(RESULTS / f"{name}.json", "measure.overhead", figures, after)
    if missed := [figure.id for figure in figures if figure.met is False]:
        raise BenchError(f"goals not met: {', '.join(missed)}")


def measured(profile: Profile, folder: Path, running: Running) -> Result:
    """One run on a system that is there."""
    running.declare(profile)
    conduct(profile, folder, running, click.echo)
    result = gather(folder)
    result.save()
    return result


def of_any_load(profile: Profile, folder: Path, running: Running) -> dict[str, Any]:
    """One run, ours or of a load that is not: what its ``result.json`` has."""
    if not SYSTEMS[profile.system.name].own_load:
        return measured(profile, folder, running).as_json()
    running.declare(profile)
    return conduct_outside(profile, folder, running, click.echo)


def reported(profile: Profile, folder: Path, running: Running) -> dict[str, Any]:
    """One run with its report, printed and in its folder."""
    found = of_any_load(profile, folder, running)
    if found.get("outside"):
        text = render_outside(found)
        (folder / "report.txt").write_text(text + "\n")
        click.echo(text)
    else:
        click.echo(reports.write(gather(folder), columns_here()))
        click.echo(f"\n{folder / 'report.html'}")
    return found


COMMANDS = (run, report, compare, knee, overhead)
