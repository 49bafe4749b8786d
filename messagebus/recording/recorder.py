"""Recorder of publishes and handled deliveries as rows of `.events`, for the reports of ``spark/``.

    with Recorder("runs/november", run_id="november", share=0.01) as recorder:
        with Publisher(bus, hooks=[recorder]) as publisher:
            ...

A row is made where the message passes and handed to a thread of the recorder's own, which alone
touches the disk. Nothing ever waits for it: a row that finds the queue full, or the disk broken, is dropped
and counted. Stop the clients first: a publish or delivery that is still open has no row.

Deliveries do not name their publisher and the message's number in it: two headers more cost 3 us of CPU
at a publish and 6 at a delivery. The reports learn both from the row of the publish, by the id.

A message's id decides whether it is sampled. So all recorders with one share record the same messages,
and one with a smaller share a part of them.
"""

from __future__ import annotations

import itertools
import logging
import re
import threading
import time
import zlib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from messagebus._io.hooks import add_headers
from messagebus.destination import Queue, Source, parse_destination
from messagebus.errors import ConfigError, RecordingFailed, Stopped
from messagebus.hooks import Hooks
from messagebus.message import Delivery, Message
from messagebus.recording.events import body_hash
from messagebus.recording.files import DeliveredRows, EventFile, PublishedRows, anchor_now
from messagebus.recording.parts import RunPart, begin, note, process_name
from messagebus.stats import Published

__all__ = ["Recorder", "RecorderStats", "is_sampled"]

log = logging.getLogger("messagebus.recorder")

# Rows that wait for the disk: 20 MB of them, a second of a fast publisher.
ROWS_MAX = 50_000
FILE_BYTES_MAX = 64 * 1024 * 1024
# Written at once, as far as a file has room for rows of this size, which few have. A block of more than
# 128 KiB would be mapped and unmapped by malloc: 0.2 us a row.
BLOCK_ROWS, ROW_BYTES = 200, 1_000
FILES_MAX = 16
# Period of the thread's looks: a killed process loses at most that and `eventfile.BLOCK_AGE_NS`.
LOOK_S = 0.1
STOP_TIMEOUT_S = 10.0
# A message confirmed this shortly before the end may still have been under way.
GRACE_S = 10.0
# A multiplier that spreads neighbours evenly over 32 bits (Knuth): ids are counted up.
_SPREAD = 2_654_435_761
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_ACKS = {"ack": "acked", "park": "acked", "drop": "acked", "stale": "stale", "retry": "none"}


def is_sampled(message_id: str, share: float) -> bool:
    """Return whether a message belongs to the sample of this share, 0 to 1; the same on every side.

    By CRC-32 of the id's UTF-8, times 2654435761, modulo 2**32, below share * 2**32.
    """
    return (zlib.crc32(message_id.encode()) * _SPREAD & 0xFFFFFFFF) < share * 4294967296


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderStats:
    """Counts of a recorder. Each row is written, dropped or waiting.

    written: rows given to the operating system. dropped: rows for which there was no room, or whose write
    failed. waiting: rows not yet written. files_deleted: old files that were deleted to make room.
    """

    written: int
    dropped: int
    waiting: int
    files_deleted: int


class Recorder(Hooks):
    """Recorder: hooks that write the rows of one process. Thread: any; it serves any number of clients.

    folder: folder of the run, created if it is missing. Recorders of one run may share it.
    run_id: name of the run, in every row and in the manifest.
    share: share of messages to record, above 0 and up to 1.
    topics: topic -> its subscriptions. Reports miss the deliveries of a subscription that received nothing
    only if it is listed here; other subscriptions are learned from their deliveries.
    name: name of this process in the run, of letters, digits, ``.``, ``_`` and ``-``; None: a generated one.
    rows_max: the largest number of rows that wait for the disk. file_bytes_max, files_max: the largest size
    of a file, and the largest number of files of one kind; beyond it the oldest is deleted with its rows.
    file_age_s: seconds after which a file is closed, for `messagebus.tools.uploads`; None: no limit.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        run_id: str,
        share: float = 1.0,
        name: str | None = None,
        rows_max: int = ROWS_MAX,
        file_bytes_max: int = FILE_BYTES_MAX,
        files_max: int = FILES_MAX,
        file_age_s: float | None = None,
        grace_s: float = GRACE_S,
        topics: Mapping[str, Iterable[str]] | None = None,
    ) -> None:
        _check(run_id, share, name, rows_max, file_bytes_max, files_max)
        if file_age_s is not None and not file_age_s > 0:
            raise ConfigError(f"Recorder: file_age_s {file_age_s!r}: above 0, or None")
        self.folder, self.run_id, self.share = Path(folder).absolute(), run_id, share
        self.name = name or process_name()
        self._part = RunPart(
            run_id=run_id,
            name=self.name,
            anchor=anchor_now(self.name),
            start_ns=time.monotonic_ns(),
            grace_ns=int(grace_s * 1e9),
            topics={topic: set(names) for topic, names in (topics or {}).items()},
            share=share,
            # A message is intended when the application hands it over: a stall holds up what is not
            # handed over yet, and that is not measured.
            loop="closed",
        )
        self._published_lines: deque[str] = deque()
        self._delivered_lines: deque[str] = deque()
        self._lines_max, self._dropped, self._lock = rows_max, 0, threading.Lock()
        self._files = [
            _Files(self.folder, kind, self.name, lines, file_bytes_max, files_max, file_age_s)
            for kind, lines in (
                ("published", self._published_lines),
                ("delivered", self._delivered_lines),
            )
        ]
        self._publishes: dict[str, PublishedRows] = {}
        # By the identity of source and message, which are held here so that it stays their own.
        self._deliveries: dict[int, tuple[Source, DeliveredRows]] = {}
        self._open: dict[int, tuple[Message, int, int]] = {}
        self._numbers = itertools.count()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    # Life.
    def start(self) -> None:
        """Begin to write. Raises RecordingFailed if the folder cannot be written."""
        if self._thread is not None:
            raise Stopped("a recorder starts once")
        begin(self.folder, self._part)
        self._thread = threading.Thread(target=self._write, name="messagebus-recorder", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> RecorderStats:
        """Write the waiting rows, close the files, complete the manifest."""
        if self._thread is not None and not self._stopping.is_set():
            self._stopping.set()
            self._thread.join(timeout_s)
            self._part.end_ns = time.monotonic_ns()
            self._note()
            if lost := self.stats().dropped:
                log.warning("rows dropped count=%d folder=%s", lost, self.folder)
        return self.stats()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stats(self) -> RecorderStats:
        """Return a snapshot; cheap."""
        waiting = len(self._published_lines) + len(self._delivered_lines)
        return RecorderStats(
            written=sum(files.written for files in self._files),
            dropped=self._dropped + sum(files.lost for files in self._files),
            waiting=waiting + sum(files.held for files in self._files),
            files_deleted=sum(files.deleted for files in self._files),
        )

    # Hooks.
    def publishing(self, destination: str, message: Message) -> Message:
        if self.share < 1 and not is_sampled(message.message_id, self.share):
            return message
        if id(message) in self._open:  # one object that is published twice at once
            message = add_headers(message, {})
        self._open[id(message)] = (message, next(self._numbers), time.monotonic_ns())
        return message

    def published(self, destination: str, message: Message, published: Published) -> None:
        opened = self._open.pop(id(message), None)
        if opened is None:
            return
        rows = self._publishes.get(destination) or self._new_publishes(destination)
        if len(self._published_lines) >= self._lines_max:
            return self._drop()
        _, number, intended_ns = opened
        body, key = message.body, message.key
        line = rows.line(number, key, len(body), body_hash(body), intended_ns, published)
        self._published_lines.append(line)

    def handled(self, delivery: Delivery, answer: str, error: BaseException | None) -> None:
        if self.share < 1 and not is_sampled(delivery.message_id, self.share):
            return
        known = self._deliveries.get(id(delivery.source)) or self._new_deliveries(delivery)
        if len(self._delivered_lines) >= self._lines_max:
            return self._drop()
        ack = _ACKS[answer]
        answered_ns = None if ack == "none" else time.monotonic_ns()
        line = known[1].line(delivery, body_hash(delivery.body), ack, answered_ns)
        self._delivered_lines.append(line)

    def _drop(self) -> None:
        with self._lock:
            self._dropped += 1

    def _new_publishes(self, destination: str) -> PublishedRows:
        parsed = parse_destination(destination)
        readers = self._part.topics.setdefault(destination, set())
        if isinstance(parsed, Queue):
            readers.add(parsed.name)
        self._part.publishers.add(self.name)
        made = PublishedRows(run_id=self.run_id, topic=destination, publisher=self.name)
        return self._publishes.setdefault(destination, made)

    def _new_deliveries(self, delivery: Delivery) -> tuple[Source, DeliveredRows]:
        source = delivery.source
        topic = str(source) if isinstance(source, Queue) else str(source.topic)
        self._part.topics.setdefault(topic, set()).add(source.name)
        self._part.consumers.add((self.name, source.name))
        if delivery.partition >= 0:
            self._part.ordered.add(str(source))
        made = DeliveredRows(
            run_id=self.run_id, topic=topic, subscription=source.name, consumer=self.name
        )
        return self._deliveries.setdefault(id(source), (source, made))

    # On the thread.
    def _write(self) -> None:
        part, told = self._part, 0
        while not self._stopping.wait(LOOK_S):
            for files in self._files:
                files.write()
            # So that the written rows make sense also when the recorder is never stopped.
            self._learn()
            known = len(part.brokers) + len(part.consumers) + sum(map(len, part.topics.values()))
            known += len(part.topics) + len(part.publishers)
            stats = self.stats()
            known += bool(stats.dropped) + stats.files_deleted
            if known != told:
                told = known
                self._note()
        for files in self._files:
            files.write()
            files.close()

    def _learn(self) -> None:
        """Learn the brokers from the rows."""
        heads = [rows.heads for rows in list(self._publishes.values())]
        heads += [rows.heads for _, rows in list(self._deliveries.values())]
        self._part.brokers |= {broker for each in heads for broker in list(each) if broker}

    def _note(self) -> None:
        self._learn()
        stats = self.stats()
        self._part.dropped, self._part.files_deleted = stats.dropped, stats.files_deleted
        try:
            note(self.folder, self._part)
        except RecordingFailed as fault:
            log.warning("manifest not written error=%s", fault)


class _Files:
    """Files of one kind; on the thread alone. written, lost: rows. deleted: files."""

    def __init__(
        self,
        folder: Path,
        kind: str,
        name: str,
        lines: deque[str],
        bytes_max: int,
        files_max: int,
        age_s: float | None,
    ) -> None:
        self._folder, self._kind, self._name, self._lines = folder, kind, name, lines
        self._bytes_max, self._files_max = bytes_max, files_max
        self._age_s, self._begun_s = age_s, 0.0
        self._numbers = itertools.count(1)
        self._file: EventFile | None = None
        self._kept: deque[Path] = deque()
        self._is_broken = False
        self._taken = self._in_closed = 0
        self.deleted = 0

    @property
    def written(self) -> int:
        """The rows that the operating system got, by the files' own count; the anchors are not rows."""
        return self._in_closed + (0 if self._file is None else max(0, self._file.written - 1))

    @property
    def held(self) -> int:
        """The rows taken and not written yet."""
        return 0 if self._is_broken else self._taken - self.written

    @property
    def lost(self) -> int:
        """The rows taken that will never be written."""
        return self._taken - self.written if self._is_broken else 0

    def write(self) -> None:
        """Write the waiting rows. A disk that fails once is not tried again: its rows are counted."""
        lines = self._lines
        left = len(lines)
        while left:
            room = 0 if self._file is None else self._bytes_max - self._file.bytes
            count = max(1, min(left, BLOCK_ROWS, room // ROW_BYTES))
            block = [lines.popleft() for _ in range(count)]
            left -= count
            self._taken += count
            try:
                if not self._is_broken:
                    self._place().write_many(block)
            except RecordingFailed as fault:
                self._broke(fault)
        age_s = self._age_s
        if self._file and age_s is not None and time.monotonic() - self._begun_s >= age_s:
            self.close()

    def _broke(self, fault: RecordingFailed) -> None:
        if not self._is_broken:
            self._is_broken = True
            log.warning("rows are dropped from now on error=%s", fault)
            self.close()

    def _place(self) -> EventFile:
        if self._file is None or self._file.bytes >= self._bytes_max:
            self._file = self._begin()
        return self._file

    def _begin(self) -> EventFile:
        self._close()
        path = self._folder / f"{self._kind}-{self._name}-{next(self._numbers):04}.ndjson"
        made = EventFile(path, anchor_now(self._name), clock_ns=time.monotonic_ns)
        self._begun_s = time.monotonic()
        self._kept.append(path)
        if len(self._kept) > self._files_max:
            try:
                self._kept.popleft().unlink()
                self.deleted += 1
            except FileNotFoundError:
                pass  # somebody took it away, whole
            except OSError as fault:
                log.warning("old rows not deleted error=%s", fault.strerror)
        return made

    def close(self) -> None:
        """Close the file; its rows are written by then, or lost."""
        try:
            self._close()
        except RecordingFailed as fault:
            self._broke(fault)

    def _close(self) -> None:
        if self._file is not None:
            file = self._file
            try:
                file.close()
            finally:
                self._in_closed += max(0, file.written - 1)
                self._file = None


def _check(
    run_id: str, share: float, name: str | None, rows_max: int, bytes_max: int, files_max: int
) -> None:
    faults = []
    if not _NAME.fullmatch(run_id):
        faults.append(f"run_id {run_id!r}: letters, digits and . _ -, at most 100")
    if name is not None and not _NAME.fullmatch(name):
        faults.append(f"name {name!r}: letters, digits and . _ -, at most 100")
    if not 0 < share <= 1:
        faults.append(f"share {share!r}: above 0 to 1")
    for key, value in (
        ("rows_max", rows_max),
        ("file_bytes_max", bytes_max),
        ("files_max", files_max),
    ):
        if type(value) is not int or value < 1:
            faults.append(f"{key} {value!r}: 1 or more")
    if faults:
        raise ConfigError(f"Recorder: {'; '.join(faults)}")
