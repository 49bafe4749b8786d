"""Hundreds of subscriptions on three brokers: to create them, to keep them, and to be back after a kill.

A subscription is two quorum queues on each broker, its own and its parking queue. RabbitMQ's share stands
apart: the time that it takes to declare the same for pika, which sends all requests at once; the time after
which a killed broker has its queues without its agent; and the use of a core at rest without agents.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from bench.clients.pika_blocking import PeerFault, channel_at, declare_at_once
from bench.errors import BenchError
from bench.figures.figure import Figure, Maker, at_most
from bench.figures.groups import BEHIND_HAPROXY, Group, Setup, repeat_command
from bench.figures.reach.used import Used
from bench.processes import wait_until
from messagebus import Broker, BusConfig, declare
from messagebus.topology import LADDER, declarations, parse_wanted
from ops.errors import LocalFault
from ops.local.cluster import LocalCluster

NAME, BARE = "reach.topology", "bare"
SUBSCRIPTIONS, A_TOPIC = 500, 10
DECLARE_S = 600.0
# Until the statistics of the brokers know of all queues, and what was done before has ended.
SETTLE_S, IDLE_S = 20.0, 40
# Of RabbitMQ's own time for the same.
GOAL_DECLARE_RATIO, GOAL_READY_RATIO, GOAL_AGENT_PERCENT = 1.25, 1.25, 3.0
BOOT_S, DELETE_S = 300.0, 300.0
# What a broker still has to read after its boot: quorum queues without a leader.
LEADERLESS = (
    'length([Q || Q <- rabbit_amqqueue:list(<<"/">>), '
    "amqqueue:get_type(Q) =:= rabbit_quorum_queue, "
    "ra_leaderboard:lookup_leader(element(1, amqqueue:get_pid(Q))) =:= undefined])."
)


def topology_figures(setup: Setup) -> Iterator[Figure]:
    cluster, make = setup.cluster, Maker(NAME, repeat_command(NAME))
    count = setup.part(SUBSCRIPTIONS, 20)
    bare_s = _bare_declare_s(cluster, count)
    setup.say(f"pika declared the same in {bare_s:.1f} s")
    before, began_s = Used.now(cluster), time.monotonic()
    _declare(setup, "a", count)
    took_s = time.monotonic() - began_s
    brokers_s, agents_s = Used.now(cluster).cpu_s(before)
    setup.say(f"{count} subscriptions were declared in {took_s:.1f} s")
    what = f"{count} subscriptions declared at once on three brokers"
    yield make("declare_s", what, took_s, "s")
    bare = "the same declared by pika, all requests sent at once"
    yield make("declare_bare_s", f"{what}: {bare}", bare_s, "s")
    text, goal = f"{what}, against {bare}", (at_most, GOAL_DECLARE_RATIO)
    yield make("declare_ratio", text, took_s / bare_s, "times", goal)
    yield make("declare_brokers_s", f"{what}: CPU time of the brokers", brokers_s, "s")
    yield make("declare_agents_s", f"{what}: CPU time of the agents", agents_s, "s")
    yield from _killed(setup, make, f"Broker with {2 * count:,} queues is killed and started")

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


def _killed(setup: Setup, make: Maker, what: str) -> Iterator[Figure]:
    """Kill a broker and start it again, with its agent and without."""
    cluster = setup.cluster
    name = cluster.names[0]
    cluster.kill(name)
    began_s = time.monotonic()
    cluster.start(name, wait=False)
    cluster.wait_ready([name])
    took_s = time.monotonic() - began_s
    setup.say(f"the killed broker takes publishes after {took_s:.1f} s")
    cluster.stop(name, agent=True)
    cluster.kill(name)
    began_s = time.monotonic()
    # Only then is it asked: RabbitMQ 3.10.8 never ended a boot that was asked for its queues meanwhile.
    cluster.start(name)
    wait_until(lambda: _has_leaders(cluster, name), within_s=BOOT_S, what="its queues")
    bare_s = time.monotonic() - began_s
    cluster.start(name, agent=True)
    cluster.wait_ready([name])
    yield make("killed_ready_s", f"{what}: until it takes publishes", took_s, "s")
    bare = "until it has its queues, without its agent"
    yield make("killed_bare_s", f"{what}: {bare}", bare_s, "s")
    text, goal = f"{what}: until it takes publishes, against {bare}", (at_most, GOAL_READY_RATIO)
    yield make("killed_ratio", text, took_s / bare_s, "times", goal)


def _has_leaders(cluster: LocalCluster, name: str) -> bool:
    try:
        return cluster.evaluate(name, LEADERLESS) == "0"
    except LocalFault:
        return False


def _names(mark: str, count: int) -> list[str]:
    return [f"{mark}{number // A_TOPIC}/s{number % A_TOPIC}" for number in range(count)]


def _declare(setup: Setup, mark: str, count: int) -> None:
    bus = BusConfig.from_env(setup.cluster.client_env())
    declare(bus, _names(mark, count), timeout_s=DECLARE_S)


def _bare_declare_s(cluster: LocalCluster, count: int) -> float:
    """Return how long pika takes for the same, in a virtual host that is deleted afterwards."""
    wanted = [LADDER, *(declarations(parse_wanted(each)) for each in _names("a", count))]

    def on_broker(name: str) -> None:
        broker = Broker.parse(cluster.node(name).broker)
        channel = channel_at(broker, "admin", cluster.admin_password, BARE)
        try:
            declare_at_once(channel, wanted)
        except (
            PeerFault
        ) as fault:  # a broker that is too busy fails to form a queue (541), and hangs up
            raise BenchError(f"{name} does not declare for pika: {fault}") from fault
        channel.connection.close()

    _virtual_host(cluster, "PUT")
    began_s = time.monotonic()
    with ThreadPoolExecutor(len(cluster.names)) as pool:
        list(pool.map(on_broker, cluster.names))
    took_s = time.monotonic() - began_s
    _virtual_host(cluster, "DELETE")
    return took_s


def _virtual_host(cluster: LocalCluster, method: str) -> None:
    for name in cluster.names:
        with cluster.management(name) as management:
            path = f"/api/vhosts/{BARE}"
            management.request(method, path, timeout=DELETE_S).raise_for_status()
            if method == "PUT":
                rights = dict.fromkeys(("configure", "write", "read"), ".*")
                answer = management.put(f"/api/permissions/{BARE}/admin", json=rights)
                answer.raise_for_status()


def _at_rest(setup: Setup) -> tuple[float, float]:
    """Return the shares of one core of the busiest broker, and of the busiest agent."""
    time.sleep(SETTLE_S)
    before = Used.now(setup.cluster)
    time.sleep(setup.part(IDLE_S, 5))
    return Used.now(setup.cluster).percent(before)


GROUP = Group(NAME, 3, BEHIND_HAPROXY, topology_figures)
