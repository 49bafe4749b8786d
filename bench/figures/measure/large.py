"""The costs of the audit as runs grow: 1, 10 and 100 million messages; half an hour, and 20 GB of disk.

``python -m bench.figures.measure.large --dir DIR`` writes the figures to bench/results/measure.json. It is
not one of the groups, which run one after the other.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from bench.environment import describe
from bench.figures.cli import RESULTS, keep
from bench.figures.form import Figure
from bench.figures.measure.audit import NAME, audited, compared
from bench.figures.measure.made import lay
from bench.figures.measure.watched import Cost

__all__ = ["growth", "main"]

MILLION = 1_000_000
SIZES = (1 * MILLION, 10 * MILLION, 100 * MILLION)
REPEAT = "python -m bench.figures.measure.large"
# The allowed change of a row's cost from one step of growth to the next.
FLAT_WITHIN = 0.2


@click.command(epilog=f"Example: {REPEAT} --dir /var/tmp/audit")
@click.option("--dir", "folder", required=True, type=click.Path(path_type=Path, file_okay=False))
@click.option("--name", default="measure", show_default=True, help="Of the results file.")
def main(folder: Path, name: str) -> None:
    """Audit made runs of 1, 10 and 100 million messages by Spark and by DuckDB."""
    environment = {**describe(), "path": "no broker"}
    costs: dict[int, Cost] = {}
    for messages in SIZES:
        lake = folder / f"lake-{messages}"
        planted = lay(lake, messages)
        ours, duck = audited(lake, planted)
        shutil.rmtree(lake)
        costs[messages] = ours
        size = f"{NAME}.{messages // MILLION}m"
        found = list(compared(size, messages, ours, duck, REPEAT))
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
    first, second = (_row_us(costs, *step) for step in ((small, middle), (middle, large)))
    start_s = costs[small].cpu_s - first * small * 2 / 1e6
    ratio = second / first
    yield Figure(
        id=f"{NAME}.start_s",
        what="Audit by Spark: CPU time before and beside all rows",
        value=start_s,
        unit="s",
        repeat=REPEAT,
    )
    yield Figure(
        id=f"{NAME}.flat",
        what=f"Audit by Spark: CPU of a row from {middle:,} to {large:,} messages over that from "
        f"{small:,} to {middle:,}",
        value=ratio,
        unit="times",
        repeat=REPEAT,
        goal=f"1 +- {FLAT_WITHIN:g} times",
        met=abs(ratio - 1) <= FLAT_WITHIN,
    )


def _row_us(costs: Mapping[int, Cost], few: int, many: int) -> float:
    return (costs[many].cpu_s - costs[few].cpu_s) / (many - few) / 2 * 1e6


if __name__ == "__main__":
    main()
