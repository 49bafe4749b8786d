"""The audit of many messages: whether it finds one fault of each kind, and its cost beside DuckDB's.

Both read the same Parquet files with two threads and 4 GB, and must agree to the row. CPU and memory are
those of the whole process and its children, including the start of its JVM.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.errors import BenchError
from bench.figures.form import Figure, at_most
from bench.figures.measure.made import RUN_ID, Planted, make
from bench.figures.measure.watched import Cost, watched
from bench.figures.scene import Group, Scene, repeat_command

__all__ = ["GROUP", "agree", "audited", "compared", "cost_of", "millions"]

NAME = "measure.audit"
MESSAGES = 10_000_000
LEAST = 10_000
GOAL_RATIO = 5.0
SPARK = (sys.executable, "-m", "spark")


def audit_figures(scene: Scene) -> Iterator[Figure]:
    messages = scene.part(MESSAGES, LEAST)
    scene.say(f"making {messages:,} publishes and as many deliveries")
    planted = make(scene.folder / "events", messages)
    lake = scene.folder / "lake"
    events = ["--events", str(scene.folder / "events")]
    read = watched([*SPARK, "ingest", *events, "--lake", str(lake), "--out", str(lake / "out")])
    scene.say(f"ingested: {read.cpu_s:.0f} s of CPU, {read.memory_mib:,.0f} MiB")
    ours, duck = audited(lake, planted)
    yield from cost_of(f"{NAME}.ingest", "Ingest", messages, read)
    yield from compared(NAME, messages, ours, duck, repeat_command(NAME))


def audited(lake: Path, planted: Planted) -> tuple[Cost, Cost]:
    """Audit by Spark and by DuckDB. Raises BenchError if they differ, or miss a planted fault."""
    out = lake / "out"
    where = ["--lake", str(lake), "--out", str(out)]
    ours = watched([*SPARK, "audit", "--run", RUN_ID, *where], may_fail=True)
    duck = watched([sys.executable, "-m", "bench.figures.measure.duck", str(lake)])
    try:
        found = json.loads((out / "audit.json").read_text())
    except FileNotFoundError as fault:
        raise BenchError(f"{NAME}: the audit ended without an answer: {ours.said}") from fault
    if faults := [*_not_found(found, planted), *agree(found, json.loads(duck.said))]:
        raise BenchError(f"{NAME}: {'; '.join(faults)}")
    return ours, duck


def compared(name: str, messages: int, ours: Cost, duck: Cost, repeat: str) -> Iterator[Figure]:
    """Make the figures of both, and their ratio, which has a goal at `MESSAGES`."""
    yield from cost_of(f"{name}.spark", "Audit by Spark", messages, ours, repeat)
    yield from cost_of(f"{name}.duckdb", "The same audit by DuckDB", messages, duck, repeat)
    ratio = ours.cpu_s / duck.cpu_s
    yield Figure(
        id=f"{name}.ratio",
        what=f"Audit, {millions(messages)} rows: CPU of Spark over DuckDB's",
        value=ratio,
        unit="times",
        repeat=repeat,
        **(at_most(GOAL_RATIO, ratio, "times") if messages == MESSAGES else {}),
    )


def millions(messages: int) -> str:
    return f"{messages / 1e6:g} M + {messages / 1e6:g} M"


def cost_of(
    name: str, what: str, messages: int, cost: Cost, repeat: str = repeat_command(NAME)
) -> Iterator[Figure]:
    """Make the figures of CPU and memory of one process that audited this many messages."""
    rows = f"{what}, {millions(messages)} rows"
    for unit, value, of in (
        ("s", cost.cpu_s, "cpu_s"),
        ("MiB", cost.memory_mib, "memory_mib"),
        ("us", cost.cpu_s / messages / 2 * 1e6, "row_us"),
    ):
        words = {"s": "CPU time", "MiB": "memory", "us": "CPU time a row"}[unit]
        yield Figure(
            id=f"{name}.{of}", what=f"{rows}: {words}", value=value, unit=unit, repeat=repeat
        )


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
    faults = []
    if verdicts != duck["verdicts"]:
        faults.append(f"verdicts {verdicts} and {duck['verdicts']}")
    late = sorted(row["message_id"] for row in ours.get("late", []))
    if late != duck["late"]:
        faults.append(f"late {late} and {duck['late']}")
    return faults


GROUP = Group(NAME, 0, "no broker", audit_figures)
