"""The scene of a group of figures, and clients that take turns on it.

A scene has a cluster, a folder, a number of repetitions and a size. Each turn runs in a fresh process. All
clients take one turn per repetition, interleaved. Other load of the machine affects all of them alike, so a
ratio is taken within each repetition, and the figure is its median over the repetitions.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.environment import CHECKOUT
from bench.errors import BenchError
from bench.figures.form import Figure, Goal, median_of, no_goal
from bench.systems.turn import TURN_WITHIN_S, Task, Turn
from messagebus import BusConfig, declare
from ops.local.cluster import LocalCluster

__all__ = [
    "DEFAULT_REPEAT",
    "SUBSCRIPTION",
    "TOPIC",
    "Case",
    "Group",
    "Scene",
    "Stage",
    "Turns",
    "direct_task",
    "interleaved",
    "purge",
    "rate_and_cpu",
    "ratios",
    "repeat_command",
    "sized",
    "take_turn",
]

DEFAULT_REPEAT = 5
# A quick run shows that everything works; its numbers mean little.
QUICK_PART = 0.1


@dataclass(frozen=True, slots=True)
class Scene:
    """The resources of one group. folder: empty, and removed afterwards. quick: a tenth of everything."""

    folder: Path
    say: Callable[[str], None]
    repeat: int = DEFAULT_REPEAT
    quick: bool = False
    started: LocalCluster | None = None

    @property
    def cluster(self) -> LocalCluster:
        if self.started is None:
            raise BenchError("this group of figures has asked for no cluster")
        return self.started

    def part(self, count: int, least: int = 1) -> int:
        """Return the count, or a tenth of it in a quick run, but not less than `least`."""
        return max(least, round(count * QUICK_PART)) if self.quick else count


@dataclass(frozen=True, slots=True)
class Group:
    """A group of figures.

    name: mostly the beginning of its figures' ids. brokers: the number it needs, 0 for no cluster. path:
    whether HAProxy stands between clients and brokers.
    """

    name: str
    brokers: int
    path: str
    measure: Callable[[Scene], Iterator[Figure]]


class Stage:
    """A cluster that starts when a group needs one, and is kept while the next groups need the same."""

    def __init__(self, folder: Path, network: str, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._network = network
        self._say = say
        self._cluster: LocalCluster | None = None
        self._brokers = 0

    @contextmanager
    def open(self) -> Iterator[Stage]:
        """Stop and remove the cluster on exit."""
        try:
            yield self
        finally:
            self._stop()

    def scene(self, group: Group, wanted: Scene) -> Scene:
        """Start everything that the group needs, and return its scene."""
        if group.brokers and group.brokers != self._brokers:
            self._stop()
            self._say(f"a cluster of {group.brokers} starts")
            self._cluster = LocalCluster(
                self._folder / f"cluster{group.brokers}",
                group.brokers,
                network=self._network,
                say=self._say,
            )
            self._brokers = group.brokers
            self._cluster.up()
        folder = self._folder / group.name
        folder.mkdir(parents=True)
        return dataclasses.replace(wanted, folder=folder, started=self._cluster)

    def _stop(self) -> None:
        if self._cluster is not None:
            self._cluster.down(wipe=True)
        self._cluster, self._brokers = None, 0


def repeat_command(group: str, repeat: int = 0) -> str:
    """Return the command that repeats the figures of a group."""
    return f"python -m bench figures {group}" + (f" --repeat {repeat}" if repeat else "")


TOPIC, SUBSCRIPTION = "figures", "sink"
# The warm-up as a fraction of a turn's messages; lower bounds of the warm-up, and of a quick turn's messages.
WARM_UP_PART = 0.1
WARM_UP_LEAST, QUICK_LEAST = 100, 500
PROCESS_WITHIN_S = TURN_WITHIN_S + 60.0

Turns = Mapping[str, Sequence[Turn]]
"""Case -> its turns, one per repetition, in order."""


@dataclass(frozen=True, slots=True)
class Case:
    """One client with its task. name: part of the figures' ids. what: part of their descriptions."""

    name: str
    system: str
    task: Task
    what: str = ""


def direct_task(scene: Scene, topic: str = TOPIC, subscription: str = SUBSCRIPTION) -> Task:
    """Return a task at the first broker itself: neither HAProxy nor another broker in the path."""
    cluster = scene.cluster
    node = cluster.node(cluster.names[0])
    env = cluster.client_env()
    declare(BusConfig.from_env(env), [f"{topic}/{subscription}"])
    return Task(
        verb="publish",
        broker=node.broker,
        list_url=f"http://{node.agent}/consumer-list",
        user=env["MESSAGEBUS_USER"],
        password_file=env["MESSAGEBUS_PASSWORD_FILE"],
        topic=topic,
        subscription=subscription,
    )


def interleaved(
    scene: Scene, cases: Sequence[Case], prepare: Callable[[Case], None]
) -> dict[str, list[Turn]]:
    """Run every case once per repetition, each time beginning with another one."""
    found: dict[str, list[Turn]] = {case.name: [] for case in cases}
    for number in range(scene.repeat):
        start = number % len(cases)
        for case in [*cases[start:], *cases[:start]]:
            prepare(case)
            turn = take_turn(case)
            found[case.name].append(turn)
            scene.say(
                f"repetition {number + 1} of {scene.repeat}, {case.name}: "
                f"{turn.rate_per_s:,.0f}/s, {turn.cpu_us:.1f} us of CPU a message"
            )
    return found


def take_turn(case: Case) -> Turn:
    """Run a turn in a fresh process of the same interpreter. Raises BenchError with its last line."""
    argv = [sys.executable, "-m", "bench.systems", case.system, case.task.to_json()]
    try:
        done = subprocess.run(
            argv,
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            timeout=PROCESS_WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BenchError(f"{case.name}: no end within {PROCESS_WITHIN_S:.0f} s") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        raise BenchError(f"{case.name}: {said[-1]}")
    return Turn.from_json(done.stdout.strip().splitlines()[-1])


def purge(scene: Scene, task: Task) -> None:
    """Empty the queue, so that it does not grow from turn to turn."""
    queue = task.queue.replace("/", "%2F")
    for name in scene.cluster.names:
        with scene.cluster.management(name) as management:
            management.delete(f"/api/queues/%2F/{queue}/contents").raise_for_status()


def ratios(
    turns: Turns, name: str, other: str, of: Callable[[Turn], float] = lambda t: t.rate_per_s
) -> list[float]:
    """Return the ratios of two cases, within each repetition."""
    return [of(a) / of(b) for a, b in zip(turns[name], turns[other], strict=True)]


def sized(task: Task, scene: Scene, messages: int) -> Task:
    """Return the task with this many messages, fewer in a quick run, and a warm-up of a tenth of them."""
    count = scene.part(messages, QUICK_LEAST)
    warm_up = max(WARM_UP_LEAST, int(count * WARM_UP_PART))
    return dataclasses.replace(task, messages=count, warm_up=warm_up)


def rate_and_cpu(
    turns: Turns,
    case: str,
    *,
    id: str,
    what: str,
    repeat: str,
    rate_goal: Goal = no_goal,
    cpu_goal: Goal = no_goal,
) -> Iterator[Figure]:
    """Make two figures of one case, whose ids end in ``rate`` and ``cpu_us``."""
    yield median_of(
        [turn.rate_per_s for turn in turns[case]],
        id=f"{id}rate",
        what=what,
        unit="messages/s",
        repeat=repeat,
        goal=rate_goal,
    )
    yield median_of(
        [turn.cpu_us for turn in turns[case]],
        id=f"{id}cpu_us",
        what=f"{what}: CPU time of the client process per message",
        unit="us",
        repeat=repeat,
        goal=cpu_goal,
    )
