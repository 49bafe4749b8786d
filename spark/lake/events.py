"""Reader of recorded events: lines of JSON, or Parquet, to typed rows; every bad line is counted.

JSON is read as text, so that lines read == anchors + good + bad, always. Times become wall-clock
nanoseconds by the clock anchor of each file. `messagebus.recording.events` alone defines the columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column as Expr
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from messagebus.recording.events import ACKS, EVENTS, OUTCOMES, Column
from messagebus.recording.manifest import Manifest
from spark.lake.files import ANCHOR, DIGEST, NDJSON, NOT_PLAIN, PARQUET, PLAIN, EventFile
from spark.lake.places import pattern_of
from spark.lake.tables import DATE, RUN, SOURCE, utc_day

JSON_TYPES: dict[str, DataType] = {
    "text": StringType(),
    "id16": StringType(),
    "long": LongType(),
    "int": IntegerType(),
}
TYPES = JSON_TYPES | {"id16": BinaryType()}
# Kind -> the time that decides the day of an event.
AT = {"published": "intended_ns", "delivered": "received_ns", "sampled": "at_ns"}
ID_DIGITS = 32
GOOD = "good"
CORRUPT = "_corrupt"

# Reasons for a bad line; the first that applies counts.
EMPTY = "empty line"
CUT = "cut off: the last line of its file, without an end"
STRAY = "anchor that is not the first line: two files in one"
BROKEN = "not JSON, or a value of the wrong type"
MISSING = "required field missing"
MALFORMED_ID = "id is not 32 hex digits"
FOREIGN = "run, topic or subscription not in the manifest"
WORD = "outcome or ack is not one of the known words"
RANGE = "number below its minimum"
REASONS = (EMPTY, CUT, BROKEN, STRAY, MISSING, MALFORMED_ID, WORD, RANGE, FOREIGN)
EXAMPLE_CHARACTERS = 160


def schema_of(kind: str) -> StructType:
    """Return the columns of a kind in the lake: those of `recording.events`, then the partitions'."""
    fields = [
        StructField(column.name, TYPES[column.kind])
        for column in EVENTS[kind]
        if column.name != RUN
    ]
    return StructType([*fields, *(StructField(name, StringType()) for name in (DATE, RUN, SOURCE))])


def rows_of(
    session: SparkSession, kind: str, files: Sequence[EventFile], manifest: Manifest
) -> DataFrame:
    """Return the rows of `parse` for files of any form."""
    forms = [[file for file in files if file.form == form] for form in (NDJSON, PARQUET)]
    parsed = [parse(read_lines(session, part), kind, manifest, part) for part in forms if len(part)]
    return reduce(DataFrame.unionAll, parsed)


def read_lines(session: SparkSession, files: Sequence[EventFile]) -> DataFrame:
    """Read source, value (one line as text), offset_ns (of its file), row, of files of one kind and form."""
    rows = (_read_text if files[0].form == NDJSON else _read_parquet)(session, files)
    offsets = {file.source: file.offset_ns for file in files}
    if len(known := {*offsets.values()}) == 1:
        return rows.withColumn("offset_ns", F.lit(known.pop()).cast("long"))
    clocks = session.createDataFrame([*offsets.items()], f"{SOURCE} string, offset_ns long")
    return rows.join(F.broadcast(clocks), SOURCE)


def parse(lines: DataFrame, kind: str, manifest: Manifest, files: Sequence[EventFile]) -> DataFrame:
    """Return one row per line: the columns, typed, times as wall-clock ns, date, source, value, reason.

    lines: rows of `read_lines` for these files. reason: null for a good row, `ANCHOR`, or why the line is
    bad. date: UTC; that of the run's start for a bad line.
    """
    columns = EVENTS[kind]
    is_text = files[0].form == NDJSON
    reason = _reason_of_row(columns, manifest, is_text=is_text)
    if is_text:
        reason = _reason_of_line(files).otherwise(reason)
    typed = lines.select(
        *[_typed(column, is_text=is_text) for column in columns],
        SOURCE,
        "value",
        reason.alias("reason"),
    )
    at = F.when(F.col("reason").isNull(), F.col(AT[kind])).otherwise(F.lit(manifest.start_ns))
    return typed.withColumn(DATE, utc_day(at))


def counted(rows: DataFrame, kind: str) -> tuple[DataFrame, Observation]:
    """Return the good rows, and counts that are known after they are written: lines, and per reason.

    Counts are observed on the way, so that files are read once. Read them by `line_counts`.
    """
    seen = Observation()
    reason = F.coalesce("reason", F.lit(GOOD))
    counts = [
        F.count_if(reason == each).alias(f"n{position}")
        for position, each in enumerate((GOOD, ANCHOR, *REASONS))
    ]
    observed = rows.observe(seen, F.count(F.lit(1)).alias("lines"), *counts)
    good = observed.filter(F.col("reason").isNull())
    return good.select(*schema_of(kind).names), seen


def line_counts(observation: Observation) -> dict[str, int]:
    """Return lines, good, `ANCHOR`, and every reason -> count; lines are the sum of the others."""
    counts: dict[str, int] = observation.get
    names = (GOOD, ANCHOR, *REASONS)
    found = {name: counts[f"n{position}"] for position, name in enumerate(names)}
    assert counts["lines"] == sum(found.values()), "a line has one reason, or none"
    return {"lines": counts["lines"]} | found


def quarantined(rows: DataFrame, kind: str, run_id: str) -> DataFrame:
    """Return kind, reason, value (the start of the line), date, run_id, source, of bad lines only."""
    bad = rows.filter(F.col("reason").isNotNull() & (F.col("reason") != ANCHOR))
    start = F.substring("value", 1, EXAMPLE_CHARACTERS)
    return bad.select(
        F.lit(kind).alias("kind"),
        "reason",
        start.alias("value"),
        DATE,
        F.lit(run_id).alias(RUN),
        SOURCE,
    )


def _typed(column: Column, *, is_text: bool) -> Expr:
    field = F.col(f"row.{column.name}")
    if column.kind == "id16" and is_text:
        return F.unhex(field).alias(column.name)
    if column.name.endswith("_ns"):
        return (field + F.col("offset_ns")).alias(column.name)
    return field.alias(column.name)


def _reason_of_line(files: Sequence[EventFile]) -> Expr:
    """Return the reason for a line that is no row at all; to be continued with `otherwise`."""
    broken = F.col(f"row.{CORRUPT}").isNotNull()
    anchor = F.col(f"row.{ANCHOR}").isNotNull() & F.col("row.run_id").isNull()
    heads = {file.head for file in files}
    return (
        F.when(F.trim("value") == "", EMPTY)
        .when(broken & _is_cut(files), CUT)
        .when(broken, BROKEN)
        .when(anchor & F.col("value").isin(*sorted(heads)), ANCHOR)
        .when(anchor, STRAY)
    )


def _is_cut(files: Sequence[EventFile]) -> Expr:
    """Return whether a line was cut off.

    It may end in half a character, which Spark keeps and no text has.
    """
    sizes = [file.tail_bytes or len(file.tail.encode()) for file in files]
    tails = {(file.tail, size) for file, size in zip(files, sizes, strict=True) if size}
    whole = [tail for tail, size in tails if len(tail.encode()) == size]
    halved = [
        F.col("value").startswith(tail) & (F.octet_length("value") == size)
        for tail, size in sorted(tails)
        if len(tail.encode()) != size
    ]
    return reduce(Expr.__or__, halved, F.col("value").isin(*sorted(whole)))


def _reason_of_row(columns: Sequence[Column], manifest: Manifest, *, is_text: bool) -> Expr:
    required = [F.col(f"row.{c.name}").isNull() for c in columns if c.required]
    if "confirmed_ns" in {column.name for column in columns}:
        confirmed = F.col("row.outcome") == "confirmed"
        required.append(confirmed & F.col("row.confirmed_ns").isNull())
    not_an_id = _not_hex if is_text else _not_16_bytes
    ids = [not_an_id(F.col(f"row.{c.name}")) for c in columns if c.kind == "id16"]
    words = {"outcome": OUTCOMES, "ack": ACKS}
    wrong_words = [~F.col(f"row.{c.name}").isin(*words[c.name]) for c in columns if c.name in words]
    return (
        F.when(reduce(Expr.__or__, required), MISSING)
        .when(reduce(Expr.__or__, ids, F.lit(False)), MALFORMED_ID)
        .when(reduce(Expr.__or__, wrong_words, F.lit(False)), WORD)
        .when(_is_too_low(columns), RANGE)
        .when(~_in_manifest(columns, manifest), FOREIGN)
    )


def _is_too_low(columns: Sequence[Column]) -> Expr:
    """Return whether a count is below 0, or a message was confirmed and never sent."""
    low = [F.col(f"row.{c.name}") < 0 for c in columns if c.is_count]
    if "attempts" in {column.name for column in columns}:
        low.append((F.col("row.outcome") == "confirmed") & (F.col("row.attempts") < 1))
    return reduce(Expr.__or__, low)


def _not_hex(text: Expr) -> Expr:
    # Cheaper than a pattern, of which every row has two: unhex() of anything but hex digits is null.
    return (F.length(text) != ID_DIGITS) | F.unhex(text).isNull()


def _not_16_bytes(field: Expr) -> Expr:
    return F.length(field) != ID_DIGITS // 2


def _in_manifest(columns: Sequence[Column], manifest: Manifest) -> Expr:
    own = F.col("row.run_id") == manifest.run_id
    if "subscription" not in {column.name for column in columns}:
        return own & F.col("row.topic").isin(*manifest.topics)
    pair = F.struct("row.topic", "row.subscription")
    known = [F.struct(F.lit(topic), F.lit(name)) for topic, name in manifest.pairs]
    return own & (pair.isin(*known) if known else F.lit(False))


def _read_text(session: SparkSession, files: Sequence[EventFile]) -> DataFrame:
    # A line could hold columns of other kinds: only those of its own kind are read.
    fields = [StructField(column.name, JSON_TYPES[column.kind]) for column in EVENTS[files[0].kind]]
    fields.append(StructField(ANCHOR, StructType([StructField("host", StringType())])))
    fields.append(StructField(CORRUPT, StringType()))
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    row = F.from_json("value", StructType(fields), options)
    lines = session.read.text([pattern_of(file.path) for file in files])
    # Exploding an array of one keeps Spark from copying from_json() into every condition on its
    # fields: a filter on `reason` took 30 times the CPU.
    return lines.select(
        _source(),
        "value",
        F.explode(F.array(row)).alias("row"),
    )


def _read_parquet(session: SparkSession, files: Sequence[EventFile]) -> DataFrame:
    columns = EVENTS[files[0].kind]
    schema = StructType([StructField(column.name, TYPES[column.kind]) for column in columns])
    read = session.read.schema(schema).parquet(*[pattern_of(file.path) for file in files])
    row = F.struct(*[column.name for column in columns])
    shown = [F.hex(c.name).alias(c.name) if c.kind == "id16" else F.col(c.name) for c in columns]
    return read.select(
        _source(),
        F.to_json(F.struct(*shown)).alias("value"),
        row.alias("row"),
    )


def _source() -> Expr:
    """Return the source of a row, as `files.source_of`."""
    name = F.col("_metadata.file_name")
    digest = F.substring(F.sha2(name, 256), 1, DIGEST)
    escaped = F.concat(F.regexp_replace(name, NOT_PLAIN, "_"), F.lit("."), digest)
    return F.when(name.rlike(f"^{PLAIN}*$"), name).otherwise(escaped).alias(SOURCE)
