"""The event files of a run: the clock of each, the files to read, and the skipped files with the reason.

Reads the first and the last line of each file and its digest, on the driver; rows are not moved. A file whose
time, size and etag are those of an earlier look is not opened again.
All files of one boot of a host share one clock, so they share one anchor too: a wall clock
that is adjusted during the run then moves nothing. The choice of that anchor depends neither on the order in
which files are ingested nor on which of them are still there.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from messagebus.recording.events import EVENTS, SCHEMA, Column
from messagebus.recording.files import Anchor
from messagebus.recording.manifest import Manifest, RunInvalid, parse_anchor
from spark.lake.places import SETTLED_NS, digest_of, stamps_of

ANCHOR = "anchor"
NDJSON, PARQUET = "ndjson", "parquet"
PARQUET_WEIGHT = 10
# Characters of a folder's name, and digits of the digest that tells apart names with other characters.
PLAIN, NOT_PLAIN, DIGEST = "[A-Za-z0-9._-]", "[^A-Za-z0-9._-]", 16
BESIDE = re.compile(rf"(?!\.)(({'|'.join(EVENTS)})[-_.]|.*\.ndjson)", re.IGNORECASE)
# Key in a Parquet file's metadata.
METADATA = b"messagebus"
# Anchors that do not name their boot: those of one host further apart than this come from two
# boots, with a clock each; those closer than the second bound are one clock that was adjusted. Between the
# two they may be either.
SAME_BOOT_NS = 60 * 1_000_000_000
ADJUSTED_NS = 10 * 1_000_000_000
# A line is a row of some 400 bytes; a longer one is no row, and its end is not looked for further.
TAIL_BYTES = 64 * 1024
LOOKS_AT_ONCE = 8

ARROW_TYPES = {"text": ("string", "large_string"), "long": ("int64",), "int": ("int32",)}
ID_TYPES = ("binary", "fixed_size_binary[16]", "large_binary")


@dataclass(frozen=True, slots=True)
class EventFile:
    """An event file. anchor: None when its first line is none. offset_ns: to add to the file's times.

    size, sha256: those of its content when it was read. head: the line of its anchor. tail: the text
    after its last line end: a line that a crash cut off, or one that is
    being written. tail_bytes: length including bytes that are no text, half a character.
    """

    path: Path
    kind: str
    anchor: Anchor | None
    offset_ns: int
    size: int
    sha256: str
    head: str = ""
    tail: str = ""
    tail_bytes: int = 0

    @property
    def weight(self) -> int:
        """The cost of reading it: its bytes as JSON; Parquet needs a tenth of these."""
        return self.size * (PARQUET_WEIGHT if self.form == PARQUET else 1)

    @property
    def form(self) -> str:
        return self.path.suffix[1:]

    @property
    def source(self) -> str:
        return source_of(self.path)


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a run. used: those that are read. skipped: (file name, why).

    missing: skipped files whose rows are in no number, so that a report on the run cannot hold.
    clock_spread_ns: largest difference between the anchors of one host: the adjustment of its wall clock
    while processes started. clock_doubt_ns: possible error of times by one clock, or by two clocks of hosts
    of one name; 0 for certain. looks: file name -> the look at it, for the next `find_files`.
    """

    used: tuple[EventFile, ...]
    skipped: tuple[tuple[str, str], ...]
    missing: tuple[str, ...]
    clock_spread_ns: int
    clock_doubt_ns: int = 0
    looks: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def of(self, kind: str, form: str = NDJSON) -> list[EventFile]:
        return [file for file in self.used if (file.kind, file.form) == (kind, form)]


@dataclass(frozen=True, slots=True)
class _SeenFile:
    """A file before its clock is known.

    head: schema and clock of its first line. wrong: why its rows cannot be read, "" if they can. stamp: of
    `stamps_of`, from before the look; empty where the next look must read the file again.
    """

    path: Path
    kind: str
    size: int
    sha256: str
    head: Mapping[str, Any]
    first: str = ""
    tail: str = ""
    tail_bytes: int = 0
    wrong: str = ""
    stamp: Sequence[Any] = ()

    def as_json(self) -> dict[str, Any]:
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "path"}


def find_files(
    folder: Path,
    manifest: Manifest,
    known: Mapping[str, Mapping[str, Any]] | None = None,
    looks: Mapping[str, Mapping[str, Any]] | None = None,
) -> Files:
    """List the event files of a run: copies, empty, unreadable and too new ones are not read.

    known: `EventFile.source` -> the note on a file that was read before (`anchor_noted`). looks: of the
    `Files` before.
    Raises RunInvalid when there are none. Cost: one listing, and new files are read once, for their digests.
    """
    stamps = stamps_of(folder)
    paths = _paths(folder)
    if not paths:
        raise RunInvalid(f"{folder}: no events in it (published-*.ndjson, delivered-*.ndjson)")
    look = partial(_looked, stamps, looks or {})
    with ThreadPoolExecutor(LOOKS_AT_ONCE) as pool:
        seen = list(pool.map(look, paths))
    copies = _copies(seen)
    kept = [one for one in seen if _is_read(one, copies)]
    anchors = {one.path: _anchor(one.head) for one in kept}
    clocks = _clocks(manifest, {source_of(path): anchor for path, anchor in anchors.items()}, known)
    used = [_event_file(one, anchors[one.path], clocks) for one in kept]
    known_paths = {*paths}
    beside = sorted(path.name for path in folder.iterdir() if _is_beside(path, known_paths))
    return Files(
        tuple(used),
        (
            *((one.path.name, _why(one, copies)) for one in seen if one not in kept),
            *((name, "not a name of an event file, but like one") for name in beside),
        ),
        (*(one.path.name for one in seen if one.size and one.wrong), *beside),
        _spread(anchors.values()),
        max((_doubt(anchor, clocks) for anchor in anchors.values()), default=0),
        {one.path.name: one.as_json() for one in seen if one.stamp},
    )


def _paths(folder: Path) -> list[Path]:
    return [
        path
        for kind in EVENTS
        for form in (NDJSON, PARQUET)
        for path in sorted(folder.glob(f"{kind}-*.{form}"))
    ]


def source_of(path: Path) -> str:
    """Return the unique name under which a file's rows are kept: it becomes a folder's.

    It has a digest where characters had to be replaced: `events` does the same in SQL.
    """
    name = path.name
    if re.fullmatch(f"{PLAIN}*", name):
        return name
    return f"{re.sub(NOT_PLAIN, '_', name)}.{hashlib.sha256(name.encode()).hexdigest()[:DIGEST]}"


def anchor_noted(anchor: Anchor | None, offset_ns: int) -> dict[str, Any] | None:
    """Return the note of a file's clock, for `find_files` later on."""
    return anchor._asdict() | {"offset_ns": offset_ns} if anchor else None


def _is_beside(path: Path, paths: Collection[Path]) -> bool:
    """Return whether a file was packed, rotated by others or renamed: its rows would be missed."""
    return path not in paths and path.is_file() and bool(BESIDE.match(path.name))


def _is_read(one: _SeenFile, copies: Mapping[Path, str]) -> bool:
    return bool(one.size and not one.wrong and one.path not in copies)


def _event_file(one: _SeenFile, anchor: Anchor | None, clocks: Sequence[Anchor]) -> EventFile:
    return EventFile(
        one.path,
        one.kind,
        anchor,
        _offset(anchor, clocks),
        one.size,
        one.sha256,
        one.first if anchor else "",
        one.tail,
        one.tail_bytes,
    )


def _why(one: _SeenFile, copies: Mapping[Path, str]) -> str:
    if not one.size:
        return "empty file"
    return one.wrong or f"same content as {copies[one.path]}"


def _looked(
    stamps: Mapping[str, list[Any]], looks: Mapping[str, Mapping[str, Any]], path: Path
) -> _SeenFile:
    """Return the look of before at a file with the stamp of before, or else a new one."""
    stamp = stamps.get(path.name, [])
    before = looks.get(path.name)
    if before is not None and before["stamp"] == stamp:
        return _SeenFile(path, **before)
    now_ns = time.time_ns()
    seen = _look(path)
    is_settled = bool(stamp) and stamp[0] < now_ns - SETTLED_NS
    return dataclasses.replace(seen, stamp=stamp if is_settled else ())


def _look(path: Path) -> _SeenFile:
    kind = path.name.split("-")[0]
    digest, size = digest_of(path)
    if not size:
        return _SeenFile(path, kind, 0, digest, {})
    if path.suffix == f".{PARQUET}":
        return _look_parquet(path, kind, size, digest)
    with path.open("rb") as file:
        first = file.readline(TAIL_BYTES).decode(errors="replace").rstrip("\r\n")
        start = max(0, size - TAIL_BYTES)
        file.seek(start)
        cut = file.read(size - start).rpartition(b"\n")[2]
    head, tail = _head(first), cut.decode(errors="ignore")
    return _SeenFile(
        path, kind, size, digest, head, first if head else "", tail, len(cut), _too_new(head)
    )


def _look_parquet(path: Path, kind: str, size: int, digest: str) -> _SeenFile:
    try:
        with path.open("rb") as file:
            schema = pq.read_schema(file)
    except (pa.ArrowInvalid, OSError) as fault:
        return _SeenFile(
            path, kind, size, digest, {}, wrong=f"not Parquet: {str(fault).split('.')[0]}"
        )
    head = _head((schema.metadata or {}).get(METADATA, b""))
    wrong = _too_new(head) or _wrong_columns(schema, EVENTS[kind])
    return _SeenFile(path, kind, size, digest, head, wrong=wrong)


def _wrong_columns(schema: pa.Schema, columns: Sequence[Column]) -> str:
    """Return the fault of a file's columns: one wrong column would fail the whole job, or vanish silently."""
    names = set(schema.names)
    lacking = [column.name for column in columns if column.required and column.name not in names]
    if lacking:
        return f"columns missing: {', '.join(lacking)}"
    for column in columns:
        if column.name in names:
            found = str(schema.field(column.name).type)
            if found not in ARROW_TYPES.get(column.kind, ID_TYPES):
                return f"column {column.name}: {column.kind} wanted, not {found}"
    return ""


def _too_new(head: Mapping[str, Any]) -> str:
    schema = head.get("schema", 1)
    if isinstance(schema, int) and schema <= SCHEMA:
        return ""
    return f"of schema {schema}, newer than {SCHEMA}: read it with the version that wrote it"


def _head(text: bytes | str) -> Mapping[str, Any]:
    """Return schema and anchor of a first line; empty where it has none."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: found[name] for name in ("schema", ANCHOR) if name in found}


def _anchor(head: Mapping[str, Any]) -> Anchor | None:
    try:
        return parse_anchor(head[ANCHOR])
    except (KeyError, TypeError, ValueError):
        return None


def _clocks(
    manifest: Manifest,
    anchors: Mapping[str, Anchor | None],
    known: Mapping[str, Mapping[str, Any]] | None,
) -> list[Anchor]:
    """Return the anchors in the order in which they are asked.

    First the manifest's, then those by which deleted files were read (their rows cannot be read again), then
    those of the present files, by their names.
    """
    gone = [
        Anchor(noted["host"], noted["process"], noted["offset_ns"], noted["boot"])
        for source, file in sorted((known or {}).items())
        if source not in anchors and (noted := file.get("anchor"))
    ]
    here = [anchor for _, anchor in sorted(anchors.items()) if anchor]
    return [manifest.anchor, *manifest.clocks, *gone, *here]


def _offset(anchor: Anchor | None, clocks: Sequence[Anchor]) -> int:
    if anchor is None:
        return clocks[0].wall_minus_monotonic_ns
    return next(
        one.wall_minus_monotonic_ns for one in clocks if _is_one_clock(one, anchor, SAME_BOOT_NS)
    )


def _doubt(anchor: Anchor | None, clocks: Sequence[Anchor]) -> int:
    """Return the possible error of a file's times, where its anchor does not name its boot."""
    if anchor is None:
        return 0
    by = next(one for one in clocks if _is_one_clock(one, anchor, SAME_BOOT_NS))
    return 0 if _is_one_clock(by, anchor, ADJUSTED_NS) else _apart(by, anchor)


def _is_one_clock(one: Anchor, other: Anchor, apart_ns: int) -> bool:
    if one.boot and other.boot:
        return one.boot == other.boot
    return one.host == other.host and _apart(one, other) <= apart_ns


def _spread(anchors: Iterable[Anchor | None]) -> int:
    of: dict[str, list[int]] = defaultdict(list)
    for anchor in filter(None, anchors):
        of[anchor.host].append(anchor.wall_minus_monotonic_ns)
    return max((max(host) - min(host) for host in of.values()), default=0)


def _apart(one: Anchor, other: Anchor) -> int:
    return abs(one.wall_minus_monotonic_ns - other.wall_minus_monotonic_ns)


def _copies(files: Sequence[_SeenFile]) -> dict[Path, str]:
    """Return second and further files of the same content and kind -> name of the first."""
    first: dict[tuple[str, str], Path] = {}
    return {
        one.path: first[one.kind, one.sha256].name
        for one in files
        if one.size and first.setdefault((one.kind, one.sha256), one.path) != one.path
    }
