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
import functools
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config

from bench.environment import CHECKOUT
from bench.errors import InputInvalid
from bench.faults import FAULTS
from bench.load.fields import Flag, Number, Whole, fault_line, one_of, wanted, within
from bench.load.records import records
from bench.load.schedule import RATE_MAX_PER_S, Bursts, Closed, Constant, Schedule, Steered
from bench.load.systems import PREFETCH_MAX, SYSTEMS
from messagebus.message import BODY_BYTES_MAX

PROCESSES_MAX = 200
STAMP_LEAST = 18
# Publishes of one connection. Confirms carry 64 bits; this is our client's bound, beyond any practical use.
WINDOW_MAX = 65_535
BATCH_MAX = 10_000
# Each key has a weight in a list.
KEYS_MAX = 1_000_000
KEY_SKEW_MAX = 10
# A week.
SECONDS_MAX = 604_800
# The name of a run with recorded events: as `messagebus.telemetry` allows, with room for the appended time.
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


Processes = Annotated[Whole, within(1, PROCESSES_MAX)]
Window = Annotated[Whole, within(1, WINDOW_MAX)]
BodyBytes = Annotated[Whole, within(STAMP_LEAST, BODY_BYTES_MAX)]
Seconds = Annotated[Number, within(0, SECONDS_MAX)]
_WHOLE = wanted("whole seconds", lambda value: value % 1 == 0)
_PARTS = wanted(
    "parts above 0, of 1 together,",
    lambda sizes: (
        not sizes
        or (min(part for part, _ in sizes) > 0 and abs(sum(part for part, _ in sizes) - 1) <= 1e-6)
    ),
)
Place = Annotated[str, wanted("TOPIC/SUBSCRIPTION", lambda place: all(place.partition("/")))]


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """The measured system. name: of its client. brokers: number of nodes of the cluster that is started."""

    name: Annotated[str, one_of(SYSTEMS)] = "messagebus"
    brokers: Annotated[Whole, within(1)] = 3
    durability: str = "fsync"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load. per_process: the number of publishers, or consumers, in one process.

    window: publishes without a confirm, of each publisher. batch: messages in one AMQP message. prefetch:
    deliveries without an ack, of each consumer. ack: the way of answering, one of `systems.ACKS`. seed: of
    all random choices.
    """

    schedule: Annotated[Schedule, Field(discriminator="kind")]
    publishers: Processes = 1
    consumers: Annotated[Whole, within(0, PROCESSES_MAX)] = 1
    per_process: Processes = 1
    window: Window = 1000
    batch: Annotated[Whole, within(1, BATCH_MAX)] = 1
    prefetch: Annotated[Whole, within(1, PREFETCH_MAX)] = 200
    ack: str = "each"
    lifetime_s: Annotated[Whole, within(0, SECONDS_MAX)] = 0
    consume_from_s: Seconds = 0.0
    seed: Whole = 1

    @property
    def is_closed(self) -> bool:
        return isinstance(self.schedule, Closed)

    @property
    def is_counted(self) -> bool:
        """True where the load ends after a number of messages."""
        return isinstance(self.schedule, Closed | Steered)


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """The messages. size: bytes. sizes: (part, bytes) instead, whose parts add up to 1.

    file: real payloads instead, a paragraph each; its path is relative to the checkout. keys: number of keys,
    0 for none. key_skew: Zipf's exponent, 0 for even. places: TOPIC/SUBSCRIPTION of each consumer, by turns,
    instead of topics and subscriptions with numbers for names.
    """

    size: BodyBytes = 1024
    sizes: Annotated[tuple[tuple[Number, BodyBytes], ...], _PARTS] = ()
    file: str = ""
    keys: Annotated[Whole, within(0, KEYS_MAX)] = 0
    key_skew: Annotated[Number, within(0, KEY_SKEW_MAX)] = 0.0
    topics: Processes = 1
    subscriptions: Processes = 1
    places: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Time:
    """The times of a run.

    warm_up_s: load before the measured part. drain_s: upper bound of the wait for deliveries.

    The measured part has whole seconds. A closed loop is measured from its first message to its last;
    measured_s is its upper bound.
    """

    warm_up_s: Annotated[Seconds, _WHOLE] = 5.0
    measured_s: Annotated[Number, within(1, SECONDS_MAX), _WHOLE] = 30.0
    drain_s: Seconds = 60.0

    @property
    def load_s(self) -> float:
        """The length of the whole load."""
        return self.warm_up_s + self.measured_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """A disturbance of a broker. what: one of `bench.faults.FAULTS`. broker: its number from 1.

    at_s: since the load began, the warm-up included; it ends after lasts_s.
    """

    at_s: Seconds = 10.0
    what: Annotated[str, one_of(FAULTS)] = "kill"
    broker: Annotated[Whole, within(1)] = 1
    lasts_s: Seconds = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A whole profile. events: whether every message is recorded as rows too, for ``python -m spark``."""

    name: Annotated[str, wanted("a text", bool)]
    load: Load
    system: System = field(default_factory=System)
    messages: Messages = field(default_factory=Messages)
    time: Time = field(default_factory=Time)
    disturbances: tuple[Disturbance, ...] = ()
    events: Flag = False

    @classmethod
    def load_file(cls, path: Path) -> Profile:
        """Read a file. Raises InputInvalid with all faults of the file."""
        try:
            values = tomllib.loads(path.read_text())
        except OSError as fault:
            raise InputInvalid(f"{path}: cannot read: {fault.strerror}") from fault
        except ValueError as fault:
            raise InputInvalid(f"{path}: not TOML: {fault}") from fault
        profile = cls.from_values(values, str(path))
        try:
            if file := profile.messages.file:
                next(records(str(CHECKOUT / file)))
        except InputInvalid as fault:
            raise InputInvalid(f"{path}: messages.file: {fault}") from fault
        return profile

    @classmethod
    def from_values(cls, values: object, where: str) -> Profile:
        """Make a profile of a file's values. Raises InputInvalid."""
        try:
            profile = _adapter().validate_python(values)
        except ValidationError as invalid:
            faults = _fault_lines(invalid)
        else:
            if not (faults := profile.contradictions()):
                return profile
        raise InputInvalid(f"{where}: {'; '.join(faults)}")

    def faults(self) -> list[str]:
        """Describe the invalid settings, and where there are none those that contradict each other."""
        try:
            _adapter().validate_python(self.as_json())
        except ValidationError as invalid:
            return _fault_lines(invalid)
        return self.contradictions()

    def contradictions(self) -> list[str]:
        return self._not_had() + self._not_together()

    def _not_together(self) -> list[str]:
        """Name the settings that contradict each other."""
        load, messages, time = self.load, self.messages, self.time
        topics, subscriptions = len(_topics(self)), len(places(self))
        schedule = load.schedule
        checks = {
            "messages.sizes, messages.file: one of them": not (messages.sizes and messages.file),
            f"load.schedule.count, every_s: {RATE_MAX_PER_S:,} a second at most": not isinstance(
                schedule, Bursts
            )
            or schedule.count / schedule.every_s <= RATE_MAX_PER_S,
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
        what = {each.what for each in self.disturbances}
        checks = {
            f"system.brokers: 1 to {about.brokers_max}": self.system.brokers <= about.brokers_max,
            f"system.durability: one of {', '.join(about.durabilities)}": self.system.durability
            in about.durabilities,
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
        found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return found


PARTS: Mapping[str, type[Any]] = {
    "system": System,
    "load": Load,
    "messages": Messages,
    "time": Time,
}
KINDS = [each.__dataclass_fields__["kind"].default for each in get_args(Schedule)]
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


@functools.cache
def _adapter() -> TypeAdapter[Profile]:
    return TypeAdapter(with_config(ConfigDict(extra="forbid"))(Profile))


def _fault_lines(invalid: ValidationError) -> list[str]:
    found = []
    for fault in invalid.errors(include_url=False):
        place = list(fault["loc"])
        if fault["type"].startswith("union_tag"):
            found.append(f"load.schedule: a table with kind = {' | '.join(KINDS)} wanted")
            continue
        names = _names(place[:-1])
        if place[:2] == ["load", "schedule"]:
            # Its third part is the kind, which is no table of the file.
            del place[2:3]
        found.append(fault_line(fault, place, names))
    return found


def _names(tables: Sequence[str | int]) -> list[str]:
    """Return the names of a table; of a schedule, whose table is named by its kind, those of this kind."""
    kinds: Mapping[str, type[Any]] = {
        **PARTS,
        **dict(zip(KINDS, get_args(Schedule), strict=True)),
        "disturbances": Disturbance,
    }
    table = next((each for each in reversed(tables) if isinstance(each, str)), "")
    return [each.name for each in dataclasses.fields(kinds.get(table, Profile))]


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
