"""The manifest of a run, its plan and its incidents: one JSON file beside the events.

It defines the expected deliveries: a subscription that received nothing leaves no row in the events.
Written atomically, with ``complete: false`` until the run has ended in order.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.errors import InputInvalid
from messagebus.recording.files import Anchor

__all__ = ["FILE_NAME", "INCIDENTS", "ConsumerEntry", "Incident", "Manifest", "write_atomically"]

FILE_NAME = "manifest.json"
INCIDENTS = (
    *("kill", "cut", "start", "add", "remove", "reload"),
    *("freeze", "close", "alarm", "agent", "drain"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """A disturbance of the bus. broker: ``host:port``, "" for the balancer.

    A kill and a cut (links to a living broker ended: frozen too long, or closed by it) may both
    leave acks under way that the broker never applied.

    at_ns, done_ns: monotonic times of the coordinator's host; done_ns None while it lasts.
    """

    kind: str
    broker: str
    at_ns: int
    done_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerEntry:
    name: str
    subscription: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of the manifest. topics: topic -> its subscriptions.

    grace_ns: a message confirmed later than this before the end may be undelivered and counts as pending,
    not lost. brokers: ``host:port`` of all that took part. loop, clocks, recorders: kept as
    `messagebus.recording.manifest` writes them.
    """

    run_id: str
    topics: Mapping[str, tuple[str, ...]]
    brokers: tuple[str, ...]
    start_ns: int
    anchor: Anchor
    end_ns: int | None = None
    grace_ns: int = 0
    publishers: tuple[str, ...] = ()
    consumers: tuple[ConsumerEntry, ...] = ()
    prefetch: int = 0
    incidents: tuple[Incident, ...] = ()
    complete: bool = False
    loop: str = ""
    clocks: tuple[Mapping[str, Any], ...] = ()
    recorders: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Replace the file of this run; a reader sees the whole old file or the whole new one."""
        as_json = {**dataclasses.asdict(self), "anchor": self.anchor.as_json()}
        write_atomically(folder / FILE_NAME, json.dumps(as_json, indent=1))

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """Read the manifest of a folder. Raises InputInvalid when it holds no run, or an invalid one."""
        path = folder / FILE_NAME
        try:
            return _from_json(json.loads(path.read_text()))
        except OSError as fault:
            raise InputInvalid(f"{folder}: not a run: {FILE_NAME}: {fault.strerror}") from fault
        except (ValueError, KeyError, TypeError, AttributeError) as fault:
            raise InputInvalid(f"{path}: not a manifest: {type(fault).__name__} {fault}") from fault


def _from_json(values: dict[str, Any]) -> Manifest:
    known = {field.name for field in dataclasses.fields(Manifest)}
    plain = {name: value for name, value in values.items() if name in known}
    plain["anchor"] = Anchor(**plain["anchor"])
    plain["topics"] = {topic: tuple(names) for topic, names in plain["topics"].items()}
    plain["clocks"] = tuple(plain.get("clocks", ()))
    plain["consumers"] = tuple(ConsumerEntry(**entry) for entry in plain.get("consumers", ()))
    plain["incidents"] = tuple(Incident(**entry) for entry in plain.get("incidents", ()))
    for name in ("brokers", "publishers"):
        plain[name] = tuple(plain.get(name, ()))
    return Manifest(**plain)


def write_atomically(path: Path, text: str) -> None:
    """Write a new file beside the old one, then rename it over the old one."""
    candidate = path.with_name(f".{path.name}.{os.getpid()}")
    candidate.write_text(text)
    candidate.replace(path)
