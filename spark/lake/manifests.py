"""The manifest of a run's folder: its ``manifest.json``, or those that hosts uploaded, joined.

Hosts without a shared disk upload one each, as ``manifest-NAME.json`` (`messagebus.tools.uploads`).
The joined one is by the wall clock, as the anchor it is given says; it is complete when all of them are.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from messagebus.recording.files import Anchor
from messagebus.recording.manifest import MANIFEST, Manifest, RunInvalid, parsed, read_manifest

UPLOADED = "manifest-*.json"
TIMES = ("at_ns", "done_ns")


def manifest_of(folder: Path) -> tuple[Manifest, dict[str, Any]]:
    """Return the manifest of a folder, and its values as JSON. Raises RunInvalid."""
    uploaded = [] if (folder / MANIFEST).exists() else sorted(folder.glob(UPLOADED))
    if not uploaded:
        found = read_manifest(folder)
        return found, json.loads((folder / MANIFEST).read_text())
    every = []
    for path in uploaded:
        try:
            every.append(json.loads(path.read_text()))
            parsed(every[-1], str(path))
        except (OSError, ValueError) as fault:
            raise RunInvalid(f"{path}: not readable JSON: {fault}") from fault
    if len(names := sorted({values["run_id"] for values in every})) > 1:
        raise RunInvalid(f"{folder}: manifests of several runs: {', '.join(names)}")
    values = joined(every)
    return parsed(values, str(folder)), values


def joined(every: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one manifest for those of several hosts of one run."""
    moved = [_on_wall_clock(values) for values in every]
    clocks = [clock for values in moved for clock in values.get("clocks") or [values["anchor"]]]
    recorders = [each for values in moved for each in values.get("recorders", {}).items()]
    ends = [values["end_ns"] for values in moved if values.get("end_ns")]
    loops = [values["loop"] for values in moved if values.get("loop")]
    return {
        "run_id": moved[0]["run_id"],
        "anchor": Anchor("wall", moved[0]["run_id"], 0, "wall").as_json(),
        "topics": _topics(moved),
        "start_ns": min(values["start_ns"] for values in moved),
        "end_ns": max(ends, default=None),
        "grace_ns": max(values.get("grace_ns", 0) for values in moved),
        "complete": all(values.get("complete", False) for values in moved),
        "loop": min(loops, default=""),  # "closed" where one of them is
        "clocks": [*{json.dumps(clock): clock for clock in clocks}.values()],
        "recorders": dict(sorted(recorders)),
        "incidents": _all_of(moved, "incidents"),
        "consumers": _all_of(moved, "consumers"),
        **{n: sorted({*_all_of(moved, n)}) for n in ("brokers", "publishers", "recording")},
    }


def _all_of(every: Sequence[dict[str, Any]], name: str) -> list[Any]:
    return [one for values in every for one in values.get(name, ())]


def _topics(every: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """Return topic -> subscriptions of all hosts."""
    topics: dict[str, set[str]] = {}
    for values in every:
        for topic, names in values["topics"].items():
            topics.setdefault(topic, set()).update(names)
    return {topic: sorted(names) for topic, names in sorted(topics.items())}


def _on_wall_clock(values: dict[str, Any]) -> dict[str, Any]:
    offset = values["anchor"]["wall_minus_monotonic_ns"]
    incidents = [
        {**one, **{name: one[name] + offset for name in TIMES if one.get(name)}}
        for one in values.get("incidents", ())
    ]
    return {
        **values,
        "start_ns": values["start_ns"] + offset,
        "end_ns": values["end_ns"] + offset if values.get("end_ns") else None,
        "incidents": incidents,
    }
