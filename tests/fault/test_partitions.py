"""Promise: a key keeps its order on a partitioned topic, whatever is killed, frozen, moved and replaced."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from messagebus import AsyncPublisher, Message, Publisher, RelayConfig, Topic, declare
from messagebus.databases import SQLITE
from messagebus.errors import MessageBusError
from messagebus.stores.sql import SqlStore
from ops.local.cluster import LocalCluster
from tests.support.connections import Database
from tests.support.eventually import eventually, eventually_async
from tests.support.faults import bus_config, reload_balancer, unregister
from tests.support.killed import Killed
from tests.support.moves import begin, rotated, settled
from tests.support.ordered_load import (
    EVENTS,
    WHOLE,
    WITHIN_S,
    Group,
    loaded,
    loaded_naively,
    out_of_order,
    write_deliveries,
)
from tests.support.outboxes import Shop
from tests.support.playbooks import ops
from tests.support.servers import SingleServer

# The long form, which replaces brokers, too, and is run alone: TESTS_ORDER_WHOLE=1 TESTS_ORDER_MINUTES=30.
# Other schedules: TESTS_ORDER_SEED.
MINUTES = float(os.environ.get("TESTS_ORDER_MINUTES", "1"))
SEED = int(os.environ.get("TESTS_ORDER_SEED", "3"))
EVENT_S, FROZEN_S = 1.0, 6.0
# Of the moves of all partitions: begun before so many of the events.
MOVING_SHARE = 0.7
KINDS = (
    *("kill agent", "kill home", "freeze home", "freeze agent", "host gone", "reload"),
    *("kill consumer", "freeze consumer", "subscribe"),
)
# In the long form alone: playbooks have tests of their own.
PLAYBOOKS = ("swap", "restart")
PLAYBOOK_TRIES = 4
# The brokers that may be there; mb4 takes the place of one that is removed.
BROKERS = ("mb1", "mb2", "mb3", "mb4")

# Writes under its fence, once it may.
FENCED = """
import os, sys, time
from pathlib import Path
import psycopg
from messagebus import BusConfig, Consumer
from messagebus.stores import Dedup

topic, told, may_write = sys.argv[1:]
url = os.environ["DATABASE"]
dedup = Dedup(url, lease_s=1, fence=True)
consumer = Consumer(BusConfig.from_env(os.environ), topic, subscription="ledger", order="key", dedup=dedup)

def tell(text):
    with open(told, "a") as file:
        file.write(text + "\\n")

def handle(delivery):
    tell(f"begun {delivery.fence}")
    while not Path(may_write).exists():
        time.sleep(0.05)
    with psycopg.connect(url) as connection:
        wanted = "UPDATE account SET balance = %s, fence = %s WHERE fence <= %s"
        changed = connection.execute(wanted, (os.getpid(), delivery.fence, delivery.fence)).rowcount
    tell(f"changed {changed}")

consumer.start()
consumer.run(handle)
"""


class Faults:
    """Faults of one run. said: what was done."""

    def __init__(self, cluster: LocalCluster, topic: str, groups: list[Group]) -> None:
        self._cluster, self._topic = cluster, topic
        self._members = [each for group in groups for each in group.members]
        self._rng = random.Random(SEED)
        self.said = list[str]()

    def run(self, until_s: float) -> None:
        """Break one thing after the other, each kind once before one comes again, and mend it."""
        for what in self._kinds():
            name = self._rng.choice(self._cluster.names)
            began_s = time.monotonic()
            refused = "-"
            if self._rng.random() < MOVING_SHARE:
                refused = str(
                    len(begin(self._cluster, self._topic, rotated(self._cluster, self._topic)))
                )
            time.sleep(self._rng.random() * EVENT_S)
            self._do(what, name)
            for member in self._members:
                member.revive()
            self.said.append(f"{what} {name}, {refused} refused")
            print(f"{time.monotonic() - began_s:5.1f} s {self.said[-1]}", flush=True)
            if time.monotonic() > until_s:
                return

    def _kinds(self) -> Iterator[str]:
        every = [*KINDS, *(PLAYBOOKS if WHOLE else ())]
        while True:
            yield from self._rng.sample(every, len(every))

    def _do(self, what: str, name: str) -> None:
        cluster, member = self._cluster, self._rng.choice(self._members)
        match what:
            case "kill agent":
                cluster.kill(name, agent=True)
                time.sleep(EVENT_S)
                cluster.start(name, agent=True)
            case "kill home":
                cluster.kill(name)
                time.sleep(EVENT_S)
                cluster.start(name)
            case "freeze home" | "freeze agent":
                cluster.freeze(name, agent="agent" in what)
                time.sleep(FROZEN_S)
                cluster.thaw(name, agent="agent" in what)
            case "host gone":
                cluster.kill(name, agent=True)
                cluster.kill(name)
                time.sleep(EVENT_S)
                cluster.start(name)
                cluster.start(name, agent=True)
            case "kill consumer":
                member.kill()
                time.sleep(EVENT_S)
            case "freeze consumer":
                member.send(signal.SIGSTOP)
                time.sleep(FROZEN_S)
                member.send(signal.SIGCONT)
            case "reload":
                reload_balancer(cluster)
            case "subscribe":
                self._subscribe()
            case "swap":
                self._swap(name)
            case _:
                self._playbook("restart", name)

    def _subscribe(self) -> None:
        """Make a subscription that nobody reads, and delete it: moves meet it, and wait for it."""
        made = f"{self._topic}/nobody{len(self.said)}"
        try:
            declare(bus_config(self._cluster), [made], timeout_s=30)
        except MessageBusError as fault:  # a part is not back yet
            print(f"not declared: {fault}")
        time.sleep(EVENT_S)
        unregister(self._cluster, made)

    def _swap(self, name: str) -> None:
        """Add the broker that is missing, and remove another one."""
        self._cluster.wait_ready()
        [missing] = set(BROKERS) - set(self._cluster.names)
        self._playbook("add", missing)
        self._playbook("remove", name)

    def _playbook(self, *words: str) -> None:
        """Run a playbook while a consumer and an agent are killed; take it up again where it stops."""
        cluster = self._cluster
        with ThreadPoolExecutor(1) as pool:
            run = pool.submit(ops, cluster, *words, "--yes")
            time.sleep(self._rng.random() * FROZEN_S)
            self._rng.choice(self._members).kill()
            name = self._rng.choice([n for n in cluster.names if n not in words])
            if cluster.process_of(name, agent=True):
                cluster.kill(name, agent=True)
                time.sleep(EVENT_S)
                cluster.start(name, agent=True)
            done = run.result()
        for _ in range(PLAYBOOK_TRIES):
            if not done.returncode:
                return
            print(f"again {words}: {done.stderr[-300:]}", flush=True)
            cluster.wait_ready()
            done = ops(cluster, *words, "--yes")
        assert not done.returncode, done.stderr


@pytest.mark.guarantee("key-order-across-brokers")
@pytest.mark.timeout(MINUTES * 60 + 1_200)
def test_a_keys_order_holds_while_everything_is_killed_frozen_moved_and_replaced(
    broken: LocalCluster, topic: str, tmp_path: Path
) -> None:
    with loaded(broken, topic, tmp_path) as (group, search, ended):
        faults = Faults(broken, topic, [group, search])
        faults.run(time.monotonic() + MINUTES * 60)
        broken.wait_ready()
        eventually(lambda: settled(broken, topic), within_s=WITHIN_S, what="all moves are finished")
        confirmed = ended()
        assert out_of_order(group.first_ends()) == [], faults.said
    assert sum(map(len, confirmed.values())) > 500, faults.said
    if WHOLE:
        judged_by_spark(topic, tmp_path, group, search)


def judged_by_spark(topic: str, folder: Path, group: Group, search: Group) -> None:
    """Assert that Spark finds nothing lost, and no key out of order, in the rows of the same run."""
    events, out = folder / EVENTS, folder / "spark"
    for subscription, each in (("ledger", group), ("search", search)):
        write_deliveries(each, topic, subscription, events, topic)
    manifest = json.loads((events / "manifest.json").read_text())
    manifest |= {"ordered": [f"{topic}/ledger"], "grace_ns": 0}
    (events / "manifest.json").write_text(json.dumps(manifest))
    argv = ["-m", "spark", "audit", "--events", str(events), "--out", str(out)]
    # A publish may end as unknown; who is killed behind a run and before its ack runs it again.
    argv += ["--allow", "unconfirmed", "--allow", "unexplained"]
    audited = subprocess.run([sys.executable, *argv], capture_output=True, text=True, timeout=900)
    found = json.loads((out / "audit.json").read_text())
    print({name: found[name] for name in ("counts", "order", "verdicts")})
    assert audited.returncode == 0, audited.stdout + audited.stderr
    assert found["order"]["out_of_order"] == found["verdicts"]["lost"] == 0


@pytest.mark.guarantee("fence-refuses-who-was-cut-off")
def test_the_late_write_of_a_consumer_that_was_frozen_is_refused_by_its_fence(
    broken: LocalCluster, topic: str, tmp_path: Path, postgresql_server: SingleServer
) -> None:
    bus, url = bus_config(broken), postgresql_server.url
    asyncio.run(with_tables(url))
    declare(bus, [Topic(topic, partitions=1), f"{topic}/ledger"], timeout_s=60)
    env = os.environ | broken.client_env() | {"MESSAGEBUS_HEARTBEAT_S": "2", "DATABASE": url}
    may_write, at_once = tmp_path / "may-write", tmp_path / "at-once"
    at_once.touch()
    first, second = tmp_path / "first", tmp_path / "second"
    first.touch()
    second.touch()

    with Publisher(bus) as publisher, ExitStack() as stack:
        publisher.send_safe(topic, b"0", key="k", timeout_s=WITHIN_S)
        argv = ["-c", FENCED, topic]
        frozen = Killed([*argv, str(first), str(may_write)], env, tmp_path / "first.log")
        stack.callback(frozen.end)
        told(first, "begun 1")
        frozen.send(signal.SIGSTOP)
        other = Killed([*argv, str(second), str(at_once)], env, tmp_path / "second.log")
        stack.callback(other.end)
        told(second, "begun 2", "changed 1")
        may_write.touch()
        frozen.send(signal.SIGCONT)
        told(first, "begun 1", "changed 0")
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT fence FROM account").fetchall() == [(2,)]


@pytest.mark.guarantee("outbox-home-away")
async def test_a_home_that_is_killed_holds_up_its_own_keys_of_an_outbox_and_no_others(
    broken: LocalCluster, topic: str, tmp_path: Path
) -> None:
    bus, keys = bus_config(broken), [f"customer-{number}" for number in range(30)]
    wanted: list[Topic | str] = [
        Topic(topic, partitions=3),
        f"{topic}/ledger",
        f"{topic}-mails/send",
    ]
    await asyncio.to_thread(declare, bus, wanted, timeout_s=60)
    shop = Shop(Database(SQLITE, path=tmp_path / "shop.db"), bus)
    await shop.make_tables()
    async with AsyncPublisher(bus) as publisher:
        firsts = [Message(body=b"first", key=key) for key in keys]
        ends = [await publisher.send_safe(topic, each, timeout_s=WITHIN_S) for each in firsts]
    away = ends[0].broker
    of_away = {key for key, end in zip(keys, ends, strict=True) if end.broker == away}
    async with shop.relay(RelayConfig(poll_s=0.02, in_flight_max=5)) as relay:
        await shop.add(b"0", destination=f"{topic}-mails")
        await shop.add(b"0", destination=topic, key=keys[0])
        assert await relay.drained(WITHIN_S)
        broken.kill(broken.name_of(away))
        for key in sorted(keys, key=lambda key: key not in of_away):
            await shop.add(b"1", b"2", destination=topic, key=key)
        await shop.add(b"1", destination=f"{topic}-mails")
        going = 2 + 2 * (len(keys) - len(of_away)) + 1
        await eventually_async(lambda: relay.stats().published == going, within_s=WITHIN_S)
        assert await shop.count() >= 2 * len(of_away)  # what is confirmed is deleted a moment later
        broken.start(broken.name_of(away))
        broken.wait_ready()
        async with asyncio.timeout(WITHIN_S):
            while await shop.count():  # each row waits some seconds in the table
                await relay.drained(1)
        assert (relay.stats().failed, relay.stats().parked) == (0, 0)


def told(by: Path, *lines: str) -> None:
    """Wait until a consumer has told these."""
    wanted = list(lines)
    eventually(lambda: by.read_text().splitlines() == wanted, within_s=WITHIN_S, what=by.name)


async def with_tables(url: str) -> None:
    """Make the store's tables, and one account."""
    store = SqlStore(url)
    await store.create()
    await store.close()
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE account AS SELECT 0 AS balance, 0 AS fence")


def test_control_a_hash_over_the_brokers_that_live_breaks_the_order_within_a_minute(
    broken: LocalCluster, topic: str, tmp_path: Path
) -> None:
    with loaded_naively(broken, topic, tmp_path) as group:
        for name in broken.names:
            # So that something lies there: they are faster than the load.
            for each in group.members:
                each.send(signal.SIGSTOP)
            time.sleep(EVENT_S)
            broken.kill(name)
            for each in group.members:
                each.send(signal.SIGCONT)
            time.sleep(EVENT_S)
            broken.start(name)
            if out_of_order(group.first_ends()):
                return
        eventually(lambda: out_of_order(group.first_ends()), within_s=WITHIN_S, what="disorder")
