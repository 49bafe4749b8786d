"""Playbooks that run, and the last that ended, by the journals that `ops` writes; nothing is written here.

A journal is a file of JSON lines: who began which plan on which brokers, each step that was done, its proof.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

ENDED_SHOWN = 20
BYTES_MAX = 1 << 20
KEPT_S = 2.0
TEXT_CHARS_MAX = 300


@dataclass(frozen=True, slots=True)
class Playbook:
    """One run. ended: "" while it is open, ``ended`` or ``abandoned``. steps: that were done, and not undone.

    proof: of its last step. fault: the reason why its journal cannot be read; "" when it can.
    """

    name: str
    ended: str = ""
    who: str = ""
    brokers: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    proof: str = ""
    began_ms: int = 0
    last_ms: int = 0
    fault: str = ""


class Playbooks:
    """The journals of one folder, read at most every 2 s. folder: "" for none."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder) if folder else None
        self._kept: list[Playbook] = []
        self._at_s = -KEPT_S

    def runs(self) -> list[Playbook]:
        """Return open runs, then the last that ended; the newest first."""
        if self._folder and time.monotonic() - self._at_s >= KEPT_S:
            self._kept, self._at_s = _read_folder(self._folder), time.monotonic()
        return self._kept


def _read_folder(folder: Path) -> list[Playbook]:
    try:
        files = [path for path in folder.iterdir() if path.is_file() and path.suffix != ".seal"]
        newest = sorted(files, key=lambda path: -path.stat().st_mtime_ns)
    except OSError as fault:
        return [Playbook(str(folder), fault=f"{fault.strerror}")]
    runs = [path for path in newest if path.suffix == ".jsonl"]
    ended = [path for path in newest if path.suffix[1:2].isdigit()][:ENDED_SHOWN]
    return [_read(path) for path in [*runs, *ended]]


def _read(path: Path) -> Playbook:
    name = path.name.partition(".")[0].replace("+", " ")
    ended = (
        "" if path.suffix == ".jsonl" else "abandoned" if ".abandoned." in path.name else "ended"
    )
    try:
        with path.open("rb") as file:
            text = file.read(BYTES_MAX)
        lines = [json.loads(line) for line in text.splitlines(True) if line.endswith(b"\n")]
        return _of_lines(name, ended, lines)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as fault:
        return Playbook(name, ended, fault=f"{type(fault).__name__}: {fault}"[:TEXT_CHARS_MAX])


def _of_lines(name: str, ended: str, lines: list[dict[str, Any]]) -> Playbook:
    steps, proof, head = list[str](), "", lines[0]
    for line in lines:
        if "step" in line:
            steps.append(str(line["step"]))
            proof = str(line.get("proof", proof))[:TEXT_CHARS_MAX]
        if "undone" in line:
            steps = [each for each in steps if each != line["undone"]]
    began_ms, last_ms = (
        int(datetime.fromisoformat(line["at"]).timestamp() * 1_000) for line in (head, lines[-1])
    )
    brokers = tuple(map(str, head.get("brokers", ())))
    who = str(head.get("who", ""))
    return Playbook(name, ended, who, brokers, tuple(steps), proof, began_ms, last_ms)
