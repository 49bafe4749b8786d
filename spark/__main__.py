"""``python -m spark JOB``: the jobs by name."""

from __future__ import annotations

import sys

import click

from spark.jobs import (
    audit,
    backlog,
    compare,
    failover,
    imbalance,
    ingest,
    latency,
    report,
    throughput,
)
from spark.jobs.frame import HELP, exit_code

__all__ = ["jobs", "main"]


@click.group(
    epilog="Example: python -m spark report --events out/run-1 --out out/report",
    context_settings=HELP,
)
def jobs() -> None:
    """Reports over recorded runs, made with PySpark."""


for job in (
    ingest, throughput, latency, audit, imbalance, backlog, failover, compare, report,
):  # fmt: skip
    jobs.add_command(job.command, job.__name__.rpartition(".")[2])


def main(argv: list[str] | None = None) -> int:
    """Run one job. Returns its exit code; 2 for wrong use."""
    return exit_code(jobs, argv, prog_name="python -m spark")


if __name__ == "__main__":
    sys.exit(main())
