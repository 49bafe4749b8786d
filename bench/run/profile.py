"""What a run does, as a TOML file: the system, the load, the messages, how long. All of it is in its results.

    name = "steady"
    [system]
    name = "messagebus"
    brokers = 3
    [load]
    schedule = { kind = "constant", rate_per_s = 2000 }
    publishers = 2
    consumers = 2
    [messages]
    size = 1024
    [time]
    measured_s = 30

Everything has a default but the name and the schedule. Every fault of a file is told at once.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.errors import InputInvalid
from bench.faults import FAULTS
from bench.run.schedule import Bursts, Closed, Constant, Poisson, Ramp, Replay, Schedule, Steps
from bench.run.systems import SYSTEMS

__all__ = ["Disturbance", "Load", "Messages", "Profile", "System", "Time", "unlike"]

SCHEDULES: Mapping[str, type[Schedule]] = {
    "constant": Constant,
    "ramp": Ramp,
    "steps": Steps,
    "poisson": Poisson,
    "bursts": Bursts,
    "replay": Replay,
    "closed": Closed,
}
PROCESSES_MAX = 200
STAMP_LEAST = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """name: which client. brokers: of the cluster that is started, each a node of its own."""

    name: str = "messagebus"
    brokers: int = 3
    durability: str = "fsync"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """per_process: how many publishers, or consumers, share a process. window: publishes without a
    confirm, of each publisher.

    batch: messages in one AMQP message. prefetch: deliveries without an ack, of each consumer. ack: how
    they are answered, of `systems.ACKS`. seed: of everything that chance decides.
    """

    schedule: Schedule
    publishers: int = 1
    consumers: int = 1
    per_process: int = 1
    window: int = 1000
    batch: int = 1
    prefetch: int = 200
    ack: str = "each"
    lifetime_s: int = 0
    consume_from_s: float = 0.0
    seed: int = 1

    @property
    def is_closed(self) -> bool:
        return isinstance(self.schedule, Closed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """size: bytes. sizes: (part, bytes) instead, parts of 1 together. file: real payloads instead,
    a paragraph each. keys: how many; 0 for none. key_skew: Zipf's exponent, 0 for even."""

    size: int = 1024
    sizes: tuple[tuple[float, int], ...] = ()
    file: str = ""
    keys: int = 0
    key_skew: float = 0.0
    topics: int = 1
    subscriptions: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Time:
    """warm_up_s: of the load, before what is measured. drain_s: at most, until all has arrived.

    A closed loop is measured from its first message to its last; measured_s is the most it may take.
    """

    warm_up_s: float = 5.0
    measured_s: float = 30.0
    drain_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """what: is done to a broker, by its number from 1, of `bench.faults.FAULTS`. at_s: since the load
    began, the warm-up included; it is undone after lasts_s."""

    at_s: float = 10.0
    what: str = "kill"
    broker: int = 1
    lasts_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """events: whether every message is recorded as rows too, for ``python -m spark``."""

    name: str
    load: Load
    system: System = field(default_factory=System)
    messages: Messages = field(default_factory=Messages)
    time: Time = field(default_factory=Time)
    disturbances: tuple[Disturbance, ...] = ()
    events: bool = False

    @classmethod
    def load_file(cls, path: Path) -> Profile:
        """Raises InputInvalid with everything that is wrong with the file."""
        try:
            values = tomllib.loads(path.read_text())
        except OSError as fault:
            raise InputInvalid(f"{path}: cannot read: {fault.strerror}") from fault
        except ValueError as fault:
            raise InputInvalid(f"{path}: not TOML: {fault}") from fault
        return cls.from_values(values, str(path))

    @classmethod
    def from_values(cls, values: Mapping[str, Any], where: str) -> Profile:
        """Raises InputInvalid."""
        faults: list[str] = []
        parts = {name: _part(values, name, kind, faults) for name, kind in PARTS.items()}
        load = dict(parts["load"])
        load["schedule"] = _schedule(load.get("schedule"), faults)
        disturbances = _disturbances(values.get("disturbances", []), faults)
        _known(values, (*PARTS, "name", "events", "disturbances"), "", faults)
        if not isinstance(values.get("name"), str) or not values["name"]:
            faults.append("name: a text wanted")
        if not isinstance(values.get("events", False), bool):
            faults.append("events: true or false")
        if faults:
            raise InputInvalid(f"{where}: {'; '.join(faults)}")
        messages = parts["messages"]
        if "sizes" in messages:
            messages["sizes"] = tuple((float(part), int(size)) for part, size in messages["sizes"])
        made = cls(
            name=values["name"],
            system=System(**parts["system"]),
            load=Load(**load),
            messages=Messages(**messages),
            time=Time(**parts["time"]),
            disturbances=disturbances,
            events=values.get("events", False),
        )
        if faults := made.faults():
            raise InputInvalid(f"{where}: {'; '.join(faults)}")
        return made

    def faults(self) -> list[str]:
        """What makes no sense, in words."""
        load, messages, time = self.load, self.messages, self.time
        sizes = [size for _, size in messages.sizes] or [messages.size]
        checks = {
            f"load.publishers: 1 to {PROCESSES_MAX}": 1 <= load.publishers <= PROCESSES_MAX,
            f"load.consumers: 0 to {PROCESSES_MAX}": 0 <= load.consumers <= PROCESSES_MAX,
            "load.per_process, load.window, load.batch, load.prefetch: 1 or more": min(
                load.per_process, load.window, load.batch, load.prefetch
            )
            >= 1,
            f"messages.size: {STAMP_LEAST} bytes or more, for what the audit needs": min(sizes)
            >= STAMP_LEAST,
            "messages.sizes: parts of 1 together": not messages.sizes
            or abs(sum(part for part, _ in messages.sizes) - 1) < 1e-6,
            "messages.topics, messages.subscriptions: 1 or more": min(
                messages.topics, messages.subscriptions
            )
            >= 1,
            "load.consumers: none, or one at least of each topic's subscriptions": load.consumers
            == 0
            or load.consumers >= messages.topics * messages.subscriptions,
            "messages.keys, messages.key_skew: 0 or more": min(messages.keys, messages.key_skew)
            >= 0,
            "load.lifetime_s, load.consume_from_s: 0 or more": min(
                load.lifetime_s, load.consume_from_s
            )
            >= 0,
            f"disturbances: what is one of {', '.join(FAULTS)}": all(
                each.what in FAULTS for each in self.disturbances
            ),
            "disturbances: at_s and lasts_s 0 or more, broker one of the system's": all(
                min(each.at_s, each.lasts_s) >= 0 and 1 <= each.broker <= self.system.brokers
                for each in self.disturbances
            ),
            "time.warm_up_s: 0 for a closed loop": not load.is_closed or time.warm_up_s == 0,
            "time: measured_s above 0, the others 0 or more": time.measured_s > 0
            and min(time.warm_up_s, time.drain_s) >= 0,
        }
        return [fault for fault, holds in checks.items() if not holds] + self._not_had()

    def _not_had(self) -> list[str]:
        """What of it the system cannot."""
        system, load = self.system, self.load
        about = SYSTEMS.get(system.name)
        if about is None:
            return [f"system.name {system.name!r}: one of {', '.join(SYSTEMS)}"]
        checks = {
            f"system.durability: one of {', '.join(about.durabilities)}": system.durability
            in about.durabilities,
            f"system.brokers: 1 to {about.brokers_max}": 1 <= system.brokers <= about.brokers_max,
            "load.batch: it has none": load.batch == 1 or about.batches,
            "load.lifetime_s: it has none": load.lifetime_s == 0 or about.lifetimes,
            f"load.ack: one of {', '.join(about.acks)}": load.ack in about.acks,
            "events: it has none": not self.events or about.events,
            "a load of its own: a constant rate, one size, no keys": not about.own_load
            or self._is_plain,
        }
        return [f"{system.name}: {fault}" for fault, holds in checks.items() if not holds]

    @property
    def _is_plain(self) -> bool:
        messages = self.messages
        return isinstance(self.load.schedule, Constant) and not (
            messages.sizes or messages.file or messages.keys
        )

    def as_json(self) -> dict[str, Any]:
        kind = next(k for k, v in SCHEDULES.items() if isinstance(self.load.schedule, v))
        values = dataclasses.asdict(self)
        values["load"]["schedule"] = {"kind": kind, **values["load"]["schedule"]}
        found: dict[str, Any] = json.loads(json.dumps(values))
        return found


PARTS: Mapping[str, type[Any]] = {
    "system": System,
    "load": Load,
    "messages": Messages,
    "time": Time,
}


def unlike(a: Profile, b: Profile) -> list[str]:
    """Where two profiles differ in what they load, so that their results cannot be compared.

    The system may differ: that is what is compared.
    """
    ones, others = (_flat(each.as_json()) for each in (a, b))
    names = sorted(ones.keys() | others.keys())
    free = ("name", "system.")
    return [
        f"{name}: {ones.get(name)!r} and {others.get(name)!r}"
        for name in names
        if ones.get(name) != others.get(name) and not name.startswith(free)
    ]


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def _disturbances(values: object, faults: list[str]) -> tuple[Disturbance, ...]:
    """In the order of the file; an array of tables."""
    if not isinstance(values, list | tuple):
        faults.append("disturbances: an array of tables wanted")
        return ()
    name = "disturbances"
    parts = [_part({name: each}, name, Disturbance, faults) for each in values]
    return () if faults else tuple(Disturbance(**part) for part in parts)


def _part(
    values: Mapping[str, Any], name: str, kind: type[Any], faults: list[str]
) -> dict[str, Any]:
    """The values of one table of the file, of the types of its fields' defaults."""
    part = values.get(name, {})
    if not isinstance(part, dict):
        faults.append(f"{name}: a table wanted")
        return {}
    fields = {each.name: each for each in dataclasses.fields(kind)}
    _known(part, fields, f"{name}.", faults)
    good = {}
    for key, value in part.items():
        if key not in fields:
            continue
        default = fields[key].default
        if not _is_like(value, default):
            faults.append(f"{name}.{key}: {type(default).__name__} wanted, not {value!r}")
        good[key] = value
    return good


def _is_like(value: object, default: object) -> bool:
    if default is dataclasses.MISSING or isinstance(default, tuple):
        return True
    if isinstance(default, float):
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is type(default)


def _known(given: Mapping[str, Any], names: Any, prefix: str, faults: list[str]) -> None:
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, list(names), 1)
            hint = f"; meant is {prefix}{near[0]}?" if near else ""
            faults.append(f"{prefix}{name} is not known{hint}")


def _schedule(values: object, faults: list[str]) -> Any:
    if not isinstance(values, dict) or values.get("kind") not in SCHEDULES:
        faults.append(f"load.schedule: a table with kind = {' | '.join(SCHEDULES)}")
        return None
    kind = SCHEDULES[values["kind"]]
    given = {key: value for key, value in values.items() if key != "kind"}
    if "steps" in given:
        given["steps"] = tuple((float(rate), float(lasts)) for rate, lasts in given["steps"])
    if "offsets_ns" in given:
        given["offsets_ns"] = tuple(given["offsets_ns"])
    try:
        made = kind(**given)
    except TypeError as fault:
        faults.append(f"load.schedule: {str(fault).removeprefix(f'{kind.__name__}.__init__() ')}")
        return None
    numbers = [value for value in given.values() if isinstance(value, int | float)]
    if any(value <= 0 for value in numbers if value != given.get("from_per_s")):
        faults.append("load.schedule: numbers above 0")
    return made
