"""The sources of a load's messages: real records, one message each.

A record is a paragraph (lines up to a blank one) or, on request, a line. Reading is a stream: no
more than one record is held, also for a large input. Without a name the input is this machine's
own package index.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from bench.errors import InputInvalid
from messagebus.message import BODY_BYTES_MAX

MACHINE_INDEX = "this machine's package index"
STDIN = "-"
INDEX_COMMAND = ("apt-cache", "dumpavail")
INDEX_FILE = Path("/var/lib/dpkg/status")
KEY_BYTES_MAX = 255


def records(source: str | None, *, by_line: bool = False) -> Iterator[bytes]:
    """Read the records of a file, of standard input (``-``) or, with None, of the package index.

    Never yields an empty record. Raises InputInvalid when the input cannot be read, holds nothing,
    or has a record larger than a message may be.
    """
    name = source or MACHINE_INDEX
    split_into = lines if by_line else paragraphs
    with contextlib.ExitStack() as stack:
        stream = _index(stack) if source is None else _open(stack, source)
        count = 0
        try:
            for record in split_into(stream):
                count += 1
                yield record
        except OSError as fault:
            raise InputInvalid(f"{name}: cannot read: {fault.strerror or fault}") from fault
        except ValueError as fault:
            raise InputInvalid(f"{name}: record {count + 1}: {fault}") from fault
        if not count:
            raise InputInvalid(f"{name}: no record in it")


def paragraphs(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the runs of lines between blank lines, without the last line end.

    Raises ValueError for one above BODY_BYTES_MAX.
    """
    held: list[bytes] = []
    size = 0
    for line in _bounded_lines(stream):
        if line.isspace():
            if held:
                yield b"".join(held).rstrip(b"\r\n")
            held, size = [], 0
            continue
        if size + len(line.rstrip(b"\r\n")) > BODY_BYTES_MAX:
            raise ValueError(_too_large())
        held.append(line)
        size += len(line)
    if held:
        yield b"".join(held).rstrip(b"\r\n")


def lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the lines that are not blank, without their end. Raises ValueError for one that is too long."""
    for line in _bounded_lines(stream):
        if not line.isspace():
            yield line.rstrip(b"\r\n")


def key_of(record: bytes) -> str:
    """Return the package of a record of the index, "" for any other record."""
    if not record.startswith(b"Package: "):
        return ""
    name = record[9:].split(b"\n", 1)[0].strip()
    if len(name) > KEY_BYTES_MAX:
        return ""
    return name.decode("utf-8", "ignore")


def write_records(path: Path, source: Iterable[bytes]) -> int:
    """Write a new file of records that `records` reads back; return their number."""
    count = 0
    with path.open("xb") as file:
        for record in source:
            file.write(record + b"\n\n")
            count += 1
    return count


def _bounded_lines(stream: BinaryIO) -> Iterator[bytes]:
    limit = BODY_BYTES_MAX + 2
    while line := stream.readline(limit):
        if len(line.rstrip(b"\r\n")) > BODY_BYTES_MAX:
            raise ValueError(_too_large())
        yield line


def _too_large() -> str:
    return f"larger than {BODY_BYTES_MAX} bytes"


def _open(stack: contextlib.ExitStack, source: str) -> BinaryIO:
    if source == STDIN:
        return sys.stdin.buffer
    try:
        return stack.enter_context(Path(source).open("rb"))
    except OSError as fault:
        raise InputInvalid(f"{source}: cannot read: {fault.strerror}") from fault


def _index(stack: contextlib.ExitStack) -> BinaryIO:
    """Open the output of apt-cache, or the file of installed packages if apt has no index."""
    return _index_of_apt(stack) or _open(stack, str(INDEX_FILE))


def _index_of_apt(stack: contextlib.ExitStack) -> BinaryIO | None:
    try:
        process = subprocess.Popen(
            INDEX_COMMAND,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return None
    stack.callback(_end, process)
    output = cast(io.BufferedReader, process.stdout)
    return output if output.peek(1) else None


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the writer: a reader may stop early, and the writer must not wait on a full pipe."""
    assert process.stdout is not None
    process.stdout.close()
    process.kill()
    process.wait()
