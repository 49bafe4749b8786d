"""The page beside real brokers: how soon it tells what happens, what a viewer costs, how long a trace is."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.parse import quote

import httpx

from bench.clients.pika_blocking import channel_at
from bench.errors import BenchError
from bench.faults import KINDS, Step
from bench.figures.form import Figure, Maker, at_most
from bench.figures.scene import BEHIND_HAPROXY, Group, Scene, repeat_command
from bench.figures.see import page, trial
from bench.processes import run, wait_until
from messagebus import (
    Broker,
    BusConfig,
    Consumer,
    Message,
    MessageBusError,
    Publisher,
    Subscription,
    Topic,
    count_parked,
    declare,
)
from ops.local.cluster import LocalCluster

FRESH, COST, TRACE = "see.fresh", "see.cost", "see.trace"
TOPIC, PAUSED, PARKED = "figures", "figures/paused", "parks/all"
EVENTS, ROWS, TRIES = 5, 20, 5
WELL = "^serving"
# What happens to a broker -> what its row says then.
TOLD = {
    "killed": "^(broker does not answer|agent silent)",
    "stopped": "^(broker does not answer|agent silent)",
    "drained": "^drain",
    "alarmed": "^alarm",
}
ACTS: dict[str, tuple[Step, Step]] = {
    "killed": KINDS["kill"][2:],
    "stopped": (LocalCluster.stop, LocalCluster.start),
    "drained": KINDS["drain"][2:],
    "alarmed": KINDS["alarm"][2:],
}
COST_NAMES, COST_S, DECLARED_AT_ONCE = 500, 20.0, 100
TRACED, TRACED_BYTES = 80_000, 200
WITHIN_S = 300.0
GOAL_STATE_S, GOAL_ROW_S, GOAL_TRACE_S = 2, 2, 2
GOAL_AGENT_PERCENT, GOAL_BROKER_PERCENT = 3, 2


def _declared(scene: Scene, names: list[str]) -> BusConfig:
    """Declare names, as often as a busy machine wants it. Returns the settings of a client."""
    bus = BusConfig.from_env(scene.cluster.client_env())
    for begun in range(0, len(names), DECLARED_AT_ONCE):
        for left in reversed(range(TRIES)):
            try:
                declare(bus, names[begun : begun + DECLARED_AT_ONCE])
            except MessageBusError as fault:
                if not left:
                    raise BenchError(str(fault)) from fault
                continue
            break
    return bus


def _fresh(scene: Scene) -> Iterator[Figure]:
    make = Maker(FRESH, repeat_command(FRESH))
    cluster, events = scene.cluster, scene.part(EVENTS, 2)
    bus = _declared(scene, [PAUSED])
    with page.monitor(cluster.client_env(), scene.folder) as (address, _pid):
        broker = cluster.node(cluster.names[1]).broker
        state = f"tr[id='broker.{quote(broker, safe='')}'] .chip"
        with page.tab(address) as tab:
            for name, words in TOLD.items():
                took = []
                for _ in range(events):
                    begin, end = (partial(act, cluster, cluster.names[1]) for act in ACTS[name])
                    page.until_told(tab, state, WELL, lambda: None)
                    if name == "stopped":
                        begin()  # an orderly end takes seconds, and the broker serves during them
                        took.append(page.until_told(tab, state, words, lambda: None))
                    else:
                        took.append(page.until_told(tab, state, words, begin))
                    end()
                scene.say(f"{name}: {max(took):.2f} s at most")
                what = f"Page open: a broker is {name} until its row says so, worst of {events}"
                goal = None if name == "alarmed" else (at_most, GOAL_STATE_S)
                yield make(f"{name}_s", what, took, "s", goal, max)
            page.until_told(tab, state, WELL, lambda: None)
        at = f"tr[id='source.{quote(PAUSED, safe='')}'] td:nth-child(3)"
        with page.tab(f"{address}/subscriptions?q=paused") as tab, Publisher(bus) as publisher:
            page.until_told(tab, at, "^0$", lambda: None)
            took = []
            for number in range(1, scene.part(ROWS, 3) + 1):
                publish = partial(publisher.send_safe, TOPIC, b"x", timeout_s=60)
                took.append(page.until_told(tab, at, f"^{number}$", publish))
        what = (
            f"Page open: published to a paused subscription until the figure, worst of {len(took)}"
        )
        yield make("row_s", what, took, "s", (at_most, GOAL_ROW_S), max)


def _cost(scene: Scene) -> Iterator[Figure]:
    """Measure what a viewer costs agents and brokers, who are all but one of those that run.

    The last is on no list that the monitor knows: what changes there, as what a core gives beside a
    browser, is no cost of the page. The same difference without any viewer is told as noise.
    """
    make = Maker(COST, repeat_command(COST, scene.repeat))
    cluster, names = scene.cluster, scene.part(COST_NAMES, 50)
    _declared(scene, [f"cost{n // 10}/sub{n}" for n in range(names)])
    agents = [_pid(cluster, name, agent=True) for name in cluster.names]
    brokers = [_pid(cluster, name) for name in cluster.names]
    turn_s = float(scene.part(round(COST_S), 5))
    found: dict[str, list[float]] = {"agent": [], "broker": [], "noise": []}

    def turn() -> list[list[float]]:
        told = page.cpu_percents([*agents, *brokers], turn_s)
        return [told[: len(agents)], told[len(agents) :]]

    with trial.list_without(cluster, cluster.node(cluster.names[-1]).broker) as two:
        env = {**cluster.client_env(), "MESSAGEBUS_LIST_URL": two.list_urls[0]}
        rest = turn()
        for _ in range(scene.repeat):
            with (
                page.monitor(env, scene.folder) as (address, _),
                page.tab(f"{address}/subscriptions"),
            ):
                time.sleep(3)
                watched = turn()
            time.sleep(3)
            before, rest = rest, turn()
            for part, id in enumerate(("agent", "broker")):
                much, less = _apart(watched[part]), _apart(before[part]) + _apart(rest[part])
                found[id].append(much - less / 2)
            found["noise"].append(abs(_apart(rest[1]) - _apart(before[1])))
            more = (
                f"agent {found['agent'][-1]:.2f}, broker {found['broker'][-1]:.2f} % of a core more"
            )
            turns = "; ".join(_told(each[1]) for each in (before, watched, rest))
            scene.say(f"{more}; brokers without, with, without a viewer: {turns}")
    for id, goal in (("agent", GOAL_AGENT_PERCENT), ("broker", GOAL_BROKER_PERCENT)):
        what = f"CPU of one {id} for one viewer of the page at {names} subscriptions, of one core"
        yield make(f"{id}_percent", what, found[id], "%", (at_most, goal))
    what = "CPU of one broker: the same difference between two turns without a viewer"
    yield make("noise_percent", what, found["noise"], "%")


def _apart(percents: list[float]) -> float:
    """Return the mean of all but the last, more than the last."""
    *all_, last = percents
    return sum(all_) / len(all_) - last


def _told(percents: list[float]) -> str:
    return ", ".join(f"{each:.1f}" for each in percents)


def _pid(cluster: LocalCluster, name: str, *, agent: bool = False) -> int:
    process = cluster.process_of(name, agent=agent)
    if process is None:
        raise BenchError(f"{name} does not run")
    return process.pid


def _trace(scene: Scene) -> Iterator[Figure]:
    make = Maker(TRACE, repeat_command(TRACE, scene.repeat))
    count = scene.part(TRACED, 500)
    bus = _declared(scene, [PARKED])
    id = f"traced-{count}-needle"
    _park(scene, bus, id, count)
    wait_until(
        lambda: sum(each.count for each in count_parked(bus, [PARKED]).counts) >= count,
        within_s=WITHIN_S,
        what="all are parked",
    )
    argv = [sys.executable, "-m", "messagebus", "trace", id]
    took = []
    for _ in range(scene.repeat):
        began_s = time.perf_counter()
        said = run(argv, within_s=60, what="trace", env=_env(scene))
        took.append(time.perf_counter() - began_s)
        if "Parked in" not in said:
            raise BenchError(f"trace does not find it: {said[:200]}")
    what = f"messagebus trace of one among {count:,} parked"
    yield make("command_s", what, took, "s", (at_most, GOAL_TRACE_S))
    with page.monitor(scene.cluster.client_env(), scene.folder) as (address, _):
        took = []
        for _ in range(scene.repeat):
            began_s = time.perf_counter()
            told = httpx.get(f"{address}/trace?id={id}", trust_env=False, timeout=60).text
            took.append(time.perf_counter() - began_s)
            if "Parked in" not in told:
                raise BenchError("the page does not find it")
    what = f"The page's trace of one among {count:,} parked"
    yield make("page_s", what, took, "s", (at_most, GOAL_TRACE_S))


def _park(scene: Scene, bus: BusConfig, id: str, count: int) -> None:
    """Park one message by a consumer, and copies of it, each with an id of its own, on every broker."""
    topic, _, subscription = PARKED.partition("/")
    with Publisher(bus) as publisher:
        body = b"x" * TRACED_BYTES
        publisher.send_safe(topic, Message(body=body, message_id=id), timeout_s=60)
    with Consumer(bus, topic, subscription=subscription) as consumer:
        delivery: Any = consumer.receive(timeout_s=60)
        if delivery is None:
            raise BenchError("what was published does not arrive")
        consumer.park(delivery, reason="figures")
        wait_until(
            lambda: sum(each.count for each in count_parked(bus, [PARKED]).counts) == 1,
            within_s=60,
            what="one is parked",
        )
    cluster = scene.cluster
    channels = [
        channel_at(Broker.parse(cluster.node(name).broker), "admin", cluster.admin_password)
        for name in cluster.names
    ]
    queue = Subscription(Topic(topic), subscription).parking_queue
    found = [channel.basic_get(queue) for channel in channels]
    ((met, properties, text),) = [each for each in found if each[0]]
    for channel, (method, _, _) in zip(channels, found, strict=True):
        if method is met:
            channel.basic_reject(met.delivery_tag, requeue=True)
    for number in range(count - 1):
        properties.message_id = f"{number:020x}.{number}"
        channels[number % len(channels)].basic_publish("", queue, text, properties)
    for channel in channels:
        channel.connection.close()


def _env(scene: Scene) -> dict[str, str]:
    return {**os.environ, **scene.cluster.client_env()}


GROUPS = tuple(
    Group(name, 3, BEHIND_HAPROXY, measure)
    for name, measure in ((FRESH, _fresh), (COST, _cost), (TRACE, _trace))
)
