"""Files of the events of one process: JSON lines in blocks, so that a crash keeps all but the last block.

One line costs a format and an append. The file is written in blocks of whole lines, without a buffer
of its own, so data that the operating system got survives the death of the process. Not thread-safe: one
thread writes. Columns are those of `messagebus.recording.events`; the first line is the clock anchor.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterable
from json.encoder import encode_basestring_ascii as quote
from pathlib import Path
from typing import NamedTuple, Self

from messagebus.errors import RecordingFailed
from messagebus.files import owner_only
from messagebus.message import Delivery
from messagebus.recording.events import SCHEMA
from messagebus.stats import CONFIRMED_OUTCOME, Published

__all__ = [
    "Anchor",
    "DeliveredRows",
    "Entry",
    "EventFile",
    "PublishedRows",
    "absent",
    "anchor_now",
    "message_id_hex",
]

# A block is written when it reaches this size or age, whichever comes first. 64 KiB is some 150
# rows: one write() of 20 us for 150 rows of 2 us.
BLOCK_BYTES = 64 * 1024
BLOCK_AGE_NS = 200_000_000

# Linux' own; a container has that of its host, and its monotonic clock.
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

# Name of a recorder's file: kind and process, number, form.
NUMBERED = re.compile(r"(.+-)(\d{4,})(\.(?:ndjson|parquet))")

_is_hex32 = re.compile(r"[0-9a-f]{32}").fullmatch


class Anchor(NamedTuple):
    """Place and clock of the times in a file.

    boot: of the kernel whose monotonic clock it is, "" where it is not known. Hosts may share a name.
    """

    host: str
    process: str
    wall_minus_monotonic_ns: int
    boot: str = ""

    def as_json(self) -> dict[str, str | int]:
        """Return its fields, without an unknown boot."""
        return {name: value for name, value in self._asdict().items() if value != ""}


def anchor_now(process: str) -> Anchor:
    """Return the relation of this host's two clocks, read as close together as can be."""
    before = time.monotonic_ns()
    wall = time.time_ns()
    after = time.monotonic_ns()
    return Anchor(socket.gethostname(), process, wall - (before + after) // 2, _boot())


@functools.cache
def _boot() -> str:
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def absent(names: Iterable[str]) -> list[str]:
    """Return the names of files that are absent between those of one process, by the recorder's numbers.

    The oldest ones may have been deleted to make room, which the manifest counts.
    """
    numbers: dict[tuple[str, str], set[int]] = {}
    for name in names:
        if found := NUMBERED.fullmatch(name):
            numbers.setdefault((found[1], found[3]), set()).add(int(found[2]))
    return [
        f"{head}{number:04}{tail}"
        for (head, tail), own in sorted(numbers.items())
        for number in range(min(own), max(own))
        if number not in own
    ]


class EventFile:
    """New file of lines, locked until it is closed. Raises RecordingFailed when the file exists: runs are
    never mixed.
    """

    def __init__(self, path: Path, anchor: Anchor, *, clock_ns: Callable[[], int]) -> None:
        self.path = path
        self._clock_ns = clock_ns
        try:
            new = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            self._file = os.fdopen(owner_only(path, new), "wb", buffering=0)
            # Who takes files away leaves locked and empty ones alone.
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as fault:
            raise RecordingFailed(f"{path}: cannot write events: {fault.strerror}") from fault
        self._lines: list[str] = []
        self._size = 0
        self.lines = 0
        """Lines that it was given, the anchor too."""
        self.bytes = 0
        """Size of the file in bytes, once all of them are written."""
        self.written = 0
        """Lines that the operating system got whole, the anchor too."""
        self._written_ns = clock_ns()
        self.write(json.dumps({"schema": SCHEMA, "anchor": anchor.as_json()}))
        try:
            self.flush()
        except RecordingFailed:
            self._file.close()
            raise

    def write(self, line: str) -> None:
        """Keep one line (without its end); write the block when it is large."""
        self._lines.append(line)
        self._size += len(line)
        self.lines += 1
        self.bytes += len(line) + 1
        if self._size >= BLOCK_BYTES:
            self.flush()

    def write_many(self, lines: list[str]) -> None:
        """Write lines at once, behind those that are held: a quarter of the time of one `write` each."""
        self._lines += lines
        self.lines += len(lines)
        self.bytes += len(lines) + sum(map(len, lines))
        self.flush()

    def tick(self) -> None:
        """Write a block that is old; to be called a few times a second."""
        if self._lines and self._clock_ns() - self._written_ns >= BLOCK_AGE_NS:
            self.flush()

    def flush(self) -> None:
        """Write all held lines. Raises RecordingFailed when the disk does not take them."""
        if not self._lines:
            return
        lines, self._lines = self._lines, []
        block = ("\n".join(lines) + "\n").encode()
        self._size = taken = 0
        try:
            while taken < len(block):
                taken += self._file.write(memoryview(block)[taken:])
        except OSError as fault:
            raise RecordingFailed(f"{self.path}: cannot write events: {fault.strerror}") from fault
        finally:
            whole = taken == len(block)
            self.written += len(lines) if whole else block.count(b"\n", 0, taken)
        self._written_ns = self._clock_ns()

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Entry(NamedTuple):
    """Message as it was handed to the publisher."""

    sequence: int
    key: str
    size: int
    body_hash: str
    intended_ns: int


class _Heads(dict[str, str]):
    """Broker -> the begin of its rows, which is text of the run and of the broker alone."""

    def __init__(self, **texts: str) -> None:
        self._begin = ",".join(f'"{name}":{quote(text)}' for name, text in texts.items())

    def __missing__(self, broker: str) -> str:
        head = self[broker] = f'{{{self._begin},"broker":{quote(broker)},"message_id":"'
        return head


class PublishedRows:
    """Rows of the publishes of one process to one topic. heads: by the brokers that answered."""

    def __init__(self, *, run_id: str, topic: str, publisher: str) -> None:
        self.heads = _Heads(run_id=run_id, topic=topic, publisher=publisher)

    def line(
        self,
        sequence: int,
        key: str,
        size: int,
        digest: str,
        intended_ns: int,
        published: Published,
    ) -> str:
        """Return the row of a publish that has its outcome. Only a confirmed one has confirmed_ns."""
        message_id, outcome, _, broker, attempts, sent_ns, settled_ns, _, _ = published
        if not _is_hex32(message_id):
            message_id = message_id_hex(message_id)
        end = f'"confirmed","confirmed_ns":{settled_ns}'
        if outcome is not CONFIRMED_OUTCOME:
            end = f'"{outcome.value}"'
        return (
            f'{self.heads[broker]}{message_id}","sequence":{sequence},"key":{quote(key)}'
            f',"size":{size},"body_hash":"{digest}","attempts":{attempts}'
            f',"intended_ns":{intended_ns},"sent_ns":{sent_ns},"outcome":{end}}}'
        )


class DeliveredRows:
    """Rows of the deliveries of one process from one subscription. heads: by the brokers they came from."""

    def __init__(self, *, run_id: str, topic: str, subscription: str, consumer: str) -> None:
        self.heads = _Heads(
            run_id=run_id, topic=topic, subscription=subscription, consumer=consumer
        )

    def line(self, delivery: Delivery, digest: str, ack: str, acknowledged_ns: int | None) -> str:
        """Return the row of a delivery that was answered (acked, stale) or let go (none; no time then)."""
        message_id = delivery.message_id
        if not _is_hex32(message_id):
            message_id = message_id_hex(message_id)
        answered = "" if acknowledged_ns is None else f',"acknowledged_ns":{acknowledged_ns}'
        return (
            f'{self.heads[delivery.broker]}{message_id}","key":{quote(delivery.key)}'
            f',"size":{len(delivery.body)},"body_hash":"{digest}"'
            f',"redelivered":{1 if delivery.redelivered else 0},"ack":"{ack}"'
            f',"received_ns":{delivery.received_ns}{answered}}}'
        )


def message_id_hex(message_id: str) -> str:
    """Return the id as 32 hex digits; one of another form (a foreign publisher's) becomes its BLAKE2b."""
    if _is_hex32(message_id):
        return message_id
    return hashlib.blake2b(message_id.encode(), digest_size=16).hexdigest()
