"""Buses of any size in virtual time: lists, dials, shares and the agents' traffic."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from bench.figures.cli import GROUPS
from bench.figures.groups import Setup
from bench.figures.reach import simulated, sixteen
from bench.figures.reach.hosts import Hosts, Lines, Processors
from bench.figures.reach.simulation import Simulation, Size, fullest_broker
from bench.figures.reach.virtual_time import VirtualLoop
from messagebus.services.agent.consumer_list import LOOK_INTERVAL_S
from messagebus.services.agent.topology.agreement import PULL_PEERS

T = TypeVar("T")
SMALL = Size(10, 20, 2, 1_000.0)
SHARED = Size(60, 400, 4, 10_000.0, cover=3)

Run = Callable[[Callable[[], Awaitable[Any]]], Any]


@pytest.fixture
def run() -> Iterator[Run]:
    """Run something in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:

        def do(what: Callable[[], Awaitable[T]]) -> T:
            async def wait() -> T:
                return await what()

            return runner.run(wait())

        yield do


def test_an_hour_of_virtual_time_takes_no_time(run: Run) -> None:
    async def hour() -> tuple[float, str]:
        loop = asyncio.get_running_loop()
        at_s = loop.time()
        await asyncio.sleep(3_600)
        return loop.time() - at_s, await asyncio.to_thread(lambda: "done")

    began_s = time.process_time()
    assert run(hour) == (3_600, "done")
    assert time.process_time() - began_s < 60


def test_every_consumer_gets_a_list_within_a_look_and_a_link_to_each_broker(run: Run) -> None:
    async def spread() -> tuple[float, list[int]]:
        bus = Simulation(SMALL)
        spread_ms = await bus.spread()
        await asyncio.sleep(1)
        return spread_ms, bus.links()

    spread_ms, links = run(spread)
    cpu = Processors()
    work_ms = (2 * PULL_PEERS + SMALL.consumers) * cpu.request_ms + cpu.list_ms
    assert 0 < spread_ms <= LOOK_INTERVAL_S * 1000 + Lines().answer_ms + work_ms
    assert links == [SMALL.brokers] * SMALL.group


def test_with_shares_each_broker_is_read_by_as_many_consumers_as_cover_says(run: Run) -> None:
    async def shares() -> tuple[list[int], list[int]]:
        bus = Simulation(SHARED)
        await bus.spread()
        await asyncio.sleep(1)
        of_each = [sum(name in each.open for each in bus.consumers) for name in bus.names]
        return of_each, bus.links()

    of_each, links = run(shares)
    assert set(of_each) == {SHARED.cover}
    assert sum(links) == SHARED.cover * SHARED.brokers
    assert max(links) < SHARED.brokers / 5


def test_messages_go_to_the_living_brokers_and_none_is_lost(run: Run) -> None:
    async def messages() -> tuple[list[int], list[int]]:
        bus = Simulation(SMALL)
        await bus.spread()
        await asyncio.sleep(1)
        before = bus.messages(10)
        bus.kill(0.2)
        return before, bus.messages(10)

    for got in run(messages):
        assert sum(got) == SMALL.rate * 10 / SMALL.subscriptions
        assert max(got) - min(got) <= SMALL.brokers


def test_brokers_that_are_dead_are_dialled_until_they_are_back(run: Run) -> None:
    async def dials() -> tuple[list[int], float, list[int]]:
        bus = Simulation(SMALL)
        await bus.spread()
        await asyncio.sleep(5)
        from_s = round(asyncio.get_running_loop().time()) + 1
        await asyncio.sleep(from_s - asyncio.get_running_loop().time())
        bus.kill(0.2)
        await asyncio.sleep(5)
        assert bus.links() == [SMALL.brokers - 2] * SMALL.group
        return bus.dials(from_s, 5), await bus.back(), bus.links()

    every_second, back_ms, links = run(dials)
    assert all(every_second)
    assert max(every_second) <= 40 * SMALL.group
    assert 0 < back_ms < 5_000
    assert links == [SMALL.brokers] * SMALL.group


def test_agents_at_rest_ask_each_other_in_rounds_of_a_few(run: Run) -> None:
    async def rest() -> list[float]:
        found = []
        for brokers in (3, 40, 80):
            bus = Simulation(Size(brokers, 10, 1, 1.0))
            found.append((await bus.agents().rest(10)).requests / 10 / brokers)
        return found

    few, many, more = run(rest)
    assert few == pytest.approx(2, rel=0.1)
    assert many == more == pytest.approx(PULL_PEERS, rel=0.1)


def test_a_change_reaches_every_agent_and_its_requests_grow_with_the_brokers(run: Run) -> None:
    async def change() -> tuple[int, set[str]]:
        agents = Simulation(SMALL).agents()
        await agents.rest(2)
        traffic, _ms = await agents.change(["orders/a", "orders/b"])
        known = {name for each in agents.topologies.values() for name in each.register.entries}
        assert all(len(each.register.entries) == 2 for each in agents.topologies.values())
        return traffic.requests, known

    requests, known = run(change)
    assert known == {"orders/a", "orders/b"}
    assert requests == 3 * (SMALL.brokers - 1), "they are read, asked for what is there, and told"


def test_figures_of_every_size_are_made_and_keep_their_goals(tmp_path: Path) -> None:
    figures = list(simulated.simulated_figures(Setup(tmp_path, lambda _line: None, quick=True)))
    ids = {figure.id for figure in figures}
    assert len(ids) == len(figures) == 11 * len(simulated.SIZES) + 2
    assert {"reach.simulated.3.links", "reach.simulated.1000.busiest"} <= ids
    assert [figure.id for figure in figures if figure.met is False] == []


def test_the_simulation_says_what_sixteen_brokers_measure(run: Run) -> None:
    told = run(lambda: sixteen.simulate(40, Processors(cores=2)))
    assert set(told) == {"spread_ms", "dials_10s", "agent_requests"}
    assert told["agent_requests"] == pytest.approx(PULL_PEERS, rel=0.1)


@pytest.mark.parametrize(
    ("cores", "busy", "took_ms"), [(0, 0.0, 20), (1, 0.0, 60), (2, 0.0, 30), (2, 0.5, 60)]
)
def test_steps_of_processes_wait_for_a_core_of_their_host(
    run: Run, cores: int, busy: float, took_ms: int
) -> None:
    async def compute() -> int:
        hosts = Hosts((), Lines(), Processors(cores=cores, busy=busy))
        three, loop = [hosts.process() for _ in range(3)], asyncio.get_running_loop()
        await asyncio.gather(*(each.compute(10) for each in three for _ in range(2)))
        return round(loop.time() * 1000)

    assert run(compute) == took_ms, "six steps, of which a process computes one at a time"


@pytest.mark.parametrize(("busy", "took_ms"), [(0.25, 10), (0.5, 10), (0.75, 20)])
def test_a_step_alone_has_what_others_leave_of_all_cores(
    run: Run, busy: float, took_ms: int
) -> None:
    async def compute() -> int:
        process, loop = (
            Hosts((), Lines(), Processors(cores=2, busy=busy)).process(),
            asyncio.get_running_loop(),
        )
        stopped = asyncio.create_task(process.compute(10_000))
        await asyncio.sleep(0)
        stopped.cancel()
        began = loop.time()
        await process.compute(10)
        return round((loop.time() - began) * 1000)

    assert run(compute) == took_ms


def test_processes_that_share_cores_have_a_new_list_later(run: Run) -> None:
    def spread_ms(processors: Processors) -> float:
        size = Size(16, 20, 1, 1_000.0)
        return float(run(lambda: Simulation(size, processors=processors).spread()))

    def beside_upkeep_ms(processors: Processors) -> float:
        async def spread() -> float:
            bus = Simulation(Size(16, 20, 1, 1_000.0), processors=processors)
            async with bus.upkeep():
                return await bus.spread()

        return float(run(spread))

    own, shared = Processors(request_ms=5), Processors(request_ms=5, cores=2)
    assert beside_upkeep_ms(replace(shared, upkeep_ms=100)) > spread_ms(shared)
    assert spread_ms(own) < spread_ms(shared) < spread_ms(replace(shared, busy=0.5))


def test_publishers_are_even_over_time_also_where_one_broker_must_have_two() -> None:
    assert fullest_broker(4, 4, 1, lifetime_s=1e9) == pytest.approx(1.0)
    assert fullest_broker(4, 3, 1, lifetime_s=1e9) == pytest.approx(1.5), "nobody renews"
    assert fullest_broker(4, 3, 24, lifetime_s=600) < 1.1


def test_the_groups_of_reach_are_known() -> None:
    names = {group.name: group.brokers for group in GROUPS if group.name.startswith("reach.")}
    assert names["reach.simulated"] == names["reach.client"] == 0
    assert names["reach.sixteen"] == names["reach.storm"] == 16
    assert names["reach.topology"] == 3
