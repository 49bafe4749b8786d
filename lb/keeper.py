#!/usr/bin/python3
"""Keeper of HAProxy's knowledge of the brokers over its next start, on HAProxy's own host.

    keeper.py --socket /run/haproxy/admin.sock --file /var/lib/haproxy/messagebus.state --every 2
    keeper.py --file /var/lib/haproxy/messagebus.state --cold --config /etc/haproxy/haproxy.cfg

The first saves the state of the running process, for ever. The second, before a start from nothing, marks
every broker of the configuration as down until its first check, and keeps drains. Without it HAProxy would
forget drains, and send connections to a broker that it has not checked. Damage in the file never stops it:
a line that is damaged or missing is a broker of which nothing is known.

A file by itself, of the standard library alone, so that a host of HAProxy needs nothing else of this kit.
Where the balancer is the operators' own machine, `python -m lb save-state` does the same.
"""

from __future__ import annotations

import argparse
import fcntl
import ipaddress
import os
import re
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# As in lb/state.py and lb/render.py, which this file cannot read on its host; a test compares.
HEAD = (
    "1\n"
    "# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_iweight"
    " srv_time_since_last_change srv_check_status srv_check_result srv_check_health srv_check_state"
    " srv_agent_state bk_f_forced_id srv_f_forced_id srv_fqdn srv_port srvrecord srv_use_ssl"
    " srv_check_port srv_check_addr srv_agent_addr srv_agent_port\n"
)
BACKEND = "mb_brokers"
COLUMNS = 25
WEIGHT, WEIGHT_MAX = 100, 255
NAME, ADDRESS, ADMIN, USER_WEIGHT, PORT = 3, 4, 6, 7, 18
ORDERED_FLAGS = 0x01 | 0x08
NUMBER = re.compile("[0-9]{1,5}")

ANSWER_WITHIN_S = 5.0
ANSWER_BYTES_MAX = 10_000_000
LOCK_WITHIN_S = 20.0
POLL_S = 0.1
EVERY_S_MIN, EVERY_S_MAX = 0.1, 3_600


def main() -> None:
    asked = argparse.ArgumentParser(description="Keep HAProxy's state of the brokers.")
    asked.add_argument("--socket", type=Path, help="HAProxy's admin socket")
    asked.add_argument("--file", type=Path, required=True, help="its server-state-file")
    asked.add_argument("--lock", type=Path, help="of whoever writes that file, too")
    asked.add_argument("--every", type=float, help="seconds; else once")
    asked.add_argument("--cold", action="store_true", help="before a start from nothing")
    asked.add_argument("--config", type=Path, help="with --cold: names the brokers")
    wanted = asked.parse_args()
    if wanted.every is not None and not EVERY_S_MIN <= wanted.every <= EVERY_S_MAX:
        asked.error(f"--every: {EVERY_S_MIN} to {EVERY_S_MAX} seconds")
    if wanted.cold:
        with locked(wanted.lock):
            config = read(wanted.config) if wanted.config else ""
            write(wanted.file, cold(read(wanted.file), config))
        return
    if wanted.socket is None:
        asked.error("--socket or --cold")
    reported = ""
    while True:
        fault = save(wanted.socket, wanted.file, wanted.lock)
        if fault and fault != reported:
            print(f"not saved: {fault}", file=sys.stderr, flush=True)
        reported = fault
        if wanted.every is None:
            sys.exit(1 if fault else 0)
        time.sleep(wanted.every)


def save(admin: Path, file: Path, lock: Path | None) -> str:
    """Save the state of the running process. Returns the fault, "" for none; the last file stands then."""
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
    """Return the head and the brokers' lines of HAProxy's answer to ``show servers state``."""
    lines = text.splitlines(keepends=True)
    return "".join([*lines[:2], *(line for line in lines[2:] if _is_broker(line.split()))])


def cold(text: str, config: str = "") -> str:
    """Return a state file with all brokers down until checked; orders of operators stay.

    text: the last file, "" for none; damaged lines are left out. config: HAProxy's configuration; each of its
    brokers gets a line. The brokers of the last file are taken where it names none.
    """
    known = {words[NAME]: words for line in text.splitlines() if _is_broker(words := line.split())}
    brokers = _servers(config) or {
        name: (words[ADDRESS], words[PORT]) for name, words in known.items()
    }
    return HEAD + "".join(_down(name, *brokers[name], known.get(name)) for name in brokers)


def _servers(config: str) -> dict[str, tuple[str, str]]:
    """Return host and port of every broker in HAProxy's configuration, by name."""
    found, section = {}, [""]
    for line in config.splitlines():
        words = line.split()
        if words and not line[0].isspace():
            section = words
        elif section[:2] == ["backend", BACKEND] and words[:1] == ["server"] and len(words) > 2:
            host, _, port = words[2].rpartition(":")
            found[words[1]] = host.strip("[]"), port
    return found


def _down(name: str, host: str, port: str, known: list[str] | None) -> str:
    """Return the line of a broker that is down. known: its line in the last file, None for none."""
    admin = int(known[ADMIN]) & ORDERED_FLAGS if known else 0
    weight = min(int(known[USER_WEIGHT]), WEIGHT_MAX) if known else WEIGHT
    # Checks are configured and enabled (6), the last result is unknown (1), health 0.
    return (
        f"0 {BACKEND} 0 {name} {_literal(host) or '-'} 0 {admin} {weight} {WEIGHT} 0 1 1 0 6 0 0 0"
        f" - {port} - 0 0 - - 0\n"
    )


def _literal(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return ""


def _is_broker(words: list[str]) -> bool:
    if len(words) < COLUMNS or words[1] != BACKEND:
        return False
    return all(NUMBER.fullmatch(words[column]) for column in (ADMIN, USER_WEIGHT, PORT))


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
    return answer.decode(errors="replace")


def read(file: Path) -> str:
    """Return a file's text; "" for a file that cannot be read."""
    try:
        return file.read_text(errors="replace")
    except OSError as fault:
        if not isinstance(fault, FileNotFoundError):
            print(f"not read: {fault}", file=sys.stderr, flush=True)
        return ""


def write(file: Path, text: str) -> None:
    """Replace a file atomically and durably; only its owner can read it."""
    part = file.with_name(f".{file.name}.keeper")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(file)


@contextmanager
def locked(path: Path | None) -> Iterator[None]:
    """Keep other writers out; an `apply` over SSH holds the same lock. Raises OSError."""
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
                    raise OSError(f"another process holds {path}") from None
                time.sleep(POLL_S)
        yield


if __name__ == "__main__":
    main()
