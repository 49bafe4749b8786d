"""Ingest of recorded runs into the lake: checked, quarantined, typed, each file once.

spark-submit spark/jobs/ingest.py --events DIR --lake DIR --out DIR
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    # spark-submit puts this folder on the path, and not the checkout.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import click

from messagebus.commands.exits import HELP
from messagebus.recording.manifest import RunInvalid
from messagebus.terminal import plural
from reports.page import Figure, Page, Section, section_of
from reports.text import cell, megabytes
from spark.command import (
    Answer,
    allow_option,
    exit_code,
    in_one_line,
    max_bad_option,
    out_option,
    session_for,
    write,
)
from spark.lake.ingest import Ingested, Plan, ingest, plan
from spark.lake.places import PlaceType
from spark.lake.tables import Lake
from spark.measures.faults import Fault, bad_faults, notes_of
from spark.pages import bad_lines


@click.command(
    "ingest",
    epilog="Example: python -m spark ingest --events out/run-1 --lake out/lake --out out/ingest",
    context_settings=HELP,
    short_help="Read what is new of recorded runs into the lake.",
)
@click.option(
    "--events",
    "folders",
    multiple=True,
    required=True,
    type=PlaceType(),
    help="Folder of a run; several may be given.",
)
@click.option("--lake", "root", type=PlaceType(), help="Default: OUT/tables.")
@out_option
@max_bad_option
@allow_option
def command(
    folders: tuple[Path, ...], root: Path | None, out: Path, bad_max: int, allow: tuple[str, ...]
) -> int:
    """Read new files of recorded runs into the lake; bad lines go into its quarantine.

    Exits with 7 when there are more bad lines than --max-bad, or a run cannot be read; the others are.
    """

    def work() -> int:
        lake = Lake(root or out / "tables")
        plans: list[Plan] = []
        faults: list[str] = []
        for folder in folders:
            try:
                plans.append(plan(folder, lake))
            except RunInvalid as fault:
                faults.append(str(fault))
        if not plans:
            raise RunInvalid("; ".join(faults))
        lake.check()
        with session_for("ingest", sum(each.weight for each in plans)) as session:
            found = [ingest(session, lake, each) for each in plans]
        for one in found:
            faults += [
                Fault(fault.name, f"{one.manifest.run_id}: {fault}")
                for fault in bad_faults(one, bad_max)
            ]
        notes = [f"{one.manifest.run_id}: {text}" for one in found for text in notes_of(one)]
        answer = Answer(_as_json(found), _page(found, lake))
        return write("ingest", answer, out, faults, allow=allow, notes=notes)

    return in_one_line("ingest", work)


def _as_json(runs: list[Ingested]) -> dict[str, Any]:
    return {
        one.manifest.run_id: {
            "files": one.files,
            "read": one.read,
            "skipped": one.skipped,
            "missing": one.missing,
            "bad": one.reasons(),
            "clock_spread_ns": one.clock_spread_ns,
        }
        for one in runs
    }


WORDS = {
    "good": "a line that has every column, of the right type, of this run, and a topic and subscription "
    "of the manifest.",
    "bad": "any other line, except the clock anchor. The table quarantine has its beginning and the "
    "reason. No number of a report includes it.",
    "read now": "a file whose content changed since it was last read. Its rows replace its earlier rows. "
    "The rows of a file that is gone stay.",
}


def _page(runs: list[Ingested], lake: Lake) -> Page:
    good = sum(int(file["good"]) for one in runs for file in one.files.values())
    bad, read = sum(one.bad for one in runs), sum(len(one.read) for one in runs)
    return Page(
        kind="ingest",
        title=", ".join(one.manifest.run_id for one in runs) or "nothing",
        meta=(
            f"{plural(len(runs), 'run')}, {plural(sum(len(one.files) for one in runs), 'file')}",
        ),
        verdict=f"{plural(good, 'good row')} and {plural(bad, 'bad line')} are in the lake.",
        comment=f"{plural(read, 'file')} read now; the others were as they had been.",
        figures=(
            Figure(cell(good), "good rows"),
            Figure(cell(bad), "bad lines", "in quarantine"),
            Figure(cell(read), "files read now"),
            Figure(cell(sum(len(one.skipped) for one in runs)), "files not read"),
        ),
        sections=_sections(runs),
        words=WORDS,
        footer=f"Numbers: ingest.json beside this page. Rows: {lake.root} (Parquet).",
    )


def _sections(runs: list[Ingested]) -> tuple[Section, ...]:
    files = [
        {
            "run": one.manifest.run_id,
            "file": source,
            "good": file["good"],
            "bad": sum(file["bad"].values()),
            "MB": megabytes(file["bytes"]),
            "now": "read" if source in one.read else "as before",
        }
        for one in runs
        for source, file in sorted(one.files.items())
    ]
    bad = [row for one in runs for row in bad_lines(one)]
    skipped = [{"file": name, "why": why} for one in runs for name, why in one.skipped]
    return (
        section_of("Files", files, ("run", "file", "good", "bad", "MB", "now"), left=2),
        section_of("Bad lines", bad, ("file", "why", "for example", "lines"), left=3),
        section_of("Not read", skipped, ("file", "why"), left=2),
    )


if __name__ == "__main__":
    sys.exit(exit_code(command, None, prog_name="ingest"))
