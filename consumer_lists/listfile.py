"""The list as a file: edited as text, read, changed under a lock, replaced atomically and durably.

Edits are pure: comments and the order of lines are kept. Every edit raises the generation by one, so clients
know that the list is newer. An edit that would change nothing is refused, so that a generation always means a
change. Keeping the file's history in version control is advised, and left to the operator.
"""

from __future__ import annotations

import fcntl
import getpass
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from consumer_lists.errors import AlreadySo, EditRefused, Locked
from messagebus.broker import AGENT_PORT, LIST_BYTES_MAX, Broker, BrokerList, ListedBroker
from messagebus.errors import ListInvalid
from messagebus.files import write_whole

Edit = Callable[[str], str]
"""A function from the text of a valid list to that of another. Raises ListInvalid or EditRefused."""

GENERATION_MAX = 10**18 - 1
"""Largest generation that every client can read."""

_GENERATION_LINE = re.compile(r"\s*#\s*generation\s*:.*")
_CLUSTER_LINE = re.compile(r"\s*#\s*cluster\s*:.*")


def add(text: str, broker: Broker, *, agent_port: int = AGENT_PORT) -> str:
    """Let consumers attach to one more broker."""
    listed = BrokerList.parse(text)
    if known := listed.find(broker.name):
        raise EditRefused(
            f"{broker} is on the list" + (" and draining; see `ready`" if known.draining else "")
        )
    line = ListedBroker(broker=broker, agent_port=agent_port).render()
    return _next(listed, [*text.splitlines(), line])


def drain(text: str, broker: Broker) -> str:
    """Mark a broker as leaving: publishers move away, consumers stay."""
    return _set_draining(text, broker, draining=True)


def ready(text: str, broker: Broker) -> str:
    """Take back `drain`."""
    return _set_draining(text, broker, draining=False)


def remove(text: str, broker: Broker) -> str:
    """Let consumers go from a broker. The last one stays."""
    listed = BrokerList.parse(text)
    if not listed.find(broker.name):
        raise AlreadySo(_not_there(listed, broker))
    if len(listed.listed) == 1:
        raise EditRefused(f"{broker} is the last broker on the list")
    return _next(listed, [line for line in text.splitlines() if _broker_of(line) != broker])


def with_generation(text: str, generation: int) -> str:
    """Return the list under this generation. The header is inserted where it is missing."""
    if not 1 <= generation <= GENERATION_MAX:
        raise EditRefused(f"generation {generation}: 1 to {GENERATION_MAX}")
    line = f"# generation: {generation}"
    lines = text.splitlines()
    for index, each in enumerate(lines):
        if _GENERATION_LINE.fullmatch(each):
            return _text([*lines[:index], line, *lines[index + 1 :]])
    first = 1 + next((i for i, each in enumerate(lines) if _CLUSTER_LINE.fullmatch(each)), -1)
    return _text([*lines[:first], line, *lines[first:]])


def _set_draining(text: str, broker: Broker, *, draining: bool) -> str:
    listed = BrokerList.parse(text)
    known = _find(listed, broker)
    if known.draining == draining:
        raise AlreadySo(f"{broker} is {'draining already' if draining else 'not draining'}")
    changed = ListedBroker(broker=broker, agent_port=known.agent_port, draining=draining).render()
    return _next(
        listed,
        [
            changed + _comment(line) if _broker_of(line) == broker else line
            for line in text.splitlines()
        ],
    )


def _find(listed: BrokerList, broker: Broker) -> ListedBroker:
    if known := listed.find(broker.name):
        return known
    raise EditRefused(_not_there(listed, broker))


def _not_there(listed: BrokerList, broker: Broker) -> str:
    return f"{broker} is not on the list: {', '.join(sorted(listed.names))}"


def _next(listed: BrokerList, lines: list[str]) -> str:
    return with_generation(_text(lines), listed.generation + 1)


def _text(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


def _broker_of(line: str) -> Broker | None:
    words = line.partition("#")[0].split()
    return Broker.parse(words[0]) if words else None


def _comment(line: str) -> str:
    _, sign, comment = line.partition("#")
    return f"  #{comment}" if sign else ""


# Agents of another user must be able to read the file, and it holds no secret.
MODE = 0o644


def read(path: Path) -> str:
    """Return the text of a valid list. Raises ListInvalid with the line, OSError."""
    with path.open("rb") as file:
        raw = file.read(LIST_BYTES_MAX + 1)
    try:
        text = raw.decode()
    except UnicodeDecodeError as fault:
        line = raw[: fault.start].count(b"\n") + 1
        raise ListInvalid("not UTF-8", line=line) from fault
    BrokerList.parse(text)
    return text


def change(path: Path, edit: Edit) -> BrokerList:
    """Apply an edit to a list file. Returns the list after the edit.

    Raises Locked, ListInvalid, EditRefused; the file is unchanged then.
    """
    with locked(path):
        text = edit(read(path))
        changed = BrokerList.parse(text)
        write_whole(path, text, mode=MODE)
        return changed


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other operators from editing. Raises Locked at once, naming the one who edits.

    The lock ends with the process. Its file stays: removing it would let two hold the same lock.
    """
    with path.with_name(f".{path.name}.lock").open("a+b", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            who = " ".join(file.read(200).decode(errors="replace").split()) or "somebody"
            raise Locked(f"{path} is being edited by {who}") from None
        with suppress(OSError):  # a full disk: without that record the lock still holds
            file.truncate(0)
            file.write(f"{_user()}, process {os.getpid()}".encode())
        yield


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"user {os.getuid()}"


GIT_WITHIN_S = 5.0


def advice(path: Path, message: str) -> str:
    """Return the command that commits a changed file, in one line; "" when there is nothing to commit.

    Returns "" where git cannot be run. A file outside of every work tree is reported as such.
    """
    argv = ["git", "-C", str(path.parent), "status", "--porcelain", "--ignored", "--", path.name]
    try:
        asked = subprocess.run(
            argv, capture_output=True, text=True, timeout=GIT_WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if asked.returncode:
        return f"{path} is under no version control"
    begin = f"git -C {shlex.quote(str(path.parent))}"
    name, text = shlex.quote(path.name), shlex.quote(message)
    match asked.stdout[:2]:
        case "" | "!!":
            return ""
        case "??":
            return f"to keep: {begin} add {name} && {begin} commit -m {text} -- {name}"
        case _:
            return f"to keep: {begin} commit -m {text} -- {name}"
