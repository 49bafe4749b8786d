"""Sixteen brokers on this machine, with as many subscriptions and consumers as run on it, and simulated.

Brokers share two cores, so times of this group are of a crowded machine. The simulation of the same bus has
as many cores, and the CPU times that the processes used: what both measure must agree.

``python -m bench.figures.reach.sixteen FIRST COUNT`` is a process with `COUNT` consumers. It prints one JSON
object: first when all are attached, then after each line of its standard input; with the links, the failed
dials of each second and the CPU time since that line, and when each generation of the list was last applied.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, cast

import httpx
import psutil

from bench.errors import BenchError
from bench.figures.figure import Figure, Maker, at_most
from bench.figures.groups import BEHIND_HAPROXY, Group, Setup, repeat_command
from bench.figures.reach.hosts import Processors
from bench.figures.reach.simulated import DIALS_S, REST_S
from bench.figures.reach.simulation import Simulation, Size
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
# New lists, and the time between them. CHANGES: lists whose time until the last consumer is measured. BURST:
# lists so soon after each other that agents do little else, for the CPU time of a request and of a list.
CHANGES, CHANGE_S = 15, 2.0
BURST, BURST_S = 30, 0.4
DEAD = 2
DECLARE_S, START_S, ANSWER_WITHIN_S, BACK_S = 600.0, 540.0, 600.0, 300.0
SETTLE_S = 10.0
# Beyond it other work decides when a process computes.
BUSY_MAX = 0.9
GOAL_APART, GOAL_MB, GOAL_AGENT_PERCENT = 1.2, 1.0, 5.0
COSTS = {
    "request_ms": "CPU time of an agent for its side of a request",
    "list_ms": "CPU time of a consumer for a new list",
    "login_ms": "CPU time of a consumer for a link, with its part of the start",
    "refused_ms": "CPU time of a consumer for a refused dial",
    "upkeep_ms": "CPU time of an agent in a second at rest",
}
COMPARISONS = {
    "spread_ms": ("from a new list at the agents until the last consumer has it", "ms"),
    "dials_10s": (f"dials of a consumer in {DIALS_S} s after {DEAD} died", "dials"),
    "agent_requests": ("requests of other agents to an agent at rest", "requests/s"),
}
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
    """Measure few consumers, which leave the cores time, and simulate them with the CPU times measured."""
    cluster = setup.cluster
    name += f", {COMPARED} consumers"
    with ExitStack() as stack:
        clients, attached = _attached(setup, stack, COMPARED)
        psutil.cpu_percent()
        rest = _Work.during(cluster, clients, lambda: time.sleep(REST_S))
        busy, took_ms = psutil.cpu_percent() / 100, _spread(cluster, clients)
        burst = _Work.during(cluster, clients, lambda: _new_lists(cluster, BURST, BURST_S))
        setup.say(
            "the last consumer had new lists after " + ", ".join(f"{ms:.0f}" for ms in took_ms)
        )
        died, _ = _killed(cluster, clients, COMPARED)
    more, failed = burst.beyond(rest), sum(sum(each["failed"][:DIALS_S]) for each in died)
    dialled_s = sum(each["cpu_s"] for each in died) - rest.clients_s / rest.took_s * DIALS_S
    cores, agents_cores = psutil.cpu_count() or 1, rest.agents_s / rest.took_s
    processors = Processors(
        request_ms=more.agents_s / (2 * more.pulls + more.lists) * 1e3,
        list_ms=more.clients_s / more.lists * 1e3,
        login_ms=sum(each["cpu_s"] for each in attached) / COMPARED / BROKERS * 1e3,
        refused_ms=dialled_s / max(1, failed) * 1e3,
        upkeep_ms=agents_cores / BROKERS * 1e3,
        cores=cores,
        # Agents are simulated, at rest too.
        busy=busy - agents_cores / cores,
    )
    if busy > BUSY_MAX:
        raise BenchError(
            f"{100 * busy:.0f} % of the cores are used at rest: no time is left to share"
        )
    for id, text in COSTS.items():
        yield make(id, f"{name}: {text}", asdict(processors)[id], "ms")
    what = f"{name} at rest: the part of the cores that is used"
    yield make("busy_percent", what, 100 * busy, "%")
    found = {
        "spread_ms": statistics.median(took_ms),
        "dials_10s": failed / COMPARED,
        "agent_requests": rest.pulls / rest.took_s / BROKERS,
    }
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        simulated = runner.run(simulate(COMPARED, processors))
    setup.say("simulated: " + ", ".join(f"{id} {value:.3g}" for id, value in simulated.items()))
    for id, (text, unit) in COMPARISONS.items():
        yield make(id, f"{name}: {text}", found[id], unit)
        if not found[id]:
            raise BenchError(f"{name}: {text}: none")
        apart = max(found[id] / simulated[id], simulated[id] / found[id])
        what = f"{name}: {text}, against the simulation, whichever is more"
        yield make(f"{id}_apart", what, apart, "times", (at_most, GOAL_APART))


@dataclass(frozen=True, slots=True)
class _Work:
    """The CPU time of agents and clients in a time, the requests between agents, and the lists of clients."""

    took_s: float
    agents_s: float
    clients_s: float
    pulls: float
    lists: float

    @classmethod
    def during(
        cls, cluster: LocalCluster, clients: Sequence[Answering], do: Callable[[], object]
    ) -> _Work:
        _answers(clients)
        pulls, before = _pulls(cluster), Used.now(cluster)
        do()
        # In the order of the beginning, so that both times include that of the questions.
        answers, pulls = _answers(clients), _pulls(cluster) - pulls
        after = Used.now(cluster)
        return cls(
            took_s=after.at_s - before.at_s,
            agents_s=after.cpu_s(before)[1],
            clients_s=sum(each["cpu_s"] for each in answers),
            pulls=pulls,
            lists=sum(each["lists"] for each in answers),
        )

    def beyond(self, rest: _Work) -> _Work:
        """Return the work in excess of that at rest in as long a time."""
        part = self.took_s / rest.took_s
        return _Work(
            self.took_s,
            self.agents_s - part * rest.agents_s,
            self.clients_s - part * rest.clients_s,
            self.pulls - part * rest.pulls,
            self.lists,
        )


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


async def simulate(consumers: int, processors: Processors) -> dict[str, float]:
    """Return what the simulation says of the same bus."""
    # All consumers, as if they had one subscription: the last of 200 is later than the last of ten.
    size = Size(BROKERS, consumers, 1, 1_000.0, processes=PROCESSES)
    bus = Simulation(size, processors=processors)
    await bus.spread()
    await bus.whole()
    spread_ms = []
    async with bus.upkeep():
        for _ in range(CHANGES):
            spread_ms.append(await bus.spread())
            await asyncio.sleep(CHANGE_S)
        dials = sum(await bus.die(DEAD / BROKERS, DIALS_S)) / bus.size.group
    # So long that a round more or less is little.
    rest_s = 10 * REST_S
    rest = await Simulation(size, processors=processors).agents().rest(rest_s)
    return {
        "spread_ms": statistics.median(spread_ms),
        "dials_10s": dials,
        "agent_requests": rest.requests / rest_s / BROKERS,
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


def _spread(cluster: LocalCluster, clients: Sequence[Answering]) -> list[float]:
    """Give all agents newer lists; return the times until the last consumer has each, in ms."""
    began_s, answers = _new_lists(cluster, CHANGES, CHANGE_S), list[Answer]()

    def all_know() -> bool:
        answers[:] = _answers(clients)
        return all(each["generation"] == max(began_s) for each in answers)

    wait_until(all_know, within_s=60.0, what="a new list at every consumer")
    applied_s = [max(each["applied_s"][str(number)] for each in answers) for number in began_s]
    return [1e3 * (last - first) for first, last in zip(began_s.values(), applied_s, strict=True)]


def _new_lists(cluster: LocalCluster, count: int, every_s: float) -> dict[int, float]:
    """Give all agents so many newer lists; return the moment of each, by its generation."""
    began_s = dict[int, float]()
    for _ in range(count):
        generation = cluster.consumer_list().generation + 1
        began_s[generation] = _new_list(cluster, generation)
        time.sleep(every_s)
    return began_s


def _new_list(cluster: LocalCluster, generation: int) -> float:
    """Give a list to all agents at one moment; return the moment."""
    text = listfile.with_generation(listfile.read(cluster.layout.list_file), generation)
    files = [cluster.layout.list_file, *(cluster.node(name).list_file for name in cluster.names)]
    new = [file.with_suffix(".new") for file in files]
    for each in new:
        write_whole(each, text, mode=listfile.MODE)
    began_s = time.monotonic()
    for each, file in zip(new, files, strict=True):
        each.replace(file)
    return began_s


def _until_whole(clients: Sequence[Answering], consumers: int) -> None:
    def whole() -> bool:
        return sum(int(each["links"]) for each in _answers(clients)) == consumers * BROKERS

    wait_until(whole, within_s=BACK_S, what="every link")


GROUP = Group(NAME, BROKERS, BEHIND_HAPROXY, sixteen_figures)


# The process.


class _Seen(logging.Handler):
    """Counts lists, and the failed dials of each second, and notes when each list was applied last."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.applied_s = dict[int, float]()
        self.begin()

    def begin(self) -> None:
        self.since_s, self.cpu_s = time.monotonic(), time.process_time()
        self.seconds, self.lists = Counter[int](), 0

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg.startswith("dial failed"):
            self.seconds[int(time.monotonic() - self.since_s)] += 1
        elif record.msg.startswith("list applied") and isinstance(record.args, tuple):
            self.applied_s[cast(int, record.args[0])] = time.monotonic()
            self.lists += 1


async def main(first: int, count: int) -> None:
    seen = _Seen()
    for name, level in (("messagebus.consumer", logging.DEBUG), ("messagebus.list", logging.INFO)):
        logging.getLogger(name).setLevel(level)
        logging.getLogger(name).addHandler(seen)
    bus, began_s = BusConfig.from_env(os.environ), time.monotonic()
    consumers = [
        AsyncConsumer(
            bus, f"t{number % GROUPS}", subscription="s0", config=ConsumerConfig(prefetch=10)
        )
        for number in range(first, first + count)
    ]
    before = psutil.Process().memory_info().rss
    await asyncio.gather(*(each.start(require="all", timeout_s=START_S) for each in consumers))
    attach_s, loop = time.monotonic() - began_s, asyncio.get_running_loop()
    while True:
        stats = [each.stats() for each in consumers]
        brokers = [each.brokers.values() for each in stats]
        state = {
            "attach_s": attach_s,
            "rss_bytes": psutil.Process().memory_info().rss - before,
            "links": sum(one.state == "open" for each in brokers for one in each),
            "generation": min(each.list_generation for each in stats),
            "applied_s": seen.applied_s,
            "lists": seen.lists,
            "cpu_s": time.process_time() - seen.cpu_s,
            "failed": [seen.seconds[second] for second in range(60)],
        }
        print(json.dumps(state), flush=True)
        seen.begin()
        if not await loop.run_in_executor(None, sys.stdin.readline):
            break
    os._exit(0)  # it ends the links: nothing is in flight


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
