"""Parked messages of one subscription, read when somebody asks; each look of a reader is in the audit."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Any

from messagebus import BusConfig, MessageBusError
from messagebus.admin import ParkedCounts, ParkedMessages, count_parked, read_parked
from messagebus.clock import wall_ms
from messagebus.services.monitor import figures
from messagebus.services.monitor.eventlog import Event, EventLog
from messagebus.services.monitor.people import Principal, Role

KEPT_S = 30.0
KEPT_MAX = 50
MESSAGES_SHOWN, BODY_CHARS_MAX, GROUPS_MAX, TEXT_CHARS_MAX = 5, 2_000, 20, 500
AT_ONCE = 2
# A reader who looks at a name again and again is one event in this time.
LOOK_S, LOOKS_MAX = 60.0, 10_000


@dataclass(frozen=True, slots=True)
class Group:
    """Messages that were parked for one reason."""

    count: str
    reason: str
    where: str


@dataclass(frozen=True, slots=True)
class Shown:
    """One parked message, as text."""

    message_id: str
    parked: str
    key: str
    exception: str
    headers: tuple[str, ...]
    body: str


@dataclass(frozen=True, slots=True)
class Reasons:
    """The result of a search. fault: places that could not be looked at; "" when all could."""

    groups: tuple[Group, ...]
    messages: tuple[Shown, ...] = ()
    fault: str = ""
    at_s: float = 0.0


class ParkedReader:
    """Answers about parked messages, kept for 30 s. Bodies are for readers and those above."""

    def __init__(self, bus: BusConfig, events: EventLog) -> None:
        self._bus, self._events = bus, events
        self._kept: dict[tuple[str, bool], Reasons] = {}
        self._at_once = asyncio.Semaphore(AT_ONCE)
        # (person, name) -> time of the look that is in the audit, the longest ago first
        self._looked = OrderedDict[tuple[str, str], float]()

    def known(self, name: str, who: Principal) -> Reasons | None:
        """Return what was read last; None when nothing was, or no look of this reader is in the audit."""
        with_bodies = who.role >= Role.READER
        if with_bodies and (who.name, name) not in self._looked:
            return None
        return self._kept.get((name, with_bodies))

    async def read(self, name: str, who: Principal) -> None:
        """Look at parking queues now, unless somebody just did."""
        with_bodies = who.role >= Role.READER
        before = self._kept.get((name, with_bodies))
        if with_bodies:
            await self._note(name, who)
        if before is not None and time.monotonic() - before.at_s < KEPT_S:
            return
        async with self._at_once:
            found = await asyncio.to_thread(_read, self._bus, name, with_bodies)
        self._kept.pop((name, with_bodies), None)
        self._kept[name, with_bodies] = found
        while len(self._kept) > KEPT_MAX:
            del self._kept[next(iter(self._kept))]

    async def _note(self, name: str, who: Principal) -> None:
        """Put a look into the audit, unless the last one of this reader at this name is there."""
        key, now_s = (who.name, name), time.monotonic()
        if now_s - self._looked.get(key, -LOOK_S) < LOOK_S:
            return
        self._looked[key] = now_s
        self._looked.move_to_end(key)
        if len(self._looked) > LOOKS_MAX:
            self._looked.popitem(last=False)
        now_ms = wall_ms()
        event = Event(now_ms, "look", name, f"looked at parked messages of {name}", who.name)
        await asyncio.to_thread(self._events.add, [event])


def _read(bus: BusConfig, name: str, with_bodies: bool) -> Reasons:
    try:
        counts = count_parked(bus, [name])
        read = read_parked(bus, [name], count_max=MESSAGES_SHOWN) if with_bodies else None
    except MessageBusError as fault:
        return Reasons((), fault=str(fault)[:TEXT_CHARS_MAX], at_s=time.monotonic())
    return reasons(counts, read, at_s=time.monotonic())


def reasons(counts: ParkedCounts, read: ParkedMessages | None, *, at_s: float) -> Reasons:
    """Return groups by reason over all brokers, most first, and some messages. Pure."""
    totals, places = Counter[str](), dict[str, list[str]]()
    for each in counts.counts:
        for reason, number in each.reasons.items():
            totals[reason] += number
            places.setdefault(reason, []).append(each.broker)
    faults = "; ".join(f"{where}: {why}" for where, why in counts.faults.items())
    if unseen := sum(each.unseen for each in counts.counts):
        faults = "; ".join(filter(None, (f"{unseen:,} more were not looked at", faults)))
    groups = [
        Group(f"{number:,}", _shortened(reason), ", ".join(sorted(places[reason])))
        for reason, number in totals.most_common(GROUPS_MAX)
    ]
    if left := dict(totals.most_common()[GROUPS_MAX:]):
        groups.append(Group(f"{sum(left.values()):,}", f"and {len(left):,} reasons more", ""))
    return Reasons(
        tuple(groups),
        tuple(_shown(each) for each in (read.messages if read else ())),
        faults[:TEXT_CHARS_MAX],
        at_s,
    )


def _shown(message: Any) -> Shown:
    at = (
        "" if message.parked_ms is None else f"{figures.day(message.parked_ms)} on {message.broker}"
    )
    runs = "" if message.attempts is None else f", after {message.attempts} runs"
    body = message.body.decode("utf-8", "backslashreplace")
    headers = list(message.headers.items())[:GROUPS_MAX]
    return Shown(
        _shortened(message.message_id),
        f"{at}{runs}",
        _shortened(message.key),
        _shortened(message.exception),
        tuple(_shortened(f"{name}: {value}") for name, value in headers),
        _shortened(body, BODY_CHARS_MAX),
    )


def _shortened(text: str, chars_max: int = TEXT_CHARS_MAX) -> str:
    return text[:chars_max].replace("\0", "\N{SYMBOL FOR NULL}")
