"""Which event files a run has: by which clock each was written, which are to be read, which are not and why.

Looks at the first and the last line of each file and at its digest, on the driver; rows stay where
they are. All files of one host share one clock, so they share one anchor too: a wall clock that is
adjusted during the run then moves nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from messagebus.events import EVENTS, SCHEMA, Column
from spark.manifest import Anchor, Manifest, RunInvalid, parse_anchor

__all__ = ["ANCHOR", "NDJSON", "PARQUET", "EventFile", "Files", "find_files", "source_of"]

ANCHOR = "anchor"
NDJSON, PARQUET = "ndjson", "parquet"
PARQUET_WEIGHT = 10
# Of a Parquet file's metadata.
METADATA = b"messagebus"
# Anchors of one host further apart than this come from two boots, with a clock each.
SAME_BOOT_NS = 60 * 1_000_000_000
# A line is a row of some 400 bytes; what is longer is no row, and its end is not looked for further.
TAIL_BYTES = 64 * 1024

ARROW_TYPES = {"text": ("string", "large_string"), "long": ("int64",), "int": ("int32",)}
ID_TYPES = ("binary", "fixed_size_binary[16]", "large_binary")


@dataclass(frozen=True, slots=True)
class EventFile:
    """anchor: None when its first line is none. offset_ns: to add to the file's times.

    size, sha256: of what was there when it was looked at. head: the line of its anchor. tail: what
    comes after its last line end: a line that a crash cut off, or one that is being written.
    """

    path: Path
    kind: str
    anchor: Anchor | None
    offset_ns: int
    size: int
    sha256: str
    head: str = ""
    tail: str = ""

    @property
    def weight(self) -> int:
        """Bytes as JSON, of which Parquet needs a tenth: how much work it is to read."""
        return self.size * (PARQUET_WEIGHT if self.form == PARQUET else 1)

    @property
    def form(self) -> str:
        return self.path.suffix[1:]

    @property
    def source(self) -> str:
        return source_of(self.path)


@dataclass(frozen=True, slots=True)
class Files:
    """used: what is read. skipped: (file name, why). missing: those of skipped whose rows are in no
    number, so that a report on the run cannot hold. clock_spread_ns: largest between the anchors of
    one host: how far its wall clock was adjusted while processes started."""

    used: tuple[EventFile, ...]
    skipped: tuple[tuple[str, str], ...]
    missing: tuple[str, ...]
    clock_spread_ns: int

    def of(self, kind: str, form: str = NDJSON) -> list[EventFile]:
        return [file for file in self.used if (file.kind, file.form) == (kind, form)]


@dataclass(frozen=True, slots=True)
class _Seen:
    """A file before its clock is known. wrong: why its rows cannot be read, "" if they can."""

    path: Path
    kind: str
    size: int
    sha256: str
    head: Mapping[str, Any]
    first: str = ""
    tail: str = ""
    wrong: str = ""


def find_files(folder: Path, manifest: Manifest) -> Files:
    """List the event files of a run: copies, empty, unreadable and too new ones are not read.

    Raises RunInvalid when there are none. Cost: reads every file once, for its digest.
    """
    paths = [
        path
        for kind in EVENTS
        for form in (NDJSON, PARQUET)
        for path in sorted(folder.glob(f"{kind}-*.{form}"))
    ]
    if not paths:
        raise RunInvalid(f"{folder}: no events in it (published-*.ndjson, delivered-*.ndjson)")
    seen = [_look(path) for path in paths]
    copies = _copies(seen)
    kept = [one for one in seen if one.size and not one.wrong and one.path not in copies]
    anchors = {one.path: _anchor(one.head) for one in kept}
    used = [
        EventFile(
            one.path,
            one.kind,
            anchors[one.path],
            _offset(anchors[one.path], manifest, anchors.values()),
            one.size,
            one.sha256,
            one.first if anchors[one.path] else "",
            one.tail,
        )
        for one in kept
    ]
    return Files(
        tuple(used),
        tuple((one.path.name, _why(one, copies)) for one in seen if one not in kept),
        tuple(one.path.name for one in seen if one.size and one.wrong),
        _spread(anchors.values()),
    )


def source_of(path: Path) -> str:
    """The name under which a file's rows are kept: it becomes a folder's."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", path.name)


def _why(one: _Seen, copies: Mapping[Path, str]) -> str:
    if not one.size:
        return "empty file"
    return one.wrong or f"same content as {copies[one.path]}"


def _look(path: Path) -> _Seen:
    kind = path.name.split("-")[0]
    with path.open("rb") as file:
        # Of a file that grows, what is there now: Spark is given no more than it finds either.
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = file.tell()
        if not size:
            return _Seen(path, kind, 0, digest, {})
        if path.suffix == f".{PARQUET}":
            return _look_parquet(path, kind, size, digest)
        file.seek(0)
        first = file.readline(TAIL_BYTES).decode(errors="replace").rstrip("\r\n")
        start = max(0, size - TAIL_BYTES)
        file.seek(start)
        tail = file.read(size - start).rpartition(b"\n")[2].decode(errors="replace")
    head = _object(first)
    return _Seen(path, kind, size, digest, head, first, tail, _too_new(head))


def _look_parquet(path: Path, kind: str, size: int, digest: str) -> _Seen:
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowInvalid, OSError) as fault:
        return _Seen(path, kind, size, digest, {}, wrong=f"not Parquet: {str(fault).split('.')[0]}")
    head = _object((schema.metadata or {}).get(METADATA, b""))
    wrong = _too_new(head) or _wrong_columns(schema, EVENTS[kind])
    return _Seen(path, kind, size, digest, head, wrong=wrong)


def _wrong_columns(schema: pa.Schema, columns: Sequence[Column]) -> str:
    """One wrong column would fail the whole job, or vanish silently: it is found here."""
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


def _object(text: bytes | str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _anchor(head: Mapping[str, Any]) -> Anchor | None:
    try:
        return parse_anchor(head[ANCHOR])
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
    of: dict[str, list[int]] = defaultdict(list)
    for anchor in filter(None, anchors):
        of[anchor.host].append(anchor.wall_minus_monotonic_ns)
    return max((max(host) - min(host) for host in of.values()), default=0)


def _apart(one: Anchor, other: Anchor) -> int:
    return abs(one.wall_minus_monotonic_ns - other.wall_minus_monotonic_ns)


def _copies(seen: Sequence[_Seen]) -> dict[Path, str]:
    """Second and further files of the same content and kind -> name of the first."""
    first: dict[tuple[str, str], Path] = {}
    return {
        one.path: first[one.kind, one.sha256].name
        for one in seen
        if one.size and first.setdefault((one.kind, one.sha256), one.path) != one.path
    }
