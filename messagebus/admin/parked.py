"""Parked messages of subscriptions and queues, on all brokers: counted, read, put back, dropped.

A message is parked when its handler gave it up, or when its broker brought it back unanswered too often.
It lies in the parking queue of its subscription, on the broker where it was, until an operator puts it
back (*redrives* it) or drops it. A delayed message that found no queue when it was due lies there too, under
the name ``undelivered``. All this needs no more than the rights of an application.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from messagebus._io.admin.parking import SCAN_MAX, Inspection, Parking
from messagebus._io.agents import subscriptions
from messagebus._io.loop import run_blocking
from messagebus.admin import directory
from messagebus.clock import wall_ms, whole_ms
from messagebus.config import BusConfig, bus_of
from messagebus.core.parking import UNDELIVERED, Choice, Facts, Parked
from messagebus.destination import Queue, Source, Subscription, expires
from messagebus.errors import (
    ACCESS_REFUSED,
    ConfigError,
    LinkError,
    MessageBusError,
    NameInvalid,
    TopologyError,
)
from messagebus.handling import checked_most
from messagebus.message import BODY_BYTES_MAX
from messagebus.terminal import did_you_mean
from messagebus.topology import as_list, parse_wanted

__all__ = [
    "ParkedCount",
    "ParkedCounts",
    "ParkedFilter",
    "ParkedMessage",
    "ParkedMessages",
    "ParkedMoved",
    "ParkedProgress",
    "count_parked",
    "purge_parked",
    "read_parked",
    "redrive_parked",
]

# Brokers that are looked at side by side.
BROKERS_AT_ONCE = 16
READ_LIMIT = 20
REDRIVE_RATE_PER_S = 100.0
# Bytes of a body that are kept of each message that is read.
BODY_BYTES_KEPT = 4_096
# Different reasons that are counted one by one; later ones are counted together.
REASONS_MAX = 100
REASON_CHARS_MAX = 200
OTHER_REASONS = "other reasons"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedFilter:
    """Filter of parked messages. A message must match every field that is set; an empty filter matches all.

    older_than_s, newer_than_s: seconds since the message was parked. A message without that time matches
        neither.
    reason: a part of the reason or of the exception, in any case. key: the whole key.
    match: a regular expression, searched in id, key, reason, exception, headers and body.
    brokers: ``host:port`` of the brokers to look at; empty: all.
    message_id: the id; one that ends in ``*``, such as ``order-1*``: its beginning. The fastest filter.
    """

    older_than_s: float | None = None
    newer_than_s: float | None = None
    reason: str | None = None
    key: str | None = None
    match: str | None = None
    brokers: tuple[str, ...] = ()
    message_id: str | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for invalid fields."""
        for name in ("older_than_s", "newer_than_s"):
            seconds = getattr(self, name)
            is_number = isinstance(seconds, int | float)
            if seconds is not None and not (is_number and seconds >= 0):
                raise ConfigError(f"{name} {seconds!r}: seconds, 0 or more")
        if not isinstance(cast(object, self.match), str | None):
            raise ConfigError(f"match {self.match!r}: the text of a regular expression")
        if isinstance(cast(object, self.brokers), str):
            raise ConfigError(f"brokers {self.brokers!r}: several brokers wanted, as (name,)")
        self._pattern()

    def _pattern(self) -> re.Pattern[str] | None:
        try:
            return None if self.match is None else re.compile(self.match)
        except (re.error, RecursionError, OverflowError) as fault:
            raise ConfigError(f"match {self.match!r}: not a regular expression: {fault}") from fault

    def _choice(self, now_ms: int) -> Choice:
        """Return the same filter with points in time."""
        return Choice(
            since_ms=_before(now_ms, self.newer_than_s),
            until_ms=_before(now_ms, self.older_than_s),
            reason=self.reason,
            key=self.key,
            pattern=self._pattern(),
            message_id=self.message_id,
        )


EVERYTHING = ParkedFilter()


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedCount:
    """Count of one parking queue on one broker. name: of its subscription or queue. broker: ``host:port``.

    count: messages that match the filter. oldest_ms: time at which the first of them was parked, in ms since
    1970; None if unknown. reasons: reason with the type of the handler's exception, such as
    ``5 of 5 attempts failed (ValueError)`` -> number of messages, the most frequent first.
    unseen: messages that were not read: beyond the first 65,535, or held by another reader.
    """

    name: str
    broker: str
    count: int
    oldest_ms: int | None = None
    reasons: Mapping[str, int] = field(default_factory=dict)
    unseen: int = 0


@dataclass(frozen=True, slots=True)
class ParkedCounts:
    """Counts of parked messages. counts: by name and broker.

    faults: what could not be read (a broker, or NAME on BROKER) -> the reason. causes: the errors behind
    them, by the same places; an unknown name has none. looked: the brokers that were read.
    """

    counts: tuple[ParkedCount, ...]
    faults: Mapping[str, str] = field(default_factory=dict)
    causes: Mapping[str, MessageBusError] = field(default_factory=dict)
    looked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedMessage:
    """Parked message; "" and None are unknown values.

    name: of its subscription or queue. broker: ``host:port`` of the broker that stores it. message_id, key,
    content_type: as published. reason: why it was parked. exception: type and text of the handler's
    exception. attempts: runs of the handler, or deliveries without an answer. first_ms, parked_ms: times of
    the first publish and of the parking, in ms since 1970.
    redriven: number of earlier redrives. headers: those of the application. body: the first 4,096 bytes.
    body_bytes: size of the whole body.
    """

    name: str
    broker: str
    message_id: str
    key: str
    reason: str
    exception: str
    attempts: int | None
    first_ms: int | None
    parked_ms: int | None
    redriven: int
    headers: Mapping[str, Any]
    content_type: str
    body: bytes
    body_bytes: int


@dataclass(frozen=True, slots=True)
class ParkedMessages:
    """Parked messages that were read.

    messages: the oldest first on each broker. faults, causes, looked: as of `ParkedCounts`.
    """

    messages: tuple[ParkedMessage, ...]
    faults: Mapping[str, str] = field(default_factory=dict)
    causes: Mapping[str, MessageBusError] = field(default_factory=dict)
    looked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ParkedMoved:
    """Result of a redrive or purge. moved: (name, broker) -> number of messages redriven or dropped.

    faults, causes, looked: as of `ParkedCounts`.
    """

    moved: Mapping[tuple[str, str], int]
    faults: Mapping[str, str] = field(default_factory=dict)
    causes: Mapping[str, MessageBusError] = field(default_factory=dict)
    looked: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """The number of messages over all names and brokers."""
        return sum(self.moved.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedProgress:
    """Argument of `on_progress`: name, broker and number of the messages just moved, and the total so far."""

    name: str
    broker: str
    moved: int
    total: int


OnProgress = Callable[[ParkedProgress], None]


def count_parked(
    bus: BusConfig | None,
    names: Iterable[str | Source] | str | Source = (),
    *,
    where: ParkedFilter = EVERYTHING,
) -> ParkedCounts:
    """Count parked messages, with the oldest time and the reasons; they stay where they are.

    bus: None for the settings of the environment. names: one name or a list: ``TOPIC/SUBSCRIPTION``,
    ``queue:NAME`` or ``undelivered``; empty: all names of the topology. Raises ConfigError, NameInvalid,
    ListError without a list, and TopologyError for unknown names.
    """
    return run_blocking(_count(_Work(bus, names, where)))


def read_parked(
    bus: BusConfig | None,
    names: Iterable[str | Source] | str | Source = (),
    *,
    where: ParkedFilter = EVERYTHING,
    count_max: int = READ_LIMIT,
) -> ParkedMessages:
    """Read parked messages; they stay where they are, in order.

    count_max: the largest number, of all brokers together; 0: none. Raises the errors of `count_parked`.
    """
    checked_most(count_max)
    return run_blocking(_read(_Work(bus, names, where), count_max))


def redrive_parked(
    bus: BusConfig | None,
    names: Iterable[str | Source] | str | Source,
    *,
    where: ParkedFilter = EVERYTHING,
    count_max: int | None = None,
    rate_per_s: float = REDRIVE_RATE_PER_S,
    body: bytes | None = None,
    on_progress: OnProgress | None = None,
) -> ParkedMoved:
    """Put parked messages back at the end of their own queue, on the broker where they are.

    Id, headers, key and time of the first publish stay; attempts start at 1 again. An undelivered message
    goes to the queue where it was due; if that still does not exist, it stays and counts as a fault. Messages
    that are parked meanwhile stay. count_max: the largest number to redrive; None: all. rate_per_s: messages
    a second. body: put back instead of the parked one, whose content type stays: `where` must then have a
    whole id. on_progress: called with the number moved so far. An interruption loses nothing: at
    most one message is there twice, with one id, and none after KeyboardInterrupt. Raises the errors of
    `count_parked`.
    """
    if not rate_per_s > 0:
        raise ConfigError(f"rate_per_s {rate_per_s!r}: more than 0")
    if body is not None:
        check_body(body, where)
    most = _most(count_max)
    work = _Work(bus, names, where)
    pace = _Pace(rate_per_s)

    async def redrive(parking: Parking, source: Parked, ready: int, **rest: Any) -> int:
        return await parking.redrive(source, ready, work.choice, turn=pace.turn, body=body, **rest)

    return run_blocking(_move(work, redrive, most, on_progress))


def check_body(body: bytes, where: ParkedFilter) -> None:
    """Raise ConfigError unless a filter has the id of the one message that gets this body."""
    if not where.message_id or where.message_id.endswith("*"):
        raise ConfigError("a body is for one message: it wants a whole id")
    if len(body) > BODY_BYTES_MAX:
        raise ConfigError(f"body of {len(body):,} bytes: at most {BODY_BYTES_MAX:,}")


def purge_parked(
    bus: BusConfig | None,
    names: Iterable[str | Source] | str | Source,
    *,
    where: ParkedFilter = EVERYTHING,
    count_max: int | None = None,
    on_progress: OnProgress | None = None,
) -> ParkedMoved:
    """Delete parked messages permanently.

    count_max: the largest number to delete; None: all. Raises the errors of `count_parked`.
    """
    most = _most(count_max)
    work = _Work(bus, names, where)

    async def drop(parking: Parking, source: Parked, ready: int, **rest: Any) -> int:
        return await parking.drop(source, ready, work.choice, **rest)

    return run_blocking(_move(work, drop, most, on_progress))


def _most(count_max: int | None) -> int:
    return SCAN_MAX * SCAN_MAX if count_max is None else checked_most(count_max)


class _Work:
    """Request to several brokers, with its faults."""

    def __init__(
        self,
        bus: BusConfig | None,
        names: Iterable[str | Source] | str | Source,
        where: ParkedFilter,
    ) -> None:
        self.bus = bus = bus_of(bus)
        self._names: list[Parked] = [_source(each) for each in as_list(names)]
        if not self._names and not bus.list_urls:
            raise ConfigError(
                "list_urls (MESSAGEBUS_LIST_URL) is not set, and only agents know all subscriptions: name"
                " them, such as orders/billing"
            )
        self._listed = directory.brokers(bus)
        listed = sorted(self._listed.names)
        self.brokers = [name for name in listed if not where.brokers or name in where.brokers]
        if strange := sorted(set(where.brokers) - set(listed)):
            raise ConfigError(f"not in the consumer list: {', '.join(strange)}")
        self.choice = where._choice(wall_ms())
        self.faults: dict[str, str] = {}
        self.causes: dict[str, MessageBusError] = {}
        self.looked: set[str] = set()

    @property
    def ends(self) -> tuple[Mapping[str, str], Mapping[str, MessageBusError], tuple[str, ...]]:
        """The fields that every result has: faults, causes, looked."""
        return self.faults, self.causes, tuple(sorted(self.looked))

    def parking(self, broker: str) -> Parking:
        return Parking(self.bus, broker, self._listed)

    async def sources(self) -> list[Parked]:
        """Return the named sources that the agents know; without names all that can have parked messages."""
        if not self.bus.list_urls:
            return self._names
        known: dict[str, Parked] = {str(e): e for e in await subscriptions.known(self.bus)}
        known[str(UNDELIVERED)] = UNDELIVERED
        if self._names:
            for name in map(str, self._names):
                if name not in known:
                    hint = did_you_mean(name, known)
                    self.faults[name] = f"there is no such subscription or queue{hint}"
            return [known[str(each)] for each in self._names if str(each) in known]
        return [each for _, each in sorted(known.items()) if not expires(each)]

    async def ready(self, broker: str, sources: Sequence[Parked]) -> dict[Parked, int]:
        """Count messages in parking queues there; {} with a fault when the broker does not say."""
        try:
            found = await self.parking(broker).ready(sources)
        except (LinkError, ConfigError) as fault:
            self._failed(broker, fault)
            return {}
        if any(count is not None for count in found.values()):
            self.looked.add(broker)
        for source, count in found.items():
            if count is None and source in self._names:
                self.faults[f"{source} on {broker}"] = "there is no parking queue of it"
        return {source: count for source, count in found.items() if count}

    async def on_each_source(
        self,
        broker: str,
        sources: Sequence[Parked],
        do: Callable[[Parking, Parked, int], Awaitable[T]],
    ) -> list[T]:
        """Do this for each source of a broker that has parked messages; faults are noted."""
        done: list[T] = []
        for source, ready in (await self.ready(broker, sources)).items():
            try:
                done.append(await do(self.parking(broker), source, ready))
            except (LinkError, TopologyError) as fault:
                self._failed(f"{source} on {broker}", fault)
        return done

    def _failed(self, where: str, fault: MessageBusError) -> None:
        self.faults[where] = _reason(fault)
        self.causes[where] = fault

    async def everywhere(self, do: Callable[[str, Parking, Parked, int], Awaitable[T]]) -> list[T]:
        """Do this on all brokers side by side."""
        sources, at_once = await self.sources(), asyncio.Semaphore(BROKERS_AT_ONCE)

        async def there(broker: str) -> list[T]:
            async with at_once:
                return await self.on_each_source(broker, sources, lambda *args: do(broker, *args))

        return [one for some in await asyncio.gather(*map(there, self.brokers)) for one in some]


async def _count(work: _Work) -> ParkedCounts:
    async def count(broker: str, parking: Parking, source: Parked, ready: int) -> ParkedCount:
        tally = _Tally(work.choice)
        inspection = await parking.look(source, ready, SCAN_MAX, tally.see)
        return tally.counted(str(source), broker, inspection)

    counts = await work.everywhere(count)
    counts = [each for each in counts if each.count or each.unseen]
    return ParkedCounts(tuple(sorted(counts, key=lambda c: (c.name, c.broker))), *work.ends)


class _Tally:
    """Counter of parked messages by reason."""

    def __init__(self, choice: Choice) -> None:
        self._choice = choice
        self._reasons = Counter[str]()
        self._oldest_ms: int | None = None

    def see(self, taken: Any) -> bool:
        if not self._choice.may_take(taken.raw):
            return True
        facts: Facts = taken.facts
        if self._choice.takes(facts, taken.body):
            reason = facts.cause[:REASON_CHARS_MAX]
            is_known = reason in self._reasons or len(self._reasons) < REASONS_MAX
            self._reasons[reason if is_known else OTHER_REASONS] += 1
            if facts.parked_ms is not None:
                self._oldest_ms = min(facts.parked_ms, self._oldest_ms or facts.parked_ms)
        return True

    def counted(self, name: str, broker: str, inspection: Inspection) -> ParkedCount:
        return ParkedCount(
            name=name,
            broker=broker,
            count=self._reasons.total(),
            oldest_ms=self._oldest_ms,
            reasons=dict(self._reasons.most_common()),
            unseen=inspection.ready - inspection.shown,
        )


async def _read(work: _Work, count_max: int) -> ParkedMessages:
    at_most = count_max if work.choice.is_everything else SCAN_MAX

    async def read(
        broker: str, parking: Parking, source: Parked, ready: int
    ) -> list[ParkedMessage]:
        found: list[ParkedMessage] = []

        def see(taken: Any) -> bool:
            if work.choice.may_take(taken.raw) and work.choice.takes(taken.facts, taken.body):
                found.append(_message(str(source), broker, taken))
            return len(found) < count_max

        inspection = await parking.look(source, ready, at_most, see)
        wanted = min(ready, count_max) if work.choice.is_everything else ready
        if len(found) < count_max and inspection.shown < wanted:
            told = f"{inspection.shown:,} of {ready:,} parked messages were looked at"
            work.faults[f"{source} on {broker}"] = told
        return found

    some = await work.everywhere(read) if count_max > 0 else []
    return ParkedMessages(tuple([each for found in some for each in found][:count_max]), *work.ends)


def _message(name: str, broker: str, taken: Any) -> ParkedMessage:
    facts: Facts = taken.facts
    return ParkedMessage(
        name=name,
        broker=broker,
        message_id=facts.message_id,
        key=facts.key,
        reason=facts.reason,
        exception=facts.exception,
        attempts=facts.attempts,
        first_ms=facts.first_ms,
        parked_ms=facts.parked_ms,
        redriven=facts.redriven,
        headers=facts.headers,
        content_type=taken.content_type,
        body=taken.body[:BODY_BYTES_KEPT],
        body_bytes=len(taken.body),
    )


async def _move(
    work: _Work,
    move: Callable[..., Awaitable[int]],
    most: int,
    on_progress: OnProgress | None,
) -> ParkedMoved:
    """Move one queue after the other, so that at most one message is on its way."""
    done: Counter[tuple[str, str]] = Counter()
    sources = await work.sources()
    for broker in work.brokers:

        async def there(parking: Parking, source: Parked, ready: int, broker: str = broker) -> None:
            def moved(count: int) -> None:
                done[str(source), broker] += count
                if on_progress is not None:
                    told = ParkedProgress(
                        name=str(source), broker=broker, moved=count, total=done.total()
                    )
                    on_progress(told)

            if (left := most - done.total()) > 0:
                await move(parking, source, ready, count_max=left, on_moved=moved)

        await work.on_each_source(broker, sources, there)
    return ParkedMoved({place: count for place, count in done.items() if count}, *work.ends)


class _Pace:
    """Limit of messages per second; lost time is not made up for."""

    def __init__(self, rate_per_s: float) -> None:
        self._step_s = 1 / rate_per_s
        self._due_s = 0.0

    async def turn(self) -> None:
        now_s = time.monotonic()
        if self._due_s > now_s:
            await asyncio.sleep(self._due_s - now_s)
        self._due_s = max(now_s, self._due_s) + self._step_s


def _source(name: str | Source) -> Parked:
    if name == str(UNDELIVERED):
        return UNDELIVERED
    parsed = parse_wanted(name) if isinstance(name, str) else name
    if not isinstance(parsed, Subscription | Queue):
        raise NameInvalid(
            f"{name}: a subscription is TOPIC/NAME, a queue is queue:NAME; or {UNDELIVERED}"
        )
    return parsed


def _before(now_ms: int, seconds: float | None) -> int | None:
    return None if seconds is None else now_ms - whole_ms(seconds)


def _reason(fault: Exception) -> str:
    """Return the error's text without the broker, which is named beside it."""
    reason = getattr(fault, "reason", "") or str(fault)
    if getattr(fault, "code", 0) == ACCESS_REFUSED:
        return f"{reason} (redriving needs read on mb.park/... and write on the default exchange)"
    return str(reason)
