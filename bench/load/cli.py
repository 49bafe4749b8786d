"""The command ``python -m bench load``: one load process, from its options to its exit code."""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from bench.errors import BenchError
from bench.load.consume import ConsumeLoad
from bench.load.control import Progress, RateFile
from bench.load.publish import PublishLoad
from bench.load.records import read_frames, records
from messagebus import BusConfig, Consumer, ConsumerConfig, Publisher, PublisherConfig
from messagebus.recording.files import DeliveredFile, EventFile, PublishedFile, anchor_now

__all__ = ["load"]

# A publish may outlive the restart of a broker.
DEADLINE_MS = 60_000
START_S = 60.0


@click.group(short_help="Run one process of load.")
def load() -> None:
    """Run one load process; MESSAGEBUS_* in the environment give the address of the bus."""


@load.command(
    epilog="Example: python -m bench load publish --run out/r1 --name p1 --rate 100 -",
    short_help="Publish records; record every outcome.",
)
@click.option(
    "--run", "folder", type=click.Path(path_type=Path), required=True, help="Folder of the run."
)
@click.option("--run-id", default="run", show_default=True, help="As its manifest has it.")
@click.option("--name", required=True, help="Of this publisher; part of the file names.")
@click.option("--topic", default="packages", show_default=True, help="Where messages go.")
@click.option("--share", type=click.IntRange(min=1), default=1, help="Publishers at one rate file.")
@click.option(
    "--rate", "rate_per_s", type=click.FloatRange(min=0), default=0.0, help="At the start."
)
@click.option("--frames", is_flag=True, help="INPUT holds records as the demo deals them.")
@click.option("--lines", "by_line", is_flag=True, help="A record is a line, not a paragraph.")
@click.option(
    "--size", type=click.IntRange(min=1), help="Endless made-up records of that many bytes."
)
@click.option(
    "--lifetime-s", type=click.IntRange(min=1), help="Of a connection; then it is renewed."
)
@click.argument("source", metavar="[INPUT|-]", required=False)
def publish(
    folder: Path,
    run_id: str,
    name: str,
    topic: str,
    share: int,
    rate_per_s: float,
    frames: bool,
    by_line: bool,
    size: int | None,
    lifetime_s: int | None,
    source: str | None,
) -> None:
    """Publish records at the rate of rate.json in the folder of the run; record every outcome.

    Exit code 0: all submitted messages are confirmed.
    """
    _prepare_folder(folder)
    config = PublisherConfig(deadline_ms=DEADLINE_MS)
    if lifetime_s:
        config = PublisherConfig(deadline_ms=DEADLINE_MS, connection_lifetime_s=lifetime_s)
    if size:
        input_records: Iterator[bytes] = itertools.repeat(os.urandom(size))
    elif frames and source:
        input_records = read_frames(Path(source))
    else:
        input_records = records(source, by_line=by_line)
    publisher = Publisher(_bus(name), config)
    publisher.start(require="one", timeout_s=START_S)
    recorder = _recorder(folder / f"published-{name}.ndjson", name)
    running = PublishLoad(
        publisher,
        folder=folder,
        name=name,
        topic=topic,
        rate=RateFile(folder, share=share),
        rate_per_s=rate_per_s,
        recorder=recorder,
        rows=PublishedFile(recorder, run_id=run_id, topic=topic, publisher=name),
    )
    _on_end(running.stop)
    _report(running.run(input_records), "confirmed", "ended otherwise")


@load.command(epilog="Example: python -m bench load consume --run out/r1 --name c1 -s billing")
@click.option(
    "--run", "folder", type=click.Path(path_type=Path), required=True, help="Folder of the run."
)
@click.option("--run-id", default="run", show_default=True, help="As its manifest has it.")
@click.option("--name", required=True, help="Of this consumer; part of the file names.")
@click.option("--topic", default="packages", show_default=True, help="Where messages go.")
@click.option("--subscription", "-s", required=True, help="Name of the subscription.")
@click.option(
    "--prefetch",
    type=click.IntRange(1, 2000),
    default=200,
    show_default=True,
    help="Deliveries ahead, of each broker.",
)
def consume(
    folder: Path, run_id: str, name: str, topic: str, subscription: str, prefetch: int
) -> None:
    """Receive until SIGTERM, answer at once, record every delivery.

    Exit code 0: all received messages are answered, stale answers included.
    """
    _prepare_folder(folder)
    consumer = Consumer(
        _bus(name), topic, subscription=subscription, config=ConsumerConfig(prefetch=prefetch)
    )
    consumer.start(require="all", timeout_s=START_S)
    recorder = _recorder(folder / f"delivered-{name}.ndjson", name)
    running = ConsumeLoad(
        consumer,
        folder=folder,
        name=name,
        recorder=recorder,
        rows=DeliveredFile(
            recorder,
            run_id=run_id,
            topic=topic,
            subscription=subscription,
            consumer=name,
            origin_headers=True,
        ),
    )
    _on_end(running.stop)
    progress = running.run()
    click.echo(f"{progress.name}: {progress.done} received, {progress.bad} answers stale")


def _bus(name: str) -> BusConfig:
    return dataclasses.replace(BusConfig.from_env(os.environ), client_id=name)


def _prepare_folder(folder: Path) -> None:
    try:
        (folder / "progress").mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise BenchError(f"{folder}: cannot be written to: {fault.strerror}") from fault


def _recorder(path: Path, name: str) -> EventFile:
    return EventFile(path, anchor_now(name), clock_ns=time.monotonic_ns)


def _on_end(stop: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop())


def _report(progress: Progress, good: str, bad: str) -> None:
    """Print one line; exit 1 when something ended otherwise."""
    line = f"{progress.name}: {progress.done} {good}, {progress.bad} {bad}, {progress.held} open"
    if progress.bad or progress.held:
        raise BenchError(line)
    click.echo(line)
