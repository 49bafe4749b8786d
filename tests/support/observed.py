"""Literal observations: answers of agents and whole buses, with as few words as a test needs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from messagebus.observing.snapshot import (
    Answer,
    Balancer,
    Bus,
    Client,
    Kind,
    ObservedBroker,
    Room,
    Row,
    State,
)

NOW_MS = 1_795_354_800_000


def row(name: str, kind: str = "sub", *, ready: int = 0, consumers: int = 0, **more: Any) -> Row:
    """Return a row that was counted just now. more: as `Row`; oldest_ms: an age."""
    oldest_ms = more.pop("oldest_ms", None)
    values: dict[str, Any] = {
        **{"unacked": 0, "arrived": ready, "departed": 0, "counted_at_ms": NOW_MS},
        **{
            "swept_at_ms": NOW_MS,
            "oldest_at_ms": None if oldest_ms is None else NOW_MS - oldest_ms,
        },
        **more,
    }
    return Row(name=name, kind=cast(Kind, kind), ready=ready, consumers=consumers, **values)


def state(**values: Any) -> State:
    """Return the state of a broker that is well, but for these values."""
    well: dict[str, Any] = {"version": 1, "verdict": "ready", "linked": True, "gate": True}
    well |= {"settled": True, "informed": True, "generation": 1, "topology": "t1", "entries": 1}
    return State(**well | values)


def answer(
    broker: str,
    *rows: Row,
    clients: Iterable[Client] = (),
    at_ms: int = NOW_MS,
    life: str = "a",
    room: Room | None = None,
    **more: Any,
) -> Answer:
    """Return an answer with these rows. more: fields of `Answer`, or of its state."""
    own = {key: more.pop(key) for key in ("totals", "consumers", "whole") if key in more}
    return Answer(
        broker=broker,
        life=life,
        at_ms=at_ms,
        received_at_ms=at_ms,
        state=state(**more),
        rows={(each.name, each.kind): each for each in rows},
        counted_at_ms=at_ms,
        swept_at_ms=at_ms,
        room=room,
        clients=tuple(clients),
        **own,
    )


def seen(broker: str, *rows: Row, fault: str = "", **more: Any) -> ObservedBroker:
    """Return a broker of the list as it was seen. fault: its agent is silent; the rows are of before."""
    return ObservedBroker(
        broker=broker,
        fault=fault,
        last=answer(broker, *rows, **more),
        silent_since_ms=NOW_MS if fault else None,
    )


def bus(*brokers: ObservedBroker, at_ms: int = NOW_MS, balancers: Iterable[Balancer] = ()) -> Bus:
    return Bus(at_ms=at_ms, brokers=brokers, generation=1, balancers=tuple(balancers))
