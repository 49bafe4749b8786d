"""The commands ``run``, ``report``, ``compare``, ``knee`` and ``overhead``, and the named workloads.

A workload is a set of several runs with steps, a summary and figures.
"""

from __future__ import annotations

import dataclasses
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from bench import options
from bench.analysis import report as reports
from bench.analysis.compare import (
    PAIRS_MIN,
    about_arm,
    are_by_turns,
    paired_steps,
    profile_of_arm,
    read_arm,
    refuse_unlike,
    refuse_unlike_machines,
    table_of,
)
from bench.analysis.compare import compare as compare_results
from bench.analysis.foreign_load import conduct_outside, read_outside, write_outside
from bench.analysis.result import Result, gather
from bench.analysis.series import Results, Step, Summary, carry_out, had, page
from bench.audit import audit as audited
from bench.audit_report import print_audit
from bench.environment import CHECKOUT, describe, load_average
from bench.errors import BenchError, DoesNotHold, InputInvalid
from bench.figures.figure import Figure
from bench.figures.results import check_keeping, keep
from bench.harness.coordinator import conduct, refuse
from bench.harness.interface import Running, durability, started
from bench.harness.workers import make_empty_folder, make_folder
from bench.load.profile import Profile, places
from bench.load.schedule import Constant
from bench.load.systems import SYSTEMS
from bench.processes import run as run_to_end
from bench.rows import read_events
from bench.workloads import overhead as overheads
from bench.workloads import predecessor, tables
from bench.workloads.knee import Knee, fault_of
from messagebus import BusConfig, Stream, declare
from messagebus.commands.options import refuse_typed
from messagebus.files import replace_file
from messagebus.recording.events import FAULTS
from messagebus.recording.manifest import read_manifest
from messagebus.terminal import plural
from ops.local.layout import LOOPBACK
from reports.text import columns_here

ResultOfStep = Mapping[str, Mapping[str, Any]]
Load = Callable[[str], Profile]
"""Returns one of our profiles by its name."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A named set of runs.

    steps: makes steps from profiles, repetitions, and the part of the work that is done (10: a tenth).
    summary: makes it of results. figures: makes figures of these and of the command that repeats them.
    next: the command that reads the runs, with {} for their folder; "" for none.
    """

    steps: Callable[[Load, int, int], Sequence[Step]]
    summary: Callable[[ResultOfStep], Summary]
    figures: Callable[[ResultOfStep, str], Iterable[Figure]]
    next: str = ""

    def doubts(self, results: Sequence[Mapping[str, Any]], place: Path) -> str:
        """Return how many of the runs are not to be trusted, and what to do next; "" for none."""
        if not (count := sum(bool(each["faults"]) for each in results)):
            return ""
        text = f"{count} of {plural(len(results), 'run')} not to be trusted, see {place / 'summary.txt'}"
        return f"{text}; next: {self.next.format(place)}" if self.next else text


def _seed(name: str) -> Workload:
    return Workload(
        lambda load, *how: predecessor.steps(load(name), *how),
        partial(predecessor.summary, name),
        partial(predecessor.figures, name),
    )


def _in_table(
    table: tables.Table, steps: Callable[..., Sequence[Step]], *profiles: str
) -> Workload:
    return Workload(
        lambda load, *how: steps(*map(load, profiles), *how), table.summary, table.figures
    )


WORKLOADS: Mapping[str, Workload] = {
    "seed-s1": _seed("seed-s1"),
    "seed-s2": _seed("seed-s2"),
    "latency-matrix": Workload(
        lambda load, *how: tables.matrix_steps(map(load, tables.MATRIX_PROFILES), *how),
        tables.MATRIX.summary,
        tables.MATRIX.figures,
    ),
    "fan-in": _in_table(tables.FAN_IN, tables.fan_in_steps, "fan-in"),
    "capacity": dataclasses.replace(
        _in_table(tables.CAPACITY, tables.capacity_steps, "capacity"),
        next="python -m spark capacity --runs {} --rate MESSAGES_A_SECOND --out out/plan",
    ),
    "peers": _in_table(tables.PEERS, tables.peers_steps, "peers", "peers-full"),
}


PROFILES = CHECKOUT / "bench" / "profiles"
OVERHEAD_MESSAGES = 200_000
LIVE_WITHIN_S = 600.0


def profile_of(named: str) -> Profile:
    """Load a profile from a file, or from bench/profiles by its name. Raises InputInvalid."""
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
@options.folder("Default: out/NAME-time.")
@options.number("--repeat", default=1, help="Number of repetitions.")
@options.number(
    "--part",
    default=1,
    help="Of a workload: 10 sends a tenth of its messages, or for a tenth of its time.",
)
@options.keep
@click.option("--live", is_flag=True, help="Read streams of its topics by the live Spark job, too.")
@click.option(
    "--load-host",
    "hosts",
    multiple=True,
    metavar="[USER@]HOST[:PORT]",
    help="Run the load processes there, over SSH; several take turns.",
)
@options.network
def run(
    profile: str,
    system: str | None,
    folder: Path | None,
    repeat: int,
    part: int,
    publish: bool,
    live: bool,
    hosts: tuple[str, ...],
    network: str,
) -> None:
    """Measure what PROFILE says (a TOML file, or a name of bench/profiles) on a system of its own.

    seed-s1, seed-s2, latency-matrix, fan-in, capacity and peers are workloads of several runs; with --dir
    they go on where they were interrupted. A run of messagebus prints the command that opens the live page
    of its brokers; they are removed at the end of the run.

    Exit code 7: the numbers are not to be trusted; the first lines of the report give the reasons.
    """
    place = folder or CHECKOUT / "out" / f"{Path(profile).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    if profile in WORKLOADS and system is None:
        if live or hosts:
            raise InputInvalid(f"--{'live' if live else 'load-host'}: of one profile, no workload")
        make_folder(place)
        results = work_through(profile, place, network, repeat=repeat, part=part, publish=publish)
        if doubts := WORKLOADS[profile].doubts(results, place):
            raise DoesNotHold(doubts)
    else:
        if part > 1 or publish:
            raise InputInvalid(
                f"--part, --keep: of a workload alone, without --system: {', '.join(WORKLOADS)}"
            )
        wanted = with_system(profile_of(profile), system)
        if live and wanted.system.name != "messagebus":
            raise InputInvalid("--live: on messagebus alone")
        if hosts:
            refuse_hosts(wanted, hosts, network)
        numbers = [f"{number + 1:02}" for number in range(repeat)] if repeat > 1 else [""]
        folders = [make_empty_folder(place / each) for each in numbers]
        with (
            started(wanted, network, click.echo) as running,
            shown_live(wanted, place, running) if live else nullcontext(),
        ):
            results = [reported(wanted, each, running, hosts) for each in folders]
        if faults := [fault for result in results for fault in result["faults"]]:
            raise DoesNotHold("; ".join(faults))


def refuse_hosts(profile: Profile, hosts: Sequence[str], network: str) -> None:
    """Raise InputInvalid, before anything starts, for what load processes elsewhere cannot do."""
    if SYSTEMS[profile.system.name].own_load:
        raise InputInvalid(f"--load-host: {profile.system.name} makes its load itself, here")
    if network.startswith(LOOPBACK):
        raise InputInvalid(
            f"--load-host: no other host reaches {network}: give the --network of an interface"
        )
    refuse(profile, hosts)


def work_through(
    name: str, place: Path, network: str, *, repeat: int, part: int, publish: bool
) -> list[dict[str, Any]]:
    """Run a workload of several runs and summarize it."""
    workload = WORKLOADS[name]
    steps = workload.steps(profile_of, repeat, part)
    if publish:
        check_keeping(click.echo)
    before = load_average()
    is_new = not had(steps, place)
    results = carry_out(steps, place, network, reported, click.echo)
    summarize(name, workload.summary(results), place, list(results))
    if publish:
        command = f"python -m bench run {name}"
        command += f" --repeat {repeat}" if repeat > 1 else ""
        command += f" --part {part}" if part > 1 else ""
        # Taken from the runs, which may be older than this call.
        runs = [each["environment"] for each in results.values()]
        # The load of a new series is that before its brokers started.
        load = {"load_before": before} if is_new else {}
        about = {"path": "its own", "part": part, "load_after": runs[-1]["load_after"]}
        # One run with uncommitted changes makes all of them of no commit.
        about["commit"] = max(
            (each["commit"] for each in runs), key=lambda each: each.endswith("+")
        )
        after = runs[0] | load | about
        keep(f"measure.{name}", workload.figures(results, command), after, publish=True)
    return list(results.values())


def summarize(title: str, summary: Summary, place: Path, runs: Sequence[str]) -> None:
    """Print the summary of several runs, and write it beside their folders."""
    (place / "summary.txt").write_text("\n".join(summary.lines()) + "\n")
    replace_file(place / "summary.html", page(title, summary, place, runs))
    click.echo("\n".join(["", *summary.lines(columns_here()), "", str(place / "summary.html")]))


def with_system(profile: Profile, name: str | None) -> Profile:
    """Return the same load on another system, with at most its brokers_max. Raises InputInvalid."""
    if name is None:
        return profile
    brokers = min(profile.system.brokers, SYSTEMS[name].brokers_max)
    system = dataclasses.replace(profile.system, name=name, brokers=brokers)
    other = dataclasses.replace(profile, system=system)
    if faults := other.faults():
        raise InputInvalid("; ".join(faults))
    return other


@click.command(epilog="Example: python -m bench audit out/demo-20260101-120000")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--allow",
    multiple=True,
    type=click.Choice(list(FAULTS)),
    metavar="NAME",
    help="Of a fault that does not count, as docs/MEASURING.md has them; several.",
)
def audit(folder: Path, allow: tuple[str, ...]) -> None:
    """Judge the recorded run in FOLDER: lost, altered, doubled and why. Exit 0 only if it holds."""
    manifest = read_manifest(folder)
    result = audited(manifest, read_events(folder, manifest), allow)
    print_audit(result, manifest)
    if not result.holds:
        raise DoesNotHold(
            f"the audit of {manifest.run_id} does not hold: {'; '.join(result.faults)}"
        )


@click.command(epilog="Example: python -m bench report out/steady")
@click.argument("folder", type=click.Path(path_type=Path))
def report(folder: Path) -> None:
    """Make the report of a run again from its files; after an interrupted run, from those it left."""
    if (found := read_outside(folder)) is not None:
        click.echo(write_outside(found, folder))
        faults = found["faults"]
    else:
        result = saved(folder)
        faults = result.faults
        show(result)
    if faults:
        raise DoesNotHold("; ".join(faults))


@click.command(epilog="Example: python -m bench compare one.toml other.toml --repeat 5")
@click.argument("first")
@click.argument("second")
@options.number("--repeat", default=5, help="Number of repetitions.", least=PAIRS_MIN)
@options.number(
    "--worse-max", "bound", default=0.1, help="Part by which the second may be worse.", least=0
)
@click.option(
    "--unlike-durability", is_flag=True, help="Also where a confirm promises something else."
)
@options.folder("Goes on where it was interrupted. Default: out/compare-time.")
@options.network
def compare(
    first: str,
    second: str,
    repeat: int,
    bound: float,
    unlike_durability: bool,
    folder: Path | None,
    network: str,
) -> None:
    """Run two profiles by turns, or read two folders of results, and say how the second does.

    The profiles may differ in their system's name and brokers alone. A pair is left out, and counted, when
    the load was its limit, or its first run has nothing to compare with. Exit code 7: a regression beyond
    the bound that is not chance, something that only the first has, or a fault that the second has more
    often; 2: they cannot be compared.
    """
    names = (first, second)
    if from_folders := Path(first).is_dir() and Path(second).is_dir():
        refuse_typed("repeat", "folder", "network", why="of profiles alone; results are only read")
        a, b = (read_arm(Path(each)) for each in names)
        wanted = (profile_of_arm(first, a), profile_of_arm(second, b))
        refuse_unlike(*wanted, any_durability=unlike_durability)
    else:
        wanted = (profile_of(first), profile_of(second))
        refuse_unlike(*wanted, any_durability=unlike_durability)
        place = make_folder(
            folder or CHECKOUT / "out" / f"compare-{time.strftime('%Y%m%d-%H%M%S')}"
        )
        found = one_by_one(paired_steps(*wanted, repeat), place, network)
        a, b = ([found[name] for name in sorted(found) if name.startswith(arm)] for arm in "ab")
    refuse_unlike_machines(a, b)
    compared = compare_results(a, b)
    for line in (about_arm(first, a), about_arm(second, b), *table_of(compared, names, bound)):
        click.echo(line)
    if from_folders and not are_by_turns(a, b):
        click.echo("not measured by turns: what was different meanwhile is in the ratios too")
    if worse := compared.regressions(bound):
        raise DoesNotHold(f"worse by more than {bound:.0%}: {', '.join(worse)}")


def one_by_one(steps: Sequence[Step], place: Path, network: str) -> Results:
    """Run each step on its own start of the system. A failed step leaves its fault in the results."""
    had(steps, place)
    found: Results = {}
    for step in steps:
        found |= carry_out([step], place, network, or_fault, click.echo)
    return found


def or_fault(profile: Profile, folder: Path, running: Running) -> dict[str, Any]:
    """Do one run; return its result, or the fault that prevented one."""
    try:
        return of_any_load(profile, folder, running)
    except InputInvalid:
        raise
    except BenchError as fault:
        click.echo(f"{folder.name} failed: {fault}")
        return {
            "profile": profile.as_json(),
            "environment": describe(),
            "durability": durability(profile),
            "complete": False,
            "faults": [str(fault)],
            "confirmed_per_s": 0.0,
        }


@click.command(epilog="Example: python -m bench knee steady --p99-max-s 0.02")
@click.argument("profile")
@options.number("--p99-max-s", default=0.02, help="The bound.", least=0)
@options.number("--top", default=100_000.0, help="Highest rate that is tried.")
@options.folder("Goes on where it was interrupted. Default: out/knee-time.")
@options.network
def knee(profile: str, p99_max_s: float, top: float, folder: Path | None, network: str) -> None:
    """Find the highest constant rate at which 99 % of PROFILE's messages come within --p99-max-s.

    Confirms, and deliveries where there are consumers. A rate also fails when the load was held back, or
    when the client was the bottleneck; the answer is then the client's knee and says so. Each try has a
    system of its own, so that tries do not affect each other. A rate fails when it failed twice, and the
    answer has held twice. A search has about ten tries; each takes the time of PROFILE, and a start of the
    system, some seconds for each broker. It ends early after three rates at which the load was the limit.
    """
    wanted = profile_of(profile)
    schedule = wanted.load.schedule
    if not isinstance(schedule, Constant):
        raise InputInvalid(f"{wanted.name}: a schedule of kind constant is wanted to begin with")
    if SYSTEMS[wanted.system.name].own_load:
        raise InputInvalid(f"{wanted.system.name}: its load is its own, and has no intended times")
    if not (math.isfinite(top) and math.isfinite(p99_max_s) and top >= schedule.rate_per_s):
        raise InputInvalid(
            f"--top {top:g}, --p99-max-s {p99_max_s:g}: finite numbers, and a top of "
            f"{schedule.rate_per_s:g} or more, the profile's own rate"
        )
    place = make_folder(folder or CHECKOUT / "out" / f"knee-{time.strftime('%Y%m%d-%H%M%S')}")
    search = Knee(first=schedule.rate_per_s, top=top)
    runs: list[str] = []
    tries: list[tuple[str, str]] = []
    while (rate := search.next_rate()) is not None:
        load = dataclasses.replace(wanted.load, schedule=Constant(rate_per_s=rate))
        name = f"{rate:010.2f}-{search.count(rate) + 1}"
        step = Step(name, dataclasses.replace(wanted, load=load))
        fault = fault_of(one_by_one([step], place, network)[name], 1_000 * p99_max_s)
        search.note(rate, fault)
        runs.append(name)
        tries.append((f"{rate:,.0f}/s", f"fails: {fault}" if fault else "holds"))
        click.echo(" ".join(tries[-1]))
    answer = search.answer(1_000 * p99_max_s)
    summary = Summary(title=answer, head=("rate", "how it went"), rows=tries, left=2)
    summarize(f"knee {profile}", summary, place, runs)
    if not search.held:
        raise DoesNotHold(answer)


@click.command(epilog="Example: python -m bench overhead --messages 50000")
@options.number("--messages", default=OVERHEAD_MESSAGES, help="So many in all.", least=100)
@options.number("--repeat", default=5, help="Number of repetitions.")
@options.keep
def overhead(messages: int, repeat: int, publish: bool) -> None:
    """Measure what the harness itself adds to each message: CPU time, against a system that does nothing."""
    if publish:
        check_keeping(click.echo)
    environment: dict[str, object] = {**describe(), "path": "no broker"}
    found = overheads.measure(messages, repeat)
    figures = overheads.figures(found)
    for figure in figures:
        goal = f" (goal {figure.goal})" if figure.goal else ""
        click.echo(f"{figure.value:6.3f} us  {figure.what}{goal}")
    if publish:
        after = {**environment, "load_after": load_average()}
        keep("measure.overhead", figures, after, publish=True)
    if missed := [figure.id for figure in figures if figure.met is False]:
        raise DoesNotHold(f"goals not met: {', '.join(missed)}")


def measured(profile: Profile, folder: Path, running: Running, hosts: Sequence[str] = ()) -> Result:
    """Do one run on a running system and write its report; after a failure, report the files that exist.

    hosts: as of `Workers`.
    """
    running.declare(profile)
    try:
        conduct(profile, folder, running, click.echo, hosts)
    except InputInvalid:
        # The folder may belong to another run.
        raise
    except (BenchError, KeyboardInterrupt):
        saved(folder)
        raise
    return saved(folder)


def saved(folder: Path) -> Result:
    """Gather a run's folder, and write its result and its report there."""
    result = gather(folder)
    result.save()
    reports.write(result)
    return result


def of_any_load(profile: Profile, folder: Path, running: Running) -> dict[str, Any]:
    """Do one run, with our load or with the system's own; return the content of ``result.json``."""
    if not SYSTEMS[profile.system.name].own_load:
        return measured(profile, folder, running).as_json()
    running.declare(profile)
    found = conduct_outside(profile, folder, running, click.echo)
    write_outside(found, folder)
    return found


def reported(
    profile: Profile, folder: Path, running: Running, hosts: Sequence[str] = ()
) -> dict[str, Any]:
    """Do one run and print its report. hosts: as of `Workers`."""
    if SYSTEMS[profile.system.name].own_load:
        found = of_any_load(profile, folder, running)
        click.echo((folder / "report.txt").read_text())
        return found
    result = measured(profile, folder, running, hosts)
    show(result)
    return result.as_json()


@contextmanager
def shown_live(profile: Profile, folder: Path, running: Running) -> Iterator[None]:
    """Keep messages in streams, and then read them by the live Spark job: FOLDER/live/TOPIC."""
    running.declare(profile)
    topics = sorted({topic for topic, _ in places(profile)})
    declare(BusConfig.from_env(running.env()), [Stream(topic) for topic in topics])
    yield
    for topic in topics:
        out = folder / "live" / topic
        argv = [sys.executable, "-m", "spark", "live", "--once", "--keep", "--topic", topic]
        environment = {**os.environ, **running.env()}
        argv += ["--out", str(out)]
        run_to_end(argv, within_s=LIVE_WITHIN_S, what="the live job", env=environment)
        click.echo(out / "live.html")


def show(result: Result) -> None:
    """Print the report as wide as the terminal, and the path of its page."""
    click.echo(reports.render_text(result, columns_here()))
    click.echo(f"\n{result.folder / 'report.html'}")
