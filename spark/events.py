"""Reads recorded publishes and deliveries: lines of JSON to typed rows, and every bad line counted.

Files are read as text, so that lines read == anchors + good + bad, always. Times become wall-clock
nanoseconds by the clock anchor of each file. All files of one host share one clock, so they share
one anchor too: a wall clock that is adjusted during the run then moves nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from pyspark.sql import Column as Expr
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from messagebus.events import ACKS, DELIVERED, OUTCOMES, PUBLISHED, Column
from spark.manifest import Anchor, Manifest, RunInvalid, parse_anchor
from spark.tables import pattern_of

__all__ = [
    "ANCHOR",
    "COLUMNS",
    "REASONS",
    "EventFile",
    "Files",
    "bad_lines",
    "counted",
    "find_files",
    "line_counts",
    "parse",
    "read_lines",
]

COLUMNS = {"published": PUBLISHED, "delivered": DELIVERED}
JSON_TYPES: dict[str, DataType] = {
    "text": StringType(),
    "id16": StringType(),
    "long": LongType(),
    "int": IntegerType(),
}
ID_DIGITS = 32
CORRUPT = "_corrupt"
# Anchors of one host further apart than this come from two boots, with a clock each.
SAME_BOOT_NS = 60 * 1_000_000_000

# Why a line is bad; the first that applies.
EMPTY = "empty line"
BROKEN = "not JSON, or a value of the wrong type"
MISSING = "required field missing"
MALFORMED_ID = "id is not 32 hex digits"
FOREIGN = "run, topic or subscription not in the manifest"
WORD = "outcome or ack is not one of the known words"
REASONS = (EMPTY, BROKEN, MISSING, MALFORMED_ID, WORD, FOREIGN)
ANCHOR = "anchor"
EXAMPLE_CHARACTERS = 160


@dataclass(frozen=True, slots=True)
class EventFile:
    """offset_ns: to add to the file's times; anchor: None when its first line is none."""

    path: Path
    kind: str
    anchor: Anchor | None
    offset_ns: int


@dataclass(frozen=True, slots=True)
class Files:
    """used: what is read. skipped: (file name, why). clock_spread_ns: largest between the anchors
    of one host: how far its wall clock was adjusted while processes started."""

    used: tuple[EventFile, ...]
    skipped: tuple[tuple[str, str], ...]
    clock_spread_ns: int

    def of(self, kind: str) -> list[EventFile]:
        return [file for file in self.used if file.kind == kind]


def find_files(folder: Path, manifest: Manifest) -> Files:
    """List the event files of a run; empty ones and second copies are skipped and listed.

    Raises RunInvalid when there is nothing to read. Cost: reads the first line of every file, and
    whole only those of equal size.
    """
    paths = sorted(path for kind in COLUMNS for path in folder.glob(f"{kind}-*.ndjson"))
    copies = _copies(paths)
    skipped = [
        (path.name, "empty file" if path.stat().st_size == 0 else f"same content as {copies[path]}")
        for path in paths
        if path.stat().st_size == 0 or path in copies
    ]
    names = {name for name, _ in skipped}
    kept = [path for path in paths if path.name not in names]
    if not kept:
        raise RunInvalid(f"{folder}: no events in it (published-*.ndjson, delivered-*.ndjson)")
    anchors = {path: _read_anchor(path) for path in kept}
    used = tuple(
        EventFile(
            path, path.name.split("-")[0], anchor, _offset(anchor, manifest, anchors.values())
        )
        for path, anchor in anchors.items()
    )
    return Files(used, tuple(skipped), _spread(anchors.values()))


def read_lines(session: SparkSession, files: Sequence[EventFile]) -> DataFrame:
    """value (one line), file (its name), offset_ns (of its file)."""
    if not files:
        return session.createDataFrame([], "value string, file string, offset_ns long")
    lines = [
        session.read.text([pattern_of(file.path) for file in group]).select(
            "value",
            F.col("_metadata.file_name").alias("file"),
            F.lit(offset).cast("long").alias("offset_ns"),
        )
        for offset, group in _by_offset(files).items()
    ]
    return reduce(DataFrame.unionAll, lines)


def parse(lines: DataFrame, columns: Sequence[Column], manifest: Manifest) -> DataFrame:
    """One row per line: the columns, typed, times as wall-clock ns, `file`, `value` and `reason`.

    lines: value, file, offset_ns. reason: null for a good row, `ANCHOR`, or why the line is bad.
    """
    fields = [StructField(column.name, JSON_TYPES[column.kind]) for column in columns]
    fields.append(StructField(ANCHOR, StructType([StructField("host", StringType())])))
    fields.append(StructField(CORRUPT, StringType()))
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    row = F.from_json("value", StructType(fields), options)
    # Exploding an array of one keeps Spark from copying from_json() into every condition on its
    # fields: a filter on `reason` took 30 times the CPU.
    rows = lines.select("value", "file", "offset_ns", F.explode(F.array(row)).alias("row"))
    return rows.select(
        *[_typed(column) for column in columns],
        "file",
        "value",
        _reason(columns, manifest).alias("reason"),
    )


def counted(rows: DataFrame, columns: Sequence[Column]) -> tuple[DataFrame, Observation]:
    """The good rows, and counts that are known once they were written: lines, and per reason.

    Observed in passing, so that files are read once. Read the counts by `line_counts`.
    """
    seen = Observation()
    counts = [
        F.count_if(F.col("reason").eqNullSafe(reason)).alias(f"n{position}")
        for position, reason in enumerate((ANCHOR, *REASONS))
    ]
    observed = rows.observe(seen, F.count(F.lit(1)).alias("lines"), *counts)
    good = observed.filter(F.col("reason").isNull())
    return good.select(*[column.name for column in columns]), seen


def line_counts(seen: Observation) -> dict[str, int]:
    """lines, `ANCHOR`, and every reason -> how many."""
    counts: dict[str, int] = seen.get
    names = ("lines", ANCHOR, *REASONS)
    return {"lines": counts["lines"]} | {
        name: counts[f"n{position}"] for position, name in enumerate(names[1:])
    }


def bad_lines(rows: DataFrame) -> DataFrame:
    """file, reason, lines, example (the start of one of them), of bad lines only."""
    bad = rows.filter(F.col("reason").isNotNull() & (F.col("reason") != ANCHOR))
    example = F.substring(F.min("value"), 1, EXAMPLE_CHARACTERS)
    return bad.groupBy("file", "reason").agg(
        F.count(F.lit(1)).alias("lines"), example.alias("example")
    )


def _typed(column: Column) -> Expr:
    field = F.col(f"row.{column.name}")
    if column.kind == "id16":
        return F.unhex(field).alias(column.name)
    if column.name.endswith("_ns"):
        return (field + F.col("offset_ns")).alias(column.name)
    return field.alias(column.name)


def _reason(columns: Sequence[Column], manifest: Manifest) -> Expr:
    required = [F.col(f"row.{c.name}").isNull() for c in columns if c.required]
    ids = [_not_an_id(F.col(f"row.{c.name}")) for c in columns if c.kind == "id16"]
    words = {"outcome": OUTCOMES, "ack": ACKS}
    wrong_words = [~F.col(f"row.{c.name}").isin(*words[c.name]) for c in columns if c.name in words]
    return (
        F.when(F.trim("value") == "", EMPTY)
        .when(F.col(f"row.{CORRUPT}").isNotNull(), BROKEN)
        .when(F.col(f"row.{ANCHOR}").isNotNull() & F.col("row.message_id").isNull(), ANCHOR)
        .when(reduce(Expr.__or__, required), MISSING)
        .when(reduce(Expr.__or__, ids), MALFORMED_ID)
        .when(reduce(Expr.__or__, wrong_words), WORD)
        .when(~_in_manifest(columns, manifest), FOREIGN)
    )


def _not_an_id(text: Expr) -> Expr:
    # Cheaper than a pattern, of which every row has two: unhex() of anything but hex digits is null.
    return (F.length(text) != ID_DIGITS) | F.unhex(text).isNull()


def _in_manifest(columns: Sequence[Column], manifest: Manifest) -> Expr:
    own = F.col("row.run_id") == manifest.run_id
    if "subscription" not in {column.name for column in columns}:
        return own & F.col("row.topic").isin(*manifest.topics)
    pair = F.struct("row.topic", "row.subscription")
    known = [F.struct(F.lit(topic), F.lit(name)) for topic, name in manifest.pairs]
    return own & (pair.isin(*known) if known else F.lit(False))


def _read_anchor(path: Path) -> Anchor | None:
    with path.open("rb") as file:
        line = file.readline()
    try:
        return parse_anchor(json.loads(line)[ANCHOR])
    except (KeyError, TypeError, ValueError):
        return None


def _offset(anchor: Anchor | None, manifest: Manifest, anchors: Iterable[Anchor | None]) -> int:
    """The clock of the file's host: the manifest's where it is the same, else the host's first."""
    if anchor is None:
        return manifest.anchor.wall_minus_monotonic_ns
    for other in [manifest.anchor, *anchors]:
        if other and other.host == anchor.host and _apart(other, anchor) <= SAME_BOOT_NS:
            return other.wall_minus_monotonic_ns
    raise AssertionError("an anchor is at least its own")


def _spread(anchors: Iterable[Anchor | None]) -> int:
    of: dict[str, list[Anchor]] = defaultdict(list)
    for anchor in filter(None, anchors):
        of[anchor.host].append(anchor)
    return max((_apart(a, b) for host in of.values() for a in host for b in host), default=0)


def _apart(one: Anchor, other: Anchor) -> int:
    return abs(one.wall_minus_monotonic_ns - other.wall_minus_monotonic_ns)


def _by_offset(files: Sequence[EventFile]) -> dict[int, list[EventFile]]:
    groups: dict[int, list[EventFile]] = defaultdict(list)
    for file in files:
        groups[file.offset_ns].append(file)
    return groups


def _copies(paths: Sequence[Path]) -> dict[Path, str]:
    """Second and further files of the same content -> name of the first."""
    by_size: dict[int, list[Path]] = defaultdict(list)
    for path in paths:
        by_size[path.stat().st_size].append(path)
    copies: dict[Path, str] = {}
    for group in by_size.values():
        first: dict[str, Path] = {}
        for path in group if len(group) > 1 else []:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if first.setdefault(digest, path) != path:
                copies[path] = first[digest].name
    return copies
