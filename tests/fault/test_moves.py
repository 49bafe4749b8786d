"""Promise: a partition moves to another broker in daylight: nothing is lost, and each key keeps its order."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.local.cluster import LocalCluster
from tests.fault.test_partitions import PARTITIONS, WITHIN_S, Group, loaded, out_of_order
from tests.support.eventually import eventually
from tests.support.moves import begin, homes, settled

ROUNDS = 2
# The long form: TESTS_ORDER_MINUTES=30. Other schedules: TESTS_ORDER_SEED.
MINUTES = float(os.environ.get("TESTS_ORDER_MINUTES", "0.5"))
SEED = int(os.environ.get("TESTS_ORDER_SEED", "5"))
EVENT_S, FROZEN_S = 1.0, 5.0


def rotated(cluster: LocalCluster, topic: str) -> dict[int, str]:
    """Return each partition's next broker."""
    names = cluster.brokers
    known = homes(cluster, topic)
    return {p: names[(names.index(home) + 1) % len(names)] for p, home in enumerate(known)}


def command(cluster: LocalCluster, folder: Path, *words: str, code: int = 0) -> str:
    """Run `messagebus partitions`, and return what it prints. Those that are at home there are refused: 3."""
    token = folder / "token"
    token.write_text(cluster.token.reveal())
    ran = subprocess.run(
        [sys.executable, "-m", "messagebus", "partitions", *words],
        env={**os.environ, **cluster.client_env(), "MESSAGEBUS_TOKEN_FILE": str(token)},
        capture_output=True,
        text=True,
        timeout=2 * WITHIN_S,
    )
    assert ran.returncode == code, ran.stderr
    assert all("is its home" in line for line in ran.stderr.splitlines())
    return ran.stdout


@pytest.mark.guarantee("key-order-across-brokers")
def test_partitions_move_under_load_and_nothing_is_lost_or_out_of_order(
    broken: LocalCluster, topic: str, tmp_path: Path
) -> None:
    with loaded(broken, topic, tmp_path) as (group, ended):
        for turn in range(ROUNDS):
            to = rotated(broken, topic)
            assert begin(broken, topic, to) == {}, turn
            eventually(
                lambda: settled(broken, topic), within_s=WITHIN_S, what="all moves are finished"
            )
            assert homes(broken, topic) == list(to.values())
        first = broken.brokers[0]
        command(
            broken, tmp_path, "move", topic, *map(str, range(PARTITIONS)), "--to", first, code=3
        )
        assert set(homes(broken, topic)) == {first}
        told = command(broken, tmp_path, "spread", topic, "--yes")
        assert told == f"moved 8 partitions of {topic}\n"
        assert Counter(homes(broken, topic)) == dict.fromkeys(broken.brokers, 4)
        confirmed = ended()
        assert out_of_order(group.first_ends()) == []
    assert sum(map(len, confirmed.values())) > 100


def events(cluster: LocalCluster, group: Group, topic: str, seed: int) -> Iterator[str]:
    """Begin moves of all partitions, break one thing a moment later, and mend it; yield what was done."""
    rng = random.Random(seed)
    kinds = ["kill agent", "kill home", "freeze home", "freeze agent", "kill consumer", "cold"]
    while True:
        what, name = rng.choice(kinds), rng.choice(cluster.names)
        refused = begin(cluster, topic, rotated(cluster, topic))
        said = f"{what} {name}, {len(refused)} refused"
        time.sleep(rng.random() * EVENT_S)
        match what:
            case "kill agent":
                cluster.kill(name, agent=True)
                yield said
                cluster.start(name, agent=True)
            case "kill home":
                cluster.kill(name)
                yield said
                cluster.start(name)
            case "freeze home" | "freeze agent":
                cluster.freeze(name, agent="agent" in what)
                yield said
                time.sleep(FROZEN_S - EVENT_S)
                cluster.thaw(name, agent="agent" in what)
            case "kill consumer":
                rng.choice(group.members).kill()
                yield said
            case _:  # the host is gone, and back
                cluster.kill(name, agent=True)
                cluster.kill(name)
                yield said
                cluster.start(name)
                cluster.start(name, agent=True)
        yield f"mended {name}"


@pytest.mark.guarantee("key-order-across-brokers")
@pytest.mark.timeout(MINUTES * 60 + 600)
def test_moves_interrupted_at_any_moment_go_on_with_nothing_lost_or_out_of_order(
    broken: LocalCluster, topic: str, tmp_path: Path
) -> None:
    with loaded(broken, topic, tmp_path) as (group, ended):
        until_s, said = time.monotonic() + MINUTES * 60, list[str]()
        for done in events(broken, group, topic, SEED):
            said.append(done)
            time.sleep(EVENT_S)
            for member in group.members:
                member.revive()
            if done.startswith("mended") and time.monotonic() > until_s:
                break
        broken.wait_ready()
        eventually(lambda: settled(broken, topic), within_s=WITHIN_S, what="all moves are finished")
        confirmed = ended()
        assert out_of_order(group.first_ends()) == [], said
    assert sum(map(len, confirmed.values())) > 200, said
    assert len(said) >= 4
