"""Clients that take turns on a setup, and the figures that a table of them gives.

All clients take one turn per repetition, interleaved, each in a fresh process. Other load of the machine
affects all of them alike, so a ratio is taken within each repetition, and the figure is its median over the
repetitions. Before each turn the queue is emptied; before one that consumes, it is filled with the messages
of that turn.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bench.clients import perf_test
from bench.figures.figure import Figure, Maker, at_least, at_most
from bench.figures.groups import Group, Setup, repeat_command
from bench.harness.loop import best_loop
from bench.harness.timed_turn import COMMAND, TURN_WITHIN_S, Task, Turn, to_json
from bench.processes import run
from messagebus import BusConfig, Subscription, Topic, declare

DIRECT = "one broker directly, no HAProxy"
TOPIC, SUBSCRIPTION = "figures", "sink"
# The warm-up as a fraction of a turn's messages; lower bounds of the warm-up, and of a quick turn's messages.
WARM_UP_PART = 0.1
WARM_UP_LEAST, QUICK_LEAST = 100, 500
PROCESS_WITHIN_S = TURN_WITHIN_S + 60.0
# The window of the publisher that fills a queue: messages, or batches.
FILL_WINDOW, FILL_BATCHES = 1000, 50

Turns = Mapping[str, Sequence[Turn]]
"""Line -> its turns, one per repetition, in order."""


@dataclass(frozen=True, slots=True)
class Line:
    """A client with its task, and the figures of its rate and its CPU time: without goals, for each machine
    has others.

    name: among the lines of its table. id: the beginning of the figures' ids, after the table's.
    """

    name: str
    id: str
    what: str
    task: Task


@dataclass(frozen=True, slots=True)
class Against:
    """A figure of one line against another: the ratio of the rates, or of the CPU times of a message.

    line, other: their names. goal: at least of the rates, at most of the CPU times.
    """

    line: str
    other: str
    id: str
    what: str
    goal: float | None = None
    of_cpu: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """The lines that take turns, and what is compared. A comparison without one of its lines is left out."""

    lines: list[Line] = field(default_factory=list)
    against: list[Against] = field(default_factory=list)

    def line(self, name: str) -> Line:
        return next(line for line in self.lines if line.name == name)

    def figures(self, name: str, turns: Turns, repeat: str) -> Iterator[Figure]:
        """Make the figures. name: the beginning of all ids."""
        make = Maker(name, repeat)
        for line in (line for line in self.lines if line.name in turns):
            rates = [turn.rate_per_s for turn in turns[line.name]]
            yield make(f"{line.id}rate", line.what, rates, "messages/s")
            what = f"{line.what}: CPU time of the client process per message"
            costs = [turn.cpu_us for turn in turns[line.name]]
            yield make(f"{line.id}cpu_us", what, costs, "us")
        for each in self.against:
            if each.line in turns and each.other in turns:
                pairs = list(zip(turns[each.line], turns[each.other], strict=True))
                bound = at_most if each.of_cpu else at_least
                found = [
                    a.cpu_us / b.cpu_us if each.of_cpu else a.rate_per_s / b.rate_per_s
                    for a, b in pairs
                ]
                goal = None if each.goal is None else (bound, each.goal)
                yield make(each.id, each.what, found, "times", goal)


def group(
    name: str,
    table: Callable[[Task, Setup], Table],
    *,
    brokers: int = 1,
    path: str = DIRECT,
) -> Group:
    """Return the group of a table's figures."""

    def measure(setup: Setup) -> Iterator[Figure]:
        task = direct_task(setup)
        made = table(task, setup)
        tasks = {line.name: line.task for line in made.lines}
        java = [name for name, each in tasks.items() if each.system == "perf-test"]
        if java and not perf_test.is_ready(setup.say):
            tasks = {name: each for name, each in tasks.items() if name not in java}
        turns = interleaved(setup, tasks, lambda _name, each: prepare(setup, each))
        purge(setup, task)
        yield from made.figures(name, turns, repeat_command(name, setup.repeat))

    return Group(name, brokers, path, measure)


def direct_task(setup: Setup, topic: str = TOPIC) -> Task:
    """Return a task at the first broker itself: neither HAProxy nor another broker in the path."""
    cluster = setup.cluster
    node, env = cluster.node(cluster.names[0]), cluster.client_env()
    declare(BusConfig.from_env(env), [f"{topic}/{SUBSCRIPTION}"])
    env["MESSAGEBUS_BROKER"] = node.broker
    env["MESSAGEBUS_LIST_URL"] = f"http://{node.agent}/consumer-list"
    return Task(verb="publish", env=env, topic=topic, subscription=SUBSCRIPTION)


def sized(task: Task, setup: Setup, messages: int) -> Task:
    """Return the task with this many messages, fewer in a quick run, and a warm-up of a tenth of them."""
    count = setup.part(messages, QUICK_LEAST)
    return replace(task, messages=count, warm_up=max(WARM_UP_LEAST, int(count * WARM_UP_PART)))


def interleaved(
    setup: Setup, tasks: Mapping[str, Task], prepare: Callable[[str, Task], None]
) -> dict[str, list[Turn]]:
    """Do every task once per repetition, each time beginning with another one."""
    found: dict[str, list[Turn]] = {name: [] for name in tasks}
    for number in range(setup.repeat):
        start, names = number % len(tasks), list(tasks)
        for name in [*names[start:], *names[:start]]:
            prepare(name, tasks[name])
            turn = take_turn(name, tasks[name])
            found[name].append(turn)
            setup.say(
                f"repetition {number + 1} of {setup.repeat}, {name}: "
                f"{turn.rate_per_s:,.0f}/s, {turn.cpu_us:.1f} us of CPU a message"
            )
    return found


def take_turn(name: str, task: Task) -> Turn:
    """Run a turn in a fresh process of the same interpreter. Raises BenchError with its last line."""
    said = run([*COMMAND, to_json(task)], within_s=PROCESS_WITHIN_S, what=name)
    return Turn(**json.loads(said.strip().splitlines()[-1]))


def prepare(setup: Setup, task: Task) -> None:
    """Empty the queue, and fill it for a task that consumes."""
    purge(setup, task)
    if task.verb == "consume":
        fill(task)


def fill(task: Task) -> None:
    """Publish exactly the messages of a turn that consumes."""
    publishing = replace(
        task,
        verb="publish",
        system="messagebus",
        way="submit",
        window=FILL_WINDOW if task.batch == 1 else FILL_BATCHES,
        loop=best_loop(),
        messages=task.messages + task.warm_up,
        warm_up=0,
    )
    take_turn("fill", publishing)


def purge(setup: Setup, task: Task) -> None:
    """Empty the queue of a task, so that it does not grow from turn to turn."""
    empty(setup, queue_of(task))


def queue_of(task: Task) -> str:
    """Return the path of a task's queue in the management API."""
    return path_of(Subscription(Topic(task.topic), task.subscription).amqp_queue)


def path_of(queue: str) -> str:
    return f"/api/queues/%2F/{queue.replace('/', '%2F')}"


def empty(setup: Setup, path: str) -> None:
    """Empty the queue of that path on all brokers."""
    for name in setup.cluster.names:
        with setup.cluster.management(name) as management:
            management.delete(f"{path}/contents").raise_for_status()
