"""The command of a job: the options, session, exit codes and output that all jobs share.

A job is a function from a `Run` to an `Answer`. Everything else is here.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import click
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from messagebus.commands.exits import HELP, Codes, Exit, Program, code_of, run
from messagebus.recording.events import EVENTS, FAULTS
from messagebus.recording.manifest import RunInvalid
from messagebus.terminal import Progress
from reports.page import Page, render_html, render_text
from reports.text import columns_here
from spark.lake.ingest import Ingested, Plan, ingest, ingested, plan
from spark.lake.places import PlaceType
from spark.lake.tables import Lake
from spark.measures.faults import (
    PROMISE,
    DoesNotAddUp,
    allowed,
    bad_faults,
    notes_of,
    of_publishes,
    standing,
)
from spark.measures.run import Run
from spark.session import QUICK, JavaMissing, spark_session

# Up to this size a job is over before the JVM's better compiler pays for itself.
QUICK_BYTES_MAX = 300 * 1024 * 1024
# Bytes that a task sorts or groups at once: its share of 4 GiB holds them, so that cost grows with rows only.
# Adaptive plans join small partitions.
PARTITION_BYTES = 256 * 1024 * 1024
PARTITIONS_MIN, PARTITIONS_MAX = 8, 4096
# Between two looks at how far a job is.
LOOK_S = 1.0
DAY = re.compile(r"\d{4}-\d\d-\d\d")
# Errors of the library, as the traceback of a Python worker names them.
OWN = "messagebus.errors."
CODES: Codes = {
    OSError: Exit.FAILED,
    RunInvalid: Exit.USAGE,
    JavaMissing: Exit.FAILED,
    ImportError: Exit.FAILED,
    DoesNotAddUp: Exit.FAILED,
    PySparkException: Exit.FAILED,
    Py4JError: Exit.FAILED,
}


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a job. measured: for other programs, as JSON; page: for people.

    broken: the verdict where a fault breaks the promise; unshown: where others leave it open; "" for the
    verdict of the page.
    """

    measured: Mapping[str, Any]
    page: Page
    broken: str = ""
    unshown: str = ""


Measure = Callable[[Run], Answer]

allow_option = click.option(
    "--allow",
    multiple=True,
    type=click.Choice(list(FAULTS)),
    metavar="NAME",
    help="A fault to accept, such as unconfirmed; docs/MEASURING.md has the names.",
)


out_option = click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the answer, as text, HTML and JSON.",
)
max_bad_option = click.option(
    "--max-bad",
    "bad_max",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="Number of unreadable lines to accept.",
)


def job_command(name: str, what: str, measure: Measure) -> click.Command:
    """Make the command of a job over one run, or one day of it."""

    @click.command(
        name,
        help=what,
        short_help=re.split("[,:;]", what)[0].removesuffix(".") + ".",
        epilog=f"Example: python -m spark {name} --lake out/lake --run night --out out/{name}",
        context_settings=HELP,
    )
    @click.option(
        "--events",
        "folder",
        type=PlaceType(),
        help="Folder of a run: what is new of it is ingested first.",
    )
    @click.option("--lake", "root", type=PlaceType(), help="Default: OUT/tables.")
    @click.option("--run", "run_id", help="Of the lake, instead of --events.")
    @click.option("--date", "day", help="Of one day, UTC: 2026-11-21.")
    @out_option
    @max_bad_option
    @allow_option
    def command(
        folder: Path | None,
        root: Path | None,
        run_id: str | None,
        day: str | None,
        out: Path,
        bad_max: int,
        allow: tuple[str, ...],
    ) -> int:
        if (folder is None) == (run_id is None):
            raise click.UsageError(
                "--run NAME of a run in the lake, or --events FOLDER of one: which run?"
            )
        if day is not None:
            check_day(day)
        lake = Lake(root or out / "tables")

        def source() -> Plan | Ingested:
            return plan(folder, lake) if folder else ingested(lake, str(run_id))

        return carry_out(name, measure, lake, source, out, bad_max=bad_max, allow=allow, day=day)

    return command


def carry_out(
    name: str,
    measure: Measure,
    lake: Lake,
    source: Callable[[], Plan | Ingested],
    out: Path,
    *,
    bad_max: int,
    allow: Collection[str],
    day: str | None = None,
    json_name: str = "",
) -> int:
    """Read a run, measure it and write the answer. Returns the exit code."""

    def work() -> int:
        planned = source()
        lake.check()
        with session_for(name, planned.weight) as session:
            found = ingest(session, lake, planned) if isinstance(planned, Plan) else planned
            run = run_of(session, lake, found, day)
            answer = measure(run)
            faults = [*of_publishes(run), *bad_faults(found, bad_max)]
        notes = notes_of(found)
        return write(name, answer, out, faults, allow=allow, notes=notes, json_name=json_name)

    return in_one_line(name, work)


def check_day(day: str) -> None:
    """Raise UsageError for a text that is no day."""
    try:
        is_day = bool(DAY.fullmatch(day)) and bool(date.fromisoformat(day))
    except ValueError:
        is_day = False
    if not is_day:
        raise click.UsageError(f"{day!r}: a day such as 2026-11-21")


def run_of(session: SparkSession, lake: Lake, ingested: Ingested, day: str | None) -> Run:
    """Return a run, or a day of it. Raises RunInvalid for a day without rows."""
    days = lake.days(ingested.manifest.run_id, tuple(EVENTS))
    if day is not None and day not in days:
        known = ", ".join(days) or "none"
        raise RunInvalid(
            f"{ingested.manifest.run_id} has nothing on {day}; days with rows: {known}"
        )
    return Run(session, lake, ingested, day)


def write(
    name: str,
    answer: Answer,
    out: Path,
    faults: Sequence[str] = (),
    *,
    allow: Collection[str] = (),
    notes: Sequence[str] = (),
    json_name: str = "",
) -> int:
    """Write NAME.json, NAME.txt and NAME.html, print the text. Returns the exit code.

    allow: names of tolerated faults. notes: for the first line. json_name: default: name.
    """
    every = list(dict.fromkeys((*answer.page.faults, *faults)))
    failing = standing(every, allow)
    is_broken = any(getattr(fault, "name", "") in PROMISE for fault in failing)
    verdict = (answer.broken if is_broken else answer.unshown) if failing else ""
    page = dataclasses.replace(
        answer.page,
        verdict=verdict or answer.page.verdict,
        faults=tuple(failing),
        notes=(*answer.page.notes, *notes, *allowed(every, allow)),
    )
    out.mkdir(parents=True, exist_ok=True)
    found = {
        **answer.measured,
        "holds": not page.faults,
        "faults": list(page.faults),
        **({"is_broken": is_broken} if answer.broken else {}),
        **({"notes": list(page.notes)} if page.notes else {}),
    }
    (out / f"{json_name or name}.json").write_text(json.dumps(found, indent=1, default=str) + "\n")
    (out / f"{name}.txt").write_text(render_text(page) + "\n")
    (out / f"{name}.html").write_text(render_html(page))
    click.echo(render_text(page, columns_here()))
    click.echo(f"\n{out / f'{name}.html'}")
    return Exit.FOUND if page.faults else Exit.DONE


def in_one_line(name: str, work: Callable[[], int]) -> int:
    """Do the work of a job. An error that ends it early is printed as one line, and becomes the exit code."""
    try:
        return work()
    except (*CODES,) as fault:
        click.echo(f"{name}: {_cause(str(fault))}", err=True)
        return code_of(fault, CODES)


def _cause(text: str) -> str:
    """Return our own error in it, the last cause that the JVM names, or else its first line."""
    lines = text.splitlines() or ["failed, and nothing was said"]
    if own := [line for line in lines if line.startswith(OWN)]:
        return own[-1].partition(": ")[2]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    if causes:
        return causes[-1].removeprefix("Caused by: ")
    # The first line names the call in the JVM, the second its error.
    return lines[1][2:] if len(lines) > 1 and lines[1].startswith(": ") else lines[0]


@contextmanager
def session_for(name: str, size: int) -> Iterator[SparkSession]:
    """Yield a session, quick for a small run, and stop it at the end. size: bytes of events, as JSON."""
    session = spark_session(f"messagebus {name}", **settings_for(size))
    ended = threading.Event()
    watching = threading.Thread(
        target=_show_tasks, args=(session, name, ended), name="progress", daemon=True
    )
    watching.start()
    try:
        yield session
    finally:
        ended.set()
        watching.join()
        session.stop()


def _show_tasks(session: SparkSession, name: str, ended: threading.Event) -> None:
    """Show how many tasks have ended, and how many Spark has planned so far.

    It plans a stage after the other, so neither the number of all tasks nor the time left is known.
    """
    tracker, stages = session.sparkContext.statusTracker(), dict[int, tuple[int, int]]()
    with (
        Progress(f"{name}:", "task") as progress,
        suppress(Exception),
    ):  # a JVM that ends is no fault
        while not ended.wait(LOOK_S):
            open_ = {stage for stage, (done, count) in stages.items() if done < count}
            for stage in {*tracker.getActiveStageIds(), *open_}:
                if info := tracker.getStageInfo(stage):
                    stages[stage] = (info.numCompletedTasks, info.numTasks)
            planned = sum(count for _, count in stages.values())
            progress.at(
                sum(done for done, _ in stages.values()),
                f"{planned:,} planned so far" if stages else "Spark plans the work",
            )


def settings_for(size: int) -> dict[str, str]:
    """Return the settings that suit this many bytes of events, as JSON."""
    if size <= QUICK_BYTES_MAX:
        return QUICK
    partitions = min(max(PARTITIONS_MIN, size // PARTITION_BYTES), PARTITIONS_MAX)
    return {"spark.sql.shuffle.partitions": str(partitions)}


def is_no_interrupt(record: logging.LogRecord) -> bool:
    """Return whether a log record is not about a Ctrl-C, nor about an error raised because of one."""
    error = record.exc_info[1] if record.exc_info else None
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return False
        error = error.__cause__ or error.__context__
    return True


def exit_code(command: click.Command, argv: Sequence[str] | None, *, prog_name: str) -> int:
    """Run a job that is called by itself; wrong use and Ctrl-C are one line."""
    # py4j logs a Ctrl-C that comes while it waits for the JVM, with a stack.
    logging.getLogger().addFilter(is_no_interrupt)
    if isinstance(command, Program):
        return command.run(argv, prog_name=prog_name)
    return run(command, argv, prog_name=prog_name)
