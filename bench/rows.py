"""A run's rows of messages: written by its load processes, and read in plain Python for the audit.

Reading is independent of Spark, so that the two check each other. Every line is an anchor, a good row, or
a bad line that is counted with its reason. Times become those of the coordinator's monotonic clock.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.load.bodies import read
from messagebus import Delivery, Published
from messagebus.recording.events import (
    ACKS,
    DELIVERED,
    EVENTS,
    OUTCOMES,
    PUBLISHED,
    SCHEMA,
    Column,
    body_hash,
)
from messagebus.recording.files import (
    Anchor,
    DeliveredRows,
    Entry,
    EventFile,
    PublishedRows,
    absent,
    anchor_now,
)
from messagebus.recording.manifest import Manifest, parse_anchor

Row = dict[str, Any]

BROKEN = "not JSON, or not an object"
MISSING = "required field missing"
TYPE = "value of the wrong type"
RANGE = "number below its minimum"
FOREIGN = "run, topic or subscription not in the manifest"
# Names that look like event files, and those of them that are read here or belong to no audit.
LIKE = re.compile(rf"(?!\.)(({'|'.join(EVENTS)})[-_.]|.*\.ndjson)", re.IGNORECASE)
READ = re.compile(r"(published|delivered)-.*\.ndjson$|sampled-.*\.(ndjson|parquet)$")
HEX = frozenset("0123456789abcdef")
_TYPES: dict[str, type] = {"text": str, "id16": str, "long": int, "int": int}
_WORDS = {"outcome": frozenset(OUTCOMES), "ack": frozenset(ACKS)}


class Rows:
    """A writer of the rows of one publisher or consumer. subscription: "" for a publisher.

    offset_ns: from this process's monotonic clock to that of the stamps, known when the load starts.
    """

    def __init__(
        self, folder: Path, *, run_id: str, name: str, topic: str, subscription: str
    ) -> None:
        kind = "delivered" if subscription else "published"
        folder.mkdir(parents=True, exist_ok=True)
        self.offset_ns = 0
        path = folder / f"{kind}-{name}.ndjson"
        self._file = EventFile(path, anchor_now(name), clock_ns=time.monotonic_ns)
        self._published = PublishedRows(run_id=run_id, topic=topic, publisher=name)
        self._delivered = DeliveredRows(
            run_id=run_id, topic=topic, subscription=subscription, consumer=name
        )

    def entry(self, sequence: int, body: bytes, key: str) -> Entry:
        """Return the part of a publish's row that is known when it is sent."""
        stamp = read(body)
        assert stamp is not None, "a body of the load has a stamp"
        return Entry(sequence, key, len(body), body_hash(body), stamp[2] - self.offset_ns)

    def published(self, entry: Entry, published: Published) -> None:
        self._file.write(self._published.line(*entry, published))

    def delivered(self, delivery: Delivery, *, acked: bool) -> None:
        ack = "acked" if acked else "stale"
        hashed = body_hash(delivery.body)
        self._file.write(self._delivered.line(delivery, hashed, ack, time.monotonic_ns()))

    def tick(self) -> None:
        """Write a block that is old; to be called a few times a second."""
        self._file.tick()

    def close(self) -> None:
        self._file.close()


@dataclass(slots=True)
class Events:
    """All rows of a run. bad: reason -> lines. files: how many were read.

    unread: files that look like event files and were not read. absent: files that are absent between others.
    copies: files of the content of another one, which were not read either.
    """

    published: list[Row] = field(default_factory=list)
    delivered: list[Row] = field(default_factory=list)
    bad: Counter[str] = field(default_factory=Counter)
    files: int = 0
    unread: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)


def read_events(folder: Path, manifest: Manifest) -> Events:
    """Read every event file of a run. Costs some 5 us and 1 KB of memory a row."""
    events = Events()
    for kind, columns, rows in (
        ("published", PUBLISHED, events.published),
        ("delivered", DELIVERED, events.delivered),
    ):
        check = _checker(columns, manifest)
        seen: set[bytes] = set()
        for path in sorted(folder.glob(f"{kind}-*.ndjson")):
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").digest()
                if digest in seen and file.tell():
                    events.copies.append(path.name)
                    continue
                seen.add(digest)
                file.seek(0)
                if _is_newer(file.readline()):
                    events.unread.append(path.name)
                    continue
                events.files += 1
                file.seek(0)
                rows.extend(_rows(file, check, manifest, events.bad))
    events.absent = absent(path.name for path in folder.iterdir())
    events.unread += sorted(
        path.name
        for path in folder.iterdir()
        if LIKE.match(path.name) and not READ.match(path.name)
    )
    return events


def _is_newer(line: bytes) -> bool:
    try:
        head = json.loads(line)
    except ValueError:
        return False
    return isinstance(head, dict) and head.get("schema", SCHEMA) != SCHEMA


class Tail:
    """A reader that follows growing files: each call returns the new whole lines, parsed.

    It serves to count while a run goes on; invalid lines are left to `read_events`.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        self._folder = folder
        self._pattern = f"{kind}-*.ndjson"
        self._offsets: dict[Path, int] = {}

    def read(self) -> Iterator[Row]:
        for path in sorted(self._folder.glob(self._pattern)):
            offset = self._offsets.get(path, 0)
            with path.open("rb") as file:
                file.seek(offset)
                block = file.read()
            whole = block.rfind(b"\n") + 1
            self._offsets[path] = offset + whole
            for line in block[:whole].splitlines():
                row = json.loads(line)
                if "message_id" in row:
                    yield row


def _rows(
    lines: Any, check: Callable[[Row], str], manifest: Manifest, bad: Counter[str]
) -> Iterator[Row]:
    offset = 0
    for number, line in enumerate(lines):
        try:
            row = json.loads(line)
        except ValueError:
            bad[BROKEN] += 1
            continue
        if not isinstance(row, dict):
            bad[BROKEN] += 1
        elif number == 0 and "anchor" in row:
            offset = _offset(row["anchor"], manifest)
        elif reason := check(row):
            bad[reason] += 1
        else:
            if offset:
                _shift(row, offset)
            yield row


def _offset(anchor: Row, manifest: Manifest) -> int:
    """Return the offset to add to the file's times. Files of one boot share one clock.

    This holds even if the wall clock was adjusted meanwhile.
    """
    own = parse_anchor(anchor)
    for clock in (manifest.anchor, *manifest.clocks, own):
        if _is_one_clock(clock, own):
            return clock.wall_minus_monotonic_ns - manifest.anchor.wall_minus_monotonic_ns
    raise AssertionError("an anchor is at least its own")


def _is_one_clock(one: Anchor, other: Anchor) -> bool:
    """Return whether two anchors share a clock. If one does not name its boot, their hosts are compared."""
    if one.boot and other.boot:
        return one.boot == other.boot
    return one.host == other.host


def _shift(row: Row, offset: int) -> None:
    for name, value in row.items():
        if name.endswith("_ns") and value is not None:
            row[name] = value + offset


def _checker(columns: Sequence[Column], manifest: Manifest) -> Callable[[Row], str]:
    """Return a function that names the fault of a row, "" for a good row."""
    fields = [(column.name, _TYPES[column.kind], column.required) for column in columns]
    ids = [column.name for column in columns if column.kind == "id16"]
    words = [(name, _WORDS[name]) for name, _, _ in fields if name in _WORDS]
    counts = [column.name for column in columns if column.is_count]
    pairs = {(topic, name) for topic, names in manifest.topics.items() for name in names}

    def check(row: Row) -> str:
        for name, kind, required in fields:
            value = row.get(name)
            if value is None:
                if required:
                    return MISSING
            elif type(value) is not kind:
                return TYPE
        for name in ids:
            if len(row[name]) != 32 or not HEX.issuperset(row[name]):
                return TYPE
        for name, allowed in words:
            if row[name] not in allowed:
                return TYPE
        is_confirmed = row.get("outcome") == "confirmed"
        if is_confirmed and row.get("confirmed_ns") is None:
            return MISSING
        if any((row.get(name) or 0) < 0 for name in counts) or (
            is_confirmed and not row["attempts"]
        ):
            return RANGE
        if row["run_id"] != manifest.run_id or row["topic"] not in manifest.topics:
            return FOREIGN
        if "subscription" in row and (row["topic"], row["subscription"]) not in pairs:
            return FOREIGN
        return ""

    return check
