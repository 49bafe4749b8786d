"""Contents of a disk spool: counted, read, and dropped; the folder's publishers may be running meanwhile.

Counting and reading need no lock and change nothing. Only what no process has in use is dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from messagebus._io.amqp.properties import decode
from messagebus._io.publish.spool.folder import (
    DAMAGED,
    HOLE,
    SEGMENT_BYTES,
    SpoolFolder,
    Store,
    cursor_bytes,
    load,
    put_aside,
    segment_name,
    sub_folders,
)
from messagebus.core.spool import HEADER_BYTES, Record, encode_record, lane_of, scan
from messagebus.errors import ConfigError
from messagebus.message import Message

__all__ = [
    "SpoolDropped",
    "SpoolFolderStatus",
    "SpooledMessage",
    "drop_spooled",
    "read_spool",
    "spool_status",
]

# Records that are moved on between two looks at the segment's size.
GROUP = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolFolderStatus:
    """One publisher's part of a spool.

    path: its folder. bus: name of the bus that its messages are for; publishers of other buses leave it
    alone.
    in_use: True while a process uses it. messages, bytes: waiting messages and their size.
    destinations: ``orders``, ``queue:jobs delay=5000`` -> waiting messages. oldest_s: age of the oldest in
    seconds; 0 if none waits. faults: damages, in words. put_aside: files that were put aside as damaged.
    """

    path: Path
    bus: str
    in_use: bool
    messages: int
    bytes: int
    oldest_s: float
    destinations: dict[str, int]
    faults: tuple[str, ...]
    put_aside: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpooledMessage:
    """One message of a spool that no broker has confirmed yet.

    folder: of its publisher. destination: as of `SpoolFolderStatus`. accepted_ms: since 1970. message: as
    it was published.
    """

    folder: Path
    destination: str
    accepted_ms: int
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolDropped:
    """Result of a drop. messages: number deleted. in_use: sub-folders of running processes, left alone."""

    messages: int
    in_use: tuple[Path, ...]


def _folders(path: str | Path) -> list[Path]:
    root = Path(path)
    if not root.is_dir():
        raise ConfigError(f"{root}: no such folder")
    return sub_folders(root)


def _look(path: Path) -> Store:
    return load(SpoolFolder(path, -1))


def spool_status(path: str | Path) -> list[SpoolFolderStatus]:
    """Count the messages of a spool, by publisher, oldest first. Raises ConfigError if it does not exist."""
    found = []
    for folder in _folders(path):
        if (locked := SpoolFolder.lock(folder)) is not None:
            locked.close()  # at once: a publisher that starts now is to take it over
        store, in_use = _look(folder), locked is None
        index, faults = store.index, list(store.faults)
        faults += [
            f"{name}: {hole.size} bytes at {hole.at} are damaged"
            for name, hole, _ in store.holes
            if not in_use  # it may be written just now
        ]
        oldest_ms = index.oldest_ms()
        aside = sorted(
            each.name for each in folder.glob("*") if DAMAGED in each.name or HOLE in each.name
        )
        found.append(
            SpoolFolderStatus(
                path=folder,
                bus=store.folder.bus,
                in_use=in_use,
                messages=index.messages,
                bytes=index.size_bytes,
                oldest_s=0.0 if oldest_ms is None else max(0.0, time.time() - oldest_ms / 1000),
                destinations=index.lanes,
                faults=tuple(faults),
                put_aside=tuple(aside),
            )
        )
    return found


def read_spool(path: str | Path) -> Iterator[SpooledMessage]:
    """Yield the unconfirmed messages of a spool, in the order of sending. Raises ConfigError."""
    for folder in _folders(path):
        for record in _waiting(_look(folder)):
            yield SpooledMessage(
                folder=folder,
                destination=lane_of(record.place),
                accepted_ms=record.ms,
                message=decode(record.properties, record.body),
            )


def _waiting(store: Store) -> Iterator[Record]:
    """Yield the records that wait, segment by segment."""
    store.index.begin_pass(0)
    for segment in store.index.segments:
        try:
            data = store.folder.read(segment.name)
        except FileNotFoundError:  # sent meanwhile
            continue
        for found in scan(data, store.index.spool_id, at=HEADER_BYTES, expected=segment.first):
            if isinstance(found, Record) and store.index.wants(lane_of(found.place), found.number):
                yield found


def drop_spooled(
    path: str | Path, which: Callable[[SpooledMessage], bool], *, dry_run: bool = False
) -> SpoolDropped:
    """Delete messages of processes that have ended, permanently. Raises ConfigError.

    The other messages are written again before the files are deleted, so a crash in between leaves
    duplicates. Damaged files are put aside and stay. dry_run: True: only count.
    """
    dropped, in_use = 0, []
    for folder in _folders(path):
        locked = SpoolFolder.lock(folder)
        if locked is None:
            in_use.append(folder)
            continue
        try:
            dropped += _drop(load(locked), which, dry_run=dry_run)
        finally:
            locked.close(remove=not dry_run)
    return SpoolDropped(messages=dropped, in_use=tuple(in_use))


def _drop(store: Store, which: Callable[[SpooledMessage], bool], *, dry_run: bool) -> int:
    index, folder = store.index, store.folder
    kept, dropped = [], 0
    for record in _waiting(store):
        message = decode(record.properties, record.body)
        lane = lane_of(record.place)
        if which(
            SpooledMessage(
                folder=folder.path, destination=lane, accepted_ms=record.ms, message=message
            )
        ):
            dropped += 1
        else:
            kept.append(record)
    if dry_run or not dropped:
        return dropped
    put_aside(store)  # it would be deleted with the segments
    old = [segment.name for segment in index.segments]
    index.deleted = index.last_number
    while kept:
        _write_again(store, kept)
    folder.delete(old, cursor_bytes(index))
    return dropped


def _write_again(store: Store, kept: list[Record]) -> None:
    """Write as many records as a segment holds, and take them off the list."""
    index, name = store.index, segment_name(store.index.next_number)
    header = index.begin_segment(name)
    parts: list[bytes] = []
    written: list[tuple[int, str, int]] = []
    while kept and sum(map(len, parts)) < SEGMENT_BYTES:
        group, kept[:GROUP] = kept[:GROUP], []
        for record in group:
            number, place = index.next(), record.place.encode()
            parts.append(
                encode_record(
                    index.spool_id, number, record.ms, place, record.properties, record.body
                )
            )
            written.append((number, lane_of(record.place), record.ms))
    store.folder.append(name, header, b"".join(parts), len(header))
    for (number, lane, ms), raw in zip(written, parts, strict=True):
        index.written(number, lane, ms, len(raw))
