"""The effects on clients of an operator's acts, and the time from a power-off until a broker serves again.

Four publishers and four consumers, each a process of its own, behind HAProxy; commands are run as an
operator types them: brokers are removed, added, restarted and replaced, the balancer is reloaded. At first
nothing is done for a while. A publisher's longest gap in that time comes from the machine itself, and is
subtracted from all others. Connections live for ten minutes, so only playbooks move clients. Gaps, losses,
doubles are taken from recorded events.

Only the last act kills a broker before its replacement. Only messages on that broker's disk may be missing.

Power-offs are measured on virtual hosts: `python -m pytest tests/hosts` leaves a file for each. Their group
makes figures of these files, by steps of the playbook, and starts nothing.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.audit import longest_gap
from bench.environment import CHECKOUT
from bench.errors import BenchError, InputInvalid
from bench.figures.figure import Figure, Maker, at_most
from bench.figures.groups import BEHIND_HAPROXY, Group, Setup, repeat_command
from bench.harness.workers import Workers, at_work, read_progress
from bench.processes import run, wait_until
from bench.rows import Events, Row
from messagebus.recording.manifest import Incident
from ops.local.cluster import LocalCluster

GOAL_GAP_S, GOAL_ATTACH_S, GOAL_SERVING_S = 0.25, 2.0, 20.0
S = 1e9


@dataclass(frozen=True, slots=True)
class Act:
    """An act of an operator. name: part of the figures' ids. words: arguments after ``python -m``."""

    name: str
    what: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Took:
    """The times of a command: its begin, its end, and the end of watching its effect. Monotonic."""

    from_ns: int
    done_ns: int
    until_ns: int

    @property
    def seconds(self) -> float:
        return (self.done_ns - self.from_ns) / S


@dataclass(slots=True)
class Run:
    """The measurements taken during a run; the others come from the recorded events."""

    consumers: int
    quiet: Took
    acts: list[tuple[Act, list[Took]]]
    attached_s: float
    killed: Incident


def attach_s(attached: Mapping[str, Mapping[str, int]], broker: str, from_ns: int) -> float:
    """Return the time until the last consumer had a link to this broker. Raises BenchError if one has none.

    attached: consumer -> broker -> time of attaching.
    """
    if missing := [name for name, links in attached.items() if broker not in links]:
        raise BenchError(f"not attached to {broker}: {', '.join(missing)}")
    return (max(links[broker] for links in attached.values()) - from_ns) / S


def figures_of(run: Run, events: Events, repeat: str) -> Iterator[Figure]:
    make, silence = Maker("ops", repeat), "longest time of a publisher without a confirm"
    quiet_s = max(gaps_s(events, run.quiet).values())
    what = f"Nothing is done for {run.quiet.seconds:.0f} s: {silence}"
    yield make("quiet.gap_s", what, quiet_s, "s")
    for act, times in run.acts:
        excess = excess_s([gaps_s(events, took) for took in times], quiet_s)
        what = f"{act.what}: {silence}, above that of the quiet period, worst of {len(excess)}"
        yield make(f"{act.name}.gap_s", what, excess, "s", (at_most, GOAL_GAP_S), max)
        seconds = [round(took.seconds, 3) for took in times]
        yield make(f"{act.name}.s", f"{act.what}: the whole command", seconds, "s", of=max)
    what = (
        f"Broker added: from the push of the list until all {run.consumers} consumers are attached "
        "to it"
    )
    yield make("add.attach_s", what, run.attached_s, "s", (at_most, GOAL_ATTACH_S))
    missing = lost(events)
    on_disk = [row for row in missing if _lay_on_its_disk(row, run.killed)]
    what = "Confirmed messages lost in all of these, except those stored on the disk of the broker that died"
    yield make("lost", what, len(missing) - len(on_disk), "messages", (at_most, 0))
    twice = doubled(events.delivered, until_ns=run.killed.at_ns)
    what = "Messages delivered twice while nobody is killed"
    yield make("doubled", what, twice, "messages", (at_most, 0))
    confirmed = sum(row["outcome"] == "confirmed" for row in events.published)
    what = (
        f"Dead broker replaced: confirmed messages stored on its disk, of {confirmed:,} in the run"
    )
    yield make("replace.on_disk", what, len(on_disk), "messages")


def gaps_s(events: Events, took: Took) -> dict[str, float]:
    """Return publisher -> its longest time without a confirm in that time, while one was awaited.

    A silence that began in that time counts whole. Raises BenchError when one never ended.
    """
    found = {}
    for name in sorted({row["publisher"] for row in events.published}):
        rows = [row for row in events.published if row["publisher"] == name]
        later = (row.get("confirmed_ns") or 0 for row in rows)
        ended_ns = min((each for each in later if each > took.until_ns), default=None)
        if ended_ns is None:
            raise BenchError("a publisher had no confirm any more")
        found[name] = longest_gap(rows, ended_ns, took.from_ns).length_ns / S
    return found


def excess_s(gaps: Sequence[Mapping[str, float]], quiet_s: float) -> list[float]:
    """Return the gaps above quiet: the worst publisher's of each run, or all publishers' of a single run."""
    found = gaps[0].values() if len(gaps) == 1 else [max(each.values()) for each in gaps]
    return [round(gap_s - quiet_s, 4) for gap_s in found]


def lost(events: Events) -> list[Row]:
    """Return the confirmed publishes that were delivered to no consumer."""
    reached = {row["message_id"] for row in events.delivered}
    return [
        row
        for row in events.published
        if row["outcome"] == "confirmed" and row["message_id"] not in reached
    ]


def _lay_on_its_disk(row: Row, killed: Incident) -> bool:
    """Return whether the killed broker confirmed it; the new broker in its place confirms later."""
    return bool(row["broker"] == killed.broker and row["confirmed_ns"] <= (killed.done_ns or 0))


def doubled(delivered: Iterable[Row], *, until_ns: int) -> int:
    """Count deliveries beyond the first of a message, before that time."""
    before = [row["message_id"] for row in delivered if row["received_ns"] < until_ns]
    return len(before) - len(set(before))


NAME = "ops.playbooks"
TOPIC, SUBSCRIPTION = "playbooks", "sink"
PUBLISHERS, CONSUMERS = 4, 4
RATE_PER_S = 300.0
BODY_BYTES = 1024
QUIET_S, RELOADS = 20, 3
# Effects of a command may appear a moment after its end.
AFTER_S = 2.0
COMMAND_WITHIN_S = 300.0
ALIVE_WITHIN_S = 30.0


def playbook_figures(setup: Setup) -> Iterator[Figure]:
    load = at_work(
        setup.cluster,
        setup.folder / "load",
        [f"{TOPIC}/{SUBSCRIPTION}"] * CONSUMERS,
        publishers=PUBLISHERS,
        rate_per_s=RATE_PER_S,
        body_bytes=BODY_BYTES,
    )
    with load as clients:
        run = _perform(setup, clients)
        clients.finish()
    events, _ = clients.whole(setup.cluster.brokers, [run.killed], may_lose=True)
    yield from figures_of(run, events, repeat_command(NAME))


def acts_on(moved: str, dead: str) -> tuple[Act, ...]:
    """Return all acts in order. moved: the broker that leaves and comes back. dead: the one replaced."""
    return (
        Act("reload", "Balancer reloaded", ("lb", "apply", "--reload")),
        Act("remove", "Broker removed", ("ops", "remove", moved, "--yes")),
        Act("add", "Broker added", ("ops", "add", moved, "--yes")),
        Act("restart", "Brokers restarted in turn", ("ops", "restart", "--rolling", "--yes")),
        Act(
            "replace",
            "Dead broker replaced, from the command on",
            ("ops", "replace", dead, "--lose-messages", "--yes"),
        ),
    )


def _perform(setup: Setup, clients: Workers) -> Run:
    """Do all acts, one after the other; there are three brokers before and afterwards."""
    cluster = setup.cluster
    moved, dead = cluster.names[-1], cluster.names[-2]
    broker = cluster.node(moved).broker
    reload, remove, add, restart, replace = acts_on(moved, dead)
    _wait_all_confirm(clients)
    quiet = _quiet(setup.part(QUIET_S))
    acts = [(reload, [_do(setup, clients, reload) for _ in range(RELOADS)])]
    acts.append((remove, [_do(setup, clients, remove)]))
    acts.append((add, [_do(setup, clients, add)]))
    attached = _attached_s(clients, broker, cluster)
    acts.append((restart, [_do(setup, clients, restart)]))
    killed = _kill(cluster, dead)
    acts.append((replace, [_do(setup, clients, replace)]))
    _quiet(AFTER_S)  # so that the last silence has an end
    return Run(CONSUMERS, quiet, acts, attached, killed)


def _wait_all_confirm(clients: Workers) -> None:
    def all_confirm() -> bool:
        progress = read_progress(clients.folder)
        everybody = (*clients.publishers, *clients.consumers)
        return all(name in progress and progress[name].brokers for name in everybody)

    wait_until(all_confirm, within_s=ALIVE_WITHIN_S, what="everybody is at work")


def _quiet(seconds: float) -> Took:
    from_ns = time.monotonic_ns()
    time.sleep(seconds)
    until_ns = time.monotonic_ns()
    return Took(from_ns, until_ns, until_ns)


def _do(setup: Setup, clients: Workers, act: Act) -> Took:
    """Do an act and return its times. Raises BenchError with the command's last line when it fails."""
    env = {**os.environ, "MESSAGEBUS_INVENTORY": str(setup.cluster.inventory)}
    from_ns = time.monotonic_ns()
    argv, what = [sys.executable, "-m", *act.words], " ".join(act.words)
    run(argv, within_s=COMMAND_WITHIN_S, what=what, env=env)
    done_ns = time.monotonic_ns()
    clients.check()
    time.sleep(AFTER_S)
    took = Took(from_ns, done_ns, time.monotonic_ns())
    setup.say(f"{act.what}: {took.seconds:.1f} s")
    return took


def _kill(cluster: LocalCluster, name: str) -> Incident:
    """Kill broker and agent; wait until publishers have found other brokers."""
    at_ns = time.monotonic_ns()
    cluster.kill(name)
    cluster.kill(name, agent=True)
    time.sleep(AFTER_S)
    broker = cluster.node(name).broker
    return Incident(kind="kill", broker=broker, at_ns=at_ns, done_ns=time.monotonic_ns())


def _attached_s(clients: Workers, broker: str, cluster: LocalCluster) -> float:
    progress = read_progress(clients.folder)
    attached = {name: progress[name].attached for name in clients.consumers}
    return attach_s(attached, broker, _pushed_ns(cluster))


def _pushed_ns(cluster: LocalCluster) -> int:
    """Return the monotonic time at which the first node got the current list, from the file's own time."""
    files = (cluster.node(name).list_file for name in cluster.names)
    monotonic = time.monotonic_ns() - time.time_ns()
    return min(file.stat().st_mtime_ns for file in files) + monotonic


GROUP = Group(NAME, 3, BEHIND_HAPROXY, playbook_figures)


FAILED_OVER = "ops.failover"
FOLDER = CHECKOUT / "out" / "hosts"
MEASURE = "python -m pytest tests/hosts"
# The step of the playbook after which the broker serves.
STARTS = "start broker "
REPEAT = f"{MEASURE}; {repeat_command(FAILED_OVER)}"


@dataclass(frozen=True, slots=True)
class Failover:
    """One power-off. steps_s: the playbook's steps, in order. serving_s: until the next confirmed publish."""

    steps_s: tuple[tuple[str, float], ...]
    serving_s: float
    resync_s: float


def failover_figures(_scene: Setup) -> Iterator[Figure]:
    yield from figures_of_failovers(failovers(FOLDER))


def failovers(folder: Path) -> list[Failover]:
    """Read the measured power-offs. Raises BenchError if there are none, InputInvalid for a broken file."""
    files = sorted(folder.glob("failover-*.json"))
    if not files:
        raise BenchError(f"no power-off was measured: {MEASURE} leaves them in {folder}")
    return [_read(file) for file in files]


def _read(file: Path) -> Failover:
    try:
        found = json.loads(file.read_text())
        steps = tuple((str(step), float(s)) for step, s in found["steps_s"].items())
        return Failover(steps, float(found["serving_s"]), float(found["resync_s"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as fault:
        raise InputInvalid(f"{file}: not the times of a failover: {fault}") from fault


def figures_of_failovers(failovers: Sequence[Failover]) -> Iterator[Figure]:
    """Make figures of the medians. Hosts swap roles between runs: steps have the names of the first run."""
    make = Maker(FAILED_OVER, REPEAT)
    what = "Power-off of a mirrored broker's host: until a publish is confirmed again"
    serving = [each.serving_s for each in failovers]
    yield make("serving_s", what, serving, "s", (at_most, GOAL_SERVING_S))
    steps = [step for step, _ in failovers[0].steps_s]
    if any(len(each.steps_s) != len(steps) for each in failovers):
        raise InputInvalid(f"the failovers in {FOLDER} are of different playbooks: measure again")
    count = _steps_until_it_serves(steps)
    playbook = [sum(s for _, s in each.steps_s[:count]) for each in failovers]
    rest = [each.serving_s - took_s for each, took_s in zip(failovers, playbook, strict=True)]
    what = "of it beside the steps: the command's start, and the first publish afterwards"
    yield make("rest_s", what, rest, "s")
    for number, step in enumerate(steps):
        took = [each.steps_s[number][1] for each in failovers]
        when = "of it in" if number < count else "after it, in"
        yield make(f"step{number + 1:02}_s", f"{when} step {number + 1}: {step}", took, "s")
    what = "The host is back: until both disks are alike again"
    yield make("resync_s", what, [each.resync_s for each in failovers], "s")


def _steps_until_it_serves(steps: Sequence[str]) -> int:
    """Return how many steps a publish waits for: those after the broker's start are records."""
    starts = (number for number, step in enumerate(steps, start=1) if step.startswith(STARTS))
    return next(starts, len(steps))


FAILOVER = Group(
    FAILED_OVER, 0, "two virtual hosts with a mirrored disk, without HAProxy", failover_figures
)
