"""Brokers are added, removed, restarted, upgraded and replaced under load: nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import re
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from urllib.parse import quote

import pytest

from messagebus import (
    Broker,
    BusConfig,
    Consumer,
    Message,
    Publisher,
    RegistrationIncomplete,
    count_parked,
    declare,
)
from messagebus._io.amqp.link import Credentials, Link, dial
from ops.errors import LocalFault
from ops.local import process
from ops.local.cluster import LocalCluster
from ops.run.command import JOURNALS, journal_of
from ops.run.journal import open_runs
from tests.support.cluster import MakeCluster
from tests.support.eventually import eventually, eventually_async
from tests.support.faults import delete_queue, direct, operators_drain
from tests.support.playbooks import SUBSCRIPTION, AuditedLoad, lb, ops

RECEIVED_FIRST = 100
RELOADS = 5
DECLARED_WITHIN_S = 5.0
SEEN_WITHIN_S = 30.0


BROKERS = 3


@pytest.fixture(scope="module")
def clusters() -> Iterator[list[LocalCluster]]:
    """The cluster in use, if any."""
    used: list[LocalCluster] = []
    yield used
    for each in used:
        each.down()


@pytest.fixture
def cluster(make_cluster: MakeCluster, clusters: list[LocalCluster]) -> LocalCluster:
    """A cluster of these tests' own, which change its brokers. Each leaves three, all ready, and no
    unfinished run; a test that does not fails alone: the next has a new cluster.
    """
    if clusters and not is_left_as_found(clusters[-1]):
        clusters.pop().down()
    if not clusters:
        clusters.append(make_cluster(BROKERS))
    return clusters[-1]


def is_left_as_found(cluster: LocalCluster) -> bool:
    if len(cluster.names) != BROKERS or open_runs(cluster.inventory.parent / JOURNALS, but=""):
        return False
    try:
        cluster.wait_ready()
    except LocalFault:
        return False
    return True


@pytest.fixture
def load(bus: BusConfig, topic: str) -> AuditedLoad:
    """Publishers and consumers under load. bus, topic: as all integration tests have them."""
    return AuditedLoad(bus, topic)


@pytest.mark.guarantee("add-and-remove")
def test_adding_and_removing_under_load_loses_and_doubles_nothing(
    cluster: LocalCluster, load: AuditedLoad
) -> None:
    with load.running():
        eventually(lambda: len(load.received) > RECEIVED_FIRST, within_s=60)

        added = ops(cluster, "add", "mb4", "--yes")
        assert added.returncode == 0, added.stderr
        fourth = cluster.node("mb4").broker
        eventually(
            lambda: load.confirmed_by(fourth) and load.consumed_from[fourth], within_s=SEEN_WITHIN_S
        )

        second = cluster.node("mb2").broker
        removed = ops(cluster, "remove", "mb2", "--yes")
        assert removed.returncode == 0, removed.stderr
        assert load.confirmed_by(second)
        told = proofs(removed.stderr)
        assert re.search(r"(\d+) of \1 clients work by generation \d+", told)
        assert "0 messages are left in" in told
    assert load.lost == set()
    assert load.doubled == []
    assert cluster.names == ["mb1", "mb3", "mb4"]
    assert second not in cluster.consumer_list().names
    assert process.marked(f"{cluster.dir}#mb2#") == []


def proofs(said: str) -> str:
    return "\n".join(line for line in said.splitlines() if line.strip().startswith("proved"))


def has_received(load: AuditedLoad, count: int) -> bool:
    return len(load.received) > count


def test_reloads_of_the_balancer_under_load_lose_and_double_nothing(
    cluster: LocalCluster, load: AuditedLoad
) -> None:
    """Publishers renew their connections meanwhile, so that some are made in each of its moments."""
    with load.running(publishers=4, consumers=4):
        for number in range(1, RELOADS + 1):
            eventually(partial(has_received, load, number * RECEIVED_FIRST), within_s=60)
            reloaded = lb(cluster, "apply", "--reload")
            assert reloaded.returncode == 0, reloaded.stderr
            assert "reloaded: process" in reloaded.stdout
    assert load.lost == set()
    assert load.doubled == []


@pytest.mark.guarantee("restart-upgrade-replace")
def test_a_rolling_restart_under_load_loses_and_doubles_nothing(
    cluster: LocalCluster, load: AuditedLoad
) -> None:
    before = {name: process_of(cluster, name) for name in cluster.names}
    with load.running():
        eventually(lambda: len(load.received) > RECEIVED_FIRST, within_s=60)
        restarted = ops(cluster, "restart", "--rolling", "--yes")
        assert restarted.returncode == 0, restarted.stderr
        last = cluster.node(cluster.names[-1]).broker
        count = load.consumed_from[last]
        eventually(lambda: load.consumed_from[last] > count, within_s=SEEN_WITHIN_S)
    assert load.lost == set()
    assert load.doubled == []
    after = {name: process_of(cluster, name) for name in cluster.names}
    assert all(before[name] != after[name] for name in before)
    assert not any(entry.draining for entry in cluster.consumer_list())


def process_of(cluster: LocalCluster, name: str) -> process.Process:
    found = cluster.process_of(name)
    assert found is not None
    return found


@pytest.mark.guarantee("restart-upgrade-replace")
def test_an_upgrade_under_load_loses_and_doubles_nothing(
    cluster: LocalCluster, load: AuditedLoad
) -> None:
    name = cluster.names[0]
    with load.running():
        eventually(lambda: len(load.received) > RECEIVED_FIRST, within_s=60)
        cookie = cluster.node(name).data_dir / "before"
        cookie.write_text("of the old installation")
        upgraded = ops(cluster, "upgrade", name, "--yes")
        assert upgraded.returncode == 0, upgraded.stderr
        assert not cookie.exists()
        address = cluster.node(name).broker
        count = load.consumed_from[address]
        eventually(lambda: load.consumed_from[address] > count, within_s=SEEN_WITHIN_S)
    assert load.lost == set()
    assert load.doubled == []


@pytest.mark.guarantee("restart-upgrade-replace")
def test_a_dead_broker_is_replaced_under_load_and_only_what_lay_on_its_disk_can_be_missing(
    cluster: LocalCluster, load: AuditedLoad
) -> None:
    name = cluster.names[1]
    address = cluster.node(name).broker
    with load.running():
        eventually(lambda: load.confirmed_by(address) > RECEIVED_FIRST, within_s=60)
        early = ops(cluster, "replace", name, "--lose-messages", "--yes")
        assert early.returncode == 1
        assert f"the broker of {name} answers" in early.stderr
        assert not journal_of(cluster.inventory, f"replace {name}").is_resumed  # it only looked
        cluster.kill(name)
        cluster.kill(name, agent=True)
        careless = ops(cluster, "replace", name, "--yes")
        assert careless.returncode == 1
        assert "what lay on its disk is lost for good" in careless.stderr
        of_the_dead = {id for id, broker in dict(load.confirmed).items() if broker == address}
        replaced = ops(cluster, "replace", name, "--lose-messages", "--yes")
        assert replaced.returncode == 0, replaced.stderr
        count = load.consumed_from[address]
        eventually(lambda: load.consumed_from[address] > count, within_s=SEEN_WITHIN_S)
    assert load.lost <= of_the_dead
    cluster.wait_ready()


def test_a_dry_run_prints_the_argv_and_changes_nothing(cluster: LocalCluster) -> None:
    before = cluster.layout, cluster.consumer_list()
    name = cluster.names[0]
    for words in (["remove", name], ["restart", "--rolling"], ["upgrade", name], ["replace", name]):
        dry = ops(cluster, *words, "--dry-run")
        assert dry.returncode == 0, dry.stderr
        argv = f"$ {sys.executable} -m consumer_lists --inventory {cluster.inventory} remove"
        assert argv in dry.stdout
    assert (cluster.layout, cluster.consumer_list()) == before


def applications_on(cluster: LocalCluster, name: str) -> int:
    with cluster.management(name) as api:
        return sum(each.get("user") == "bus" for each in api.get("/api/connections").json())


async def foreign_link(cluster: LocalCluster, name: str) -> Link:
    """Open a link of a client that follows no list. Management lists it one statistics interval later."""
    login = Credentials(user="bus", password=cluster.password, client_id="foreign")
    link = await dial(Broker.parse(cluster.node(name).broker), login, timeout_ms=5_000)
    await eventually_async(lambda: applications_on(cluster, name), within_s=30)
    return link


@pytest.mark.guarantee("stuck-clients-are-hung-up-on")
async def test_clients_that_do_not_move_are_hung_up_on_and_named(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    """One may publish; the other is a worker that died with deliveries in its hands."""
    leaving = cluster.names[-1]
    await asyncio.to_thread(declare, bus, [f"{topic}/{SUBSCRIPTION}"])
    with Publisher(direct(cluster, leaving)) as publisher:
        sent = {publisher.send_safe(topic, b"x", timeout_s=30).message_id for _ in range(3)}
    publishes, holds = [await foreign_link(cluster, leaving) for _ in range(2)]
    await holds.call(
        "basic_consume",
        queue=f"mb.sub/{topic}/{SUBSCRIPTION}",
        on_message_callback=lambda *_: None,
    )
    words = ("remove", leaving, "--held-s", "3", "--move-remaining", "--yes")
    removed = await asyncio.to_thread(ops, cluster, *words)
    assert removed.returncode == 0, removed.stderr
    assert (
        f"wait for publishers to leave {leaving}: 1 connection that may publish: foreign at"
        in removed.stderr
    )
    told = proofs(removed.stderr)
    assert "closed 1 connection: foreign at 127." in told
    assert "(user bus, holds 3 deliveries)" in told
    assert "moved 3 messages of 1 queue" in told
    assert not publishes.is_open
    assert not holds.is_open
    got = await asyncio.to_thread(received, bus, topic, len(sent))
    assert got == sorted(sent)
    added = await asyncio.to_thread(ops, cluster, "add", leaving, "--yes")
    assert added.returncode == 0, added.stderr


def received(bus: BusConfig, topic: str, count: int) -> list[str]:
    ids: list[str] = []
    with Consumer(bus, topic, subscription=SUBSCRIPTION) as consumer:
        while delivery := consumer.receive(timeout_s=30 if len(ids) < count else 1):
            ids.append(delivery.message_id)
            consumer.ack(delivery)
    return sorted(ids)


@pytest.mark.guarantee("move-remaining")
def test_what_nobody_reads_is_told_at_once_and_moved_when_that_is_wanted(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    """They are in queues, parked and delayed."""
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
    removed = ops(cluster, "remove", leaving, "--move-remaining", "--yes")
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


def test_delayed_messages_are_told_and_waited_for(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    last = cluster.names[-1]
    there = dataclasses.replace(bus, broker=cluster.node(last).broker)
    with Consumer(bus, topic, subscription="all") as consumer:
        with Publisher(there) as publisher:
            sent = publisher.send_safe(topic, b"x", deliver_after_s=10, timeout_s=30).message_id
        # Statistics show the past.
        told = "until every queue is empty, counted twice and tried, 1 delayed messages too, which takes 10 s"
        eventually(lambda: told in ops(cluster, "remove", last, "--dry-run").stdout, within_s=8)
        with ThreadPoolExecutor(1) as thread:
            removing = thread.submit(ops, cluster, "remove", last, "--yes")
            delivery = consumer.receive(timeout_s=60)
            assert delivery is not None
            assert delivery.message_id == sent
            consumer.ack(delivery)
            assert removing.result().returncode == 0, removing.result().stderr
    assert ops(cluster, "add", last, "--yes").returncode == 0


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
    told = ops(cluster, "check")
    assert told.returncode == 7
    assert f"{other}: nobody listens on its agent" in told.stdout
    cluster.start(other, agent=True)
    operators_drain(cluster, name, True)
    eventually(lambda: "x-delivery-limit" in ops(cluster, "topology", "diff").stdout, within_s=20)
    told = ops(cluster, "topology", "diff")
    assert told.returncode == 7
    assert f"{name}: {stranger} is wanted by nobody; it holds 0 messages" in told.stdout
    assert f"{other}: {queue} is not there, or not settled" in told.stdout
    told = ops(cluster, "check")
    assert f"{name}: takes no new publishers: drain" in told.stdout

    operators_drain(cluster, name, False)
    delete_queue(cluster, name, stranger)
    delete_queue(cluster, other, queue)
    cluster.wait_ready()
    eventually(lambda: ops(cluster, "check").returncode == 0, within_s=20)


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
        eventually(lambda: lacking in ops(cluster, "topology", "diff").stdout, within_s=20)
        assert f"mb.sub/{wanted}" not in queues_of(cluster, node.name)
        synced = ops(cluster, "topology", "sync")
        assert synced.returncode == 0, synced.stderr
        assert synced.stdout.startswith("1 entry was told to agents that did not know them")
        assert f"mb.sub/{wanted}" in queues_of(cluster, node.name)
        assert ops(cluster, "topology", "diff").returncode == 0
    finally:
        node.list_file.write_text(whole)
        cluster.wait_ready()


def queues_of(cluster: LocalCluster, name: str) -> set[str]:
    with cluster.management(name) as management:
        listed = management.get("/api/queues/%2F?columns=name").raise_for_status().json()
        return {queue["name"] for queue in listed}
