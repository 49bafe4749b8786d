"""The effects on clients while brokers are removed, added, restarted and replaced, and the balancer reloaded.

Four publishers and four consumers, each a process of its own, behind HAProxy; commands are run as an
operator types them. At first nothing is done for a while. A publisher's longest gap in that time comes from
the machine itself, and is subtracted from all others. Connections live for ten minutes, so only playbooks
move clients.

Only the last act kills a broker before its replacement. Only messages on that broker's disk may be missing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

from bench.environment import CHECKOUT
from bench.errors import BenchError
from bench.figures.form import Figure
from bench.figures.ops.noticed import (
    Act,
    Run,
    Took,
    a_lifetime_passes,
    attach_s,
    figures_of,
    resting,
    sessions,
)
from bench.figures.scene import Group, Scene, repeat_command
from bench.harness.control import read_progress
from bench.harness.workers import Workers, at_work, open_ended
from bench.processes import wait_until
from bench.rows import Events
from messagebus import BusConfig, declare
from messagebus.recording.manifest import Incident
from ops.local.cluster import LocalCluster

__all__ = ["GROUP", "acts_on"]

NAME = "ops.playbooks"
TOPIC, SUBSCRIPTION = "playbooks", "sink"
PUBLISHERS, CONSUMERS = 4, 4
RATE_PER_S = 300.0
BODY_BYTES = 1024
QUIET_S, RELOADS = 20, 3
# Effects of a command may appear a moment after its end.
AFTER_S = 2.0
COMMAND_WITHIN_S = 300.0
FOUND_WITHIN_S = 30.0


def playbook_figures(scene: Scene) -> Iterator[Figure]:
    cluster, place = scene.cluster, f"{TOPIC}/{SUBSCRIPTION}"
    declare(BusConfig.from_env(cluster.client_env()), [place])
    profile = open_ended(
        TOPIC,
        [place] * CONSUMERS,
        publishers=PUBLISHERS,
        rate_per_s=RATE_PER_S,
        body_bytes=BODY_BYTES,
    )
    with at_work(profile, scene.folder / "load", cluster.client_env()) as clients:
        run = _perform(scene, clients)
        clients.finish()
    yield from figures_of(run, _judged(clients, cluster, run), repeat_command(NAME))


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


def _perform(scene: Scene, clients: Workers) -> Run:
    """Do all acts, one after the other; there are three brokers before and afterwards."""
    cluster = scene.cluster
    moved, dead = cluster.names[-1], cluster.names[-2]
    broker = cluster.node(moved).broker
    reload, remove, add, restart, replace = acts_on(moved, dead)
    _wait_all_confirm(clients)
    quiet = _quiet(scene.part(QUIET_S))
    acts = [(reload, [_do(scene, clients, reload) for _ in range(RELOADS)])]
    acts.append((remove, [_do(scene, clients, remove)]))
    with resting(cluster):
        acts.append((add, [_do(scene, clients, add)]))
        attached = _attached_s(clients, broker, cluster)
        scene.say(
            f"all attached {attached:.2f} s after the push; now a connection's lifetime passes"
        )
        a_lifetime_passes()
        held = sessions(cluster)
    acts.append((restart, [_do(scene, clients, restart)]))
    killed = _kill(cluster, dead)
    acts.append((replace, [_do(scene, clients, replace)]))
    _quiet(AFTER_S)  # so that the last silence has an end
    return Run(CONSUMERS, quiet, acts, attached, held, killed)


def _wait_all_confirm(clients: Workers) -> None:
    def all_confirm() -> bool:
        progress = read_progress(clients.folder)
        everybody = (*clients.publishers, *clients.consumers)
        return all(name in progress and progress[name].brokers for name in everybody)

    wait_until(all_confirm, within_s=FOUND_WITHIN_S, what="everybody is at work")


def _quiet(seconds: float) -> Took:
    from_ns = time.monotonic_ns()
    time.sleep(seconds)
    until_ns = time.monotonic_ns()
    return Took(from_ns, until_ns, until_ns)


def _do(scene: Scene, clients: Workers, act: Act) -> Took:
    """Do an act and return its times. Raises BenchError with the command's last line when it fails."""
    env = {**os.environ, "MESSAGEBUS_INVENTORY": str(scene.cluster.inventory)}
    from_ns = time.monotonic_ns()
    ended = subprocess.run(
        [sys.executable, "-m", *act.words],
        cwd=CHECKOUT,
        env=env,
        capture_output=True,
        text=True,
        timeout=COMMAND_WITHIN_S,
        check=False,
    )
    done_ns = time.monotonic_ns()
    if ended.returncode:
        said = ended.stderr.strip().splitlines() or ["it said nothing"]
        raise BenchError(f"{' '.join(act.words)}: {said[-1]}")
    clients.check()
    time.sleep(AFTER_S)
    took = Took(from_ns, done_ns, time.monotonic_ns())
    scene.say(f"{act.what}: {took.seconds:.1f} s")
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


def _judged(clients: Workers, cluster: LocalCluster, run: Run) -> Events:
    """Return the recorded events. Raises BenchError when the audit finds a fault other than a loss."""
    brokers = [cluster.node(name).broker for name in cluster.names]
    _, events, result = clients.judged(brokers, [run.killed])
    if not result.total("lost") and not result.holds:
        raise BenchError(f"the audit of {clients.folder} does not hold: {'; '.join(result.faults)}")
    return events


GROUP = Group(NAME, 3, "HAProxy before three brokers", playbook_figures)
