"""`messagebus tail` and `messagebus doctor` on a real cluster, as a shell user sees them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from messagebus import BusConfig, Consumer, Publisher, declare
from messagebus.admin.directory import count_subscriptions
from ops.local.cluster import LocalCluster
from tests.support.eventually import eventually
from tests.support.faults import direct

WITHIN_S = 60


def env_of(cluster: LocalCluster) -> dict[str, str]:
    return {**os.environ, **cluster.client_env()}


def run(cluster: LocalCluster, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "messagebus", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        env={**env_of(cluster), **env},
        check=False,
    )


@contextmanager
def tailing(cluster: LocalCluster, *words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "messagebus", "tail", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env_of(cluster),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def taps_of(cluster: LocalCluster, topic: str) -> int:
    """Return how many transient queues are bound to the topic, over all brokers."""
    count = 0
    for name in cluster.names:
        with cluster.management(name) as http:
            bindings = http.get(f"/api/exchanges/%2F/mb.topic%2F{topic}/bindings/source").json()
        count += sum(each["destination"].startswith("amq.gen") for each in bindings)
    return count


def test_tail_shows_what_is_published_anywhere_and_takes_nothing(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    declare(bus, [f"{topic}/all"])
    with tailing(cluster, topic, "--all", "--ndjson", "--count", "6", "--grep", "wanted") as tail:
        eventually(lambda: taps_of(cluster, topic) == len(cluster.names), within_s=WITHIN_S)
        for name in cluster.names:
            with Publisher(direct(cluster, name)) as publisher:
                publisher.send_many(topic, [b"wanted 1", b"not this", b"wanted 2"])
        out, err = tail.communicate(timeout=WITHIN_S)
    assert (tail.returncode, err) == (0, "")
    told = [json.loads(line) for line in out.splitlines()]
    brokers = {cluster.node(name).broker for name in cluster.names}
    assert {each["received"]["broker"] for each in told} == brokers
    assert {each["body"] for each in told} == {"wanted 1", "wanted 2"}
    eventually(lambda: taps_of(cluster, topic) == 0, within_s=WITHIN_S)
    waiting = [each for each in count_subscriptions(bus).counts if each.name == f"{topic}/all"]
    assert sum(each.ready for each in waiting) == 9


def test_a_tap_that_nobody_reads_holds_up_no_publisher_and_says_that_some_are_missing(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    declare(bus, [f"{topic}/all"])
    node = cluster.node("mb1")
    listed = cluster.consumer_list().find(node.broker)
    assert listed is not None
    url = f"http://{listed.agent_address}/tap"
    query: dict[str, str | int] = {"destination": topic, "length_max": 10, "rate_max": 50}
    login = (bus.current_user(), bus.current_password().reveal())
    with httpx.stream("GET", url, params=query, auth=login, timeout=WITHIN_S) as answer:
        assert answer.status_code == 200
        lines = answer.iter_lines()
        assert json.loads(next(lines)) == {"tap": topic, "broker": node.broker}
        with Publisher(direct(cluster, "mb1")) as publisher:
            publisher.send_many(topic, [b"x" * 10_000] * 2_000, timeout_s=WITHIN_S)
        assert '{"missed":true}' in (line for line in lines)
    eventually(lambda: taps_of(cluster, topic) == 0, within_s=WITHIN_S)


def test_a_tap_of_a_broker_that_is_killed_ends_and_says_so(
    broken: LocalCluster, bus: BusConfig, topic: str
) -> None:
    declare(bus, [f"{topic}/all"])
    with tailing(broken, topic, "--broker", broken.node("mb2").broker) as tail:
        eventually(lambda: taps_of(broken, topic) == 1, within_s=WITHIN_S)
        broken.kill("mb2")
        _out, err = tail.communicate(timeout=WITHIN_S)
    assert "ended the broker has gone" in err
    assert tail.returncode == 0


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["no-such-topic"], 4, "no subscription of topic"),
        (["queue:jobs"], 2, "a topic is tapped"),
        (["x", "--broker", "mb9:5672"], 4, "not in the consumer list"),
    ],
)
def test_what_cannot_be_tapped_is_told_in_one_line(
    cluster: LocalCluster, words: list[str], code: int, told: str
) -> None:
    done = run(cluster, "tail", *words)
    assert (done.returncode, told in done.stderr) == (code, True), done.stderr


def test_the_doctor_finds_a_whole_cluster_well_and_names_what_is_not(
    broken: LocalCluster, bus: BusConfig, topic: str
) -> None:
    declare(bus, [f"{topic}/all"])
    asked = ("doctor", "--publish", topic, "--consume", f"{topic}/all")
    done = run(broken, *asked)
    assert (done.returncode, "✗" in done.stdout) == (0, False), done.stdout
    assert done.stdout.count(f"may publish to {topic}") == len(broken.names)
    assert done.stdout.count(f"may consume {topic}/all") == len(broken.names)
    absent = run(broken, "doctor", "--publish", "nowhere", "--consume", "queue:mb9-secret")
    assert absent.returncode == 7
    assert absent.stdout.count(
        "there is no nowhere → messagebus declare nowhere/SUBSCRIPTION"
    ) == len(broken.names)
    broken.kill("mb2")
    broken.stop("mb3", agent=True)
    killed = run(broken, *asked)
    assert killed.returncode == 7
    assert f"✗ broker {broken.node('mb2').broker}: connection refused" in killed.stdout
    agent = next(line for line in killed.stdout.splitlines() if broken.node("mb3").agent in line)
    assert agent.startswith("▲ agent")


def test_without_rights_nothing_is_shown_and_the_doctor_says_which_is_missing(
    cluster: LocalCluster, bus: BusConfig, topic: str, tmp_path: Path
) -> None:
    declare(bus, [f"{topic}/all"])
    (tmp_path / "password").write_text("poor")
    env = {"MESSAGEBUS_USER": "poor", "MESSAGEBUS_PASSWORD_FILE": str(tmp_path / "password")}
    rights = {"configure": "^$", "write": "^$", "read": "^$"}
    try:
        for name in cluster.names:
            with cluster.management(name) as api:
                user = {"password": "poor", "tags": ""}
                api.put("/api/users/poor", json=user).raise_for_status()
                api.put("/api/permissions/%2F/poor", json=rights).raise_for_status()
        tailed = run(cluster, "tail", topic, **env)
        assert (tailed.returncode, tailed.stdout) == (5, "")
        assert f"user 'poor' may read no subscription of {topic}" in tailed.stderr
        asked = ("doctor", "--publish", topic, "--consume", f"{topic}/all")
        found = run(cluster, *asked, **env)
        assert found.returncode == 7
        lacks = "user poor has no right to"
        assert found.stdout.count(f"{lacks} publish to {topic}") == len(cluster.names)
        assert found.stdout.count(f"{lacks} consume {topic}/all") == len(cluster.names)
    finally:
        for name in cluster.names:
            with cluster.management(name) as api:
                api.delete("/api/users/poor")


def test_consuming_what_others_consume_is_told_before_it_takes_anything(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    """Standard output is a terminal, and nobody is there to be asked."""
    declare(bus, [f"{topic}/all"])
    ours, theirs = os.openpty()
    try:
        with Consumer(bus, topic, subscription="all"):
            eventually(
                lambda: any(
                    each.consumers
                    for each in count_subscriptions(bus).counts
                    if each.name == f"{topic}/all"
                ),
                within_s=WITHIN_S,
            )
            words = ["consume", topic, "-s", "all", "--idle-exit-s", "0"]
            done = subprocess.run(
                [sys.executable, "-m", "messagebus", *words],
                stdin=subprocess.DEVNULL,
                stdout=theirs,
                stderr=subprocess.PIPE,
                text=True,
                env=env_of(cluster),
                timeout=WITHIN_S,
                check=False,
            )
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 0
    assert f"1 consumer of {topic}/all is at work" in done.stderr
    assert f"messagebus tail {topic}" in done.stderr
