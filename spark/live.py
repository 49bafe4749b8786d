"""Live figures of a topic, from its streams: messages by minute and broker, in Parquet and on a page.

spark-submit spark/live.py --topic orders --out out/live

Each batch is a folder of its number, and is replaced when it is done again: after any crash the folders hold
each stored message once. The page beside them is made anew with each batch, and loads itself again.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

if __package__ in (None, ""):
    # spark-submit puts this folder on the path, and not the checkout.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import click
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from messagebus.clock import wall_ms, whole_ms
from messagebus.commands.exits import HELP, Exit
from messagebus.commands.options import Duration
from messagebus.files import replace_file
from messagebus.terminal import plural
from reports.page import Figure, Page, render_html, section_of
from reports.text import cell, megabytes, significant
from spark.command import exit_code, in_one_line
from spark.lake.places import PlaceType, address_of, pattern_of, write_whole
from spark.measures.stored import ARROW, MINUTE_MS, NEEDED, aged, by_minute, merged, spread
from spark.session import QUICK, spark_session

log = logging.getLogger("messagebus.spark")

# Tasks wait for brokers more than they compute: those of three brokers run at once.
LIVE = {**QUICK, "spark.master": "local[4]"}
MINUTES_SHOWN = 60
POLL_S = 1
REFRESH_S = 5
# Starts of an ended query without a batch between, and the wait before the first; each next one is doubled.
AGAIN_MAX, AGAIN_FIRST_S = 5, 1
# Errors that come again with each try: what is gone, or set wrong.
FINAL = ("ReplayGap", "ConfigError", "LoginRefused", "ChannelRefused", "NameInvalid")
WORDS = {
    "messages": "stored by the brokers' streams. A message that was published twice is two of them.",
    "imbalance": "messages of the busiest broker over the mean of all brokers, idle ones too: 1 is even.",
    "age": "mean time from a publish, to the second, until the batch with it began, by two clocks.",
    "oldest": "the longest of these times.",
    "a second": "mean over the minute; of the minute that has begun, over the part of it that was read; "
    "of the first, from its first message on.",
    "waiting": "messages that were stored and not read when the last batch was planned.",
    "behind": "time from the newest publish of the last batch until it was written, by two clocks.",
}


class Sink:
    """The tables of a live run. keeps: whole messages too, not only their figures."""

    def __init__(self, session: SparkSession, folder: Path, *, keeps: bool) -> None:
        self._session, self._folder, self.keeps = session, folder, keeps
        self.behind_ms: int | None = None
        self._batches = _written(folder / "minutes")

    def write(self, rows: DataFrame, number: int) -> None:
        """Write a batch, in place of an earlier try."""
        now_ms = wall_ms()
        if self.keeps:
            _make_private(self._folder / "messages")
            kept = self._folder / "messages" / f"batch={number}"
            rows.write.mode("overwrite").parquet(address_of(kept))
            rows = self._session.read.schema(rows.schema).parquet(pattern_of(kept))
        found = aged((row.asDict() for row in by_minute(rows).collect()), now_ms)
        _write(found, self._folder / "minutes" / f"batch={number}")
        self._batches[number] = found
        if last_ms := max((row["last_ms"] for row in found), default=0):
            self.behind_ms = max(0, wall_ms() - last_ms)

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self._batches)

    def minutes(self) -> list[dict[str, Any]]:
        """Return the rows of `aged` over all batches."""
        return merged(row for each in self._batches.values() for row in each)


def _make_private(folder: Path) -> None:
    """Make a folder of this machine that only its owner reads: whole messages come into it."""
    if isinstance(folder, Path):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)


# A handful of rows: a job of Spark would take as long as thousands of messages.
def _write(rows: list[dict[str, Any]], folder: Path) -> None:
    table = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, ARROW), table)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "part-0.parquet", table.getvalue().to_pybytes())


def _written(minutes: Path) -> dict[int, list[dict[str, Any]]]:
    """Return the rows of each batch of an earlier start."""
    found: dict[int, list[dict[str, Any]]] = {}
    for path in minutes.glob("batch=*/*.parquet"):
        with path.open("rb") as file:
            rows = pq.read_table(file).to_pylist()
        found[int(path.parent.name.partition("=")[2])] = rows
    return found


def waiting(progress: Mapping[str, Any] | None) -> int | None:
    """Return how many messages were stored and not read, by the progress of a query; None before that."""
    if progress is None:
        return None
    total = 0
    for source in progress.get("sources", ()):
        ends, seen = (_offsets(source.get(key)) for key in ("endOffset", "latestOffset"))
        total += sum(
            max(0, entry["next"] - ends.get(broker, {}).get("next", 0))
            for broker, entry in seen.items()
        )
    return total


def known(progress: Mapping[str, Any] | None) -> set[str]:
    """Return the brokers that a query reads, also those that have no message."""
    sources = (progress or {}).get("sources", ())
    return {broker for source in sources for broker in _offsets(source.get("endOffset"))}


def _offsets(value: Any) -> dict[str, Any]:
    found = json.loads(value) if isinstance(value, str) else value
    return found if isinstance(found, dict) else {}


def page_of(
    topic: str,
    minutes: list[dict[str, Any]],
    *,
    left: int | None,
    behind_ms: int | None,
    listed: Iterable[str] = (),
    now_ms: int | None = None,
) -> Page:
    """Make the page. minutes: as of `Sink.minutes`. listed: brokers, also those without a message.

    left, behind_ms: None before the first batch.
    now_ms: when the last batch was written, wall clock; default: now.
    """
    now_ms = wall_ms() if now_ms is None else now_ms
    # While messages wait, the newest minute is read as far as its newest message.
    read_ms = max((row["last_ms"] for row in minutes), default=now_ms) if left else now_ms
    brokers = dict.fromkeys(listed, 0)
    for row in minutes:
        brokers[row["broker"]] = brokers.get(row["broker"], 0) + row["messages"]
    first_ms = min(filter(None, (row["first_ms"] for row in minutes)), default=0)
    gaps = sum(row["gaps"] for row in minutes)
    total = sum(brokers.values())
    times = [
        _row_of(row, _seconds_of(row["minute"], first_ms, read_ms))
        for row in spread(minutes, brokers)[-MINUTES_SHOWN:]
        if row["messages"]
    ]
    return Page(
        kind="live",
        title=topic,
        meta=(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",),
        verdict=f"read: {plural(total, 'message')}.",
        faults=(f"{plural(gaps, 'gap')}: messages are gone that nobody read",) if gaps else (),
        figures=(
            Figure(cell(total), "messages"),
            Figure(cell(left), "waiting"),
            Figure(cell(None if behind_ms is None else f"{behind_ms / 1000:.1f} s"), "behind"),
            Figure(cell(len(brokers)), "brokers"),
        ),
        sections=(
            section_of(
                "By minute",
                times[::-1],
                ("minute", "messages", "MB", "a second", "imbalance", "age", "oldest"),
            ),
            section_of(
                "Brokers",
                [
                    {"broker": name, "messages": count, "share": f"{count / (total or 1):.1%}"}
                    for name, count in sorted(brokers.items())
                ],
                ("broker", "messages", "share"),
            ),
        ),
        words=WORDS,
        footer="Rows: tables/minutes of its lake (Parquet).",
        reload_s=REFRESH_S,
    )


def _row_of(minute: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return a minute's row of the page. seconds: of it that were read."""
    return {
        "minute": f"{datetime.fromtimestamp(minute['minute'] * MINUTE_MS / 1000, UTC):%d %H:%M}",
        "messages": minute["messages"],
        "MB": megabytes(minute["bytes"]),
        "a second": significant(minute["messages"] / seconds),
        "imbalance": f"{minute['imbalance']:.2f}",
        "age": f"{minute['age_ms'] / 1000:.1f} s",
        "oldest": f"{minute['age_max_ms'] / 1000:.1f} s",
    }


def _seconds_of(minute: int, first_ms: int, read_ms: int) -> float:
    """Return the seconds of a minute that were read, 1 to 60.

    first_ms: of the first message of all. read_ms: the time up to which all is read.
    """
    begin_ms, end_ms = minute * MINUTE_MS, (minute + 1) * MINUTE_MS
    return max(1.0, (min(end_ms, read_ms) - max(begin_ms, first_ms)) / 1000)


def write_page(out: Path, page: Page) -> None:
    """Write live.html, whole at any time."""
    replace_file(out / "live.html", render_html(page))


def start(
    session: SparkSession,
    options: Mapping[str, str],
    checkpoint: Path,
    sink: Sink,
    *,
    every_s: float | None,
) -> StreamingQuery:
    """Start the query. checkpoint: Spark's own, of how far it has read.

    every_s: seconds between batches; None: what is stored now, then it ends.
    """
    from spark.source import SCHEMA, MessageBus  # see `command`

    session.dataSource.register(MessageBus)
    read = session.readStream.format("messagebus").schema(SCHEMA if sink.keeps else NEEDED)
    rows = read.options(**dict(options)).load()
    writer = rows.writeStream.foreachBatch(sink.write).option(
        "checkpointLocation", address_of(checkpoint)
    )
    if every_s is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{whole_ms(every_s)} milliseconds").start()


def follow(
    begin: Callable[[], StreamingQuery], out: Path, topic: str, sink: Sink, stopping: Event
) -> None:
    """Start the query and keep the page until it ends, or is to stop. Raises what ended it.

    Spark ends a query when a worker is not there within 10 s, as on a busy machine, or when all tries of a
    task fail. It is started again and goes on where it was, AGAIN_MAX times without a batch between them,
    each behind a longer wait.
    """
    again = 0
    while True:
        before = len(sink)
        try:
            return _follow(begin(), out, topic, sink, stopping)
        except PySparkException as fault:
            again = 0 if len(sink) > before else again + 1
            if again > AGAIN_MAX or any(name in str(fault) for name in FINAL):
                raise
            if stopping.is_set():
                return
            wait_s = AGAIN_FIRST_S << max(again - 1, 0)
            log.warning(
                "query starts again times=%d in_s=%d error=%s",
                again,
                wait_s,
                str(fault).partition("\n")[0],
            )
            if stopping.wait(wait_s):
                return


def _follow(query: StreamingQuery, out: Path, topic: str, sink: Sink, stopping: Event) -> None:
    shown = -1
    while True:
        if stopping.is_set():
            query.stop()
        has_ended = bool(query.awaitTermination(POLL_S))
        progress = query.lastProgress
        number = int(progress["batchId"]) if progress else 0
        if has_ended or number != shown:
            shown = number
            told = json.loads(progress.json) if progress else None
            left, listed = waiting(told), known(told)
            made = page_of(
                topic, sink.minutes(), left=left, behind_ms=sink.behind_ms, listed=listed
            )
            write_page(out, made)
        if has_ended:
            return


@click.command(
    "live",
    epilog="Example: python -m spark live --topic orders --out out/live",
    context_settings=HELP,
    short_help="Show a topic's figures while its messages come.",
)
@click.option("--topic", required=True, help="It has a stream: messagebus declare stream:TOPIC.")
@click.option(
    "--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="Folder."
)
@click.option(
    "--lake",
    "root",
    type=PlaceType(),
    help="Folder or address that all workers see, for tables and checkpoint. Default: OUT.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="TOML file of the bus; default: the environment.",
)
@click.option(
    "--starting",
    type=click.Choice(["earliest", "latest"]),
    default="earliest",
    show_default=True,
    help="Begin of the first start.",
)
@click.option(
    "--every",
    "every_s",
    type=Duration(),
    default="2s",
    show_default=True,
    help="Time between batches.",
)
@click.option(
    "--rows-max",
    default=200_000,
    type=click.IntRange(min=1),
    help="Messages of a batch.",
    show_default=True,
)
@click.option("--keep", is_flag=True, help="Keep the messages too, in tables/messages.")
@click.option("--once", is_flag=True, help="End with what is stored now.")
@click.option("--loss-goes-on", is_flag=True, help="Count a gap, and go on behind it.")
def command(
    topic: str,
    out: Path,
    root: Path | None,
    config: Path | None,
    starting: str,
    every_s: float,
    rows_max: int,
    keep: bool,
    once: bool,
    loss_goes_on: bool,
) -> int:
    """Read a topic's streams while messages come: OUT/live.html loads itself again, OUT/tables has the rows.

    Started again it goes on where it was. Ends at Ctrl-C, or with --once.
    """
    options = {
        "topic": topic,
        "startingOffsets": starting,
        "maxRowsPerTrigger": str(rows_max),
        "failOnDataLoss": str(not loss_goes_on).lower(),
        **({"config": str(config)} if config else {}),
    }

    def work() -> int:
        # Other jobs work with a PySpark that has no such source.
        from spark.source import Settings, Streams

        # A wrong password, right or option is told now: within a query it is the last line of a long trace.
        Streams(Settings.of(options)).ends()
        out.mkdir(parents=True, exist_ok=True)
        session = spark_session("messagebus live", **LIVE)
        try:
            kept = root or out
            sink = Sink(session, kept / "tables", keeps=keep)
            every = None if once else every_s
            begin = partial(start, session, options, kept / "checkpoint", sink, every_s=every)
            stopping = Event()
            # A call into the JVM may be under way: none is made within it.
            signal.signal(signal.SIGTERM, lambda *_: stopping.set())
            follow(begin, out, topic, sink, stopping)
        finally:
            session.stop()
        click.echo(str(out / "live.html"))
        return Exit.DONE

    return in_one_line("live", work)


if __name__ == "__main__":
    sys.exit(exit_code(command, None, prog_name="live"))
