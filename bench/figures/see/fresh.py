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

from bench.errors import BenchError
from bench.faults import KINDS, Step
from bench.figures.form import Figure, Maker, at_most
from bench.figures.scene import BEHIND_HAPROXY, Group, Scene, repeat_command
from bench.figures.see import page
from bench.processes import run, wait_until
from messagebus import (
    BusConfig,
    Consumer,
    ConsumerConfig,
    Message,
    MessageBusError,
    Publisher,
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
    make = Maker(COST, repeat_command(COST, scene.repeat))
    cluster, names = scene.cluster, scene.part(COST_NAMES, 50)
    _declared(scene, [f"cost{n // 10}/sub{n}" for n in range(names)])
    agents = [_pid(cluster, name, agent=True) for name in cluster.names]
    brokers = [_pid(cluster, name) for name in cluster.names]
    pids, count = [*agents, *brokers], len(agents)
    found: list[list[float]] = []
    for _ in range(scene.repeat):
        without = page.cpu_percents(pids, scene.part(round(COST_S), 5))
        with (
            page.monitor(cluster.client_env(), scene.folder) as (address, _),
            page.tab(f"{address}/subscriptions"),
        ):
            time.sleep(3)
            watched = page.cpu_percents(pids, scene.part(round(COST_S), 5))
        found.append([much - rest for much, rest in zip(watched, without, strict=True)])
        scene.say(f"agents {found[-1][:count]}, brokers {found[-1][count:]} % of a core more")
    for id, part, goal in (
        ("agent", slice(0, count), GOAL_AGENT_PERCENT),
        ("broker", slice(count, None), GOAL_BROKER_PERCENT),
    ):
        what = f"CPU of one {id} for one viewer of the page at {names} subscriptions, of one core"
        means = [sum(each[part]) / count for each in found]
        yield make(f"{id}_percent", what, means, "%", (at_most, goal), min)


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
    with Publisher(bus) as publisher:
        for begun in range(0, count, 5_000):
            size = min(5_000, count - begun)
            messages = [Message(body=b"x" * TRACED_BYTES) for _ in range(size)]
            if not begun:
                messages[size // 2] = Message(body=b"x", message_id=id)
            list(publisher.send_many("parks", messages, timeout_s=WITHIN_S))
    with Consumer(
        bus, "parks", subscription="all", config=ConsumerConfig(prefetch=1_000)
    ) as consumer:
        for _ in range(count):
            delivery: Any = consumer.receive(timeout_s=60)
            if delivery is None:
                raise BenchError("what was published does not arrive")
            consumer.park(delivery, reason="figures")
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
    what = f"messagebus trace of one among {count:,} parked, shortest"
    yield make("command_s", what, took, "s", (at_most, GOAL_TRACE_S), min)
    with page.monitor(scene.cluster.client_env(), scene.folder) as (address, _):
        took = []
        for _ in range(scene.repeat):
            began_s = time.perf_counter()
            told = httpx.get(f"{address}/trace?id={id}", trust_env=False, timeout=60).text
            took.append(time.perf_counter() - began_s)
            if "Parked in" not in told:
                raise BenchError("the page does not find it")
    what = f"The page's trace of one among {count:,} parked, shortest"
    yield make("page_s", what, took, "s", (at_most, GOAL_TRACE_S), min)


def _env(scene: Scene) -> dict[str, str]:
    return {**os.environ, **scene.cluster.client_env()}


GROUPS = tuple(
    Group(name, 3, BEHIND_HAPROXY, measure)
    for name, measure in ((FRESH, _fresh), (COST, _cost), (TRACE, _trace))
)
