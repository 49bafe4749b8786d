"""Hundreds of subscriptions on three brokers: to create them, to keep them, and to be back after a kill.

A subscription is two quorum queues on each broker, its own and its parking queue. RabbitMQ's share stands
apart: the processor time of its brokers for the queues, over all cores of this machine, and their use of a
core at rest without agents.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from bench.figures.figure import Figure, Maker, at_most
from bench.figures.groups import BEHIND_HAPROXY, Group, Setup, repeat_command
from bench.figures.reach.used import Used
from messagebus import BusConfig, declare

NAME = "reach.topology"
SUBSCRIPTIONS, A_TOPIC = 500, 10
DECLARE_S = 600.0
# Until the statistics of the brokers know of all queues, and what was done before has ended.
SETTLE_S, IDLE_S = 20.0, 40
GOAL_DECLARE_S, GOAL_READY_S, GOAL_AGENT_PERCENT = 6.0, 10.0, 3.0


def topology_figures(setup: Setup) -> Iterator[Figure]:
    cluster, make = setup.cluster, Maker(NAME, repeat_command(NAME))
    count, cores = setup.part(SUBSCRIPTIONS, 20), os.cpu_count() or 1
    before, began_s = Used.now(cluster), time.monotonic()
    _declare(setup, "a", count)
    took_s = time.monotonic() - began_s
    brokers_s, agents_s = Used.now(cluster).cpu_s(before)
    setup.say(f"{count} subscriptions were declared in {took_s:.1f} s")
    what = f"{count} subscriptions declared at once on three brokers"
    yield make("declare_s", what, took_s, "s", (at_most, GOAL_DECLARE_S))
    floor = f"{what}: CPU time of the brokers, divided by the {cores} cores of this machine"
    yield make("declare_floor_s", floor, brokers_s / cores, "s")
    yield make("declare_agents_s", f"{what}: CPU time of the agents", agents_s, "s")

    name = cluster.names[0]
    cluster.kill(name)
    began_s = time.monotonic()
    cluster.start(name, wait=False)
    cluster.wait_ready([name])
    what = f"Broker with {2 * count:,} queues is killed and started: until it takes publishes"
    took_s = time.monotonic() - began_s
    setup.say(f"the killed broker takes publishes after {took_s:.1f} s")
    yield make("killed_ready_s", what, took_s, "s", (at_most, GOAL_READY_S))

    _declare(setup, "b", count)
    what = f"{2 * count:,} subscriptions at rest"
    (broker, agent), rest_s = _at_rest(setup), setup.part(IDLE_S, 5)
    of = f"of one core, over {rest_s} s"
    id, text = "agent_percent", f"{what}: CPU of the busiest agent, {of}"
    yield make(id, text, agent, "%", (at_most, GOAL_AGENT_PERCENT))
    yield make("broker_percent", f"{what}: CPU of the busiest broker, {of}", broker, "%")
    for each in cluster.names:
        cluster.stop(each, agent=True)
    alone, _none = _at_rest(setup)
    text = f"{what}: CPU of the busiest broker without agents, {of}"
    yield make("broker_alone_percent", text, alone, "%")


def _declare(setup: Setup, mark: str, count: int) -> None:
    wanted = [f"{mark}{number // A_TOPIC}/s{number % A_TOPIC}" for number in range(count)]
    declare(BusConfig.from_env(setup.cluster.client_env()), wanted, timeout_s=DECLARE_S)


def _at_rest(setup: Setup) -> tuple[float, float]:
    """Return the shares of one core of the busiest broker, and of the busiest agent."""
    time.sleep(SETTLE_S)
    before = Used.now(setup.cluster)
    time.sleep(setup.part(IDLE_S, 5))
    return Used.now(setup.cluster).percent(before)


GROUP = Group(NAME, 3, BEHIND_HAPROXY, topology_figures)
