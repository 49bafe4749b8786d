"""``python -m spark JOB``: the jobs by name."""

from __future__ import annotations

import sys

import click

from messagebus.commands.exits import Program
from spark import live, pack
from spark.command import exit_code
from spark.jobs import (
    audit,
    backlog,
    capacity,
    compare,
    failover,
    imbalance,
    ingest,
    latency,
    report,
    throughput,
)


@click.group(
    "spark",
    cls=Program,
    epilog="Example: python -m spark report --events out/run-1 --out out/report",
)
def jobs() -> None:
    """Report on recorded runs, with PySpark."""


for job in (
    ingest, throughput, latency, audit, imbalance, backlog, failover, compare, capacity, report,
):  # fmt: skip
    jobs.add_command(job.command, job.__name__.rpartition(".")[2])

jobs.add_command(live.command)
jobs.add_command(pack.command)


def main(argv: list[str] | None = None) -> int:
    """Run one job. Returns its exit code."""
    return exit_code(jobs, argv, prog_name="python -m spark")


if __name__ == "__main__":
    sys.exit(main())
