"""Playbooks tell what stands in their way, and hang up, move, wait and restore where that is wanted."""

from __future__ import annotations

import base64
import dataclasses
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from urllib.parse import quote

import httpx
import pytest

from messagebus import BusConfig, Consumer, Message, Publisher, RegistrationIncomplete, declare
from messagebus.admin import count_parked
from ops.local.cluster import LocalCluster
from ops.run.command import JOURNALS
from ops.run.journal import Journal
from tests.support.cluster import MakeCluster
from tests.support.eventually import FACTOR, eventually
from tests.support.faults import delete_queue, direct, operators_drain
from tests.support.playbooks import SUBSCRIPTION, Reused, argv, ops

DECLARED_WITHIN_S = 5.0
STEP_WITHIN_S = 120.0
INTERRUPTED = 130
# What a request to management leaves in its broker when it is hung up before it holds its own connection.
LEFT_BEHIND = (
    '{ok, _} = amqp_connection:start({amqp_params_direct, none, none, <<"/">>, node(), none, []}).'
)


@pytest.fixture(scope="module")
def reused(make_cluster: MakeCluster) -> Iterator[Reused]:
    with closing(Reused(make_cluster)) as reused:
        yield reused


@pytest.fixture
def cluster(reused: Reused) -> LocalCluster:
    """A cluster of these tests' own, which change its brokers."""
    return reused.cluster()


def test_a_dry_run_prints_the_argv_and_changes_nothing(cluster: LocalCluster) -> None:
    before = cluster.layout, cluster.consumer_list()
    name = cluster.names[0]
    for words in (["remove", name], ["restart", "--rolling"], ["upgrade", name], ["replace", name]):
        dry = ops(cluster, *words, "--dry-run")
        assert dry.returncode == 0, dry.stderr
        argv = f"$ {sys.executable} -m consumer_lists --inventory {cluster.inventory} remove"
        assert argv in dry.stdout
    assert (cluster.layout, cluster.consumer_list()) == before


def proofs(said: str) -> str:
    return "\n".join(line for line in said.splitlines() if line.strip().startswith("proved"))


def received(bus: BusConfig, topic: str, count: int) -> list[str]:
    ids: list[str] = []
    with Consumer(bus, topic, subscription=SUBSCRIPTION) as consumer:
        while delivery := consumer.receive(timeout_s=30 if len(ids) < count else 1):
            ids.append(delivery.message_id)
            consumer.ack(delivery)
    return sorted(ids)


@pytest.mark.guarantee("move-remaining", "erased-by-its-own-word")
def test_what_nobody_reads_is_told_at_once_and_moved_when_that_is_wanted(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    """They are in queues, parked and delayed; a client dials the broker itself until its doors are shut."""
    leaving, subscription = cluster.names[-1], f"{topic}/{SUBSCRIPTION}"
    declare(bus, [subscription])
    with Publisher(direct(cluster, leaving)) as publisher:
        waiting = [
            publisher.send_safe(topic, Message.text("x", key="k"), timeout_s=30).message_id
            for _ in range(20)
        ]
    park(cluster, leaving, f"mb.park/{subscription}", "parked-1")
    refused = ops(cluster, "remove", leaving, "--yes")
    assert refused.returncode == 1
    assert f"no consumer for mb.park/{subscription} (1 message), mb.sub/{subscription}" in " ".join(
        refused.stderr.split()
    )
    assert "--move-remaining" in refused.stderr
    undone = ops(cluster, "remove", leaving, "--undo", "--yes")
    assert undone.returncode == 0, undone.stderr
    cluster.wait_ready()
    assert not any(entry.draining for entry in cluster.consumer_list())

    with Publisher(direct(cluster, leaving)) as publisher:
        delayed = publisher.send_safe(topic, b"x", deliver_after_s=20, timeout_s=30).message_id
    removed = removed_beside_a_client(cluster, leaving, "--move-remaining")
    assert removed.returncode == 0, removed.stderr
    # On a busy machine the delayed one comes out before it is moved.
    assert re.search("moved 22 messages of [23] queues", proofs(removed.stderr))
    assert received(bus, topic, len(waiting) + 1) == sorted([*waiting, delayed])
    (parked,) = count_parked(bus, [subscription]).counts
    assert (parked.count, parked.reasons) == (1, {"timeout": 1})
    assert ops(cluster, "add", leaving, "--yes").returncode == 0


def park(cluster: LocalCluster, name: str, queue: str, message_id: str) -> None:
    body = {
        "properties": {"message_id": message_id, "headers": {"mb-park-reason": "timeout"}},
        "routing_key": queue,
        "payload": base64.b64encode(b"x").decode(),
        "payload_encoding": "base64",
    }
    with cluster.management(name) as management:
        management.post("/api/exchanges/%2F/amq.default/publish", json=body).raise_for_status()


def test_wrong_use_is_told_in_one_line(cluster: LocalCluster) -> None:
    listed = cluster.names[0]
    for words, said in (
        (("remove", "mb9"), "no broker 'mb9' in the inventory"),
        (("add", listed), f"{listed} is on the list already"),
        (("add", "rabbit"), "local brokers are called mb1"),
        (("restart", "mb9"), "no broker 'mb9' in the inventory"),
    ):
        failed = ops(cluster, *words, "--yes")
        assert failed.returncode in (1, 2)
        assert said in failed.stderr
        assert failed.stderr.count("\n") == 1


@pytest.mark.guarantee("erased-by-its-own-word")
def test_a_broker_at_anothers_address_is_neither_believed_nor_erased(cluster: LocalCluster) -> None:
    first, *_, last = (cluster.node(name) for name in cluster.names)
    text = cluster.inventory.read_text()
    swapped = text.replace(first.management, "X").replace(last.management, first.management)
    cluster.inventory.write_text(swapped.replace("X", last.management))
    try:
        for word in ("remove", "restart", "upgrade"):
            refused = ops(cluster, word, last.name, "--yes")
            assert refused.returncode == 1
            is_anothers = (
                f"management of {last.name}, {first.management}, is that of {first.broker}"
            )
            assert is_anothers in refused.stderr
    finally:
        cluster.inventory.write_text(text)
    assert not (cluster.inventory.parent / JOURNALS / f"remove+{last.name}.jsonl").exists()


def removed_beside_a_client(
    cluster: LocalCluster, leaving: str, *how: str
) -> subprocess.CompletedProcess[str]:
    """Remove a broker that a client dials itself, past list and balancer, after the last look by statistics.

    What it was confirmed is there, and nothing is erased before somebody has taken it.
    """
    queue, ended = "legacy", threading.Event()
    put_queue(cluster, leaving, queue, {"x-queue-type": "quorum"})
    with ThreadPoolExecutor() as pool:
        stored = pool.submit(publish_after_the_look, cluster, leaving, queue, ended)
        refused = ops(cluster, "remove", leaving, *how, "--yes")
        ended.set()
        count = stored.result()
    assert count, refused.stderr
    assert refused.returncode == 1, refused.stderr
    assert f'messages_are_left,[{{"{queue}",' in refused.stderr
    with cluster.management(leaving) as management:  # its doors are open again
        got = management.post(
            f"/api/queues/%2F/{queue}/get",
            json={"count": 2 * count, "ackmode": "ack_requeue_false", "encoding": "auto"},
        ).json()
    assert len(got) - count in (
        0,
        1,
    )  # the last one may be stored and lose its confirm with the link
    cluster.evaluate(leaving, LEFT_BEHIND)
    removed = ops(cluster, "remove", leaving, *how, "--yes")
    assert "its doors are shut, and it counts 0 messages in" in proofs(removed.stderr), (
        removed.stderr
    )
    return removed


def publish_after_the_look(
    cluster: LocalCluster, name: str, queue: str, ended: threading.Event
) -> int:
    """Publish to the broker itself from its last look by statistics on. Returns how many it stored."""
    journal = cluster.inventory.parent / JOURNALS / f"remove+{name}.jsonl"
    looked, count = f"see that nothing is left on {name}", 0
    body = {"routing_key": queue, "payload": "x", "payload_encoding": "string"}
    properties = {"properties": {"delivery_mode": 2}}
    with cluster.management(name) as management:
        while not ended.wait(0.02):
            if not journal.exists() or looked not in journal.read_text():
                continue
            with suppress(httpx.HTTPError):
                path = "/api/exchanges/%2F/amq.default/publish"
                count += management.post(path, json=body | properties).json()["routed"]
    return count


def test_what_differs_is_told_and_nothing_is_changed(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    """`ops check` and `ops topology diff` show it."""
    name, other = cluster.names[:2]
    declare(bus, [f"{topic}/{SUBSCRIPTION}"])
    for words in (["check"], ["topology", "diff"], ["topology", "sync"]):
        fine = ops(cluster, *words)
        assert fine.returncode == 0, fine.stdout + fine.stderr
    queue, stranger = f"mb.sub/{topic}/{SUBSCRIPTION}", f"mb.sub/{topic}/old"
    quorum = {"x-queue-type": "quorum"}
    put_queue(cluster, name, stranger, quorum)
    cluster.kill(other, agent=True)
    delete_queue(cluster, other, queue)
    put_queue(cluster, other, queue, {**quorum, "x-delivery-limit": 5})
    import_foreign(cluster, name)
    told = ops(cluster, "check")
    assert told.returncode == 7
    assert f"{other}: nothing listens on its agent" in told.stdout
    first = [
        f"{name}: has operator policy 'short', not from here: it sets max-length for",
        f"{name}: has policy 'ttl', not from here: it sets message-ttl for",
        f"{name}: has user 'eve' (administrator), who is not in the inventory",
    ]
    for line, wanted in zip(told.stdout.splitlines(), first, strict=False):
        assert line.startswith(wanted)
    rest = ops(cluster, "topology", "diff").stdout
    assert f"agent of {other} does not answer, and is not compared" in rest
    assert f"{name}: {stranger} is not in the topology; it holds 0 messages" in rest
    cluster.start(other, agent=True)
    operators_drain(cluster, name, True)
    eventually(lambda: "x-delivery-limit" in ops(cluster, "topology", "diff").stdout, within_s=60)
    told = ops(cluster, "topology", "diff")
    assert told.returncode == 7
    for line, wanted in zip(told.stdout.splitlines(), first, strict=False):
        assert line.startswith(wanted)
    assert f"{name}: {stranger} is not in the topology; it holds 0 messages" in told.stdout
    assert f"{other}: {queue} is not there, or not settled" in told.stdout
    told = ops(cluster, "check")
    assert f"{name}: takes no new publishers: drain" in told.stdout

    drop_foreign(cluster, name)
    operators_drain(cluster, name, False)
    delete_queue(cluster, name, stranger)
    delete_queue(cluster, other, queue)
    cluster.wait_ready()
    eventually(lambda: ops(cluster, "check").returncode == 0, within_s=60)


FOREIGN = {
    "/api/users/eve": {"password": "evil", "tags": "administrator"},
    "/api/policies/%2F/ttl": {"pattern": "^mb.sub", "definition": {"message-ttl": 3_600_000}},
    "/api/operator-policies/%2F/short": {
        "pattern": "^mb.sub",
        "definition": {"max-length": 1_000},
        "apply-to": "queues",
    },
}


def import_foreign(cluster: LocalCluster, name: str) -> None:
    with cluster.management(name) as management:
        for path, body in FOREIGN.items():
            management.put(path, json=body).raise_for_status()


def drop_foreign(cluster: LocalCluster, name: str) -> None:
    with cluster.management(name) as management:
        for path in FOREIGN:
            management.delete(path).raise_for_status()


def put_queue(
    cluster: LocalCluster, name: str, queue: str, arguments: Mapping[str, str | int]
) -> None:
    body = {"durable": True, "arguments": dict(arguments)}
    with cluster.management(name) as management:
        path = f"/api/queues/%2F/{quote(queue, safe='')}"
        management.put(path, json=body).raise_for_status()


def test_topology_sync_brings_about_what_a_broker_lacks(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    """One node's copy of the list was edited by hand, without the others: no agent sends it anything."""
    node, wanted = cluster.node(cluster.names[-1]), f"{topic}/{SUBSCRIPTION}"
    whole = node.list_file.read_text()
    cluster.kill(node.name, agent=True)
    with pytest.raises(RegistrationIncomplete, match=node.broker):
        declare(bus, [wanted], timeout_s=DECLARED_WITHIN_S)
    node.list_file.write_text(
        f"# generation: {cluster.consumer_list().generation}\n{node.broker}\n"
    )
    try:
        cluster.start(node.name, agent=True)
        lacking = f"{node.name}: {wanted} is wanted: its agent does not know"
        eventually(lambda: lacking in ops(cluster, "topology", "diff").stdout, within_s=60)
        assert f"mb.sub/{wanted}" not in queues_of(cluster, node.name)
        synced = ops(cluster, "topology", "sync")
        assert synced.returncode == 0, synced.stderr
        assert synced.stdout.startswith("1 entry was sent to agents that lacked them")
        assert f"mb.sub/{wanted}" in queues_of(cluster, node.name)
        assert ops(cluster, "topology", "diff").returncode == 0
    finally:
        node.list_file.write_text(whole)
        cluster.wait_ready()


def queues_of(cluster: LocalCluster, name: str) -> set[str]:
    with cluster.management(name) as management:
        listed = management.get("/api/queues/%2F?columns=name").raise_for_status().json()
        return {queue["name"] for queue in listed}


@pytest.mark.guarantee("playbook-killed-anywhere")
def test_a_second_playbook_is_refused_and_told_who_is_at_it(cluster: LocalCluster) -> None:
    first = subprocess.Popen(
        argv(cluster, "add", "mb4", "--yes"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        eventually(
            lambda: Journal(cluster.inventory.parent / JOURNALS, "add mb4").done, within_s=60
        )
        second = ops(cluster, "restart", "mb1", "--yes")
        assert second.returncode == 1
        assert f"pid {first.pid}, 'add mb4' is changing this cluster since" in second.stderr
        assert Journal(cluster.inventory.parent / JOURNALS, "restart mb1").done == ()
    finally:
        first.send_signal(signal.SIGINT)
        assert first.wait(timeout=STEP_WITHIN_S * FACTOR) == INTERRUPTED
    undone = ops(cluster, "add", "mb4", "--undo", "--yes")
    assert undone.returncode == 0, undone.stderr
    assert cluster.names == ["mb1", "mb2", "mb3"]


def test_delayed_messages_are_told_and_waited_for(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    """It leaves two brokers, and comes last: no other test here would have them."""
    last = cluster.names[-1]
    there = dataclasses.replace(bus, broker=cluster.node(last).broker)
    with Consumer(bus, topic, subscription="all") as consumer:
        with Publisher(there) as publisher:
            sent = publisher.send_safe(topic, b"x", deliver_after_s=20, timeout_s=30).message_id
        # Statistics show the past.
        told = "until every queue is empty, counted twice and tried, 1 delayed messages too, which takes 20 s"
        eventually(lambda: told in ops(cluster, "remove", last, "--dry-run").stdout, within_s=60)
        with ThreadPoolExecutor(1) as thread:
            removing = thread.submit(ops, cluster, "remove", last, "--yes")
            delivery = consumer.receive(timeout_s=60)
            assert delivery is not None
            assert delivery.message_id == sent
            consumer.ack(delivery)
            assert removing.result().returncode == 0, removing.result().stderr
