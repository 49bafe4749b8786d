"""The command ``python -m bench demo``, from its options to its exit code. It leaves no process running."""

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

import click
from rich.console import Console

from bench import options
from bench.audit_report import print_audit
from bench.demo import live_run, script
from bench.demo.live_run import LiveRun
from bench.demo.screen import Screen
from bench.environment import CHECKOUT
from bench.errors import DoesNotHold, InputInvalid, Interrupted
from bench.load.profile import SECONDS_MAX, Load, Messages, Profile, Time
from bench.load.records import records, write_records
from bench.load.schedule import RATE_LEAST_PER_S, Steered
from messagebus.recording.manifest import read_manifest

# With fewer records, no message would flow during some of the steps.
RECORDS_MIN, SMALL_RECORDS = 500, 2_000
PREFETCH = 200
# Short, so that publishers soon spread over a new broker; the library's default is 600 s.
CONNECTION_LIFETIME_S = 8
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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

    Three brokers, HAProxy, four publishers and four consumers, all real processes. Prints the address of
    the live page at the start, the audit and the path of the report at the end. Exit code 0 only if nothing
    was lost, altered or doubled without cause.
    """
    run_id = time.strftime("demo-%Y%m%d-%H%M%S")
    looks_s = 1.0 if small else 4.0
    folder = _new_folder(folder or CHECKOUT / "out" / run_id)
    with _signals_interrupt(), _input(source, by_line=by_line, small=small, folder=folder) as found:
        file, total = found
        run = LiveRun(
            folder=folder,
            run_id=run_id,
            network=network,
            screen=Screen(Console(highlight=False)),
            total=total,
            profile=_profile(file, total),
            looks_s=looks_s,
            env=os.environ,
        )
        wipe = False
        try:
            result, differences = script.play(run, looks_s)
            console = Console(highlight=False)
            print_audit(result, read_manifest(folder), console)
            for what, path in script.places(run).items():
                below = path.is_relative_to(Path.cwd())
                shown = path.relative_to(Path.cwd()) if below else path
                console.print(f"{what}: {shown}", soft_wrap=True)
            if differences:
                raise DoesNotHold(f"Spark's audit differs: {'; '.join(differences)}")
            if not result.holds:
                raise DoesNotHold(f"the audit does not hold: {'; '.join(result.faults)}")
            wipe = not keep
        except KeyboardInterrupt as fault:
            wipe = not keep
            raise Interrupted(f"{fault}: all that was started is stopped; {folder}") from None
        finally:
            # After any outcome; a second Ctrl-C does not interrupt this.
            for number in SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            run.workers.stop()
            run.cluster.down(wipe=wipe)


def _new_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True)
        (folder / "input").mkdir()
    except OSError as fault:
        raise InputInvalid(f"{folder}: cannot be made: {fault.strerror}") from fault
    return folder.resolve()


def _profile(file: Path, total: int) -> Profile:
    """Return the profile of the load: each record of the file once, at a pace that the run sets."""
    return Profile(
        name="demo",
        load=Load(
            schedule=Steered(rate_per_s=RATE_LEAST_PER_S, count=total),
            publishers=live_run.PUBLISHERS,
            consumers=len(live_run.CONSUMERS),
            prefetch=PREFETCH,
            lifetime_s=CONNECTION_LIFETIME_S,
        ),
        messages=Messages(
            file=str(file), places=tuple(f"{live_run.TOPIC}/{name}" for name in live_run.CONSUMERS)
        ),
        time=Time(warm_up_s=0, measured_s=SECONDS_MAX),
    )


@contextmanager
def _input(
    source: str | None, *, by_line: bool, small: bool, folder: Path
) -> Iterator[tuple[Path, int]]:
    """Read the whole input before anything starts; yield a file with all its records, and their number."""
    file = folder / "input" / "records"
    found = itertools.islice(records(source, by_line=by_line), SMALL_RECORDS if small else None)
    try:
        total = write_records(file, found)
        if total < RECORDS_MIN:
            raise InputInvalid(
                f"{source or 'input'}: {total} records; the demo needs {RECORDS_MIN}, "
                "so that every step sees messages"
            )
    except InputInvalid:
        shutil.rmtree(folder)
        raise
    try:
        yield file, total
    finally:
        shutil.rmtree(folder / "input", ignore_errors=True)


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt inside the context for Ctrl-C, SIGTERM and a closed terminal.

    No library takes that for a fault of its own: jinja2 made a wrong template of another one.
    """

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt(f"interrupted by {signal.Signals(number).name}")

    before = {number: signal.signal(number, interrupt) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
