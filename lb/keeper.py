#!/usr/bin/python3
"""Keeps what HAProxy knows of the brokers over its next start, on HAProxy's own host.

    keeper.py --socket /run/haproxy/admin.sock --file /var/lib/haproxy/messagebus.state --every 2
    keeper.py --file /var/lib/haproxy/messagebus.state --cold

The first saves what the running process says, for ever; the second, before a start from nothing, marks
every broker as down until its first check, and keeps drains. Without it HAProxy would forget drains, and
send connections to a broker that it has not looked at.

A file by itself, of the standard library alone, so that a host of HAProxy needs nothing else of this kit.
Where the balancer is the operators' own machine, `python -m lb save-state` does the same.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# As in lb/state.py and lb/render.py, which this file cannot read on its host; a test compares.
BACKEND = "mb_brokers"
COLUMNS = 25
OPERATIONAL, ADMIN, CHECKS = 5, 6, slice(9, 15)
ORDERED_FLAGS = 0x01 | 0x08
# Never checked yet, and its checks are configured and enabled.
UNCHECKED = ["0", "1", "1", "0", "6", "0"]

ANSWER_WITHIN_S = 5.0
ANSWER_BYTES_MAX = 10_000_000
LOCK_WITHIN_S = 20.0
POLL_S = 0.1


def main() -> None:
    asked = argparse.ArgumentParser(description="Keep what HAProxy knows of the brokers.")
    asked.add_argument("--socket", type=Path, help="HAProxy's admin socket")
    asked.add_argument("--file", type=Path, required=True, help="its server-state-file")
    asked.add_argument("--lock", type=Path, help="of whoever writes that file, too")
    asked.add_argument("--every", type=float, help="seconds; else once")
    asked.add_argument("--cold", action="store_true", help="before a start from nothing")
    wanted = asked.parse_args()
    if wanted.cold:
        with locked(wanted.lock):
            write(wanted.file, cold(read(wanted.file)))
        return
    if wanted.socket is None:
        asked.error("--socket or --cold")
    told = ""
    while True:
        fault = save(wanted.socket, wanted.file, wanted.lock)
        if fault and fault != told:
            print(f"not saved: {fault}", file=sys.stderr, flush=True)
        told = fault
        if wanted.every is None:
            sys.exit(1 if fault else 0)
        time.sleep(wanted.every)


def save(admin: Path, file: Path, lock: Path | None) -> str:
    """Returns the fault, "" for none; the last file stands then."""
    try:
        with locked(lock):
            text = brokers_of(ask(admin))
            if text.count("\n") < 2:
                return f"{admin}: no format that is known"
            write(file, text)
    except OSError as fault:
        return f"{admin}: {fault}"
    return ""


def brokers_of(text: str) -> str:
    """The head and the brokers' lines of what HAProxy says to ``show servers state``."""
    lines = text.splitlines(keepends=True)
    return "".join([*lines[:2], *(line for line in lines[2:] if _is_broker(line.split()))])


def cold(text: str) -> str:
    """The same with all brokers down until checked; orders of operators stay."""
    return "".join(_down(line) for line in brokers_of(text).splitlines(keepends=True))


def _down(line: str) -> str:
    words = line.split()
    if not _is_broker(words):
        return line
    words[OPERATIONAL] = "0"
    words[ADMIN] = str(int(words[ADMIN]) & ORDERED_FLAGS)
    words[CHECKS] = UNCHECKED
    return " ".join(words) + "\n"


def _is_broker(words: list[str]) -> bool:
    return len(words) >= COLUMNS and words[1] == BACKEND and words[ADMIN].isdecimal()


def ask(admin: Path) -> str:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(ANSWER_WITHIN_S)
        client.connect(str(admin))
        client.sendall(b"show servers state\n")
        answer = bytearray()
        while part := client.recv(65_536):
            answer += part
            if len(answer) > ANSWER_BYTES_MAX:
                raise OSError(f"an answer above {ANSWER_BYTES_MAX} bytes")
    return answer.decode()


def read(file: Path) -> str:
    try:
        return file.read_text()
    except FileNotFoundError:
        return ""


def write(file: Path, text: str) -> None:
    """At once and for good, for its owner alone."""
    part = file.with_name(f".{file.name}.keeper")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(file)


@contextmanager
def locked(path: Path | None) -> Iterator[None]:
    """One writer at a time; an `apply` over SSH holds the same lock. Raises OSError."""
    if path is None:
        yield
        return
    with path.open("w") as file:
        until = time.monotonic() + LOCK_WITHIN_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise OSError(f"somebody else holds {path}") from None
                time.sleep(POLL_S)
        yield


if __name__ == "__main__":
    main()
