"""The effects on clients while brokers are removed, added, restarted and replaced, and the balancer reloaded.

Four publishers and four consumers, each a process of its own, behind HAProxy; commands are run as an
operator types them. At first nothing is done for a while. A publisher's longest gap in that time comes from
the machine itself, and is subtracted from all others. Connections live for ten minutes, so only playbooks
move clients.

Only the last act kills a broker before its replacement. Only messages on that broker's disk may be missing.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

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
from bench.figures.scene import BEHIND_HAPROXY, Group, Scene, repeat_command
from bench.harness.control import read_progress
from bench.harness.workers import Workers, at_work
from bench.processes import run, wait_until
from messagebus.recording.manifest import Incident
from ops.local.cluster import LocalCluster

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
    load = at_work(
        scene.cluster,
        scene.folder / "load",
        [f"{TOPIC}/{SUBSCRIPTION}"] * CONSUMERS,
        publishers=PUBLISHERS,
        rate_per_s=RATE_PER_S,
        body_bytes=BODY_BYTES,
    )
    with load as clients:
        run = _perform(scene, clients)
        clients.finish()
    events, _ = clients.whole(scene.cluster.brokers, [run.killed], may_lose=True)
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
    argv, what = [sys.executable, "-m", *act.words], " ".join(act.words)
    run(argv, within_s=COMMAND_WITHIN_S, what=what, env=env)
    done_ns = time.monotonic_ns()
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


GROUP = Group(NAME, 3, BEHIND_HAPROXY, playbook_figures)
