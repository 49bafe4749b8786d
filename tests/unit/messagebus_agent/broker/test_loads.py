"""agent.broker.loads: ages from counts, and counts of a broker in memory."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus_agent.broker.loads import (
    SAMPLES_MAX,
    Ages,
    Count,
    Counting,
    Flows,
    Loads,
    sources_of,
)
from messagebus_agent.broker.management import (
    Load,
    Management,
    ManagementUnavailable,
    Overview,
    Room,
)
from messagebus_agent.topology.register import Entry

STEP_MS = 1_000
BILLING, JOBS = "mb.sub/orders/billing", "mb.queue/jobs"


class FakeManagement:
    is_there = True

    def __init__(self) -> None:
        self.says: list[Load] | None = []
        self.published = 0

    async def loads(self) -> list[Load]:
        if self.says is None:
            raise ManagementUnavailable("away")
        return self.says

    async def overview(self) -> Overview:
        return Overview(version="3.12.14", connections=4, totals={"publish": self.published})

    async def room(self) -> Room:
        return Room(
            disk_free_bytes=9, disk_limit_bytes=2, memory_used_bytes=3, memory_limit_bytes=4
        )


def shown(loads: Loads) -> dict[tuple[str, str], float]:
    return {(figure.name, figure.queue): figure.value for figure in loads.figures()}


async def test_each_queue_is_shown_with_the_age_of_its_oldest_message() -> None:
    management = FakeManagement()
    loads = Loads(cast(Management, management))
    assert shown(loads) == {}
    management.says = [Load(queue="q", messages=5, consumers=1, departed=0)]
    await loads.look(10_000)
    management.says = [
        Load(queue="q", messages=7, consumers=0, departed=1),
        Load(queue="new", messages=0, consumers=2, departed=0),
    ]
    await loads.look(20_000)
    assert shown(loads) == {
        ("queue_messages", "q"): 7,
        ("queue_messages", "new"): 0,
        ("queue_consumers", "q"): 0,
        ("queue_consumers", "new"): 2,
        ("queue_oldest_age_seconds", "q"): 10,
        ("queue_oldest_age_seconds", "new"): 0,
        ("disk_free_bytes", ""): 9,
        ("disk_limit_bytes", ""): 2,
        ("memory_used_bytes", ""): 3,
        ("memory_limit_bytes", ""): 4,
    }


async def test_of_a_broker_that_is_away_nothing_is_shown() -> None:
    management = FakeManagement()
    loads = Loads(cast(Management, management))
    management.says = [Load(queue="q", messages=5, consumers=1, departed=0)]
    await loads.look(0)
    management.says = None
    await loads.look(10_000)
    assert shown(loads) == {}
    management.says = [Load(queue="q", messages=5, consumers=1, departed=0)]
    await loads.look(20_000)
    assert shown(loads)["queue_oldest_age_seconds", "q"] == 20


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=60))
def test_the_age_is_that_of_the_oldest_message_to_within_a_sample(
    steps: list[tuple[int, int]],
) -> None:
    """The oracle is a queue with each message's time; between two samples some come, then some go."""
    ages, queue, departed = Ages(), deque[int](), 0
    for number, (come, go) in enumerate(steps, start=1):
        now_ms = number * STEP_MS
        queue.extend([now_ms] * come)
        for _ in range(min(go, len(queue))):
            queue.popleft()
            departed += 1
        told = ages.sample("q", now_ms, waiting=len(queue), departed=departed)
        assert told == (now_ms - queue[0] if queue else 0)


def test_what_was_there_before_counts_from_the_first_look() -> None:
    ages = Ages()
    assert ages.sample("q", 0, waiting=10, departed=500) == 0
    assert ages.sample("q", 9_000, waiting=9, departed=501) == 9_000


def test_a_restart_of_the_broker_begins_anew() -> None:
    ages = Ages()
    ages.sample("q", 0, waiting=10, departed=500)
    assert ages.sample("q", 9_000, waiting=10, departed=0) == 0


def test_an_empty_queue_has_no_age_whatever_left_it_uncounted() -> None:
    ages = Ages()
    ages.sample("q", 0, waiting=1_000, departed=0)
    assert ages.sample("q", 1_000, waiting=0, departed=0) == 0
    assert ages.sample("q", 2_000, waiting=1, departed=0) == 0


def test_a_long_backlog_is_known_by_few_moments() -> None:
    ages = Ages()
    for number in range(10 * SAMPLES_MAX):
        told = ages.sample("q", number, waiting=number + 1, departed=0)
        assert told == number
        assert len(ages._arrivals["q"]) <= SAMPLES_MAX


def test_a_queue_that_is_gone_is_forgotten() -> None:
    ages = Ages()
    ages.sample("q", 0, waiting=1, departed=0)
    ages.keep_only([])
    assert ages.sample("q", 9_000, waiting=1, departed=0) == 0


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


class ManagementOfCounts:
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
def management() -> ManagementOfCounts:
    return ManagementOfCounts()


@pytest.fixture
def counting(upkeep: FakeUpkeep, management: ManagementOfCounts) -> Counting:
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
    counting: Counting, management: ManagementOfCounts
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


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=40
    )
)
def test_flows_never_shrink_and_differ_by_what_is_present(
    steps: list[tuple[int, int, int]],
) -> None:
    """The oracle counts every message that came, was acknowledged, or left otherwise."""
    flows, present, acked, came, left = Flows(), 0, 0, 0, 0
    before = (0, 0)
    for come, ack, drop in steps:
        acks = min(ack, present + come)
        drops = min(drop, present + come - acks)
        present += come - acks - drops
        acked, came, left = acked + acks, came + come, left + acks + drops
        load = Load(queue="q", messages=present, consumers=1, departed=acked)
        arrived, departed = flows.sample([load], published=came)["q"]
        assert arrived - departed == present
        assert (arrived, departed) >= before
        assert arrived <= came
        assert departed <= left
        before = (arrived, departed)
    assert flows.life == 0


async def test_who_asks_during_a_look_wants_no_second_one() -> None:
    """A monitor asks twice within 50 ms, and a look at 1,000 queues takes 100."""
    looks, ended = list[int](), asyncio.Event()

    class Slow(FakeManagement):
        async def loads(self) -> list[Load]:
            looks.append(clock_ms)
            loads.hurry(clock_ms)
            ended.set()
            return []

    clock_ms = 0
    loads = Loads(cast(Management, Slow()))
    watching = asyncio.create_task(loads.watch(lambda: clock_ms))
    await ended.wait()
    for _ in range(20):
        await asyncio.sleep(0)
    assert looks == [0]
    clock_ms = 6_000
    loads.hurry(clock_ms)
    for _ in range(20):
        await asyncio.sleep(0)
    assert looks == [0, 6_000]
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


def test_a_queue_whose_counters_went_back_begins_another_life() -> None:
    flows = Flows()
    flows.sample([Load(queue="q", messages=3, consumers=1, departed=9)], published=12)
    again = flows.sample([Load(queue="q", messages=4, consumers=1, departed=1)], published=12)
    assert (again, flows.life) == ({"q": (4, 0)}, 1)
    flows.sample([], published=0)
    assert flows.life == 2
