"""The audit of many messages: whether it finds one fault of each kind, and its cost beside DuckDB's.

Both read the same Parquet files with two threads and 4 GB, and must agree to the row. CPU and memory are
those of the whole process and its children, including the start of its JVM. With a quarter of the memory
Spark spills to disk and gives the same answer.

``python -m bench.figures.measure.audit --dir DIR`` audits 1, 10 and 100 million messages, in half an hour and
20 GB of disk, and writes the figures to bench/results/measure.json. It is not one of the groups, which run
one after the other.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from bench.environment import CHECKOUT, describe
from bench.errors import BenchError
from bench.figures.form import Figure, Maker, at_most
from bench.figures.measure.made import RUN_ID, Planted, lay
from bench.figures.measure.watched import Cost, watched
from bench.figures.scene import Group, Scene, repeat_command

NAME, MEMORY_NAME = "measure.audit", "measure.memory"
MILLION = 1_000_000
MESSAGES, LEAST = 10 * MILLION, 10_000
GOAL_RATIO = 5.0
SPARK = (sys.executable, "-m", "spark")
# The part of the messages that a task groups at once does not fit into the smaller heap.
HEAPS = ("4g", "1g")
# A JVM needs more than its heap: code, threads, buffers; and there is the Python process.
MEMORY_MAX_MIB = 2048
SIZES = (1 * MILLION, 10 * MILLION, 100 * MILLION)
LARGE = "python -m bench.figures.measure.audit"
# The allowed change of a row's cost from one step of growth to the next.
FLAT_WITHIN = 0.2


def audit_figures(scene: Scene) -> Iterator[Figure]:
    messages = scene.part(MESSAGES, LEAST)
    scene.say(f"laying {messages:,} publishes and as many deliveries")
    lake = scene.folder / "lake"
    ours, duck = _audited(lake, lay(lake, messages))
    yield from _compared(NAME, messages, ours, duck, repeat_command(NAME))


def _audited(lake: Path, planted: Planted) -> tuple[Cost, Cost]:
    """Audit by Spark and by DuckDB. Raises BenchError if they differ, or miss a planted fault."""
    ours, found = _by_spark(SPARK, lake, lake / "out")
    oracle = [sys.executable, "-m", "bench.figures.measure.oracle", str(lake)]
    duck = watched(oracle, asked="audit\n")
    if faults := [*_not_found(found, planted), *agree(found, json.loads(duck.said))]:
        raise BenchError(f"{NAME}: {'; '.join(faults)}")
    return ours, duck


def _by_spark(argv: tuple[str, ...], lake: Path, out: Path) -> tuple[Cost, Any]:
    """Audit the made run of a lake. Raises BenchError when there is no answer."""
    job = [*argv, "audit", "--run", RUN_ID] if argv == SPARK else [*argv, "--run", RUN_ID]
    cost = watched([*job, "--lake", str(lake), "--out", str(out)], may_fail=True)
    try:
        return cost, json.loads((out / "audit.json").read_text())
    except FileNotFoundError as fault:
        raise BenchError(f"{NAME}: the audit ended without an answer: {cost.said}") from fault


def _compared(name: str, messages: int, ours: Cost, duck: Cost, repeat: str) -> Iterator[Figure]:
    """Make the figures of both, and their ratio, which has a goal at `MESSAGES`."""
    yield from _costs(f"{name}.spark", "Audit by Spark", messages, ours, repeat)
    yield from _costs(f"{name}.duckdb", "The same audit by DuckDB", messages, duck, repeat)
    what = f"Audit, {millions(messages)} rows: CPU of Spark over DuckDB's"
    goal = (at_most, GOAL_RATIO) if messages == MESSAGES else None
    yield Maker(name, repeat)("ratio", what, ours.cpu_s / duck.cpu_s, "times", goal)


def millions(messages: int) -> str:
    return f"{messages / 1e6:g} M + {messages / 1e6:g} M"


def _costs(name: str, what: str, messages: int, cost: Cost, repeat: str) -> Iterator[Figure]:
    """Make the figures of CPU and memory of one process that audited this many messages."""
    for of, words, value, unit in (
        ("cpu_s", "CPU time", cost.cpu_s, "s"),
        ("memory_mib", "memory", cost.memory_mib, "MiB"),
        ("row_us", "CPU time a row", cost.cpu_s / messages / 2 * 1e6, "us"),
    ):
        what_of = f"{what}, {millions(messages)} rows: {words}"
        yield Maker(name, repeat)(of, what_of, value, unit)


def _not_found(found: Mapping[str, Any], planted: Planted) -> list[str]:
    """Return the planted faults whose ids the audit does not name."""
    named = {(row["verdict"], row["message_id"]) for row in found["suspects"]}
    named |= {("late", row["message_id"]) for row in found.get("late", [])}
    wanted = {
        ("lost", planted.lost),
        ("altered", planted.altered),
        ("unexplained", planted.doubled),
        ("orphan", planted.orphan),
        ("late", planted.late),
    }
    return [f"{fault} {name} was not found" for fault, name in sorted(wanted - named)] + [
        f"{fault} {name} was never planted" for fault, name in sorted(named - wanted)
    ]


def agree(ours: Mapping[str, Any], duck: Mapping[str, Any]) -> list[str]:
    """Describe the differences between two audits of the same events."""
    verdicts = {name: count for name, count in ours["verdicts"].items() if count}
    late = sorted(row["message_id"] for row in ours.get("late", []))
    pairs = (("verdicts", verdicts), ("late", late))
    return [f"{name} {found} and {duck[name]}" for name, found in pairs if found != duck[name]]


GROUP = Group(NAME, 0, "no broker", audit_figures)


def memory_figures(scene: Scene) -> Iterator[Figure]:
    messages, repeat = scene.part(MESSAGES, LEAST), repeat_command(MEMORY_NAME)
    lake = scene.folder / "lake"
    lay(lake, messages)
    found: dict[str, tuple[Cost, Any]] = {}
    for heap in HEAPS:
        scene.say(f"audit of {messages:,} messages with {heap}")
        found[heap] = cost, _ = _by_spark(submit(heap), lake, lake / f"out-{heap}")
        if cost.heap != heap:
            has = cost.heap or "what it likes"
            raise BenchError(f"{MEMORY_NAME}: told {heap}, the JVM has {has}")
    most, least = HEAPS
    if found[most][1] != found[least][1]:
        raise BenchError(f"{MEMORY_NAME}: another answer with {least} than with {most}")
    for heap, (cost, _) in found.items():
        what = f"Audit by spark-submit --driver-memory {heap}"
        yield from _costs(f"{MEMORY_NAME}.{heap}", what, messages, cost, repeat)
    needed_mib = found[least][0].memory_mib
    what = f"Memory with which the audit answers the same as with {most}"
    yield Maker(MEMORY_NAME, repeat)("same", what, needed_mib, "MiB", (at_most, MEMORY_MAX_MIB))


def submit(heap: str) -> tuple[str, ...]:
    """Build the command of the audit with that much memory; Spark's scripts find this Python by the PATH."""
    folder = Path(sys.executable).parent
    environment = ("env", f"PATH={folder}:{os.environ['PATH']}")
    options = ("--master", "local[2]", "--driver-memory", heap)
    return (
        *environment,
        str(folder / "spark-submit"),
        *options,
        str(CHECKOUT / "spark/jobs/audit.py"),
    )


MEMORY_GROUP = Group(MEMORY_NAME, 0, "no broker", memory_figures)


@click.command(epilog=f"Example: {LARGE} --dir /var/tmp/audit")
@click.option("--dir", "folder", required=True, type=click.Path(path_type=Path, file_okay=False))
@click.option("--name", default="measure", show_default=True, help="Of the results file.")
def main(folder: Path, name: str) -> None:
    """Audit made runs of 1, 10 and 100 million messages by Spark and by DuckDB."""
    # The list of groups imports this module.
    from bench.figures.cli import RESULTS, keep

    environment = {**describe(), "path": "no broker"}
    costs: dict[int, Cost] = {}
    for messages in SIZES:
        lake = folder / f"lake-{messages}"
        costs[messages], duck = _audited(lake, lay(lake, messages))
        shutil.rmtree(lake)
        size = f"{NAME}.{messages // MILLION}m"
        found = list(_compared(size, messages, costs[messages], duck, LARGE))
        if len(costs) == len(SIZES):
            found += growth(costs)
        keep(RESULTS / f"{name}.json", size, found, environment)
        for figure in found:
            click.echo(f"{figure.id}: {figure.value:,.2f} {figure.unit}")


def growth(costs: Mapping[int, Cost]) -> Iterator[Figure]:
    """Make the figures of the start's cost and of a row's cost at two steps. costs: messages -> cost.

    There are three costs. The start (a process, its compiler, its plans) is the smallest run's CPU time
    without its rows, at the row cost of the first step.
    """
    small, middle, large = sorted(costs)
    first, second = (
        (costs[many].cpu_s - costs[few].cpu_s) / (many - few)
        for few, many in ((small, middle), (middle, large))
    )
    what = "Audit by Spark: CPU time before and beside all rows"
    yield Maker(NAME, LARGE)("start_s", what, costs[small].cpu_s - first * small, "s")
    yield Figure(
        id=f"{NAME}.flat",
        what=f"Audit by Spark: CPU of a row from {middle:,} to {large:,} messages over that from "
        f"{small:,} to {middle:,}",
        value=second / first,
        unit="times",
        repeat=LARGE,
        goal=f"1 +- {FLAT_WITHIN:g} times",
        met=abs(second / first - 1) <= FLAT_WITHIN,
    )


if __name__ == "__main__":
    main()
