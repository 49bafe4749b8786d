"""A cluster is backed up, wiped from the disk, and restored: rights, topology, list, and clients."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from messagebus import BusConfig, Consumer, Message, Publisher, Subscription, Topic
from messagebus.admin import count_subscriptions
from ops.local.cluster import LocalCluster
from tests.support.cluster import MakeCluster
from tests.support.eventually import FACTOR

LIMIT = {"pattern": "^mb.sub/", "definition": {"max-length": 1_000_000}, "apply-to": "queues"}
SHOP = {"password": "a password of the shop", "tags": ""}


def ops(cluster: LocalCluster, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ops", *words],
        env={**os.environ, "MESSAGEBUS_INVENTORY": str(cluster.dir / "inventory.toml")},
        capture_output=True,
        text=True,
        timeout=120 * FACTOR,
        check=False,
    )


def manage(api: httpx.Client, method: str, path: str, body: object = None) -> httpx.Response:
    answer = api.request(method, path, json=body)
    answer.raise_for_status()
    return answer


def bus_of(cluster: LocalCluster) -> BusConfig:
    return BusConfig.from_env(cluster.client_env())


@pytest.mark.guarantee("backup-and-restore")
def test_a_wiped_cluster_comes_back_with_its_policies_topology_and_list(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(2)
    for name in cluster.names:
        with cluster.management(name) as api:
            rights = {"configure": "^$", "write": "^mb.topic/.*", "read": "^$"}
            manage(api, "PUT", "/api/users/shop", SHOP)
            manage(api, "PUT", "/api/permissions/%2F/shop", rights)
            manage(api, "PUT", "/api/policies/%2F/limit", LIMIT)
    bus = bus_of(cluster)
    wanted = Subscription(Topic("orders"), "billing", delivery_limit=7)
    with Consumer(bus, wanted), Consumer(bus, "orders", subscription="audit"):
        pass
    for word in ("drain", "ready", "drain", "ready"):
        lists(cluster, word, cluster.node("mb2").broker)
    lists(cluster, "push")
    generation, token = cluster.consumer_list().generation, cluster.token

    path = tmp_path / "backup.tar.gz"
    made = ops(cluster, "backup", str(path), "--with-secrets")
    assert made.returncode == 0, made.stderr
    assert "files/secrets/admin.password  (secret)" in made.stdout
    assert path.stat().st_mode & 0o777 == 0o600
    assert ops(cluster, "restore", str(path)).stdout.endswith("nothing is missing\n")

    cluster.down(wipe=True)
    assert not (cluster.dir / "inventory.toml").exists()
    restored = ops(cluster, "restore", str(path), "--files", "--yes")
    assert restored.returncode == 0, restored.stderr
    assert (cluster.dir / "secrets" / "token").stat().st_mode & 0o777 == 0o600
    # As if the list had been lost all the same: the new one begins at 1.
    (cluster.dir / "consumer_lists" / "local.txt").unlink()
    cluster.up()
    assert cluster.token == token
    assert cluster.consumer_list().generation < generation

    lacking = ops(cluster, "restore", str(path), "--dry-run").stdout.splitlines()
    assert {
        *(f"{name}: {what}" for name in cluster.names for what in (MADE, *LEFT)),
        "topology: want orders/audit",
        "topology: want orders/billing",
        f"list: push it under a generation above {generation}",
    } == set(lacking[1:])
    done = ops(cluster, "restore", str(path), "--yes")
    assert done.returncode == 0, done.stderr
    assert "topology: complete" in done.stdout
    assert cluster.consumer_list().generation == generation + 1
    assert ops(cluster, "restore", str(path)).stdout.endswith("nothing is missing\n")

    counted = {each.name: each for each in count_subscriptions(bus_of(cluster)).counts}
    assert set(counted) == {"orders/billing", "orders/audit"}
    with Publisher(bus_of(cluster)) as publisher:
        publisher.send_safe("orders", Message.text("after all"), timeout_s=30)
    with Consumer(bus_of(cluster), wanted) as consumer:
        delivery = consumer.receive(timeout_s=30)
        assert delivery is not None
        assert delivery.body == b"after all"
        consumer.ack(delivery)


MADE = "make policy limit"
# Nobody knows whether a user that the inventory does not name was lost or revoked.
LEFT = tuple(
    f"leave: {what} is missing: --users brings it back, when the inventory names the user"
    for what in ("user shop", "permission of shop")
)


@pytest.fixture
def limited(broken: LocalCluster) -> Iterator[LocalCluster]:
    """The shared cluster, whose mb1 has a policy, and whose agents may be killed."""
    with broken.management("mb1") as api:
        manage(api, "PUT", "/api/policies/%2F/limit", LIMIT)
    yield broken
    with broken.management("mb1") as api:
        manage(api, "DELETE", "/api/policies/%2F/limit")


def test_what_was_deleted_since_stays_deleted_and_what_differs_is_left(
    bus: BusConfig, topic: str, limited: LocalCluster, tmp_path: Path
) -> None:
    cluster, path = limited, tmp_path / "backup.tar.gz"
    with Consumer(bus, topic, subscription="old"):
        pass
    assert ops(cluster, "backup", str(path)).returncode == 0
    again = ops(cluster, "backup", str(path))
    assert (again.returncode, again.stderr.count("\n")) == (1, 1)
    assert "File exists" in again.stderr
    with cluster.management("mb1") as api:
        less = {**LIMIT, "definition": {"max-length": 5}}
        manage(api, "PUT", "/api/policies/%2F/limit", less)
    agent = cluster.node("mb1").agent
    httpx.post(
        f"http://{agent}/topology",
        json={"wanted": [f"{topic}/old"], "alive": False},
        headers={"Authorization": f"Bearer {cluster.token.reveal()}"},
        timeout=60,
        trust_env=False,
    ).raise_for_status()
    said = ops(cluster, "restore", str(path), "--yes").stdout.splitlines()
    assert said[1:] == [
        "mb1: leave: policy limit is another one now",
        f"topology: leave {topic}/old: deleted since",
        "nothing is missing",
    ]
    cluster.kill("mb2", agent=True)
    refused = ops(cluster, "backup", str(tmp_path / "other"))
    assert refused.returncode == 6
    assert "agent of mb2" in refused.stderr
    assert not (tmp_path / "other").exists()


def lists(cluster: LocalCluster, *words: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "consumer_lists", "--inventory", str(cluster.inventory), *words],
        check=True,
        capture_output=True,
        timeout=60 * FACTOR,
    )
