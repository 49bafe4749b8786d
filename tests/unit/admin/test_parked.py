"""Parked messages read over brokers: what was not looked at is told."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from messagebus import BusConfig, ParkedFilter, read_parked
from messagebus._io.admin.parking import SCAN_MAX, Inspection
from messagebus.admin import parked

BUS = BusConfig(broker="mb1.example:5672")


class Deep:
    """A parking queue that gives less than it holds. seen: number of messages that come."""

    seen = 0

    def __init__(self, *_: object, **__: object) -> None: ...

    async def ready(self, sources: Iterable[Any]) -> dict[Any, int]:
        return dict.fromkeys(sources, 80_000)

    async def look(self, _source: Any, ready: int, count_max: int, _see: Any) -> Inspection:
        return Inspection(ready, min(self.seen, count_max))


@pytest.mark.parametrize(
    ("seen", "where", "count", "told"),
    [
        # A broker that is slow, another reader that has them all, and the bound of one look.
        (0, ParkedFilter(message_id="abcdef"), 20, "0 of 80,000 parked messages were looked at"),
        (SCAN_MAX, ParkedFilter(message_id="abcdef"), 20, "65,535 of 80,000"),
        (3, ParkedFilter(), 5, "3 of 80,000"),
        (80_000, ParkedFilter(), 5, ""),
    ],
)
def test_what_was_not_looked_at_is_told(
    monkeypatch: pytest.MonkeyPatch, seen: int, where: ParkedFilter, count: int, told: str
) -> None:
    monkeypatch.setattr(parked, "Parking", Deep)
    monkeypatch.setattr(Deep, "seen", seen)
    faults = read_parked(BUS, ["orders/billing"], where=where, count_max=count).faults
    assert told in faults.get("orders/billing on mb1.example:5672", "")
    assert bool(faults) == bool(told)
