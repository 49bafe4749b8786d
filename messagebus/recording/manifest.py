"""The manifest of a recorded run: its plan and its incidents, one JSON file beside the events.

It defines the expected deliveries: a subscription that received nothing leaves no row in the events. Times in
the file are the monotonic clock of its anchor, the coordinator's. `messagebus.recording.parts` puts
the manifest of an application's run together.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from messagebus.files import replace_file
from messagebus.recording.files import Anchor

__all__ = [
    "FOLLOWS_NS",
    "INCIDENTS",
    "MANIFEST",
    "ConsumerEntry",
    "Incident",
    "LeftOut",
    "Manifest",
    "RunInvalid",
    "follows_until_ns",
    "in_order",
    "parse_anchor",
    "parsed",
    "read_manifest",
]

MANIFEST = "manifest.json"
# In a bench run's folder: the subfolder with the events of the run, if it recorded any, and the run's file.
BENCH_EVENTS, BENCH_RUN = "events", "run.json"
INCIDENTS = (
    *("kill", "cut", "start", "add", "remove", "reload"),
    *("freeze", "close", "alarm", "agent", "drain"),
)
# Incidents in which links end with acks under way that may be lost.
CUTS = ("kill", "cut", "freeze", "close")
# What waits belongs to incidents while they lasted, or from up to this time after their end: publishers
# notice a death by a deadline, and a list is fetched in its interval.
FOLLOWS_NS = 5_000_000_000
# A run's id names a folder of tables.
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

T = TypeVar("T")


class RunInvalid(Exception):
    """Raised when a folder is not a recorded run; says what is missing or wrong in one line."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The rows that one recorder left out. share: part of the messages that it recorded, 0 to 1."""

    share: float = 1.0
    dropped: int = 0
    files_deleted: int = 0


@dataclass(frozen=True, slots=True)
class Incident:
    """A deliberate change of the cluster, or a fault. broker: ``host:port``, "" where none is meant.

    done_ns: None while it lasts, and where it took no time.
    """

    kind: str
    broker: str
    at_ns: int
    done_ns: int | None = None

    @property
    def ended_ns(self) -> int:
        return self.done_ns or self.at_ns


def follows_until_ns(ended_ns: int, next_ns: int | None) -> int:
    """Return the latest begin of a wait that belongs to an incident. next_ns: begin of the next incident.

    A wait that ended before the incident began is before it. One that was under way then belongs to it. So
    does one that began while it lasted, or up to `FOLLOWS_NS` after its end and before the next one.
    """
    until_ns = ended_ns + FOLLOWS_NS
    return until_ns if next_ns is None else max(ended_ns, min(until_ns, next_ns))


def in_order(incidents: Iterable[Incident]) -> list[tuple[Incident, int]]:
    """Return incidents in the order of their begins, with the latest begin of a wait that belongs to each."""
    ordered = sorted(incidents, key=lambda one: one.at_ns)
    begins = [*(one.at_ns for one in ordered[1:]), None]
    return [
        (one, follows_until_ns(one.ended_ns, next_ns))
        for one, next_ns in zip(ordered, begins, strict=False)
    ]


@dataclass(frozen=True, slots=True)
class ConsumerEntry:
    name: str
    subscription: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The manifest of a run. topics: topic -> its subscriptions; brokers: all that ever took part.

    end_ns: None when the run was cut short. grace_ns: a message that was confirmed within this time before
    the end may be undelivered without being lost; 0: no message may. loop: "open" where intended times were
    known beforehand, "closed" where they are those of the calls, "" where that is not known. clocks: the
    first anchor of each clock. recorders: name -> the rows that it left out. ordered: the subscriptions of
    partitioned topics whose keys have an order, such as ``orders/billing``. warm_up_s: load at the start that
    the run's own report leaves out; its rows are in the events.
    """

    run_id: str
    topics: Mapping[str, tuple[str, ...]]
    brokers: tuple[str, ...]
    anchor: Anchor
    start_ns: int
    end_ns: int | None = None
    grace_ns: int = 0
    publishers: tuple[str, ...] = ()
    consumers: tuple[ConsumerEntry, ...] = ()
    prefetch: int | None = None
    incidents: tuple[Incident, ...] = ()
    complete: bool = False
    loop: str = ""
    clocks: tuple[Anchor, ...] = ()
    recorders: Mapping[str, LeftOut] = field(default_factory=dict)
    ordered: tuple[str, ...] = ()
    warm_up_s: float = 0.0

    @property
    def is_corrected(self) -> bool:
        """True where a stall shows in every message that it held up."""
        return self.loop == "open"

    @property
    def share(self) -> float:
        """The part of all messages of which every recorder has rows."""
        return min((one.share for one in self.recorders.values()), default=1.0)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The pairs (topic, subscription), sorted."""
        return sorted((topic, name) for topic, names in self.topics.items() for name in names)

    @property
    def last_owed_ns(self) -> int | None:
        """The time until which a confirmed message must have been delivered; None: at any time."""
        if self.end_ns is None or not self.grace_ns:
            return None
        return self.end_ns - self.grace_ns

    @property
    def is_grace_too_long(self) -> bool:
        """True where so much of the run lies within the grace that the rest says little."""
        return self.end_ns is not None and 2 * self.grace_ns > self.end_ns - self.start_ns

    @property
    def kills(self) -> list[tuple[str, int]]:
        """(broker, time) of every kill, and of other incidents that cut links."""
        return [(i.broker, i.at_ns) for i in self.incidents if i.kind in CUTS]

    def on_wall_clock(self) -> Manifest:
        """Return it with wall-clock times."""
        offset = self.anchor.wall_minus_monotonic_ns
        return dataclasses.replace(
            self,
            start_ns=self.start_ns + offset,
            end_ns=None if self.end_ns is None else self.end_ns + offset,
            incidents=tuple(
                dataclasses.replace(
                    one,
                    at_ns=one.at_ns + offset,
                    done_ns=None if one.done_ns is None else one.done_ns + offset,
                )
                for one in self.incidents
            ),
        )

    def save(self, folder: Path) -> None:
        """Replace the file of this run; a reader sees the whole old file or the whole new one."""
        clocks = [clock.as_json() for clock in self.clocks]
        values = dataclasses.asdict(self) | {"anchor": self.anchor.as_json(), "clocks": clocks}
        replace_file(folder / MANIFEST, json.dumps(values, indent=1))


def read_manifest(folder: Path) -> Manifest:
    """Read a run's manifest. Raises RunInvalid."""
    if not folder.is_dir():
        raise RunInvalid(f"{folder}: no such folder")
    path = folder / MANIFEST
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError as fault:
        raise RunInvalid(
            f"{folder}: no {MANIFEST} in it: not the folder of a run{_hint(folder)}"
        ) from fault
    except (OSError, ValueError) as fault:
        raise RunInvalid(f"{path}: not readable JSON: {fault}") from fault
    return parsed(values, str(path))


def _hint(folder: Path) -> str:
    """Return where a folder of `bench` has its events, or why it has none, as the end of a complaint."""
    within = folder / BENCH_EVENTS
    if (within / MANIFEST).exists():
        return f"; its events are in {within}"
    if (folder / BENCH_RUN).exists():
        return "; bench recorded no events in it: its profile needs `events = true`"
    return ""


def parsed(values: Any, where: str) -> Manifest:
    """Make a manifest of its values in JSON. Raises RunInvalid, with the place."""
    try:
        return _manifest(values)
    except (KeyError, TypeError, ValueError) as fault:
        reason = f"{fault.args[0]!r} is missing" if isinstance(fault, KeyError) else str(fault)
        raise RunInvalid(f"{where}: {reason}") from fault


def parse_anchor(values: Any) -> Anchor:
    """Read an anchor. Raises KeyError, TypeError or ValueError for anything else."""
    whole = _whole("anchor", _expect("anchor", values, dict), "wall_minus_monotonic_ns")
    boot = str(values.get("boot") or "")
    return Anchor(str(values["host"]), str(values["process"]), whole, boot)


def _manifest(values: Any) -> Manifest:
    _expect("manifest", values, dict)
    run_id = _expect("run_id", values["run_id"], str)
    if not RUN_ID.fullmatch(run_id):
        raise ValueError(f"run_id {run_id!r}: letters, digits, dot, underscore and hyphen only")
    end = values.get("end_ns")
    return Manifest(
        run_id=run_id,
        topics={
            topic: tuple(_texts(f"topics.{topic}", names))
            for topic, names in _expect("topics", values["topics"], dict).items()
        },
        brokers=tuple(_texts("brokers", values["brokers"])),
        anchor=parse_anchor(values["anchor"]),
        start_ns=_whole("manifest", values, "start_ns"),
        end_ns=_whole("manifest", values, "end_ns") if end else None,
        grace_ns=_whole("manifest", values, "grace_ns") if "grace_ns" in values else 0,
        publishers=tuple(_texts("publishers", values.get("publishers", []))),
        consumers=tuple(_list_of("consumers", values.get("consumers", []), _consumer)),
        prefetch=values.get("prefetch"),
        incidents=tuple(_list_of("incidents", values.get("incidents", []), _incident)),
        complete=bool(values.get("complete", False)),
        loop=_expect("loop", values.get("loop", ""), str),
        clocks=tuple(_list_of("clocks", values.get("clocks", []), parse_anchor)),
        ordered=tuple(_texts("ordered", values.get("ordered", []))),
        warm_up_s=_seconds("warm_up_s", values.get("warm_up_s", 0.0)),
        recorders={
            name: _left_out(_expect(f"recorders.{name}", one, dict))
            for name, one in _expect("recorders", values.get("recorders", {}), dict).items()
        },
    )


def _left_out(values: dict[str, Any]) -> LeftOut:
    share = values.get("share", 1.0)
    if type(share) not in (int, float) or not 0 < share <= 1:
        raise ValueError(f"recorders: share {share!r}: above 0 to 1")
    counts = {"dropped": 0, "files_deleted": 0} | values
    return LeftOut(
        float(share),
        _whole("recorders", counts, "dropped"),
        _whole("recorders", counts, "files_deleted"),
    )


def _consumer(values: dict[str, Any]) -> ConsumerEntry:
    return ConsumerEntry(str(values["name"]), str(values["subscription"]))


def _incident(values: dict[str, Any]) -> Incident:
    if values["kind"] not in INCIDENTS:
        raise ValueError(f"incident {values['kind']!r}: one of {', '.join(INCIDENTS)}")
    at = _whole("incident", values, "at_ns")
    done = _whole("incident", values, "done_ns") if values.get("done_ns") else None
    return Incident(values["kind"], str(values.get("broker") or ""), at, done)


def _list_of(name: str, values: Any, make: Callable[[dict[str, Any]], T]) -> list[T]:
    return [make(_expect(name, one, dict)) for one in _expect(name, values, list)]


def _texts(name: str, values: Any) -> list[str]:
    return [_expect(name, text, str) for text in _expect(name, values, list)]


def _whole(where: str, values: dict[str, Any], key: str) -> int:
    value = values[key]
    if type(value) is not int:
        raise ValueError(f"{where}: {key} {value!r}: a whole number of ns wanted")
    return value


def _seconds(name: str, value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise ValueError(f"{name} {value!r}: a number of seconds wanted")
    return float(value)


def _expect(name: str, value: Any, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise ValueError(f"{name}: {kind.__name__} wanted, not {type(value).__name__}")
    return value
