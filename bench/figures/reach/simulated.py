"""A bus of 3, 16, 64 and 1,000 brokers in virtual time: see `bench.figures.reach.simulation`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

from bench.figures.figure import Figure, Maker, at_most
from bench.figures.groups import Group, Setup, repeat_command
from bench.figures.reach.simulation import Simulation, Size, fullest_broker
from bench.figures.reach.virtual_time import VirtualLoop
from messagebus import PublisherConfig

NAME = "reach.simulated"
# A tenth of the brokers die; so many seconds of dials are counted, then they are back.
DEAD_PART, DIALS_S = 0.1, 10
REST_S, MESSAGES_S = 10, 10
# Id -> size. The mesh of 1,000 is what a bus without shares of the brokers would be.
SIZES = {
    "3": Size(3, 50, 5, 10_000),
    "16": Size(16, 200, 20, 50_000),
    "64": Size(64, 500, 20, 200_000),
    "1000": Size(1_000, 10_000, 100, 1_000_000, cover=3),
    "1000_mesh": Size(1_000, 10_000, 100, 1_000_000),
}
GOAL_SPREAD_MS, GOAL_DIALS, GOAL_FULLEST = 1_000.0, 40.0, 1.1
FEW, FEW_RUNS, PUBLISHER_LIFETIME_S = 4, 100, PublisherConfig().connection_lifetime_s


def simulated_figures(setup: Setup) -> Iterator[Figure]:
    for id, size in SIZES.items():
        if setup.quick and size.brokers > 100:
            size = replace(size, brokers=100, consumers=1_000, subscriptions=10)
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            found = runner.run(_figures(id, size))
        setup.say(f"{size.brokers} brokers, {size.consumers} consumers: simulated")
        yield from found
    yield from _of_publishers()


def _of_publishers() -> Iterator[Figure]:
    """Compare brokers by publishers, on a bus that is as hard to share evenly as any."""
    make, lifetime_s = Maker(f"{NAME}.few", repeat_command(NAME)), float(PUBLISHER_LIFETIME_S)
    for id, hours in (("hour", 1), ("day", 24)):
        found = [
            fullest_broker(FEW, 3, hours, lifetime_s=lifetime_s, seed=n) for n in range(FEW_RUNS)
        ]
        what = (
            f"{FEW} equal publishers of 3 brokers over {hours} h: the fullest broker, to the mean"
        )
        goal = (at_most, GOAL_FULLEST)
        yield make(id, what, sum(found) / len(found), "times", goal)


def name_of(size: Size) -> str:
    share = f", cover={size.cover}" if size.cover else ""
    return (
        f"{size.brokers:,} brokers, {size.consumers:,} consumers of {size.subscriptions} "
        f"subscriptions, {size.rate:,.0f} messages/s{share}"
    )


async def _figures(id: str, size: Size) -> list[Figure]:
    make, bus = Maker(f"{NAME}.{id}", repeat_command(NAME)), Simulation(size)
    found = await _of_lists(make, bus)
    found += await _of_dead(make, bus, bus.messages(MESSAGES_S))
    return found + await _of_agents(make, bus)


async def _of_lists(make: Maker, bus: Simulation) -> list[Figure]:
    name, spread_ms = name_of(bus.size), await bus.spread()
    await bus.whole()
    links = bus.links()
    a_broker = sum(links) * bus.size.subscriptions / bus.size.brokers
    what = f"{name}: from a new list at the agents until the last consumer has it"
    return [
        make("spread_ms", what, spread_ms, "ms", (at_most, GOAL_SPREAD_MS)),
        make("links", f"{name}: most links of a consumer", max(links), "links"),
        make("broker_links", f"{name}: links of consumers to a broker, mean", a_broker, "links"),
    ]


async def _of_dead(make: Maker, bus: Simulation, before: list[int]) -> list[Figure]:
    """Kill brokers, look, and let them come back. before: messages of each consumer until then."""
    name = name_of(bus.size)
    dials, after = await bus.die(DEAD_PART, DIALS_S), bus.messages(MESSAGES_S)
    back_ms = await bus.back()
    dead, busiest = (
        f"{name}, {len(bus.was_dead)} of them killed",
        "messages of the busiest consumer",
    )
    second, first = max(dials) / bus.size.group, sum(dials) / bus.size.group
    what = f"{dead}: most dials of a consumer within one second"
    back = f"{dead} and back after {DIALS_S} s: until every consumer is attached"
    return [
        make("busiest", f"{name}: {busiest}, to the mean", ratio(before), "times"),
        make("busiest_after", f"{dead}: {busiest}, to the mean", ratio(after), "times"),
        make("dials", what, second, "dials/s", (at_most, GOAL_DIALS)),
        make("dials_10s", f"{dead}: dials of a consumer in the first {DIALS_S} s", first, "dials"),
        make("back_ms", back, back_ms, "ms"),
    ]


async def _of_agents(make: Maker, bus: Simulation) -> list[Figure]:
    name, agents = name_of(bus.size), bus.agents()
    rest = await agents.rest(REST_S)
    change, _ms = await agents.change([f"orders/s{number}" for number in range(10)])
    what = f"{name}: requests of other agents to an agent at rest"
    asked, new = (
        rest.requests / REST_S / bus.size.brokers,
        "between agents for ten new subscriptions",
    )
    return [
        make("agent_requests", what, asked, "requests/s"),
        make("change_requests", f"{name}: requests {new}", change.requests, "requests"),
        make("change_kb", f"{name}: bytes {new}", change.bytes / 1e3, "KB"),
    ]


def ratio(got: list[int]) -> float:
    return max(got) / (sum(got) / len(got))


GROUP = Group(NAME, 0, "no process: agents and consumers in virtual time", simulated_figures)
