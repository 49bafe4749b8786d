"""The command ``python -m bench demo``, from its options to its exit code. It leaves no process running.

Different code makes two audits, ours and Spark's, from the same files of one run: they must agree.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import click
from rich.console import Console

from bench import options
from bench.audit import Audit
from bench.audit_report import disagreements, print_audit, read_report
from bench.demo import page, play
from bench.demo import stage as scenario
from bench.demo.screen import open_screen
from bench.demo.stage import Stage
from bench.environment import CHECKOUT
from bench.errors import BenchError, DoesNotHold, InputInvalid, Interrupted
from bench.load.profile import SECONDS_MAX, Load, Messages, Profile, Time
from bench.load.records import records, write_records
from bench.load.schedule import RATE_LEAST_PER_S, Steered
from bench.processes import Child
from messagebus.commands.exits import Exit
from messagebus.recording.manifest import read_manifest
from messagebus.terminal import plural

REPORT_WITHIN_S = 480.0
# Short, so that publishers soon spread over a new broker; the library's default is 600 s.
CONNECTION_LIFETIME_S = 8


@click.command(epilog="Example: python -m bench demo --input /var/log/dpkg.log --lines")
@click.option("--small", is_flag=True, help="2,000 records, every event, as short as can be.")
@click.option("--input", "source", metavar="FILE|-", help="Records; default: the package index.")
@click.option("--lines", "by_line", is_flag=True, help="A record is a line, not a paragraph.")
@options.folder("Default: out/demo-TIME.")
@click.option("--keep", is_flag=True, help="Keep the brokers' data and logs as well.")
@options.network
def demo(
    small: bool, source: str | None, by_line: bool, folder: Path | None, keep: bool, network: str
) -> None:
    """Play the whole way on this machine: messages flow while brokers come, go and die.

    Three brokers, HAProxy, four publishers and four consumers, all real processes. Prints the audit
    and the path of the report. Exit code 0 only if nothing was lost, altered or doubled without cause.
    """
    run_id = time.strftime("demo-%Y%m%d-%H%M%S")
    folder = _new_folder(folder or CHECKOUT / "out" / run_id)
    with _signals_interrupt(), _input(source, by_line=by_line, small=small, folder=folder) as found:
        file, total = found
        stage = Stage(
            folder=folder,
            network=network,
            screen=open_screen(),
            total=total,
            profile=_profile(file, total),
            run_id=run_id,
            plan=scenario.steps(small=small),
            env=os.environ,
        )
        wipe = False
        try:
            with stage.screen:
                result, differences = _play(stage)
            _tell(stage, result, differences)
            wipe = not keep
        except KeyboardInterrupt as fault:
            wipe = not keep
            raise Interrupted(f"{fault}: all that was started is stopped; {folder}") from None
        finally:
            _stop(stage, wipe=wipe)


def _new_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True)
        (folder / "input").mkdir()
    except OSError as fault:
        raise InputInvalid(f"{folder}: cannot be made: {fault.strerror}") from fault
    return folder.resolve()


def _profile(file: Path, total: int) -> Profile:
    """Return the profile of the load: each record of the file once, at a pace that the stage sets."""
    return Profile(
        name="demo",
        load=Load(
            schedule=Steered(rate_per_s=RATE_LEAST_PER_S, count=total),
            publishers=scenario.PUBLISHERS,
            consumers=len(scenario.CONSUMERS),
            prefetch=scenario.PREFETCH,
            lifetime_s=CONNECTION_LIFETIME_S,
        ),
        messages=Messages(
            file=str(file),
            places=tuple(f"{scenario.TOPIC}/{name}" for name in scenario.CONSUMERS),
        ),
        time=Time(warm_up_s=0, measured_s=SECONDS_MAX),
    )


@contextmanager
def _input(
    source: str | None, *, by_line: bool, small: bool, folder: Path
) -> Iterator[tuple[Path, int]]:
    """Read the whole input before anything starts; yield a file with all its records, and their number."""
    file = folder / "input" / "records"
    found = records(source, by_line=by_line)
    if small:
        found = itertools.islice(found, scenario.SMALL_RECORDS)
    try:
        total = write_records(file, found)
        if total < scenario.RECORDS_MIN:
            raise InputInvalid(
                f"{source or 'input'}: {total} records; the demo needs {scenario.RECORDS_MIN}, "
                "so that every step sees messages"
            )
    except InputInvalid:
        shutil.rmtree(folder)
        raise
    try:
        yield file, total
    finally:
        shutil.rmtree(folder / "input", ignore_errors=True)


def _play(stage: Stage) -> tuple[Audit, list[str]]:
    """Do the whole run. Returns our audit, and its differences from Spark's."""
    titles = ["a cluster of 3 brokers and HAProxy starts", "publishers and consumers start"]
    ends = ["the rest is published, all is delivered", "audit and Spark report"]
    stage.announce([*titles, *(step.title for step in stage.plan), *ends])
    with stage.step(titles[0]):
        stage.cluster.up()
    with stage.step(titles[1]):
        play.start_load(stage)
    address, live = page.show(stage), page.follow(stage)
    stage.begin()
    play.play(stage, lambda: page.photograph(stage, address))
    with stage.step(ends[0]):
        play.wait_published(stage)
        play.wait_delivered(stage)
        play.stop_consumers(stage)
        page.end_live(stage, live)
    manifest = stage.save(complete=True)
    with stage.step(ends[1]):
        spark = _start_report(stage)
        stage.cluster.down()
        result = play.judge(stage, manifest)
        stage.wait(
            lambda: spark.exit_code is not None, within_s=REPORT_WITHIN_S, what="the Spark report"
        )
        theirs = _spark_audit(spark, stage.folder / "report")
    return result, disagreements(result, theirs)


def _start_report(stage: Stage) -> Child:
    out = stage.folder / "report"
    argv = ["spark", "report", "--events", str(stage.folder), "--out", str(out)]
    return stage.start("spark", argv)


def _spark_audit(spark: Child, report: Path) -> dict[str, Any]:
    """Read Spark's audit. Exit code 7 with an audit means that it does not hold; ours then fails as well."""
    if spark.exit_code not in (Exit.DONE, Exit.FOUND) or not (report / "audit.json").exists():
        raise BenchError(f"the Spark report failed: {spark.last_line()} ({spark.log})")
    return read_report(report)


def _tell(stage: Stage, result: Audit, differences: list[str]) -> None:
    """Print the audit and the paths of report and events. Raises DoesNotHold if the audit does not hold."""
    console = Console(highlight=False)
    print_audit(result, read_manifest(stage.folder), console)
    places = {"report": stage.folder / "report/report.html", "events": stage.folder}
    if (live := stage.folder / page.LIVE / "live.html").exists():
        places[f"the live job's page, {plural(page.messages_read(stage), 'message')}"] = live
    if picture := page.into_report(stage):
        places["the monitor's page, with a broker killed"] = picture
    for what, path in places.items():
        console.print(f"{what}: {_shown(path)}", soft_wrap=True)
    if differences:
        raise DoesNotHold(f"Spark's audit differs: {'; '.join(differences)}")
    if not result.holds:
        raise DoesNotHold(f"the audit does not hold: {'; '.join(result.faults)}")


def _shown(path: Path) -> Path:
    """Return the path relative to the working directory if it is below it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _stop(stage: Stage, *, wipe: bool) -> None:
    """End everything that was started, after any outcome; a second Ctrl-C does not interrupt this."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    stage.workers.stop()
    stage.cluster.down(wipe=wipe)


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt inside the context for Ctrl-C, SIGTERM and a closed terminal.

    No library takes that for a fault of its own: jinja2 made a wrong template of another one.
    """

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt(f"interrupted by {signal.Signals(number).name}")

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
