"""Throughput, latency, balance and fate of every message of one recorded run.

spark-submit spark/jobs/throughput.py --events DIR --out DIR
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
from pyspark.errors import PySparkException

from spark.events import Files, find_files
from spark.manifest import Manifest, RunInvalid, read_manifest
from spark.pipeline import Numbers, collect
from spark.report import write_reports
from spark.session import QUICK, JavaMissing, spark_session
from spark.summary import DoesNotAddUp, summarize
from spark.tables import Tables

__all__ = ["command", "exit_code", "main"]

# Up to here the job is over before the JVM's better compiler has paid for itself.
QUICK_BYTES_MAX = 300 * 1024 * 1024


@click.command(
    epilog="Example: python -m spark throughput --events out/run-1 --out out/report",
    context_settings={"help_option_names": ["-h", "--help"]},
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
def command(folder: Path, out: Path, bad_max: int) -> int:
    """Report on one recorded run: was anything lost, altered or doubled; how fast; how even.

    Exits with 0 only when nothing was lost, altered or doubled without explanation, and there were no
    more bad lines than --max-bad allows.
    """
    try:
        manifest = read_manifest(folder)
        files = find_files(folder, manifest)
        out.mkdir(parents=True, exist_ok=True)
        numbers = _numbers(manifest, files, out)
        summary = summarize(numbers, manifest, files, bad_max=bad_max)
    except (RunInvalid, JavaMissing, DoesNotAddUp, PySparkException, OSError) as fault:
        click.echo(f"throughput: {str(fault).splitlines()[0]}", err=True)
        return 1
    (out / "audit.json").write_text(json.dumps(summary, indent=1) + "\n")
    text = write_reports(summary, out)
    click.echo(text)
    click.echo(f"\n{out / 'report.html'}")
    return 0 if summary["holds"] else 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job. Returns the exit code: 0 holds, 1 does not or failed, 2 wrong use."""
    return exit_code(command, argv, prog_name="throughput")


def exit_code(command: click.Command, argv: Sequence[str] | None, *, prog_name: str) -> int:
    """Run a command whose return value is its exit code; wrong use and Ctrl-C are one line."""
    try:
        code = command.main(
            args=None if argv is None else list(argv), prog_name=prog_name, standalone_mode=False
        )
    except click.ClickException as fault:
        fault.show()
        return fault.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo(f"{prog_name}: interrupted", err=True)
        return 130
    return int(code or 0)


def _numbers(manifest: Manifest, files: Files, out: Path) -> Numbers:
    size = sum(file.path.stat().st_size for file in files.used)
    session = spark_session("messagebus throughput", **(QUICK if size <= QUICK_BYTES_MAX else {}))
    try:
        return collect(session, files, manifest, Tables(out, manifest.run_id))
    finally:
        session.stop()


if __name__ == "__main__":
    sys.exit(main())
