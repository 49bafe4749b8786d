"""Sixteen brokers on this machine, with as many subscriptions and consumers as run on it, and simulated.

Brokers share two cores, so times of this group are of a crowded machine. What both the machine and the
simulation measure are counts, and times of waits: they must agree.

``python -m bench.figures.reach.sixteen FIRST COUNT`` is a process with `COUNT` consumers. It prints one JSON
object: first when all are attached, then after each line of its standard input; with the links, the failed
dials of each second since that line, and when each generation of the list was first known to all.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import httpx
import psutil

from bench.errors import BenchError
from bench.figures.figure import Figure, Maker, at_most
from bench.figures.groups import BEHIND_HAPROXY, Group, Setup, repeat_command
from bench.figures.reach.simulated import DIALS_S, REST_S
from bench.figures.reach.simulation import Lines, Simulation, Size
from bench.figures.reach.used import MB, Used, memory_mb
from bench.figures.reach.virtual_time import VirtualLoop
from bench.processes import Answering, wait_until
from consumer_lists import listfile
from messagebus import AsyncConsumer, BusConfig, ConsumerConfig, declare
from messagebus.files import write_whole
from ops.local.cluster import LocalCluster

NAME = "reach.sixteen"
# At rest 16 brokers, their agents and 3,200 links of 200 consumers would fill two cores.
BROKERS, SUBSCRIPTIONS, CONSUMERS, GROUPS, PROCESSES = 16, 100, 100, 20, 4
COMPARED = 20
DEAD = 2
DECLARE_S, START_S, ANSWER_WITHIN_S, BACK_S = 600.0, 540.0, 600.0, 300.0
SETTLE_S, POLL_S = 10.0, 0.02
# A port without a listener, and the time between two dials of it.
NOBODY, REFUSE_S = ("127.0.0.1", 1), 0.1
GOAL_APART, GOAL_MB, GOAL_AGENT_PERCENT = 1.2, 1.0, 5.0
PULLS = re.compile(r"^messagebus_agent_pulls_total\{.*\} (\d+)", re.MULTILINE)
Answer = Mapping[str, Any]


def sixteen_figures(setup: Setup) -> Iterator[Figure]:
    cluster, make = setup.cluster, Maker(NAME, repeat_command(NAME))
    subscriptions = setup.part(SUBSCRIPTIONS, GROUPS)
    name = f"{BROKERS} brokers, {subscriptions} subscriptions"
    empty_mb = memory_mb(cluster)[0]
    yield from _declared(cluster, make, name, subscriptions)
    full_mb = memory_mb(cluster)[0]
    kb = (full_mb - empty_mb) / (2 * subscriptions) * 1e3
    yield make("queue_kb", "Memory of a broker for a quorum queue", kb, "KB")
    yield from _beside_simulation(setup, make, name)
    yield from _loaded(setup, make, name, full_mb)


def _loaded(setup: Setup, make: Maker, name: str, full_mb: float) -> Iterator[Figure]:
    """Measure as many consumers as two cores carry."""
    cluster, consumers = setup.cluster, setup.part(CONSUMERS, GROUPS)
    name += f", {consumers} consumers"
    with ExitStack() as stack:
        clients, attached = _attached(setup, stack, consumers)
        took_s = max(each["attach_s"] for each in attached)
        what = f"{name}, all starting at once: until the last has all links"
        yield make("attach_s", what, took_s, "s")
        rss = sum(each["rss_bytes"] for each in attached) / consumers / MB
        what = f"{name}: memory of an idle consumer beyond its process"
        yield make("consumer_mb", what, rss, "MB", (at_most, GOAL_MB))
        broker_mb, agent_mb = memory_mb(cluster)
        kb = (broker_mb - full_mb) / consumers * 1e3
        yield make("link_kb", "Memory of a broker for the link of a consumer", kb, "KB")
        before = Used.now(cluster)
        time.sleep(REST_S)
        broker, agent = Used.now(cluster).percent(before)
        of = "at rest: CPU of the busiest"
        yield make("broker_percent", f"{name} {of} broker, of one core", broker, "%")
        what = f"{name} {of} agent, of one core"
        yield make("agent_percent", what, agent, "%", (at_most, GOAL_AGENT_PERCENT))
        yield make("broker_mb", f"{name}: memory of a broker, mean", broker_mb, "MB")
        yield make("agent_mb", f"{name}: memory of an agent, mean", agent_mb, "MB")
        _, back_s = _killed(cluster, clients, consumers)
        what = f"{name}, {DEAD} killed and started: until every consumer is attached to them"
        yield make("back_s", what, back_s, "s")


def _beside_simulation(setup: Setup, make: Maker, name: str) -> Iterator[Figure]:
    """Measure as few consumers as leave the cores time, since the simulation has no processors."""
    cluster, found = setup.cluster, {}
    name += f", {COMPARED} consumers"
    with ExitStack() as stack:
        clients, _ = _attached(setup, stack, COMPARED)
        pulls, began_s = _pulls(cluster), time.monotonic()
        time.sleep(REST_S)
        a_second = (_pulls(cluster) - pulls) / (time.monotonic() - began_s)
        found["agent_requests"] = a_second / BROKERS
        found["spread_ms"], late = _spread(cluster, clients)
        setup.say(f"the last consumer had the new list after {found['spread_ms']:.0f} ms")
        died, _ = _killed(cluster, clients, COMPARED)
    found["dials_10s"] = sum(sum(each["failed"][:DIALS_S]) for each in died) / COMPARED
    refused_ms = sum(each["refused_ms"] for each in died) / len(died)
    what = f"{name}, {DEAD} killed: a refused dial, with the lateness of its timer"
    yield make("refused_ms", what, refused_ms, "ms")
    lines = Lines(answer_ms=refused_ms, refused_ms=refused_ms, lateness_ms=late)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        simulated = runner.run(simulate(COMPARED, lines))
    setup.say("simulated: " + ", ".join(f"{id} {value:.3g}" for id, value in simulated.items()))
    texts = {
        "spread_ms": ("from a new list at the agents until the last consumer has it", "ms"),
        "dials_10s": (f"dials of a consumer in {DIALS_S} s after {DEAD} died", "dials"),
        "agent_requests": ("requests of other agents to an agent at rest", "requests/s"),
    }
    for id, (what, unit) in texts.items():
        yield make(id, f"{name}: {what}", found[id], unit)
        if not found[id]:
            raise BenchError(f"{name}: {what}: none")
        apart = max(found[id] / simulated[id], simulated[id] / found[id])
        text = f"{name}: {what}, against the simulation, whichever is more"
        yield make(f"{id}_apart", text, apart, "times", (at_most, GOAL_APART))


def _attached(
    setup: Setup, stack: ExitStack, consumers: int
) -> tuple[list[Answering], list[Answer]]:
    """Start consumers; return their processes, and what these said when all had all links, after a rest."""
    clients = _clients(stack, setup.cluster, consumers)
    attached = [each.answer() for each in clients]
    setup.say(f"attached: {sum(each['links'] for each in attached)} links")
    time.sleep(SETTLE_S)
    return clients, attached


def _declared(
    cluster: LocalCluster, make: Maker, name: str, subscriptions: int
) -> Iterator[Figure]:
    wanted = [f"t{number % GROUPS}/s{number // GROUPS}" for number in range(subscriptions)]
    before, began_s = Used.now(cluster), time.monotonic()
    declare(BusConfig.from_env(cluster.client_env()), wanted, timeout_s=DECLARE_S)
    yield make("declare_s", f"{name} declared at once", time.monotonic() - began_s, "s")
    cpu_s = Used.now(cluster).cpu_s(before)[0]
    yield make("declare_cpu_s", f"{name} declared at once: CPU of brokers", cpu_s, "s")


def _killed(
    cluster: LocalCluster, clients: Sequence[Answering], consumers: int
) -> tuple[list[Answer], float]:
    """Kill brokers and start them again.

    Returns what the clients said of the time when they were dead, and the time in s from the start until
    every consumer was attached to them.
    """
    _answers(clients)
    names = cluster.names[:DEAD]
    for each in names:
        cluster.kill(each)
    time.sleep(DIALS_S)
    died = _answers(clients)
    began_s = time.monotonic()
    for each in names:
        cluster.start(each, wait=False)
    cluster.wait_ready(names)
    _until_whole(clients, consumers)
    return died, time.monotonic() - began_s


async def simulate(consumers: int, lines: Lines) -> dict[str, float]:
    """Return what the simulation says of the same bus."""
    # All consumers, as if they had one subscription: the last of 200 is later than the last of ten.
    bus = Simulation(Size(BROKERS, consumers, 1, 1_000.0, processes=PROCESSES), lines=lines)
    spread_ms = await bus.spread()
    await asyncio.sleep(2.0)
    dials = sum(await bus.die(DEAD / BROKERS, DIALS_S)) / bus.size.group
    rest = await bus.agents().rest(REST_S)
    return {
        "spread_ms": spread_ms,
        "dials_10s": dials,
        "agent_requests": rest.requests / REST_S / BROKERS,
    }


def _clients(stack: ExitStack, cluster: LocalCluster, consumers: int) -> list[Answering]:
    plain = {key: text for key, text in os.environ.items() if not key.startswith("MESSAGEBUS_")}
    # Brokers and consumers share two cores: a handshake takes longer than the default, half a second.
    dial = dict.fromkeys(("MESSAGEBUS_DIAL_TIMEOUT_S", "MESSAGEBUS_DIAL_TIMEOUT_MAX_S"), "60")
    env = {**plain, **cluster.client_env(), **dial}
    each = consumers // PROCESSES
    return [
        stack.enter_context(
            Answering(
                [
                    sys.executable,
                    "-m",
                    "bench.figures.reach.sixteen",
                    str(number * each),
                    str(each),
                ],
                env,
                ANSWER_WITHIN_S,
            )
        )
        for number in range(PROCESSES)
    ]


def _answers(clients: Sequence[Answering]) -> list[Answer]:
    for client in clients:
        client.tell()
    return [client.answer() for client in clients]


def _pulls(cluster: LocalCluster) -> int:
    found = 0
    for name in cluster.names:
        text = httpx.get(f"http://{cluster.node(name).agent}/metrics", trust_env=False).text
        match = PULLS.search(text)
        if match is None:
            raise BenchError(f"the agent of {name} does not report its pulls")
        found += int(match[1])
    return found


def _spread(cluster: LocalCluster, clients: Sequence[Answering]) -> tuple[float, list[float]]:
    """Give all agents a list of a new generation; return the time until the last consumer has it, in ms.

    It counts from when the last agent has it. Also return the lateness of timers of consumers meanwhile.
    """
    late = list[float]()
    text = listfile.read(cluster.layout.list_file)
    generation = cluster.consumer_list().generation + 1
    newer = listfile.with_generation(text, generation)
    for name in cluster.names:
        write_whole(cluster.node(name).list_file, newer, mode=listfile.MODE)
    _answers(clients)
    began_s = time.monotonic()
    write_whole(cluster.layout.list_file, newer, mode=listfile.MODE)
    known: list[float] = []

    def all_know() -> bool:
        answers = _answers(clients)
        late.extend(ms for each in answers for ms in each["late_ms"])
        known[:] = [each["known_s"].get(str(generation), 0.0) for each in answers]
        return all(known)

    wait_until(all_know, within_s=60.0, what="a new list at every consumer")
    return (max(known) - began_s) * 1000, late


def _until_whole(clients: Sequence[Answering], consumers: int) -> None:
    def whole() -> bool:
        return sum(int(each["links"]) for each in _answers(clients)) == consumers * BROKERS

    wait_until(whole, within_s=BACK_S, what="every link")


GROUP = Group(NAME, BROKERS, BEHIND_HAPROXY, sixteen_figures)


# The process.


class _Failed(logging.Handler):
    """Counts failed dials, which the library logs for debugging, by the second."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.begin()

    def begin(self) -> None:
        self.since_s, self.seconds = time.monotonic(), Counter[int]()

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg.startswith("dial failed"):
            self.seconds[int(time.monotonic() - self.since_s)] += 1


async def main(first: int, count: int) -> None:
    failed, logger = _Failed(), logging.getLogger("messagebus.consumer")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(failed)
    bus, began_s = BusConfig.from_env(os.environ), time.monotonic()
    consumers = [
        AsyncConsumer(
            bus, f"t{number % GROUPS}", subscription="s0", config=ConsumerConfig(prefetch=10)
        )
        for number in range(first, first + count)
    ]
    before = psutil.Process().memory_info().rss
    await asyncio.gather(*(each.start(require="all", timeout_s=START_S) for each in consumers))
    attach_s, known_s = time.monotonic() - began_s, dict[int, float]()

    async def watch() -> None:
        while True:
            generation = min(each.stats().list_generation for each in consumers)
            known_s.setdefault(generation, looked_s := time.monotonic())
            await asyncio.sleep(POLL_S)
            late.append(time.monotonic() - looked_s - POLL_S)

    refused, late = list[float](), list[float]()

    async def refuse() -> None:
        """Note what a dial takes that is refused, with the lateness of its timer."""
        while True:
            began_s = time.monotonic()
            await asyncio.sleep(REFUSE_S)
            with suppress(ConnectionRefusedError):
                await asyncio.open_connection(*NOBODY)
            refused.append(time.monotonic() - began_s - REFUSE_S)

    watching, loop = asyncio.gather(watch(), refuse()), asyncio.get_running_loop()
    while True:
        brokers = [each.stats().brokers.values() for each in consumers]
        state = {
            "attach_s": attach_s,
            "rss_bytes": psutil.Process().memory_info().rss - before,
            "links": sum(one.state == "open" for each in brokers for one in each),
            "known_s": known_s,
            "late_ms": [1e3 * each for each in late],
            "refused_ms": 1e3 * sum(refused) / max(1, len(refused)),
            "failed": [failed.seconds[second] for second in range(60)],
        }
        print(json.dumps(state), flush=True)
        failed.begin()
        refused.clear()
        late.clear()
        if not await loop.run_in_executor(None, sys.stdin.readline):
            break
    watching.cancel()
    os._exit(0)  # it ends the links: nothing is in flight


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
