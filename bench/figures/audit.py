"""The audit of ten million messages, which must find planted faults: its cost beside that of DuckDB's.

Both read the same Parquet files with two threads and 4 GB, and must agree to the row. CPU and memory are
those of the whole process and its children, including the start of its JVM.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from bench.environment import CHECKOUT
from bench.errors import BenchError
from bench.figures.figure import Figure, Maker, at_most
from bench.figures.generated_run import RUN_ID, Planted, lay
from bench.figures.groups import Group, Setup, repeat_command

NAME = "measure.audit"
MESSAGES, LEAST = 10_000_000, 10_000
GOAL_RATIO = 5.0
WATCH_S, WITHIN_S = 0.1, 3600.0


def audit_figures(setup: Setup) -> Iterator[Figure]:
    messages = setup.part(MESSAGES, LEAST)
    setup.say(f"writing {messages:,} publishes and as many deliveries")
    lake = setup.folder / "lake"
    planted = lay(lake, messages)
    spark = [sys.executable, "-m", "spark", "audit", "--run", RUN_ID, "--lake", str(lake)]
    # Exit code 7: it has found the planted faults.
    ours = watched([*spark, "--out", str(lake / "out")], may_fail=True)
    answer = lake / "out" / "audit.json"
    if not answer.exists():
        raise BenchError(f"{NAME}: the audit ended without an answer: {ours.output}")
    duck = watched([sys.executable, "-m", "bench.figures.duckdb_audit", str(lake)])
    found = json.loads(answer.read_text())
    if faults := [*missed_faults(found, planted), *differences(found, json.loads(duck.output))]:
        raise BenchError(f"{NAME}: {'; '.join(faults)}")
    yield from compared(messages, ours, duck)


def compared(messages: int, ours: Cost, duck: Cost) -> Iterator[Figure]:
    """Make the figures of both, and their ratio, which has a goal at `MESSAGES`."""
    make, rows = Maker(NAME, repeat_command(NAME)), f"{messages / 1e6:g} M + {messages / 1e6:g} M"
    for id, who, cost in (("spark", "Spark", ours), ("duckdb", "DuckDB", duck)):
        what = f"Audit of {rows} rows by {who}"
        yield make(f"{id}.cpu_s", f"{what}: CPU time", cost.cpu_s, "s")
        yield make(f"{id}.memory_mib", f"{what}: memory", cost.memory_mib, "MiB")
    what = f"Audit of {rows} rows: CPU of Spark over DuckDB's"
    goal = (at_most, GOAL_RATIO) if messages == MESSAGES else None
    yield make("ratio", what, ours.cpu_s / duck.cpu_s, "times", goal)


def missed_faults(report: Mapping[str, Any], planted: Planted) -> list[str]:
    """Describe the planted faults whose ids the audit does not name, and those that it names in excess."""
    named = {(row["verdict"], row["message_id"]) for row in report["suspects"]}
    named |= {("late", row["message_id"]) for row in report.get("late", [])}
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


def differences(ours: Mapping[str, Any], duck: Mapping[str, Any]) -> list[str]:
    """Describe the differences between two audits of the same events."""
    verdicts = {name: count for name, count in ours["verdicts"].items() if count}
    late = sorted(row["message_id"] for row in ours.get("late", []))
    pairs = (("verdicts", verdicts), ("late", late))
    return [f"{name} {found} and {duck[name]}" for name, found in pairs if found != duck[name]]


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a process and its children. output: what it wrote to standard output."""

    cpu_s: float
    memory_mib: float
    output: str


def watched(argv: Sequence[str], *, may_fail: bool = False) -> Cost:
    """Run a command to its end and measure its cost. Raises BenchError when it fails."""
    with tempfile.TemporaryFile("w+") as written, tempfile.TemporaryFile("w+") as complained:
        with subprocess.Popen(
            argv, cwd=CHECKOUT, stdout=written, stderr=complained, text=True
        ) as process:
            cpu_s, memory = _watch(psutil.Process(process.pid))
            status = process.wait(WITHIN_S)
        for file in (written, complained):
            file.seek(0)
        output, complaint = written.read(), complained.read()
    if status and not may_fail:
        last = (complaint.strip() or output.strip() or "it said nothing").splitlines()[-1]
        raise BenchError(f"{argv[-1]}: {last}")
    return Cost(cpu_s, memory / (1 << 20), output)


def _watch(root: psutil.Process) -> tuple[float, int]:
    """Return a process tree's CPU seconds, and the most memory that it had at once."""
    used: dict[int, float] = {}
    most = 0
    while root.is_running() and root.status() != psutil.STATUS_ZOMBIE:
        now = 0
        for each in _tree(root):
            try:
                times = each.cpu_times()
                used[each.pid] = times.user + times.system
                now += each.memory_info().rss
            except psutil.Error:
                continue
        most = max(most, now)
        time.sleep(WATCH_S)
    return sum(used.values()), most


def _tree(root: psutil.Process) -> list[psutil.Process]:
    try:
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return [root]


GROUP = Group(NAME, 0, "no broker", audit_figures)
