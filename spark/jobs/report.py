"""Report on one recorded run on one page: throughput, latency, balance and the fate of every message.

spark-submit spark/jobs/report.py --events DIR --out DIR
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

if __package__ in (None, ""):
    # spark-submit puts this folder on the path, and not the checkout.
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import click

from messagebus.commands.exits import Exit
from spark.command import HELP, allow_option, exit_code, in_one_line, session_for
from spark.lake.ingest import ingest, plan
from spark.lake.tables import Lake
from spark.measures.faults import of_publishes
from spark.measures.run import Run
from spark.page.page import columns_here
from spark.page.pipeline import collect
from spark.page.report import write_reports
from spark.page.summary import summarize

__all__ = ["command", "main"]


@click.command(
    epilog="Example: python -m spark report --events out/run-1 --out out/report",
    context_settings=HELP,
    short_help="Report on one recorded run.",
)
@click.option(
    "--events",
    "folder",
    required=True,
    type=click.Path(path_type=Path),
    help="Folder of the run: manifest.json, published-*.ndjson, delivered-*.ndjson.",
)
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for report.html, report.txt, audit.json and tables/.",
)
@click.option(
    "--max-bad",
    "bad_max",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="Bad lines that are put up with.",
)
@allow_option
def command(folder: Path, out: Path, bad_max: int, allow: tuple[str, ...]) -> int:
    """Report on one recorded run: was anything lost, altered or doubled; how fast; how even.

    Exits with 0 only when nothing was lost, altered or doubled without explanation, nothing went without
    a confirm or was left out of the record, and there were no more bad lines than --max-bad allows.
    """

    def work() -> int:
        lake = Lake(out / "tables")
        source = plan(folder, lake)
        lake.check()
        with session_for("report", source.weight) as session:
            run = Run(session, lake, ingest(session, lake, source))
            numbers, faults = collect(run), of_publishes(run)
        summary = summarize(numbers, run.ingested, bad_max=bad_max, faults=faults, allow=allow)
        (out / "audit.json").write_text(json.dumps(summary, indent=1) + "\n")
        text = write_reports(summary, out, columns_here())
        click.echo(text)
        click.echo(f"\n{out / 'report.html'}")
        return Exit.DONE if summary["holds"] else Exit.FOUND

    return in_one_line("report", work)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job. Returns its exit code."""
    return exit_code(command, argv, prog_name="report")


if __name__ == "__main__":
    sys.exit(main())
