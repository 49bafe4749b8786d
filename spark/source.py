"""The data source ``messagebus``: the streams of a topic, on all brokers, as rows of Spark.

    from spark.source import MessageBus

    session.dataSource.register(MessageBus)
    rows = session.readStream.format("messagebus").option("topic", "orders").load()

Needs PySpark 4.2. Reads what `messagebus.Stream` keeps; nothing is taken from any subscription. An offset of
Spark holds, for each broker, the next offset to read and the id of the message before it. A range of offsets
gives the same rows whenever it is read, so with a sink that replaces a batch by its number every stored
message arrives once. docs/guides/replay.md has the columns, the options and what is promised.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
from pyspark import SparkFiles
from pyspark.sql.types import StructType

try:
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceReader,
        DataSourceStreamReader,
        InputPartition,
    )
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError as fault:
    raise ImportError(
        f"the live source needs PySpark 4.2 or later, and this is {pyspark.__version__}"
    ) from fault

from messagebus import (
    BusConfig,
    Checkpoint,
    ConfigError,
    Message,
    NotReady,
    Replay,
    Replayed,
    ReplayGap,
)
from messagebus.replay import Position, behind, stream_ends

log = logging.getLogger("messagebus.spark")

SCHEMA = (
    "broker string, offset long, part int, message_id string, key string, published_ms long, "
    "content_type string, headers map<string,string>, body binary, bytes long, gap string"
)
ARROW = pa.schema(
    [
        ("broker", pa.string()),
        ("offset", pa.int64()),
        ("part", pa.int32()),
        ("message_id", pa.string()),
        ("key", pa.string()),
        ("published_ms", pa.int64()),
        ("content_type", pa.string()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("body", pa.binary()),
        ("bytes", pa.int64()),
        ("gap", pa.string()),
    ]
)
# Stored messages of one task, unless rowsPerPartition says otherwise; rows of one Arrow batch.
ROWS_PER_PARTITION, ROWS_PER_ARROW = 100_000, 5_000
# Prefetch of a task's link, in messages.
PREFETCH = 1_000
LOOK_S, AWAY_S = 2.0, 60.0
ASK_AGAIN_S = 0.2
# The table of headers of a message that was published without any: the offset alone, in 8 bytes as RabbitMQ
# writes it, or in 4. In front are AMQP's flags: of a content type, of an encoding and of headers.
OFFSET_ALONE = (b"\x00\x00\x00\x19\x0fx-stream-offsetl", b"\x00\x00\x00\x15\x0fx-stream-offsetI")
WITH_TYPE, WITH_ENCODING, WITH_HEADERS = 0x80, 0x40, 0x20

# What an offset of Spark holds for one broker: next, part, id, ms; and, behind a gap, also from and gap.
Entry = dict[str, Any]
Offsets = dict[str, Entry]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options of one source.

    topic: of the streams. config: a TOML file of the bus, on each host or of --files; "": the environment.
    starting: "earliest" or "latest", for the first start. rows_max: stored messages of one batch, 0: all.
    fails_on_loss: a gap fails the query; else it becomes a row. look_s: for the driver's look at all brokers.
    away_s: for a broker that a task cannot reach.
    """

    topic: str
    config: str = ""
    starting: str = "earliest"
    rows_max: int = 0
    rows_per_partition: int = ROWS_PER_PARTITION
    fails_on_loss: bool = True
    look_s: float = LOOK_S
    away_s: float = AWAY_S

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Settings:
        """Read the options of Spark, whatever their case. Raises ConfigError."""
        given = {key.lower(): text for key, text in options.items()}
        names = {
            "topic": "topic",
            "config": "config",
            "startingoffsets": "starting",
            "maxrowspertrigger": "rows_max",
            "rowsperpartition": "rows_per_partition",
            "failondataloss": "fails_on_loss",
            "looktimeouts": "look_s",
            "timeouts": "away_s",
        }
        if unknown := given.keys() - names.keys() - {"path"}:
            raise ConfigError(f"option {min(unknown)!r} is unknown: {', '.join(names)}")
        if not given.get("topic"):
            raise ConfigError('option "topic" is missing')
        fields = {names[key]: text for key, text in given.items() if key in names}
        values = {
            name: _value(name, text, str(cls.__dataclass_fields__[name].type))
            for name, text in fields.items()
        }
        made = cls(**values)
        if made.starting not in ("earliest", "latest"):
            raise ConfigError(f'startingOffsets {made.starting!r}: "earliest" or "latest"')
        if made.rows_max < 0 or made.rows_per_partition < 1:
            raise ConfigError("maxRowsPerTrigger, rowsPerPartition: numbers of messages")
        return made

    def bus(self) -> BusConfig:
        """Return the settings of the bus on this host. Secrets are read here, and travel nowhere."""
        if not self.config:
            return BusConfig.from_env(os.environ)
        path = Path(self.config)
        return BusConfig.from_file(path if path.exists() else SparkFiles.get(path.name))


def _value(name: str, text: str, kind: str) -> Any:
    try:
        match kind:
            case "bool":
                return {"true": True, "false": False}[text.lower()]
            case "int":
                return int(text)
            case "float":
                return float(text)
    except (KeyError, ValueError):
        raise ConfigError(f"{name} {text!r}: a {kind} is wanted") from None
    return text


class Range(InputPartition):
    """Offsets first … end-1 of one broker. before: the last message before them; gap: told in front."""

    def __init__(self, broker: str, before: Position, end: int, gap: str | None = None) -> None:
        self.broker, self.before, self.end, self.gap = broker, before, end, gap

    @property
    def first(self) -> int:
        return self.before.offset + 1


# Decisions, without I/O.


def columns_of(schema: StructType) -> pa.Schema:
    """Return the columns of a schema of Spark. Raises ConfigError for one that is none of ours."""
    known = dict(each.split() for each in SCHEMA.replace(" long", " bigint").split(", "))
    for each in schema:
        if known.get(each.name) != (kind := each.dataType.simpleString()):
            raise ConfigError(f"column {each.name!r} ({kind}) is none of: {SCHEMA}")
    return pa.schema([ARROW.field(each.name) for each in schema])


def entry_behind(position: Position) -> Entry:
    """Return the entry of a broker whose messages up to this one are read."""
    return {
        "next": position.offset + 1,
        "part": position.part,
        "id": position.message_id,
        "ms": position.ms,
    }


def position_of(entry: Entry) -> Position:
    """Return the last message that an entry counts as read; none: one that is not compared."""
    return Position(entry["next"] - 1, entry["part"], entry["id"], entry["ms"])


def shares(waiting: Mapping[str, int], rows_max: int | None) -> dict[str, int]:
    """Return how many messages of each broker a batch takes: fair, the smallest backlog first."""
    room = sum(waiting.values()) if rows_max is None else rows_max
    taken: dict[str, int] = {}
    for done, broker in enumerate(sorted(waiting, key=lambda each: (waiting[each], each))):
        # Rounded up, so that a bound below the number of brokers starves none of them for ever.
        taken[broker] = min(waiting[broker], -(-room // (len(waiting) - done)))
        room -= taken[broker]
    return taken


def ranges(start: Offsets, end: Offsets, rows_per_partition: int) -> list[Range]:
    """Return the parts of a batch. A broker that is new in `end` has no rows yet."""
    found = []
    for broker in sorted(start.keys() & end.keys()):
        came, goes = start[broker], end[broker]
        gap = goes.get("gap") if goes.get("gap") != came.get("gap") else None
        before = behind(goes["from"] - 1) if gap else position_of(came)
        for first in range(before.offset + 1, goes["next"], rows_per_partition):
            last = min(first + rows_per_partition, goes["next"])
            is_first = first == before.offset + 1
            found.append(
                Range(broker, before if is_first else behind(first - 1), last, gap and str(gap))
            )
            gap = None
        if gap:
            found.append(Range(broker, before, goes["next"], gap))
    return found


class Streams:
    """The streams of a topic as the driver sees them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def ends(self) -> dict[str, Position | None]:
        """Return the last message of each listed broker that answers; none of them while there is no list."""
        try:
            return stream_ends(
                self._settings.bus(), self._settings.topic, within_s=self._settings.look_s
            )
        except NotReady as fault:
            log.warning("streams not seen reason=%r", str(fault))
            return {}

    def all_ends(self) -> dict[str, Position | None]:
        """Return `ends` of all listed brokers, asked until each has answered, for away_s. Raises NotReady."""
        settings, until_s = self._settings, time.monotonic() + self._settings.away_s
        while True:
            try:
                return stream_ends(
                    settings.bus(), settings.topic, within_s=settings.look_s, whole=True
                )
            except NotReady as fault:
                if time.monotonic() >= until_s:
                    raise
                log.warning("streams not seen, asked again reason=%r", str(fault))
                time.sleep(ASK_AGAIN_S)

    def available(self) -> dict[str, Position | None]:
        """Return the ends of all listed brokers; where gaps are put up with, of those that answer.

        Raises NotReady.
        """
        return self.all_ends() if self._settings.fails_on_loss else self.ends()

    def at(self, places: Mapping[str, int]) -> dict[str, Position | None]:
        """Return the first message from these offsets on, of the brokers that answer."""
        settings = self._settings
        return stream_ends(settings.bus(), settings.topic, since=places, within_s=settings.look_s)

    def first(self, brokers: Sequence[str]) -> Offsets:
        """Return the entries of brokers of which nothing was read yet."""
        found = self.at(dict.fromkeys(brokers, 0))
        return {
            broker: entry_behind(behind(oldest.offset - 1 if oldest else -1))
            for broker, oldest in found.items()
        }


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The source of a query: plans on the driver, reads in tasks."""

    def __init__(self, settings: Settings, columns: pa.Schema = ARROW) -> None:
        self.settings, self.columns = settings, columns
        self._target: dict[str, Position | None] | None = None
        self._read_behind: Offsets = {}

    def initialOffset(self) -> Offsets:
        """Return where a new query begins. Raises NotReady where it is an end that a broker does not tell."""
        streams = Streams(self.settings)
        if self.settings.starting == "earliest":
            return dict(sorted(streams.first([*streams.ends()]).items()))
        # A broker that is not in the offset is read from its first message, and that is older than the query.
        ends = streams.all_ends()
        return {broker: entry_behind(ends[broker] or behind(-1)) for broker in sorted(ends)}

    def getDefaultReadLimit(self) -> ReadLimit:
        rows_max = self.settings.rows_max
        return ReadMaxRows(rows_max) if rows_max else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Note what this run reads. Raises NotReady as `Streams.available`."""
        self._target = Streams(self.settings).available()

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """Return where the next batch ends. Raises ReplayGap where messages are gone, unless they may be.

        Raises NotReady where a broker of a run until all available is read does not say where it begins.
        """
        streams = Streams(self.settings)
        ends = streams.ends() if self._target is None else self._target
        # Removed and silent brokers keep their entries: what they have is read when they are back.
        found: Offsets = {broker: _plain(entry) for broker, entry in start.items()}
        # Of a new one only the place is noted: were it looked up again for a repeated batch, retention
        # could have moved it.
        found |= streams.first([broker for broker in ends if broker not in start])
        silent = sorted(ends.keys() - found.keys()) if self._target is not None else []
        if silent and self.settings.fails_on_loss:
            raise NotReady(f"no answer within {self.settings.look_s:g} s by {', '.join(silent)}")
        known = {broker: last for broker, last in ends.items() if broker in start}
        for broker, fault in self._gaps(streams, start, known).items():
            found[broker] |= fault
        self._read_behind = {broker: entry_behind(last) for broker, last in ends.items() if last}
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        wanted = _batch_ends(found, known, rows_max)
        between = known | streams.at({b: n - 1 for b, n in wanted.items() if _end(known[b]) > n})
        for broker, end in wanted.items():
            last = between[broker]
            is_it = last is not None and last.offset == end - 1
            found[broker] |= entry_behind(last if last and is_it else behind(end - 1))
        return dict(sorted(found.items()))  # Spark compares offsets as text

    def reportLatestOffset(self) -> Offsets | None:
        return dict(sorted(self._read_behind.items())) or None

    def _gaps(
        self, streams: Streams, start: Offsets, ends: Mapping[str, Position | None]
    ) -> Offsets:
        """Return what entries get where a stream does not go on behind them. Raises ReplayGap."""
        short = [broker for broker, last in ends.items() if _end(last) < start[broker]["next"]]
        if short and self._target is not None:
            # The end that was noted for this run may be older than the start of a new query.
            now = streams.available()
            ends = {broker: last for broker, last in now.items() if broker in ends}
        lost = _ended_before(start, {b: last for b, last in ends.items() if b in short})
        if self.settings.fails_on_loss:
            # Tasks compare ids; a stream that has nothing new has no task.
            for broker, reason in lost.items():
                raise ReplayGap(broker, f"{reason}: it lost its end, or is another one", None)
            return {}
        grown = [b for b, last in ends.items() if b not in lost and _end(last) > start[b]["next"]]
        at = streams.at({broker: max(0, start[broker]["next"] - 1) for broker in grown})
        for broker, seen in at.items():
            if seen is not None and (reason := _gap(position_of(start[broker]), seen)):
                lost[broker] = reason
        firsts = streams.first([*lost])
        return {
            # Its number of the gap makes two of one text differ.
            broker: {"gap": f"{start[broker]['next']}: {reason}", **_from(firsts[broker]["next"])}
            for broker, reason in lost.items()
            if broker in firsts
        }

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[Range]:
        return ranges(start, end, self.settings.rows_per_partition)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        return read_range(self.settings, partition, self.columns)

    def commit(self, end: Offsets) -> None:
        pass

    def stop(self) -> None:
        pass


def _batch_ends(
    found: Offsets, known: Mapping[str, Position | None], rows_max: int | None
) -> dict[str, int]:
    """Return where a batch of at most so many rows ends, of the brokers that it has rows of."""
    waiting = {
        broker: last.offset + 1 - _first_of(found[broker])
        for broker, last in known.items()
        if last is not None
    }
    taken = shares({broker: n for broker, n in waiting.items() if n > 0}, rows_max)
    return {broker: _first_of(found[broker]) + n for broker, n in taken.items() if n}


def _ended_before(start: Offsets, ends: Mapping[str, Position | None]) -> dict[str, str]:
    """Return broker -> what is wrong, of those that end before the place from which on they are read."""
    return {
        broker: f"it ends at offset {_end(last)}, before {start[broker]['next']}"
        for broker, last in ends.items()
        if _end(last) < start[broker]["next"]
    }


def _gap(before: Position, seen: Position) -> str:
    """Return why a stream does not go on behind a place, by what was seen there; "" where it does."""
    if seen.offset > before.offset + 1:
        return f"{seen.offset - before.offset - 1} older messages were dropped"
    return f"another message is at offset {before.offset}" if _is_other(seen, before) else ""


def _plain(entry: Entry) -> Entry:
    """Return an entry without its place behind a gap, which was read with the batch before."""
    return {key: value for key, value in entry.items() if key != "from"}


def _is_other(position: Position, before: Position) -> bool:
    """Return whether another message is where one was read. A batch is known by its last message."""
    return (
        bool(before.message_id)
        and position.offset == before.offset
        and (position.part, position.message_id) != (before.part, before.message_id)
    )


def _first_of(entry: Entry) -> int:
    """Return the first offset that a batch reads which ends with an entry of this begin."""
    return int(entry["from"] if "from" in entry else entry["next"])


def _from(offset: int) -> Entry:
    return {"from": offset, "next": offset, "part": 0, "id": "", "ms": 0}


def _end(last: Position | None) -> int:
    return last.offset + 1 if last else 0


class BatchReader(DataSourceReader):
    """The messages that are kept now, for ``session.read``."""

    def __init__(self, settings: Settings, columns: pa.Schema = ARROW) -> None:
        self.settings, self.columns = settings, columns

    def partitions(self) -> Sequence[Range]:
        streams = Streams(self.settings)
        ends = {broker: last for broker, last in streams.available().items() if last is not None}
        firsts = streams.first([*ends])
        end = {broker: entry_behind(last) for broker, last in ends.items()}
        return ranges(firsts, end, self.settings.rows_per_partition)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        return read_range(self.settings, partition, self.columns)


def read_range(
    settings: Settings, wanted: Range, columns: pa.Schema = ARROW
) -> Iterator[pa.RecordBatch]:
    """Read a range of one broker's stream. Raises ReplayGap, or yields it as a row.

    Spark runs a task that fails again: nothing is skipped.
    """
    if wanted.gap:
        yield _gap_row(columns, wanted.broker, wanted.first, wanted.gap)
    if wanted.end <= wanted.first:
        return
    try:
        yield from _batches(settings, wanted, columns)
    except ReplayGap as gap:
        if settings.fails_on_loss:
            raise
        yield _gap_row(columns, wanted.broker, wanted.first, str(gap))
        left = _left(settings, wanted)
        if left is not None:
            yield from _batches(settings, left, columns)


def _left(settings: Settings, wanted: Range) -> Range | None:
    """Return the part of a range that its stream still has; rows that were read before come again."""
    broker, streams = wanted.broker, Streams(settings)
    oldest = streams.at({broker: wanted.first}).get(broker)
    if oldest is None or oldest.offset >= wanted.end:
        return None
    last = stream_ends(settings.bus(), settings.topic, within_s=settings.look_s).get(broker)
    end = min(wanted.end, _end(last))
    return Range(broker, behind(oldest.offset - 1), end) if end > oldest.offset else None


def _batches(settings: Settings, wanted: Range, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    def place(position: Position) -> Checkpoint:
        return Checkpoint(settings.topic, {wanted.broker: position})

    found: list[Replayed] = []
    replay = Replay(
        settings.bus(),
        settings.topic,
        since=place(wanted.before),
        until=place(behind(wanted.end - 1)),
        prefetch=min(PREFETCH, wanted.end - wanted.before.offset),  # what comes behind it is wasted
        away_s=settings.away_s,
    )
    with replay:
        for each in replay:
            found.append(each)
            if len(found) >= ROWS_PER_ARROW:
                yield _batch(columns, wanted.broker, found)
                found = []
    if found:
        yield _batch(columns, wanted.broker, found)


def _batch(columns: pa.Schema, broker: str, messages: Sequence[Replayed]) -> pa.RecordBatch:
    # To decode a message takes longer than all the rest.
    is_decoded = "key" in columns.names or "headers" in columns.names
    named = [None if _is_bare(each) else each.message for each in messages] if is_decoded else []
    make: dict[str, Callable[[], Sequence[Any]]] = {
        "broker": lambda: [broker] * len(messages),
        "offset": lambda: [each.offset for each in messages],
        "part": lambda: [each.part for each in messages],
        "message_id": lambda: [each.message_id for each in messages],
        "key": lambda: ["" if each is None else each.key for each in named],
        "published_ms": lambda: [each.published_ms for each in messages],
        "content_type": lambda: [each.content_type for each in messages],
        "headers": lambda: [() if each is None else _headers(each) for each in named],
        "body": lambda: [each.body for each in messages],
        "bytes": lambda: [len(each.body) for each in messages],
        "gap": lambda: [None] * len(messages),
    }
    return _arrow(columns, {name: make[name]() for name in columns.names})


def _is_bare(stored: Replayed) -> bool:
    """Return whether a message is known to have no key and no header of its own."""
    raw = stored._properties
    if len(raw) < 3 or raw[0] & WITH_ENCODING:
        return False
    if not raw[0] & WITH_HEADERS:
        return True
    return raw.startswith(OFFSET_ALONE, 2 + (1 + raw[2] if raw[0] & WITH_TYPE else 0))


def _gap_row(columns: pa.Schema, broker: str, offset: int, reason: str) -> pa.RecordBatch:
    values = {"broker": broker, "offset": offset, "gap": reason}
    return _arrow(columns, {name: [values.get(name)] for name in columns.names})


def _arrow(columns: pa.Schema, values: Mapping[str, Sequence[Any]]) -> pa.RecordBatch:
    arrays = [pa.array(values[each.name], each.type) for each in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _headers(message: Message) -> list[tuple[str, str]]:
    return [
        (name, value if isinstance(value, str) else json.dumps(value, default=str))
        for name, value in message.headers.items()
    ]


class MessageBus(DataSource):
    """The data source of Spark, by the name ``messagebus``."""

    @classmethod
    def name(cls) -> str:
        return "messagebus"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(Settings.of(self.options), columns_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(Settings.of(self.options), columns_of(schema))
