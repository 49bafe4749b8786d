"""``python -m spark JOB``: the jobs by name."""

from __future__ import annotations

import sys

import click

from spark.jobs import throughput

__all__ = ["jobs", "main"]


@click.group(
    epilog="Example: python -m spark throughput --events out/run-1 --out out/report",
    context_settings={"help_option_names": ["-h", "--help"]},
)
def jobs() -> None:
    """Reports over recorded runs, made with PySpark."""


jobs.add_command(throughput.command, "throughput")


def main(argv: list[str] | None = None) -> int:
    """Run one job. Returns its exit code; 2 for wrong use."""
    return throughput.exit_code(jobs, argv, prog_name="python -m spark")


if __name__ == "__main__":
    sys.exit(main())
