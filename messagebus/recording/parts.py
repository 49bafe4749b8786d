"""Description of a recorded run: the ``manifest.json`` that reports need, put together by its recorders.

Every recorder of a run writes into the same folder, and each adds what it knows: topics and their
subscriptions, brokers, publishers, consumers, begin and end, its clock, and what it left
out: a share of the messages, rows it had no room for, files it deleted. Deciding is pure (`merged`);
`note` does it under a lock, so that any number of processes of one machine may.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from messagebus.errors import RecordingFailed
from messagebus.files import replace_file
from messagebus.recording.files import Anchor
from messagebus.recording.manifest import MANIFEST

__all__ = ["RunPart", "begin", "merged", "note", "process_name"]

LOCK = ".manifest.lock"


@dataclass(slots=True, kw_only=True)
class RunPart:
    """Knowledge of one recorder. topics: topic -> its subscriptions. consumers: (name, subscription).

    Times are ns of the host's monotonic clock; end_ns: None while it records. share: of the messages, 0
    to 1; None for one that records no messages. dropped: rows that have no place in its files.
    files_deleted: its oldest, with their rows. loop: ``open`` where the intended times were known before
    the run, ``closed`` where they are the times of the calls. ordered: as in `Manifest`.
    """

    run_id: str
    name: str
    anchor: Anchor
    start_ns: int
    end_ns: int | None = None
    grace_ns: int = 0
    topics: dict[str, set[str]] = field(default_factory=dict)
    brokers: set[str] = field(default_factory=set)
    publishers: set[str] = field(default_factory=set)
    consumers: set[tuple[str, str]] = field(default_factory=set)
    share: float | None = None
    dropped: int = 0
    files_deleted: int = 0
    loop: str = ""
    ordered: set[str] = field(default_factory=set)


def process_name(prefix: str = "") -> str:
    """Return a name for this process that no other process of the run has, on no other host either."""
    return f"{prefix}{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


def begin(folder: Path, part: RunPart) -> None:
    """Make the folder of a run where there is none, and `note` a part that begins. Raises RecordingFailed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise RecordingFailed(f"{folder}: cannot be made: {fault.strerror}") from fault
    note(folder, part)


def note(folder: Path, part: RunPart) -> None:
    """Add a part to the manifest of its folder. Raises RecordingFailed, also for another run's folder."""
    path = folder / MANIFEST
    try:
        with (folder / LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = json.loads(path.read_text()) if path.exists() else None
            replace_file(path, json.dumps(merged(known, part), indent=1))
    except OSError as fault:
        raise RecordingFailed(f"{path}: cannot be written: {fault.strerror}") from fault
    except (ValueError, KeyError, TypeError, AttributeError) as fault:
        raise RecordingFailed(f"{path}: no manifest of {part.run_id!r}: {fault}") from fault


def merged(known: dict[str, Any] | None, part: RunPart) -> dict[str, Any]:
    """Return the manifest with this part in it. Raises ValueError for a part of another run."""
    if known is None:
        known = {
            "run_id": part.run_id,
            "anchor": part.anchor.as_json(),
            "start_ns": part.start_ns,
            "incidents": [],
        }
    elif known["run_id"] != part.run_id:
        raise ValueError(f"it is of run {known['run_id']!r}")
    shift = _shift(part.anchor, known["anchor"])
    # Recorders that have begun and not ended; a killed one stays, and the run is never complete.
    recording = set(known.get("recording", ())) | {part.name}
    end_ns = known.get("end_ns")
    if part.end_ns is not None:
        recording.discard(part.name)
        end_ns = max(end_ns or 0, part.end_ns + shift)
    consumers = {(each["name"], each["subscription"]) for each in known.get("consumers", ())}
    return {
        **known,
        "topics": _topics(known.get("topics", {}), part.topics),
        "brokers": sorted({*known.get("brokers", ()), *part.brokers}),
        "start_ns": min(known["start_ns"], part.start_ns + shift),
        "end_ns": end_ns,
        "grace_ns": max(known.get("grace_ns", 0), part.grace_ns),
        "publishers": sorted({*known.get("publishers", ()), *part.publishers}),
        "consumers": [
            {"name": name, "subscription": subscription}
            for name, subscription in sorted(consumers | part.consumers)
        ],
        "recording": sorted(recording),
        "complete": not recording,
        "ordered": sorted({*known.get("ordered", ()), *part.ordered}),
        "loop": _loop(known.get("loop", ""), part.loop),
        "clocks": _clocks(known, part.anchor),
        "recorders": dict(sorted((known.get("recorders", {}) | _left_out(part)).items())),
    }


def _loop(known: str, loop: str) -> str:
    """Return ``closed`` where one of them is."""
    return min(filter(None, (known, loop)), default="")


def _clocks(known: dict[str, Any], anchor: Anchor) -> list[dict[str, Any]]:
    """Return the first anchor of each clock; it applies to the rows of all processes with that clock."""
    clocks = list(known.get("clocks", [known["anchor"]]))
    if not any(_is_one_clock(anchor, clock) for clock in clocks):
        clocks.append(anchor.as_json())
    return clocks


def _left_out(part: RunPart) -> dict[str, Any]:
    if part.share is None:
        return {}
    left = {"share": part.share, "dropped": part.dropped, "files_deleted": part.files_deleted}
    return {part.name: left}


def _topics(known: dict[str, list[str]], arrived: dict[str, set[str]]) -> dict[str, list[str]]:
    return {
        topic: sorted({*known.get(topic, ()), *arrived.get(topic, ())})
        for topic in sorted({*known, *arrived})
    }


def _shift(anchor: Anchor, base: dict[str, Any]) -> int:
    """Return the ns from the part's clock to the manifest's: hosts have a clock each."""
    if _is_one_clock(anchor, base):
        return 0
    return anchor.wall_minus_monotonic_ns - int(base["wall_minus_monotonic_ns"])


def _is_one_clock(anchor: Anchor, other: dict[str, Any]) -> bool:
    """Return whether both have the same boot; where one of them does not know its boot, the same host."""
    if anchor.boot and other.get("boot"):
        return bool(anchor.boot == other["boot"])
    return bool(anchor.host == other["host"])
