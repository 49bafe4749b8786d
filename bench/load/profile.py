"""The profile of a run, a TOML file: system, load, messages and duration. The results contain all of it.

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

Everything has a default but the name and the schedule. All faults of a file are reported at once: first the
invalid settings, and when there are none, the settings that contradict each other.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.environment import CHECKOUT
from bench.errors import InputInvalid
from bench.faults import FAULTS
from bench.load.fields import ANY, beyond, known, made
from bench.load.records import records
from bench.load.schedule import (
    Bursts,
    Closed,
    Constant,
    Poisson,
    Ramp,
    Replay,
    Schedule,
    Steered,
    Steps,
)
from bench.load.systems import PREFETCH_MAX, SYSTEMS
from messagebus.message import BODY_BYTES_MAX

__all__ = [
    "COMPARED",
    "KEY_HEADER",
    "SECONDS_MAX",
    "Disturbance",
    "Load",
    "Messages",
    "Profile",
    "System",
    "Time",
    "place_of",
    "places",
    "topic_of",
    "unlike",
]

SCHEDULES: Mapping[str, type[Schedule]] = {
    "constant": Constant,
    "ramp": Ramp,
    "steps": Steps,
    "poisson": Poisson,
    "bursts": Bursts,
    "replay": Replay,
    "closed": Closed,
    "steered": Steered,
}
PROCESSES_MAX = 200
STAMP_LEAST = 18
# Publishes of one connection. Confirms carry 64 bits; this is our client's bound, beyond any practical use.
WINDOW_MAX = 65_535
BATCH_MAX = 10_000
# Each key has a weight in a list.
KEYS_MAX = 1_000_000
KEY_SKEW_MAX = 10
# A week. `bench soak` serves for runs of more than a day.
SECONDS_MAX = 604_800
# The name of a run with recorded events: as `messagebus.telemetry` allows, with room for the appended time.
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """The measured system. name: of its client. brokers: number of nodes of the cluster that is started."""

    name: str = "messagebus"
    brokers: int = 3
    durability: str = "fsync"

    def faults(self) -> list[str]:
        about = SYSTEMS.get(self.name)
        if about is None:
            return [f"system.name: one of {', '.join(SYSTEMS)} wanted, not {self.name!r}"]
        found = beyond(self, "system.", {"brokers": (1, about.brokers_max)})
        if self.durability not in about.durabilities:
            levels = ", ".join(about.durabilities)
            found.append(f"system.durability: {self.name} has {levels}, not {self.durability!r}")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load. per_process: the number of publishers, or consumers, in one process.

    window: publishes without a confirm, of each publisher. batch: messages in one AMQP message. prefetch:
    deliveries without an ack, of each consumer. ack: the way of answering, one of `systems.ACKS`. seed: of
    all random choices.
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

    @property
    def is_counted(self) -> bool:
        """True where the load ends after a number of messages."""
        return isinstance(self.schedule, Closed | Steered)

    def faults(self) -> list[str]:
        bounds = {
            "publishers": (1, PROCESSES_MAX),
            "consumers": (0, PROCESSES_MAX),
            "per_process": (1, PROCESSES_MAX),
            "window": (1, WINDOW_MAX),
            "batch": (1, BATCH_MAX),
            "prefetch": (1, PREFETCH_MAX),
            "lifetime_s": (0, SECONDS_MAX),
            "consume_from_s": (0, SECONDS_MAX),
        }
        return beyond(self, "load.", bounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """The messages. size: bytes. sizes: (part, bytes) instead, whose parts add up to 1.

    file: real payloads instead, a paragraph each; its path is relative to the checkout. keys: number of keys,
    0 for none. key_skew: Zipf's exponent, 0 for even. places: TOPIC/SUBSCRIPTION of each consumer, by turns,
    instead of topics and subscriptions with numbers for names.
    """

    size: int = 1024
    sizes: tuple[tuple[float, int], ...] = ()
    file: str = ""
    keys: int = 0
    key_skew: float = 0.0
    topics: int = 1
    subscriptions: int = 1
    places: tuple[str, ...] = ()

    def faults(self) -> list[str]:
        bounds = {
            "size": (STAMP_LEAST, BODY_BYTES_MAX),
            "keys": (0, KEYS_MAX),
            "key_skew": (0, KEY_SKEW_MAX),
            "topics": (1, PROCESSES_MAX),
            "subscriptions": (1, PROCESSES_MAX),
        }
        found = beyond(self, "messages.", bounds)
        if self.sizes and self.file:
            found.append("messages.sizes, messages.file: one of them")
        if any(not STAMP_LEAST <= size <= BODY_BYTES_MAX for _, size in self.sizes):
            found.append(f"messages.sizes: {STAMP_LEAST} to {BODY_BYTES_MAX:,} bytes each wanted")
        parts = [part for part, _ in self.sizes]
        if parts and (min(parts) <= 0 or abs(sum(parts) - 1) > 1e-6):
            found.append("messages.sizes: parts above 0, of 1 together, wanted")
        if any(not all(each.partition("/")) for each in self.places):
            found.append("messages.places: TOPIC/SUBSCRIPTION each wanted")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Time:
    """The times of a run.

    warm_up_s: load before the measured part. drain_s: upper bound of the wait for deliveries.

    The measured part has whole seconds. A closed loop is measured from its first message to its last;
    measured_s is its upper bound.
    """

    warm_up_s: float = 5.0
    measured_s: float = 30.0
    drain_s: float = 60.0

    @property
    def load_s(self) -> float:
        """The length of the whole load."""
        return self.warm_up_s + self.measured_s

    def faults(self) -> list[str]:
        bounds = {
            "warm_up_s": (0, SECONDS_MAX),
            "measured_s": (1, SECONDS_MAX),
            "drain_s": (0, SECONDS_MAX),
        }
        return beyond(self, "time.", bounds) + [
            f"time.{name}: whole seconds wanted, not {value!r}"
            for name in ("warm_up_s", "measured_s")
            if (value := getattr(self, name)) % 1
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """A disturbance of a broker. what: one of `bench.faults.FAULTS`. broker: its number from 1.

    at_s: since the load began, the warm-up included; it ends after lasts_s.
    """

    at_s: float = 10.0
    what: str = "kill"
    broker: int = 1
    lasts_s: float = 5.0

    def faults(self) -> list[str]:
        bounds = {"at_s": (0, SECONDS_MAX), "lasts_s": (0, SECONDS_MAX), "broker": (1, ANY)}
        found = beyond(self, "disturbances.", bounds)
        if self.what not in FAULTS:
            found.append(f"disturbances.what: one of {', '.join(FAULTS)} wanted, not {self.what!r}")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A whole profile. events: whether every message is recorded as rows too, for ``python -m spark``."""

    name: str
    load: Load
    system: System = field(default_factory=System)
    messages: Messages = field(default_factory=Messages)
    time: Time = field(default_factory=Time)
    disturbances: tuple[Disturbance, ...] = ()
    events: bool = False

    @classmethod
    def load_file(cls, path: Path) -> Profile:
        """Read a file. Raises InputInvalid with all faults of the file."""
        try:
            values = tomllib.loads(path.read_text())
        except OSError as fault:
            raise InputInvalid(f"{path}: cannot read: {fault.strerror}") from fault
        except ValueError as fault:
            raise InputInvalid(f"{path}: not TOML: {fault}") from fault
        return cls.from_values(values, str(path), look=_unreadable)

    @classmethod
    def from_values(
        cls, values: object, where: str, *, look: Callable[[str], list[str]] = lambda _file: []
    ) -> Profile:
        """Make a profile of a file's values.

        look: returns the faults of `messages.file`. Raises InputInvalid.
        """
        if not isinstance(values, Mapping):
            raise InputInvalid(f"{where}: a table wanted")
        faults: list[str] = []
        known(values, (*PARTS, "name", "events", "disturbances"), "", faults)
        if not isinstance(values.get("name"), str) or not values["name"]:
            faults.append("name: a text wanted")
        if not isinstance(values.get("events", False), bool):
            faults.append("events: true or false")
        tables, schedule = {name: values.get(name, {}) for name in PARTS}, None
        if isinstance(tables["load"], Mapping):
            schedule = _schedule(tables["load"].get("schedule"), faults)
            tables["load"] = {**tables["load"], "schedule": schedule}
        parts: dict[str, Any] = {
            name: made(kind, tables[name], f"{name}.", faults) for name, kind in PARTS.items()
        }
        disturbances = _disturbances(values.get("disturbances", []), faults)
        of_file = look(parts["messages"].file) if parts["messages"] else []
        if faults:
            # Valid parts are checked by themselves, so that all faults are reported at once.
            there = [each for each in (*parts.values(), schedule, *disturbances) if each]
            faults += [fault for each in there for fault in each.faults()]
            raise InputInvalid(f"{where}: {'; '.join(faults + of_file)}")
        profile = cls(
            name=values["name"],
            disturbances=disturbances,
            events=values.get("events", False),
            **parts,
        )
        if faults := profile.faults() + of_file:
            raise InputInvalid(f"{where}: {'; '.join(faults)}")
        return profile

    def faults(self) -> list[str]:
        """Describe the invalid settings."""
        load = (self.load.schedule, self.load)
        parts = (self.system, *load, self.messages, self.time, *self.disturbances)
        found = [fault for part in parts for fault in part.faults()]
        if self.system.name in SYSTEMS:
            found += self._not_had()
        return list(dict.fromkeys(found + self._not_together()))

    def _not_together(self) -> list[str]:
        """Name the settings that contradict each other."""
        load, messages, time = self.load, self.messages, self.time
        # Invalid numbers of topics and subscriptions may be large: their names are not made here.
        topics, subscriptions = messages.topics, messages.topics * messages.subscriptions
        if messages.places:
            topics, subscriptions = len(_topics(self)), len(places(self))
        checks = {
            "time.warm_up_s: 0 for a closed loop": not load.is_closed or time.warm_up_s == 0,
            f"load.publishers: one at least for each of {topics} topics": load.publishers >= topics,
            f"load.consumers: none, or one at least for each of {subscriptions} subscriptions of all "
            "topics": load.consumers == 0 or load.consumers >= subscriptions,
            f"disturbances.broker: 1 to {self.system.brokers}": all(
                each.broker <= self.system.brokers for each in self.disturbances
            ),
            f"disturbances.at_s, disturbances.lasts_s: over after {time.load_s:g} s, as the load is": all(
                each.at_s + each.lasts_s <= time.load_s for each in self.disturbances
            ),
            "name: letters, digits, '.', '_' and '-', 80 at most, of a run with events": not self.events
            or RUN_NAME.fullmatch(self.name),
        }
        return [fault for fault, holds in checks.items() if not holds]

    def _not_had(self) -> list[str]:
        """Name the settings that the system cannot have."""
        load, about = self.load, SYSTEMS[self.system.name]
        what = {each.what for each in self.disturbances} & FAULTS.keys()
        checks = {
            "load.batch: it has none": load.batch == 1 or about.batches,
            "load.lifetime_s: it has none": load.lifetime_s == 0 or about.lifetimes,
            f"load.ack: one of {', '.join(about.acks)}": load.ack in about.acks,
            f"load.prefetch: {about.prefetch_max:,} at most, times load.batch": load.prefetch
            <= about.prefetch_max * load.batch,
            "events: it has none": not self.events or about.events,
            f"disturbances.what: {', '.join(about.faults) or 'it has none'}": what
            <= set(about.faults),
            "a load of its own: a constant rate, one size, no keys, one topic and subscription, "
            "consume_from_s = 0": not about.own_load or self._is_plain,
        }
        return [f"{self.system.name}: {fault}" for fault, holds in checks.items() if not holds]

    @property
    def _is_plain(self) -> bool:
        load, messages = self.load, self.messages
        return (
            isinstance(load.schedule, Constant)
            and not (messages.sizes or messages.file or messages.keys or load.consume_from_s)
            and not messages.places
            and messages.topics == messages.subscriptions == 1
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
COMPARED = ("name", "system.name", "system.brokers")


def unlike(a: Profile, b: Profile, free: tuple[str, ...] = COMPARED) -> list[str]:
    """Describe the differences between two profiles that make their results incomparable.

    free: settings that may differ, because they are compared. The promise of a confirm is not one of them: a
    confirm that waits for the disk is not comparable with one that does not.
    """
    ones, others = (_flat(each.as_json()) for each in (a, b))
    names = sorted(ones.keys() | others.keys())
    return [
        f"{name}: {ones.get(name)!r} and {others.get(name)!r}"
        for name in names
        if ones.get(name) != others.get(name) and name not in free
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
    """Read an array of tables, in the order of the file."""
    if not isinstance(values, list | tuple):
        faults.append("disturbances: an array of tables wanted")
        return ()
    found = [made(Disturbance, each, "disturbances.", faults) for each in values]
    return tuple(each for each in found if each is not None)


def _schedule(values: object, faults: list[str]) -> Schedule | None:
    kind = values.get("kind") if isinstance(values, Mapping) else None
    if not isinstance(values, Mapping) or not isinstance(kind, str) or kind not in SCHEDULES:
        faults.append(f"load.schedule: a table with kind = {' | '.join(SCHEDULES)}")
        return None
    given = {key: value for key, value in values.items() if key != "kind"}
    return made(SCHEDULES[kind], given, "load.schedule.", faults)


def _unreadable(file: str) -> list[str]:
    """Describe the fault of a file of payloads."""
    try:
        if file:
            next(records(str(CHECKOUT / file)))
    except InputInvalid as fault:
        return [f"messages.file: {fault}"]
    return []


# The header of a message's key, see docs/WIRE.md. Other clients of RabbitMQ put it there too.
KEY_HEADER = "mb-key"


def topic_of(profile: Profile, publisher: int) -> str:
    """Return the topic of a publisher, by its number."""
    topics = _topics(profile)
    return topics[publisher % len(topics)]


def place_of(profile: Profile, consumer: int) -> tuple[str, str]:
    """Return (topic, subscription) of a consumer, by its number."""
    every = _by_turns(profile.messages)
    return every[consumer % len(every)]


def places(profile: Profile) -> list[tuple[str, str]]:
    """Return (topic, subscription), all of a run."""
    return list(dict.fromkeys(_by_turns(profile.messages)))


def _topics(profile: Profile) -> list[str]:
    return list(dict.fromkeys(topic for topic, _ in places(profile)))


def _by_turns(messages: Messages) -> list[tuple[str, str]]:
    if messages.places:
        named = (each.partition("/") for each in messages.places)
        return [(topic, subscription) for topic, _, subscription in named]
    return [
        (f"load{topic}", f"sink{subscription}")
        for topic in range(messages.topics)
        for subscription in range(messages.subscriptions)
    ]
