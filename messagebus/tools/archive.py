"""`messagebus to-file` and `from-file`: messages in files, on the disk before they are acked, and back.

A file grows as ``NAME.part``. Messages are written in blocks: each is flushed to the disk and its messages
acked then. So a file may be larger than what a broker lets wait unanswered, and longer open than its
consumer timeout. A finished file is renamed. A ``.part`` that a killed process left holds acked messages: the
next start cuts it behind its last whole block and renames it. A message that was cut comes again.
"""

from __future__ import annotations

import fcntl
import gzip
import io
import os
import signal
import socket
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import click

from messagebus.admin import directory
from messagebus.commands.exits import Exit
from messagebus.commands.flow import (
    Sending,
    ack_all,
    destination_of,
    envelopes_of,
    new_ids_option,
    rate_option,
    send,
)
from messagebus.commands.options import (
    Duration,
    NumberRange,
    bus_settings,
    durability_option,
    subscription_option,
    topic_and_subscription,
)
from messagebus.config import ConsumerConfig
from messagebus.consumer import Consumer, as_source
from messagebus.destination import parse_destination
from messagebus.envelope import delivered, write_envelope
from messagebus.errors import MessageInvalid
from messagebus.files import owner_only, sync_folder
from messagebus.stats import Durability
from messagebus.terminal import Progress, plural, say

# Messages of one block: an fsync takes some ms.
BLOCK_MAX = 4_000
STEP_S = 0.2
PREFETCH, HANDED_OUT = 1_000, 10_000
READ_BYTES = 1 << 20
AGAIN_S = 1.0
PART = ".part"
SUFFIXES = {"none": "", "gzip": ".gz", "zstd": ".zst"}


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as fault:
        raise click.UsageError(
            "zstd needs one more package: pip install 'messagebus-rabbitmq[tools]'"
        ) from fault
    return zstandard


class Archive:
    """The files of one process in one folder. written: messages on the disk so far."""

    def __init__(
        self, folder: Path, name: str, *, compress: str, rotate_bytes: int, rotate_s: float
    ) -> None:
        """Make the folder, and finish what a killed process left. Raises OSError."""
        self._folder, self._name = folder, name
        self._suffix = f".ndjson{SUFFIXES[compress]}"
        self._rotate_bytes, self._rotate_s = rotate_bytes, rotate_s
        self._squeeze: Callable[[bytes], bytes] = lambda block: block
        if compress == "gzip":
            self._squeeze = lambda block: gzip.compress(block, compresslevel=6)
        elif compress == "zstd":
            self._squeeze = _zstandard().ZstdCompressor().compress
        self._file: IO[bytes] | None = None
        self._path, self._number = folder, 0
        self._began_s = 0.0
        self.written = 0
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        recover(folder)

    def write(self, lines: list[bytes]) -> None:
        """Write lines as one block; they are on the disk when this returns.

        After an OSError the file is left as after a kill, and the next call begins another.
        """
        try:
            file = self._file or self._begin()
            file.write(self._squeeze(b"".join(lines)))
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            torn, self._file = self._file, None
            if torn is not None:
                with suppress(OSError):
                    torn.close()
            raise
        self.written += len(lines)
        if file.tell() >= self._rotate_bytes:
            self.finish()

    def _begin(self) -> IO[bytes]:
        self._number += 1
        began = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        here = f"{socket.gethostname()}-{os.getpid()}-{self._number:04}"
        self._path = self._folder / f"{self._name}-{began}-{here}{self._suffix}"
        part = self._path.with_name(self._path.name + PART)
        new = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        file = os.fdopen(owner_only(part, new), "wb")  # bodies are in it
        self._file, self._began_s = file, time.monotonic()
        fcntl.flock(file, fcntl.LOCK_EX)  # a start of another process leaves it alone
        sync_folder(self._folder)
        return file

    def rotate(self) -> None:
        """Finish the file when its time is over."""
        if self._file is not None and time.monotonic() - self._began_s >= self._rotate_s:
            self.finish()

    def finish(self) -> None:
        """Give the file its name."""
        file, self._file = self._file, None
        if file is not None:
            self._path.with_name(self._path.name + PART).rename(self._path)
            sync_folder(self._folder)
            file.close()


def recover(folder: Path) -> list[Path]:
    """Finish the files that killed processes left; return their names. Raises OSError."""
    found = []
    for part in sorted(folder.glob(f"*.ndjson*{PART}")):
        with suppress(FileNotFoundError), part.open("r+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # somebody writes it
            if not os.fstat(file.fileno()).st_size:
                continue  # somebody may be about to lock it
            if not (whole := _whole_bytes(file, part.name.removesuffix(PART))):
                part.unlink()
                continue
            file.truncate(whole)
            os.fsync(file.fileno())
            path = part.with_name(part.name.removesuffix(PART))
            part.rename(path)
            found.append(path)
    sync_folder(folder)
    return found


def _whole_bytes(file: IO[bytes], name: str) -> int:
    """Return the size of what is whole: lines, or compressed blocks."""
    if name.endswith(".gz"):
        return _whole_blocks(file, lambda: zlib.decompressobj(wbits=31))
    if name.endswith(".zst"):
        return _whole_blocks(file, lambda: _zstandard().ZstdDecompressor().decompressobj())
    at = file.seek(0, os.SEEK_END)
    while at:
        begin = max(0, at - READ_BYTES)
        file.seek(begin)
        if (end := file.read(at - begin).rfind(b"\n")) >= 0:
            return begin + end + 1
        at = begin
    return 0


def _whole_blocks(file: IO[bytes], begin: Callable[[], Any]) -> int:
    whole = at = 0
    block = begin()
    while chunk := file.read(READ_BYTES):
        while chunk:
            try:
                block.decompress(chunk)
            except Exception:  # each library has its own; what follows is torn
                return whole
            rest = block.unused_data if block.eof else b""
            at += len(chunk) - len(rest)
            if block.eof:
                whole, block = at, begin()
            chunk = rest
    return whole


def unpacked(file: IO[bytes], suffix: str) -> IO[bytes]:
    """Return the envelopes of an open file, by its suffix: .gz, .zst or neither."""
    if suffix == ".gz":
        return io.BufferedReader(gzip.GzipFile(fileobj=file))
    if suffix == ".zst":
        reader = _zstandard().ZstdDecompressor().stream_reader(file, read_across_frames=True)
        return io.BufferedReader(reader)
    return file


@click.command("to-file", short_help="Write the messages of TOPIC to files and ack them.")
@click.argument("topic")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@subscription_option
@click.option(
    "--compress",
    type=click.Choice(list(SUFFIXES)),
    default="none",
    show_default=True,
    help="Compress each block separately, so that every whole block can be read.",
)
@click.option(
    "--rotate-mb",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Start a new file at this size.",
)
@click.option(
    "--rotate-every",
    "rotate_s",
    type=Duration(),
    default="1h",
    show_default=True,
    help="Start a new file after this long: 90s, 15m, 2h, 7d.",
)
@click.option(
    "--patience",
    "patience_s",
    type=Duration(),
    default="60s",
    show_default=True,
    help="Retry writes for this long while the disk is full, then end.",
)
@click.option(
    "--idle-exit-s", type=NumberRange(min=0), help="Stop after this long without a message."
)
@durability_option
def to_file(
    topic: str,
    folder: Path,
    subscription: str,
    compress: str,
    rotate_mb: int,
    rotate_s: float,
    patience_s: float,
    idle_exit_s: float | None,
    durability: str,
) -> int:
    """Write the messages of TOPIC ("queue:NAME" for a queue) to files in FOLDER, and ack them.

    One envelope a line, as consume --ndjson prints it; from-file publishes it again. A message is acked when
    it is on the disk. A file that is being written ends in .part; after a kill the next start finishes it,
    and no message is lost, though some may be there twice, under one id.

    \b
    Example:
      messagebus to-file orders /srv/archive --subscription archive --compress zstd --rotate-every 15m
    """
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stop.append(number))
    bus, config = bus_settings(), ConsumerConfig.from_env(os.environ)
    if config == ConsumerConfig():  # its defaults are for handlers, which take their time
        config = replace(config, prefetch=PREFETCH, handed_out_max=HANDED_OUT)
    topic, subscription = topic_and_subscription(topic, subscription)
    place = replace(parse_destination(topic), durability=Durability(durability))
    name = str(as_source(place, subscription)).replace("/", ".").replace(":", ".")
    archive = Archive(
        folder, name, compress=compress, rotate_bytes=rotate_mb << 20, rotate_s=rotate_s
    )
    consumer = Consumer(bus, place, subscription=subscription, config=config)
    directory.reach(bus)
    consumer.start(require="one")
    progress = Progress("wrote")
    try:
        last_s = time.monotonic()
        while not stop:
            found = consumer.receive_many(BLOCK_MAX, timeout_s=STEP_S)
            if found:
                lines = [write_envelope(delivered(each)) + b"\n" for each in found]
                _write(archive, lines, patience_s)
                ack_all(consumer, found)
                last_s = time.monotonic()
            elif idle_exit_s is not None and time.monotonic() - last_s >= idle_exit_s:
                break
            archive.rotate()
            progress.at(archive.written)
    finally:
        progress.end()
        consumer.stop(timeout_s=1)
        archive.finish()
        say(f"wrote {plural(archive.written, 'message')} to {folder}", err=True)
    return Exit.TERMINATED if stop else Exit.DONE


def _write(archive: Archive, lines: list[bytes], patience_s: float) -> None:
    """Write a block, again and again while the disk takes nothing. Raises OSError after patience_s."""
    until_s, told = time.monotonic() + patience_s, False
    while True:
        try:
            return archive.write(lines)
        except OSError as fault:
            if time.monotonic() >= until_s:
                raise
            if not told:
                say(f"messagebus: not written: {fault.strerror}; trying again", err=True)
                told = True
        time.sleep(AGAIN_S)


# From files.
@click.command("from-file", short_help="Publish the messages of archived files.")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--to", help="Topic or queue:NAME of all. Default: what each envelope says.")
@new_ids_option
@rate_option
@durability_option
def from_file(
    files: tuple[Path, ...],
    to: str | None,
    new_ids: bool,
    rate_per_s: float | None,
    durability: str,
) -> int:
    """Publish the envelopes of FILES, as to-file writes them: .ndjson, .ndjson.gz, .ndjson.zst.

    Ids stay, so that a file that is published twice gives readers with deduplication nothing new.

    \b
    Example:
      messagebus from-file archive/orders/*.ndjson.gz --to replay --rate 500
    """
    fixed = destination_of(to, durability) if to else None
    size, before = sum(file.stat().st_size for file in files), 0
    with Sending(rate_per_s) as sending, Progress("published") as progress:
        for file in files:
            with file.open("rb") as packed:
                try:
                    for each in envelopes_of(unpacked(packed, file.suffix)):
                        if fixed is None and not each.destination:
                            raise MessageInvalid("an envelope without a destination: say --to")
                        place = fixed or destination_of(each.destination, durability)
                        send(sending, place, each, {}, {}, new_ids)
                        share = (before + packed.tell()) / size if size else None
                        progress.at(sending.ends.total(), str(file), share=share)
                except MessageInvalid as fault:
                    raise MessageInvalid(f"{file}: {fault}") from fault
            before += file.stat().st_size
    return sending.report_ends()
