"""`messagebus subscriptions` over all brokers, as a shell user sees it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from messagebus import (
    BusConfig,
    ConfigError,
    NameInvalid,
    Publisher,
    PublishError,
    Secret,
    Topic,
    Unroutable,
    declare,
)
from messagebus.admin.directory import (
    delete_subscriptions,
    purge_subscriptions,
)
from messagebus.tools.sampler import QueueSampler
from ops.local.cluster import LocalCluster
from tests.support.eventually import eventually
from tests.support.faults import direct, queue_exists

WITHIN_S = 60
DEADLINE_S = 60.0


class Shell:
    """Runner of `messagebus subscriptions ...` and its like against one cluster."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        token = folder / "token"
        token.write_text(cluster.token.reveal() + "\n")
        self.env = {
            **os.environ,
            **cluster.client_env(),
            "MESSAGEBUS_TOKEN_FILE": str(token),
        }

    def run(
        self, *words: str, group: str = "subscriptions", **env: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "messagebus", group, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            env={**self.env, **env},
            check=False,
        )

    def rows(self, name: str, *, code: int = 0) -> dict[str, dict[str, Any]]:
        """Return the rows of `list --json` for one subscription, by broker."""
        done = self.run("list", "--json")
        assert done.returncode == code, done.stderr
        found = json.loads(done.stdout)["subscriptions"]
        return {row["broker"]: row for row in found if row["name"] == name}


@pytest.fixture
def shell(cluster: LocalCluster, tmp_path: Path) -> Shell:
    return Shell(cluster, tmp_path)


def has_exchange(cluster: LocalCluster, name: str, topic: str) -> bool:
    path = f"/api/exchanges/%2F/{quote(Topic(topic).exchange, safe='')}"
    with cluster.management(name) as management:
        return management.get(path).status_code != httpx.codes.NOT_FOUND


def publish(cluster: LocalCluster, topic: str, counts: dict[str, int]) -> None:
    for name, count in counts.items():
        with Publisher(direct(cluster, name)) as publisher:
            publisher.send_many(topic, [b"x"] * count, timeout_s=DEADLINE_S)


def test_what_waits_is_listed_by_subscription_and_broker_and_purged_everywhere(
    cluster: LocalCluster, bus: BusConfig, topic: str, shell: Shell
) -> None:
    name, counts = f"{topic}/all", {"mb1": 1, "mb2": 2, "mb3": 3}
    declare(bus, [name, f"queue:{topic}"])
    publish(cluster, topic, counts)
    rows = shell.rows(name)
    assert {broker: row["ready"] for broker, row in rows.items()} == {
        cluster.node(each).broker: count for each, count in counts.items()
    }
    assert {row["consumers"] for row in rows.values()} == {0}
    told = shell.run("list").stdout.splitlines()
    assert told[0].split() == ["NAME", "BROKER", "READY", "UNACKED", "CONSUMERS", "OLDEST"]
    mine = [line.split()[:3] for line in told if line.startswith(f"{name} ")]
    assert mine == [[name, cluster.node(each).broker, str(n)] for each, n in counts.items()]
    assert len([line for line in told if line.startswith(f"queue:{topic} ")]) == 3
    purged = shell.run("purge", name, "--yes")
    assert purged.returncode == 0, purged.stderr
    assert f"dropped 3 of {name} on {cluster.node('mb3').broker}" in purged.stdout
    assert {row["ready"] for row in shell.rows(name).values()} == {0}


@pytest.mark.guarantee("deleting-reaches-all-brokers")
def test_a_subscription_deleted_while_a_broker_is_down_goes_from_it_when_it_is_back(
    broken: LocalCluster, bus: BusConfig, topic: str, shell: Shell
) -> None:
    cluster, name, queue = broken, f"{topic}/all", f"mb.sub/{topic}/all"
    away = cluster.node("mb2").broker
    declare(bus, [name])
    publish(cluster, topic, {"mb2": 2})
    cluster.kill("mb2", agent=True)
    cluster.kill("mb2")
    listed = shell.run("list")
    assert listed.returncode == 3
    assert f"{away} did not answer" in listed.stderr
    assert set(shell.rows(name, code=3)) == {cluster.node(n).broker for n in ("mb1", "mb3")}
    purged = shell.run("purge", name, "--yes", "--json")
    assert purged.returncode == 3
    assert set(json.loads(purged.stdout)["unanswered"]) == {away}
    deleted = shell.run("delete", name, "--yes")
    assert deleted.returncode == 3
    assert away in deleted.stderr
    assert "Traceback" not in deleted.stderr
    cluster.start("mb2")
    cluster.start("mb2", agent=True)
    cluster.wait_ready(["mb2"])
    assert not any(queue_exists(cluster, each, queue) for each in cluster.names)
    again = shell.run("delete", name, "--yes", "--json")
    assert (again.returncode, json.loads(again.stdout)["complete"]) == (0, True)


def test_a_topic_is_deleted_on_all_brokers_once_nothing_reads_it(
    cluster: LocalCluster, bus: BusConfig, topic: str, shell: Shell
) -> None:
    name = f"{topic}/all"
    declare(bus, [name])
    publish(cluster, topic, {"mb1": 1})
    refused = shell.run("delete", topic, "--yes", group="topics")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert f"{topic} is read: delete {name} first" in refused.stderr
    assert shell.rows(name)[cluster.node("mb1").broker]["ready"] == 1
    with Publisher(bus) as publisher:
        publisher.send_safe(topic, b"x", timeout_s=DEADLINE_S)
        for words in (["subscriptions", name], ["topics", topic]):
            done = shell.run("delete", words[1], "--yes", group=words[0])
            assert done.returncode == 0, done.stderr
        for each in cluster.names:
            eventually(lambda: not has_exchange(cluster, each, topic), within_s=WITHIN_S)  # noqa: B023
        # The first one finds no exchange, which ends its link, and makes the topic anew.
        for outcome in (PublishError, Unroutable):
            with pytest.raises(outcome):
                publisher.send_safe(topic, b"x", timeout_s=DEADLINE_S)
        declare(bus, [name])
        publisher.send_safe(topic, b"x", timeout_s=DEADLINE_S)
    assert sum(row["ready"] for row in shell.rows(name).values()) == 1


@pytest.mark.parametrize(
    ("words", "env", "code", "told"),
    [
        (["delete", "x/y"], {}, 2, "--yes"),
        (["delete"], {}, 2, "NAMES"),
        (["delete", "orders", "--yes"], {}, 2, "a subscription is TOPIC/NAME"),
        (["delete", "never/was", "--yes"], {}, 4, "there is no never/was"),
        (["purge", "never/was", "--yes"], {}, 4, "no broker has never/was"),
        (["purge", "x/y", "--yes"], {"MESSAGEBUS_TOKEN_FILE": "/nowhere"}, 2, "/nowhere"),
        (["purge", "x/y", "--yes"], {"MESSAGEBUS_TOKEN_FILE": "/dev/null"}, 2, "empty"),
        (["purge", "x/y", "--yes"], {"MESSAGEBUS_TOKEN_FILE": __file__}, 2, "printable"),
        (["delete", "never/was", "--yes"], {"MESSAGEBUS_TOKEN_FILE": __file__}, 2, "printable"),
        (["list"], {"MESSAGEBUS_LIST_URL": ""}, 2, "list_urls"),
    ],
)
def test_wrong_use_and_failure_are_one_line(
    shell: Shell, words: list[str], env: dict[str, str], code: int, told: str
) -> None:
    done = shell.run(*words, **env)
    assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr) < 500  # nothing of the file is shown


LOGIN_REFUSED = 5


def test_a_wrong_token_is_refused(
    cluster: LocalCluster, bus: BusConfig, topic: str, shell: Shell, tmp_path: Path
) -> None:
    declare(bus, [f"{topic}/all"])
    wrong = tmp_path / "wrong"
    wrong.write_text("sesame")
    for words in (["delete"], ["purge"]):
        done = shell.run(*words, f"{topic}/all", "--yes", MESSAGEBUS_TOKEN_FILE=str(wrong))
        assert (done.returncode, done.stderr.count("\n")) == (LOGIN_REFUSED, 1), done.stderr
        assert "sesame" not in done.stderr
    assert shell.rows(f"{topic}/all")


def test_from_python_only_sources_are_taken_and_agents_are_needed(bus: BusConfig) -> None:
    token = Secret("any token")
    for ask in (delete_subscriptions, purge_subscriptions):
        with pytest.raises(NameInvalid):
            ask(bus, ["orders"], token=token)
        with pytest.raises(ConfigError, match="list_urls"):
            ask(BusConfig(broker="localhost"), ["orders/billing"], token=token)


def test_the_command_asks_for_a_durability_and_tells_when_there_is_another(
    cluster: LocalCluster, topic: str
) -> None:
    env = {**os.environ, **cluster.client_env()}

    def run(*words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "messagebus", *words],
            input=given,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            env=env,
            check=False,
        )

    weak, queue = ("--durability", "page-cache"), f"queue:{topic}"
    assert run("declare", *weak, queue, topic, f"{topic}/all").returncode == 0
    refused = run("declare", queue)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "wanted fsync and exists page-cache" in refused.stderr
    assert run("publish", *weak, queue, "-", given="hello").returncode == 0
    consumed = run("consume", *weak, queue, "--count", "1")
    assert (consumed.returncode, consumed.stdout) == (0, "hello\n")
    assert run("publish", *weak, topic, "-", given="hello").returncode == 0
    consumed = run("consume", topic, "-s", "all", "--count", "1")
    assert (consumed.returncode, consumed.stdout) == (0, "hello\n")
    assert run("declare", "--durability", "paper", queue).returncode == 2


def test_what_waits_on_each_broker_is_written_beside_recorded_rows(
    cluster: LocalCluster, bus: BusConfig, topic: str, tmp_path: Path
) -> None:
    counts = {"mb1": 1, "mb2": 2, "mb3": 3}
    declare(bus, [f"{topic}/all"])
    publish(cluster, topic, counts)
    with QueueSampler(tmp_path, bus, [f"{topic}/all"], run_id="night", every_s=0.2) as sampler:
        eventually(lambda: sampler.stats().written >= 2 * len(counts), within_s=DEADLINE_S)
    assert sampler.stats().missed == 0
    [path] = tmp_path.glob("sampled-*.ndjson")
    rows = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    assert {(row["broker"], row["topic"], row["subscription"], row["ready"]) for row in rows} == {
        (cluster.node(name).broker, topic, "all", count) for name, count in counts.items()
    }
