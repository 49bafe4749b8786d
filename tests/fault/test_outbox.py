"""The outbox on real brokers and databases: applications, relays and the database are killed at random.

TESTS_OUTBOX_ROWS=50000 makes it longer.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from messagebus import BusConfig, Consumer, declare
from messagebus.databases import MYSQL, POSTGRESQL, execute
from ops.local.cluster import LocalCluster
from tests.support.cluster import MakeCluster
from tests.support.connections import Database, connect
from tests.support.eventually import eventually
from tests.support.faults import bus_config
from tests.support.killed import Killed
from tests.support.outbox_writer import TABLE
from tests.support.outboxes import Shop
from tests.support.servers import MakeServer, SingleServer

ROWS = int(os.environ.get("TESTS_OUTBOX_ROWS", "5000"))
WRITERS, KEYS, RELAYS = 2, 40, 3
SERVERS = {POSTGRESQL: "postgresql", MYSQL: "mariadb"}
WITHIN_S = 300
KILL_EVERY_S = (0.5, 3.0)
# So many that each of them has time to come to its end.
WRITER_KILLS, DATABASE_KILLS = 6, 2


@pytest.fixture(scope="module")
def one_broker(make_cluster: MakeCluster) -> LocalCluster:
    """Order is kept per broker, so that one alone shows it."""
    return make_cluster(1)


@pytest.fixture
def dialect(request: pytest.FixtureRequest) -> str:
    """The database: PostgreSQL, where a test does not say otherwise."""
    return str(getattr(request, "param", POSTGRESQL))


@pytest.fixture
def shop(one_broker: LocalCluster, make_server: MakeServer, dialect: str) -> Shop:
    one_broker.wait_ready()
    return Shop(Database(dialect, server=make_server(SERVERS[dialect])), bus_config(one_broker))


@contextmanager
def running(shop: Shop, cluster: LocalCluster, folder: Path, topics: list[str]) -> Iterator[_Run]:
    env = {
        "PATH": os.environ["PATH"],
        **cluster.client_env(),
        "MESSAGEBUS_OUTBOX_DATABASE": shop.database.url,
    }
    writers = [
        Killed(
            [
                *("-m", "tests.support.outbox_writer", shop.database.url, f"w{number}"),
                *(str(KEYS), str(ROWS // WRITERS), *topics),
            ],
            env,
            folder / f"writer{number}.log",
        )
        for number in range(WRITERS)
    ]
    relay = ["-m", "messagebus", "outbox", "relay"]
    if shop.database.dialect == POSTGRESQL:
        relay.append("--notify")
    relays = [Killed(relay, env, folder / f"relay{n}.log") for n in range(RELAYS)]
    try:
        yield _Run(writers, relays)
    finally:
        for each in (*writers, *relays):
            each.end()


class _Run:
    def __init__(self, writers: list[Killed], relays: list[Killed]) -> None:
        self.writers, self.relays = writers, relays

    def revive(self) -> None:
        for each in (*self.writers, *self.relays):
            each.revive()

    def kill_at_random(self, server: SingleServer) -> None:
        """Kill writers, relays, and some times the database, until all is written."""
        database_kills = 0
        until_s = time.monotonic() + WITHIN_S
        while not all(writer.is_done for writer in self.writers):
            self.revive()
            assert time.monotonic() < until_s, "the applications do not come to an end"
            time.sleep(random.uniform(*KILL_EVERY_S))
            random.choice(self.relays).kill()
            writer = random.choice(self.writers)
            if writer.kills < WRITER_KILLS and random.random() < 0.4:
                writer.kill()
            if database_kills < DATABASE_KILLS and random.random() < 0.2:
                server.kill()
                server.start()
                database_kills += 1


async def committed(shop: Shop) -> dict[str, tuple[str, int, str]]:
    """Return message id -> key, number, topic of the orders that there are."""
    found = await shop.rows("SELECT message_id, of_key, number, topic FROM orders")
    return {message_id: (key, number, topic) for message_id, key, number, topic in found}


def received(consumer: Consumer, ids: set[str]) -> list[str]:
    """Return all ids that arrived, in order, until these have come and nothing is left."""
    found: list[str] = []
    while (delivery := consumer.receive(5 if ids <= set(found) else 60)) is not None:
        found.append(delivery.message_id)
        consumer.ack(delivery)
    return found


@pytest.mark.guarantee(
    "outbox-commits-with-its-transaction", "outbox-key-order", "outbox-survives-kills"
)
@pytest.mark.parametrize("dialect", [POSTGRESQL, MYSQL], indirect=True)
async def test_ids_in_are_ids_out_and_each_key_in_order_through_kills(
    shop: Shop, one_broker: LocalCluster, tmp_path: Path
) -> None:
    bus: BusConfig = bus_config(one_broker)
    await asyncio.to_thread(declare, bus, ["placed/all"])
    await shop.make_tables()
    await shop.rows(TABLE)
    server = shop.database.server
    assert server is not None
    with running(shop, one_broker, tmp_path, ["placed", "late"]) as run:
        run.kill_at_random(server)
        # Until now nobody subscribes there: rows are unroutable, and their keys wait behind them.
        await asyncio.to_thread(declare, bus, ["late/all"])

        # Not after their back-off, which takes minutes by now.
        await shop.rows("UPDATE messagebus_outbox SET not_before_ms = 0")

        def is_empty() -> bool:
            run.revive()
            with connect(shop.database) as connection:
                ((left,),) = execute(connection, "SELECT count(*) FROM messagebus_outbox").rows
            return left == 0  # type: ignore[no-any-return]

        eventually(is_empty, within_s=WITHIN_S, what="all rows are published")
        kills = [each.kills for each in (*run.writers, *run.relays)]

        def may_be_stopped() -> bool:
            run.revive()
            return all(_handles(relay.pid, signal.SIGTERM) for relay in run.relays)

        # One may have been started again just now.
        eventually(may_be_stopped, within_s=WITHIN_S, what="all relays work")
        codes = [relay.stop() for relay in run.relays]
    wanted = await committed(shop)
    assert len(wanted) >= ROWS
    order: dict[str, list[int]] = defaultdict(list)
    out: dict[str, list[str]] = {}
    for topic in ("placed", "late"):
        ids = {message_id for message_id, (_, _, to) in wanted.items() if to == topic}
        with Consumer(bus, topic, subscription="all") as consumer:
            out[topic] = received(consumer, ids)
        assert set(out[topic]) == ids, f"{topic}: ids in are ids out"
        first = list(dict.fromkeys(out[topic]))
        for message_id in first:
            key, number, _ = wanted[message_id]
            order[f"{topic} {key}"].append(number)
    assert all(numbers == sorted(numbers) for numbers in order.values())
    again = sum(map(len, out.values())) - len(wanted)
    print(f"{len(wanted)} rows, kills {kills}, {again} sent again, exit codes {codes}")
    assert codes == [0] * RELAYS


@pytest.mark.guarantee("outbox-survives-kills")
async def test_a_relay_outlives_its_database_and_its_broker(
    shop: Shop, one_broker: LocalCluster
) -> None:
    await asyncio.to_thread(declare, bus_config(one_broker), ["outliving/all"])
    await shop.make_tables()
    server = shop.database.server
    assert server is not None
    async with shop.relay() as relay:
        ids = await shop.add(b"one", key="k", destination="outliving")
        assert await relay.drained(60)
        server.kill()
        one_broker.kill("mb1")
        server.start()
        ids += await shop.add(b"two", b"three", key="k", destination="outliving")
        one_broker.start("mb1")
        one_broker.wait_ready()
        assert await relay.drained(60)
    with Consumer(bus_config(one_broker), "outliving", subscription="all") as consumer:
        assert list(dict.fromkeys(received(consumer, set(ids)))) == ids


def _handles(pid: int, number: int) -> bool:
    """Return whether a process has a handler of this signal, and so is past its start."""
    with suppress(OSError):  # it has ended
        status = Path(f"/proc/{pid}/status").read_text()
        (caught,) = [line for line in status.splitlines() if line.startswith("SigCgt:")]
        return bool(int(caught.partition(":")[2], 16) >> number - 1 & 1)
    return False
