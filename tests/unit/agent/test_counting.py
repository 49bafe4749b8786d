"""How much waits, as told by a broker in memory."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from messagebus.agent.counting import Count, Counting, sources_of
from messagebus.agent.management import ManagementUnavailable
from messagebus.core.register import Entry

BILLING, JOBS = "mb.sub/orders/billing", "mb.queue/jobs"


def entry(wanted: str, *, alive: bool = True) -> Entry:
    return Entry(wanted=wanted, number=1, origin="A", alive=alive, tomb=0)


ENTRIES = {
    each.wanted: each
    for each in (
        entry("orders"),
        entry("orders/billing"),
        entry("orders/old", alive=False),
        entry("queue:jobs"),
        entry("delay:1000"),
    )
}


class FakeUpkeep:
    def __init__(self) -> None:
        self.there: dict[str, tuple[int, int] | None] = {BILLING: (3, 1), JOBS: (0, 0)}

    async def counts(self, queues: Iterable[str]) -> dict[str, tuple[int, int] | None]:
        return {queue: self.there[queue] for queue in queues}

    async def purge(self, queues: Iterable[str]) -> dict[str, int | None]:
        return {q: found[0] if (found := self.there[q]) else None for q in queues}


class FakeManagement:
    is_there = True
    fails = False

    async def unacked(self) -> dict[str, int]:
        if self.fails:
            raise ManagementUnavailable("HTTP 500")
        return {BILLING: 2}


@pytest.fixture
def upkeep() -> FakeUpkeep:
    return FakeUpkeep()


@pytest.fixture
def management() -> FakeManagement:
    return FakeManagement()


@pytest.fixture
def counting(upkeep: FakeUpkeep, management: FakeManagement) -> Counting:
    return Counting(upkeep, management)  # type: ignore[arg-type]


def test_what_lives_and_can_be_consumed_from_is_counted() -> None:
    assert sources_of(ENTRIES) == {"orders/billing": BILLING, "queue:jobs": JOBS}


async def test_counts_come_from_the_broker_and_what_is_owed_from_its_management(
    counting: Counting,
) -> None:
    assert await counting.counts(ENTRIES) == {
        "orders/billing": Count(ready=3, consumers=1, unacked=2),
        "queue:jobs": Count(ready=0, consumers=0, unacked=None),
    }


async def test_without_management_what_is_owed_is_not_known(
    counting: Counting, management: FakeManagement
) -> None:
    management.fails = True
    assert (await counting.counts(ENTRIES))["orders/billing"].unacked is None
    management.is_there = False
    assert (await counting.counts(ENTRIES))["orders/billing"].unacked is None


async def test_a_queue_that_is_not_there_is_left_out(
    counting: Counting, upkeep: FakeUpkeep
) -> None:
    upkeep.there[BILLING] = None
    assert set(await counting.counts(ENTRIES)) == {"queue:jobs"}
    assert await counting.purge(ENTRIES, ["orders/billing", "queue:jobs"]) == {"queue:jobs": 0}


async def test_only_what_is_named_and_wanted_is_purged(counting: Counting) -> None:
    assert await counting.purge(ENTRIES, ["orders/billing", "orders", "orders/old"]) == {
        "orders/billing": 3
    }
