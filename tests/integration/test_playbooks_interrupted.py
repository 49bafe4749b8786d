"""Playbooks that are killed, or meet something dead, stop at a safe point and are taken up again."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from messagebus import BusConfig
from ops.local.cluster import LocalCluster
from ops.run.command import journal_of
from tests.support.cluster import MakeCluster
from tests.support.eventually import FACTOR, eventually
from tests.support.playbooks import AuditedLoad, argv, ops

RECEIVED_FIRST = 100
STEP_WITHIN_S = 120.0
STEPS_MAX = 40
SEEN_WITHIN_S = 30.0
INTERRUPTED = 130


@pytest.fixture(scope="module")
def cluster(make_cluster: MakeCluster) -> Iterator[LocalCluster]:
    """A cluster of these tests' own, which change its brokers. Each leaves three, all ready."""
    made = make_cluster(3)
    yield made
    made.down()


@pytest.fixture
def load(bus: BusConfig, topic: str) -> AuditedLoad:
    return AuditedLoad(bus, topic)


def kill_and_resume(cluster: LocalCluster, *words: str) -> int:
    """Kill it by SIGKILL at every step in turn, when its commands have run and its journal does not know yet.

    Each run after the first repeats the step before. Returns how many runs were killed.
    """
    for kills in range(STEPS_MAX):
        if (ended := run_killed(cluster, kills, *words)) == 0:
            assert not journal_of(cluster.inventory, " ".join(words)).is_resumed
            return kills
        assert ended == -signal.SIGKILL
        assert len(done(cluster, *words)) == kills
    raise AssertionError(f"more than {STEPS_MAX} steps")


def done(cluster: LocalCluster, *words: str) -> tuple[str, ...]:
    return journal_of(cluster.inventory, " ".join(words)).done


def run_killed(cluster: LocalCluster, after: int, *words: str) -> int:
    """Run until this many steps are kept and the next is due. Returns its exit code: minus the signal."""
    command = argv(cluster, *words, "--yes")[3:]
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.killed_ops", str(after), *command],
        capture_output=True,
        timeout=STEP_WITHIN_S * FACTOR,
    )
    return done.returncode


@pytest.mark.guarantee("playbook-killed-anywhere")
@pytest.mark.timeout(1800)
def test_killed_at_every_step_and_taken_up_again_adding_and_removing_lose_and_double_nothing(
    cluster: LocalCluster, load: AuditedLoad
) -> None:
    with load.running():
        eventually(lambda: len(load.received) > RECEIVED_FIRST, within_s=60)
        assert kill_and_resume(cluster, "add", "mb4") >= 12
        fourth = cluster.node("mb4").broker
        eventually(lambda: load.consumed_from[fourth] > 0, within_s=SEEN_WITHIN_S)
        assert kill_and_resume(cluster, "remove", "mb4") >= 15
    assert load.lost == set()
    assert load.doubled == []
    assert cluster.names == ["mb1", "mb2", "mb3"]
    assert fourth not in cluster.consumer_list().names
    cluster.wait_ready()


@pytest.mark.guarantee("playbook-killed-anywhere")
def test_a_second_playbook_is_refused_and_told_who_is_at_it(cluster: LocalCluster) -> None:
    first = subprocess.Popen(
        argv(cluster, "add", "mb4", "--yes"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        eventually(lambda: done(cluster, "add", "mb4"), within_s=60)
        second = ops(cluster, "restart", "mb1", "--yes")
        assert second.returncode == 1
        assert f"pid {first.pid}, 'add mb4' is changing this cluster since" in second.stderr
        assert done(cluster, "restart", "mb1") == ()
    finally:
        first.send_signal(signal.SIGINT)
        assert first.wait(timeout=STEP_WITHIN_S * FACTOR) == INTERRUPTED
    undone = ops(cluster, "add", "mb4", "--undo", "--yes")
    assert undone.returncode == 0, undone.stderr
    assert cluster.names == ["mb1", "mb2", "mb3"]


Act = Callable[[LocalCluster], None]
FAULTS: tuple[tuple[Act, Act, str, str], ...] = (
    (
        lambda cluster: cluster.freeze("mb1", agent=True),
        lambda cluster: cluster.thaw("mb1", agent=True),
        "bring the list that drains mb3 to every agent",
        "mb1 differs",
    ),
    (
        lambda cluster: cluster.kill("haproxy"),
        lambda cluster: cluster.start("haproxy"),
        "bring the list that drains mb3 to every agent",  # it is unknown whether others take publishes
        "HAProxy",
    ),
    (
        lambda cluster: cluster.freeze("mb3"),
        lambda cluster: cluster.thaw("mb3"),
        "hang up on the publishers that are left on mb3",
        "management of mb3 does not answer",
    ),
)


@pytest.mark.guarantee("playbook-killed-anywhere")
def test_where_an_agent_the_balancer_or_the_broker_is_away_it_stops_says_so_and_is_taken_up_again(
    cluster: LocalCluster, load: AuditedLoad
) -> None:
    with load.running():
        eventually(lambda: len(load.received) > RECEIVED_FIRST, within_s=60)
        for breaks, mends, where, told in FAULTS:
            breaks(cluster)
            stopped = ops(cluster, "restart", "mb3", "--yes")
            assert stopped.returncode == 1, stopped.stderr
            assert f"ops: step {where!r}: " in stopped.stderr
            assert told.lower() in stopped.stderr.lower()
            mends(cluster)
        resumed = ops(cluster, "restart", "mb3", "--yes")
        assert resumed.returncode == 0, resumed.stderr
        assert "taking up the run that did 5 of" in resumed.stderr
    assert load.lost == set()
    cluster.wait_ready()
