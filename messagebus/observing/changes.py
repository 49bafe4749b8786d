"""Events between two observations of the bus: pure, snapshot and snapshot to sentences.

An event is told once, by the first observation that shows it. A change that is undone between two
observations is not seen, but a loss and a restart are: they leave traces.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from messagebus.observing.snapshot import Answer, Bus, ObservedBroker
from messagebus.observing.totals import SOURCES

ChangeKind: TypeAlias = Literal[
    "broker", "agent", "list", "topology", "consumers", "loss", "balancer"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened. about: broker, subscription or queue; "" for the whole bus."""

    at_ms: int
    kind: ChangeKind
    about: str
    text: str


def changes(old: Bus, new: Bus) -> list[Event]:
    """Return what happened between two observations, in the order of the list of brokers."""
    return list(_changes(old, new))


def _changes(old: Bus, new: Bus) -> Iterator[Event]:
    at_ms = new.at_ms
    before, after = ({seen.broker: seen for seen in bus.brokers} for bus in (old, new))
    if old.generation != new.generation:
        came = [f"{name} added" for name in after if name not in before]
        left = [f"{name} removed" for name in before if name not in after]
        text = (
            f"consumer list generation {new.generation}: {', '.join(came + left) or 'same brokers'}"
        )
        yield Event(at_ms=at_ms, kind="list", about="", text=text)
    for name, seen in after.items():
        if name in before:
            yield from _of_broker(before[name], seen, at_ms)
    known = {each.url: {one.name: one.status for one in each.servers} for each in old.balancers}
    for balancer in new.balancers:
        for server in balancer.servers:
            was = known.get(balancer.url, {}).get(server.name)
            if was and was != server.status:
                text = f"is {server.status} at {balancer.url}; before: {was}"
                yield Event(at_ms=at_ms, kind="balancer", about=server.name, text=text)


def _of_broker(old: ObservedBroker, new: ObservedBroker, at_ms: int) -> Iterator[Event]:
    name = new.broker
    was_silent, is_silent = (bool(seen.fault) and not seen.is_away for seen in (old, new))
    if was_silent != is_silent:
        text = f"agent does not answer: {new.fault}" if is_silent else "agent answers again"
        yield Event(at_ms=at_ms, kind="agent", about=name, text=text)
    was_away, is_away = (_is_away_unsaid(seen) for seen in (old, new))
    if was_away != is_away and not is_silent:
        text = "does not answer its agent" if is_away else "answers its agent again"
        yield Event(at_ms=at_ms, kind="broker", about=name, text=text)
    # The last answers are compared also over a silence, so that what happened meanwhile is told.
    if not old.last or not new.last or old.last is new.last:
        return
    was, now = old.last.state, new.last.state
    if (was.verdict, was.alarm, was.draining) != (now.verdict, now.alarm, now.draining):
        reason = f": {now.reason}" if now.reason else ""
        words = {"ready": "is ready", "drain": "is draining", "down": "is down"}
        yield Event(at_ms=at_ms, kind="broker", about=name, text=words[now.verdict] + reason)
    if was.topology != now.topology:
        text = f"topology changed: {now.entries} names; before: {was.entries}"
        yield Event(at_ms=at_ms, kind="topology", about=name, text=text)
    known = set(was.losses)
    for loss in now.losses:
        if loss not in known:
            what = "was recreated" if loss.repaired else "was deleted"
            text = f"{loss.what} {loss.name} {what}"
            yield Event(at_ms=at_ms, kind="loss", about=name, text=text)
    yield from _of_consumers(old.last, new.last, at_ms)


def _is_away_unsaid(observed: ObservedBroker) -> bool:
    """Return whether a broker is away, and its last state does not say so yet."""
    return observed.is_refused_for_broker and (observed.last is None or observed.last.state.linked)


def _of_consumers(old: Answer, new: Answer, at_ms: int) -> Iterator[Event]:
    for key, row in new.rows.items():
        before = old.rows.get(key)
        if row.kind in SOURCES and before and bool(before.consumers) != bool(row.consumers):
            what = "got its first consumer" if row.consumers else "lost its last consumer"
            text = f"{what} on {new.broker}"
            yield Event(at_ms=at_ms, kind="consumers", about=row.name, text=text)
