"""Loads of brokers, and the plan of connections that follows."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messagebus.services.agent.broker.loads import (
    SAMPLES_MAX,
    Ages,
    Count,
    Counting,
    Flows,
    Loads,
    sources_of,
)
from messagebus.services.agent.broker.management import (
    Load,
    Management,
    ManagementUnavailable,
    Overview,
    Room,
)
from messagebus.services.agent.broker.plan import (
    Declare,
    DeleteExchange,
    DeleteQueue,
    Step,
    plan,
    unsure_of,
)
from messagebus.services.agent.topology.register import Entry
from tests.support.examples import examples

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


def test_a_restart_of_the_broker_makes_no_message_younger() -> None:
    """The broker forgets what it has counted, and four messages left between the last look and its end."""
    ages = Ages()
    ages.sample("q", 0, waiting=0, departed=490)
    ages.sample("q", 1_000, waiting=10, departed=500)
    ages.sample("q", 2_000, waiting=15, departed=500)
    assert ages.sample("q", 9_000, waiting=11, departed=0) == 8_000
    assert not ages.is_least("q")
    assert ages.sample("q", 10_000, waiting=5, departed=6) == 8_000
    assert ages.sample("q", 11_000, waiting=0, departed=11) == 0


def test_what_was_there_before_the_first_look_is_older_than_it_says() -> None:
    ages = Ages()
    ages.sample("q", 0, waiting=2, departed=500)
    assert ages.is_least("q")
    ages.sample("q", 1_000, waiting=2, departed=501)
    assert ages.is_least("q")
    assert ages.sample("q", 2_000, waiting=1, departed=502) == 1_000
    assert not ages.is_least("q")


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
        assert len(ages._queues["q"].arrivals) <= SAMPLES_MAX


def test_a_queue_that_is_gone_is_forgotten() -> None:
    ages = Ages()
    ages.sample("q", 0, waiting=1, departed=0)
    ages.keep_only([])
    assert ages.sample("q", 9_000, waiting=1, departed=0) == 0


def wanted_entry(wanted: str, *, alive: bool = True) -> Entry:
    return Entry(wanted=wanted, number=1, origin="A", alive=alive, tomb=0)


LOADED = {
    each.wanted: each
    for each in (
        wanted_entry("orders"),
        wanted_entry("orders/billing"),
        wanted_entry("orders/old", alive=False),
        wanted_entry("queue:jobs"),
        wanted_entry("delay:1000"),
    )
}


class FakeUpkeep:
    def __init__(self) -> None:
        self.there: dict[str, tuple[int, int] | None] = {BILLING: (3, 1), JOBS: (0, 0)}

    @property
    def link(self) -> FakeUpkeep:
        return self

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
    assert sources_of(LOADED) == {"orders/billing": BILLING, "queue:jobs": JOBS}


async def test_counts_come_from_the_broker_and_what_is_owed_from_its_management(
    counting: Counting,
) -> None:
    assert await counting.counts(LOADED) == {
        "orders/billing": Count(ready=3, consumers=1, unacked=2),
        "queue:jobs": Count(ready=0, consumers=0, unacked=None),
    }


async def test_without_management_what_is_owed_is_not_known(
    counting: Counting, management: ManagementOfCounts
) -> None:
    management.fails = True
    assert (await counting.counts(LOADED))["orders/billing"].unacked is None
    management.is_there = False
    assert (await counting.counts(LOADED))["orders/billing"].unacked is None


async def test_a_queue_that_is_not_there_is_left_out(
    counting: Counting, upkeep: FakeUpkeep
) -> None:
    upkeep.there[BILLING] = None
    assert set(await counting.counts(LOADED)) == {"queue:jobs"}
    assert await counting.purge(LOADED, ["orders/billing", "queue:jobs"]) == {"queue:jobs": 0}


async def test_only_what_is_named_and_wanted_is_purged(counting: Counting) -> None:
    assert await counting.purge(LOADED, ["orders/billing", "orders", "orders/old"]) == {
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


def entry(wanted: str, number: int = 1, *, alive: bool = True, tomb: int = 0) -> Entry:
    return Entry(wanted=wanted, number=number, origin="A", alive=alive, tomb=tomb)


def steps(
    *entries: Entry,
    brought: tuple[Entry, ...] = (),
    births: dict[str, int | None] | None = None,
    floor: int = 0,
) -> list[Step]:
    by_name = {each.wanted: each for each in entries}
    done = {each.wanted: each for each in brought}
    return list(plan(by_name, brought=done, births=births or {}, floor=floor))


def declared(found: list[Step]) -> list[str]:
    return [step.entry.wanted for step in found if isinstance(step, Declare)]


def deleted(found: list[Step]) -> list[str]:
    return [step.name for step in found if isinstance(step, DeleteQueue | DeleteExchange)]


def test_what_lives_is_declared_with_its_number() -> None:
    (step,) = steps(entry("orders/billing", 7))
    assert isinstance(step, Declare)
    assert [queue.name for queue in step.declarations.queues] == [
        "mb.park/orders/billing",
        "mb.sub/orders/billing",
    ]
    assert {queue.arguments["mb-born"] for queue in step.declarations.queues} == {7}


def test_what_is_there_needs_nothing() -> None:
    assert steps(entry("orders"), brought=(entry("orders"),)) == []


def test_a_new_number_is_brought_about_again() -> None:
    assert declared(steps(entry("orders", 3), brought=(entry("orders", 1),))) == ["orders"]


def test_a_queue_of_an_earlier_life_is_deleted_before_it_is_declared() -> None:
    found = steps(entry("queue:jobs", 9, tomb=8), births={"mb.queue/jobs": 3, "mb.park/jobs": None})
    assert found[0] == DeleteQueue("mb.queue/jobs")
    assert declared(found[1:]) == ["queue:jobs"]
    assert deleted(found) == ["mb.queue/jobs"]


def test_a_queue_of_this_life_is_kept() -> None:
    births: dict[str, int | None] = {"mb.queue/jobs": 9, "mb.park/jobs": 9}
    assert deleted(steps(entry("queue:jobs", 9, tomb=8), births=births)) == []


def test_what_is_dead_is_deleted_with_its_parking_queue() -> None:
    found = steps(entry("orders/billing", 2, alive=False, tomb=2))
    assert deleted(found) == ["mb.park/orders/billing", "mb.sub/orders/billing"]


def test_an_exchange_goes_with_the_last_that_needs_it() -> None:
    topic = entry("orders", 3, alive=False, tomb=3)
    living, dead = entry("orders/a"), entry("orders/a", 4, alive=False, tomb=4)
    assert "mb.topic/orders" not in deleted(steps(topic, living))
    assert "mb.topic/orders" in deleted(steps(topic, dead, brought=(topic, living)))


def test_an_exchange_without_an_entry_of_its_own_stays() -> None:
    dead = entry("orders/a", 4, alive=False, tomb=4)
    assert "mb.topic/orders" not in deleted(steps(dead))
    # Until somebody deletes the topic, of which the map knew nothing before.
    assert "mb.topic/orders" in deleted(steps(entry("orders", 5, alive=False, tomb=5), dead))


def test_queues_of_forgotten_names_are_deleted() -> None:
    births: dict[str, int | None] = {
        "mb.sub/orders/old": 3,
        "mb.sub/orders/new": 8,
        "mb.sub/orders/unmarked": None,
        "amq.gen-x": 1,
        "mb.queue/jobs": 2,
        "mb.park/jobs": 2,
    }
    found = steps(entry("queue:jobs", 2), births=births, floor=5)
    assert deleted(found) == ["mb.sub/orders/old"]


def test_births_are_needed_for_names_that_had_an_earlier_life() -> None:
    first, again = entry("orders"), entry("orders", 3, tomb=2)
    assert not unsure_of({"orders": first}, brought={}, held={})
    assert unsure_of({"orders": again}, brought={}, held={}) == [again]
    assert not unsure_of({"orders": again}, brought={"orders": again}, held={})
    assert not unsure_of({"orders": again}, brought={}, held={"orders": again.number})
    assert unsure_of({"orders": again}, brought={}, held={"orders": again.number - 1}) == [again]


NAMES = ("orders", "orders/a", "orders/b", "queue:jobs")
ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        name: st.builds(
            entry, st.just(name), st.integers(5, 9), alive=st.booleans(), tomb=st.integers(0, 9)
        )
        for name in NAMES
    },
)
QUEUES = ("mb.sub/orders/a", "mb.park/orders/a", "mb.sub/orders/b", "mb.queue/jobs")


@settings(max_examples=examples(300), deadline=None)
@given(
    entries=ENTRIES,
    births=st.dictionaries(st.sampled_from(QUEUES), st.none() | st.integers(1, 9)),
)
def test_after_all_steps_the_broker_has_what_lives_and_nothing_of_an_earlier_life(
    entries: dict[str, Entry], births: dict[str, int | None]
) -> None:
    queues = dict(births)
    exchanges = {"mb.topic/orders"}
    for step in plan(entries, brought={}, births=births, floor=0):
        match step:
            case DeleteQueue(name):
                queues.pop(name, None)
            case DeleteExchange(name):
                exchanges.discard(name)
            case Declare(made, wanted):
                exchanges |= {exchange.name for exchange in wanted.exchanges}
                for queue in wanted.queues:
                    queues.setdefault(queue.name, made.number)
    for name, one in entries.items():
        main = f"mb.{name.replace(':', '/')}" if ":" in name else f"mb.sub/{name}"
        if "/" not in name and ":" not in name:
            continue
        assert (main in queues) == one.alive, name
        if one.alive and one.tomb <= one.number and births.get(main) is not None:
            born = queues[main]
            assert born is not None
            assert born >= one.tomb
    if any(one.alive for name, one in entries.items() if name.startswith("orders")):
        assert "mb.topic/orders" in exchanges
