"""The record of a playbook: on disk before the next step begins, so that an interrupted run resumes.

A journal is a hint: it tells the past, not the present state. A step that erases looks for itself
(`ops.run.plan.Step.guard`, `ops.run.plan.Step.sealed_by`).
"""

# A run:  no file ─ begin ─▶ NAME.jsonl ─ record, amend, take_back, seal ─▶ … ─ finish ─▶ NAME.TIME
#                               │ killed: the file stays, and the next call resumes it
#                               └─ abandon ─▶ NAME.abandoned.TIME
#
# The lock of the cluster (`ops.run.command`) lets one process write at a time; `open_runs` reads the
# others' files, so that no playbook touches the brokers of an unfinished one.

from __future__ import annotations

import getpass
import json
import os
import socket
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from messagebus.files import write_whole
from ops.errors import JournalUnreadable

FORMAT = 2
"""Format of the lines; a run of another format is not resumed."""
_AT = "%Y-%m-%dT%H:%M:%S%z"


class Journal:
    """One run of one playbook: a file with one JSON object a line; renamed when it is finished.

    done: names of the steps that were done and not undone, in their order. proofs: their proofs.
    facts: values that the run began with, options too: the cluster may not tell them any more later.
    who: the user and host that began it. last: time of its last line, None for a new run.
    locks: descriptors of the locks that let this process write.
    """

    def __init__(self, folder: Path, name: str, locks: Iterable[int] = ()) -> None:
        """folder: made when it is needed. name: name of the plan, whose unfinished run is resumed.

        Raises JournalUnreadable.
        """
        self.name, self.locks = name, tuple(locks)
        self._file = _file(folder, name)
        self.done: tuple[str, ...] = ()
        self.proofs: tuple[str, ...] = ()
        self.facts: dict[str, Any] = {}
        self.who = ""
        self.last: datetime | None = None
        for line in _read(self._file):
            self._take(line)

    @property
    def is_resumed(self) -> bool:
        return bool(self.facts or self.done)

    def begin(self, facts: dict[str, Any], *, brokers: Iterable[str] = ()) -> None:
        """Record the values that the run begins with. On disk when it returns.

        brokers: names of those it changes; no other playbook may touch them while this one is open.
        """
        who = f"{getpass.getuser()}@{socket.gethostname()}"
        head = {"format": FORMAT, "plan": self.name, "brokers": sorted(brokers)}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._append({**head, "facts": facts, "who": who}, os.O_CREAT)

    def amend(self, facts: dict[str, Any]) -> None:
        """Record other facts from here on. On disk when it returns."""
        self._append({"facts": facts})

    def record(self, step: str, took_s: float, proof: str = "") -> None:
        """Record that this step was done, with its proof. On disk when it returns."""
        line = {"step": step, "took_s": round(took_s, 3)}
        self._append({**line, "proof": proof} if proof else line)

    def take_back(self, step: str) -> None:
        """Record that this step was undone. On disk when it returns."""
        self._append({"undone": step})

    def seal(self, step: str, listing: str) -> None:
        """Keep the list of a node's files after this step has stopped it. On disk when it returns."""
        write_whole(self._seal(step), listing, mode=None)

    def sealed(self, step: str) -> str | None:
        """Return the listing that `seal` kept, None where there is none."""
        file = self._seal(step)
        return file.read_text() if file.is_file() else None

    def finish(self) -> None:
        """End the run; its file stays under another name."""
        self.done, self.proofs, self.facts, self.last = (), (), {}, None
        _close(self._file)

    def _seal(self, step: str) -> Path:
        return self._file.with_name(f"{self._file.name}.{step.replace(' ', '+')}.seal")

    def _append(self, line: dict[str, Any], flags: int = 0) -> None:
        """Write after the last whole line: a line that a crash cut off is overwritten.

        Raises JournalUnreadable when the file is gone: another one would begin without its head.
        """
        line = {**line, "at": datetime.now(UTC).strftime(_AT)}
        try:
            file = os.fdopen(os.open(self._file, os.O_RDWR | os.O_CLOEXEC | flags, 0o644), "rb+")
        except FileNotFoundError:
            raise JournalUnreadable(str(self._file), "it was taken away during the run") from None
        try:
            with file:
                whole = file.read().rfind(b"\n") + 1
                file.truncate(whole)
                file.seek(whole)
                file.write(json.dumps(line).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as fault:  # a full disk
            raise OSError(fault.errno, fault.strerror, str(self._file)) from fault
        self._take(line)

    def _take(self, line: dict[str, Any]) -> None:
        if "facts" in line:
            self.facts = dict(line["facts"])
            self.who = str(line.get("who", self.who))
        if "step" in line:
            self.done = (*self.done, str(line["step"]))
            self.proofs = (*self.proofs, str(line["proof"])) if "proof" in line else self.proofs
        if "undone" in line:
            self.done = tuple(name for name in self.done if name != line["undone"])
        self.last = _when(line)


class OpenRun:
    """An unfinished run of some playbook, by its journal.

    name: name of the plan. is_begun: its journal has a line, the first of which comes before its first step.
    brokers: names of those it changes; None where its journal cannot be read.
    last: time of its last line, in words; fault: why its journal cannot be read.
    """

    def __init__(self, file: Path) -> None:
        self.name = file.stem.replace("+", " ")
        self.brokers: frozenset[str] | None = None
        self.last = self.fault = ""
        self.is_begun = True
        try:
            lines = list(_read(file))
        except JournalUnreadable as fault:
            self.fault = str(fault)
            return
        self.is_begun = bool(lines)
        if lines:
            self.brokers = frozenset(lines[0].get("brokers", ()))
            self.last = str(lines[-1]["at"])

    def concerns(self, brokers: frozenset[str]) -> bool:
        """Return whether it changes one of these brokers, or may."""
        return self.brokers is None or bool(self.brokers & brokers)


def open_runs(folder: Path, *, but: str) -> list[OpenRun]:
    """Return the unfinished runs in the folder, without those of the plan `but`."""
    mine = _file(folder, but)
    runs = [OpenRun(file) for file in sorted(folder.glob("*.jsonl")) if file != mine]
    return [run for run in runs if run.is_begun]


def _close(file: Path, how: str = "") -> None:
    """Rename a journal, readable or not, so that it is not resumed; do nothing when there is none."""
    for seal in file.parent.glob(f"{file.name}.*.seal"):
        seal.unlink()
    if file.exists():
        ended = f"{how and how + '.'}{time.strftime('%Y%m%dT%H%M%S')}"
        file.rename(file.with_suffix(f".{ended}"))


def is_open(folder: Path, name: str) -> bool:
    """Return whether this plan has an open run, readable or not."""
    return _file(folder, name).exists()


def abandon(folder: Path, name: str) -> None:
    """Close the open run of this plan as it stands, readable or not. The lock must be held."""
    _close(_file(folder, name), "abandoned")


def _file(folder: Path, name: str) -> Path:
    """Return the journal of a plan: names of brokers have neither a space nor a plus."""
    return folder / f"{name.replace(' ', '+')}.jsonl"


def _read(file: Path) -> Iterable[dict[str, Any]]:
    """Yield the whole lines; a crash may have cut off the last one. Raises JournalUnreadable."""
    lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    whole = [line for line in lines if line.endswith(b"\n")]
    for number, text in enumerate(whole, start=1):
        try:
            line = json.loads(text)
            _when(line)
        except (ValueError, LookupError, TypeError, AttributeError):
            raise JournalUnreadable(str(file), f"line {number} is none of this kit's") from None
        if number == 1 and line.get("format") != FORMAT:
            raise JournalUnreadable(str(file), "it was begun by another version of this kit")
        yield line


def _when(line: dict[str, Any]) -> datetime:
    at = datetime.fromisoformat(line["at"])
    if at.tzinfo is None:
        raise ValueError(line["at"])
    return at
