"""Messages are moved to other brokers unchanged, and an interrupted move loses nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from bench.faults import alarm
from messagebus import (
    BusConfig,
    ConfigError,
    Consumer,
    Delivery,
    Message,
    Publisher,
    declare,
)
from messagebus.admin import read_parked
from messagebus.tools.moving import MOVES_AT_ONCE, MessagesMoved, move_messages
from ops.local.cluster import LocalCluster
from tests.support.eventually import eventually
from tests.support.faults import delete_queue, direct, queue_exists
from tests.support.playbooks import ops

DEADLINE_S = 60.0
DELAY_S = 5.0
MANY = 3_000

KILLED = """
import sys
from messagebus import BusConfig
from messagebus.tools.moving import move_messages
bus = BusConfig(user="admin", password_file=sys.argv[1])
move_messages(bus, [sys.argv[2]], source=sys.argv[3], targets=sys.argv[4:],
              on_progress=lambda progress: print(progress.total, flush=True))
"""


def operator(cluster: LocalCluster) -> BusConfig:
    return BusConfig(user="admin", password=cluster.admin_password)


def move(cluster: LocalCluster, queues: Iterable[str], *to: str) -> MessagesMoved:
    """Move messages from mb1."""
    targets = [cluster.node(name).broker for name in to or ("mb2", "mb3")]
    source = cluster.node("mb1").broker
    return move_messages(operator(cluster), queues, source=source, targets=targets)


def fill(
    cluster: LocalCluster, topic: str, messages: Iterable[Message], *, delay_s: float = 0
) -> list[str]:
    """Publish to mb1; return ids in their order."""
    with Publisher(direct(cluster, "mb1")) as publisher:
        return [
            publisher.send_safe(
                topic, each, timeout_s=DEADLINE_S, deliver_after_s=delay_s or None
            ).message_id
            for each in messages
        ]


def take(bus: BusConfig, topic: str, count: int) -> list[Delivery]:
    """Take this many messages, and all that come within a moment after them."""
    found: list[Delivery] = []
    with Consumer(bus, topic, subscription="all") as consumer:
        while delivery := consumer.receive(DEADLINE_S if len(found) < count else 1):
            found.append(delivery)
            consumer.ack(delivery)
    return found


@pytest.mark.guarantee("move-remaining")
def test_what_is_moved_keeps_its_id_its_headers_and_the_order_of_its_key(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    declare(bus, [f"{topic}/all"])
    sent = [
        Message.text(f"body {n}", headers={"n": n, "color": "red"}, key=f"k{n % 7}", type="order")
        for n in range(60)
    ]
    ids = fill(cluster, topic, sent)
    moved = move(cluster, [f"mb.sub/{topic}/all"])
    assert (moved.total, moved.faults) == (60, {})
    assert len({broker for _, broker in moved.moved}) == 2
    got = take(bus, topic, 60)
    assert sorted(each.message_id for each in got) == sorted(ids)
    assert all(each.broker != cluster.node("mb1").broker for each in got)
    for each in got:
        number = int(str(each.message.headers["n"]))
        assert each.body == f"body {number}".encode()
        assert dict(each.message.headers) == {"n": number, "color": "red"}
        assert (each.message.key, each.message.type) == (f"k{number % 7}", "order")
    for key in {each.message.key for each in got}:
        numbers = [int(str(each.message.headers["n"])) for each in got if each.message.key == key]
        assert numbers == sorted(numbers)


def test_what_is_parked_is_moved_with_its_reason_whoever_parked_it(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    name = f"{topic}/all"
    declare(bus, [name])
    (message_id,) = fill(cluster, topic, [Message.text("bad")])
    with Consumer(bus, topic, subscription="all") as consumer:
        delivery = consumer.receive(DEADLINE_S)
        assert delivery is not None
        consumer.nack(delivery, requeue=False)
    eventually(lambda: read_parked(bus, [name]).messages, within_s=DEADLINE_S)
    (before,) = read_parked(bus, [name]).messages
    assert move(cluster, [f"mb.park/{name}"]).total == 1
    (after,) = read_parked(bus, [name]).messages
    assert after.broker != before.broker == cluster.node("mb1").broker
    assert after.message_id == message_id
    assert (after.reason, after.attempts, after.parked_ms) == (
        before.reason,
        before.attempts,
        before.parked_ms,
    )
    assert after.reason == "rejected"


def test_a_delayed_message_comes_out_of_another_broker_in_its_time(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    declare(bus, [f"{topic}/all"])
    begun = time.monotonic()
    (message_id,) = fill(cluster, topic, [Message.text("later")], delay_s=DELAY_S)
    moved = move(cluster, [f"mb.delay/{DELAY_S * 1000:.0f}"])
    assert (moved.total, moved.faults) == (1, {})
    (got,) = take(bus, topic, 1)
    assert got.message_id == message_id
    assert got.broker != cluster.node("mb1").broker
    assert time.monotonic() - begun >= DELAY_S


def test_a_broker_without_the_queue_takes_nothing_and_nothing_is_lost(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    queue = f"mb.queue/{topic}"
    declare(bus, [f"queue:{topic}"])
    fill(cluster, f"queue:{topic}", [Message.text("x")])
    moved = move(cluster, [queue, "mb.queue/none"])
    assert moved.total == 1
    assert list(moved.faults) == ["mb.queue/none"]
    delete_queue(cluster, "mb2", queue)
    eventually(lambda: queue_exists(cluster, "mb2", queue), within_s=DEADLINE_S)


def test_nothing_is_moved_to_a_broker_in_alarm(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    declare(bus, [f"{topic}/all"])
    ids = fill(cluster, topic, [Message.text("x", key=f"k{n}") for n in range(20)])
    alarm(cluster, "mb2", on=True)
    try:
        eventually(lambda: health_of(cluster, "mb2")["verdict"] == "drain", within_s=DEADLINE_S)
        eventually(lambda: counted(cluster, f"mb.sub/{topic}/all") == "20", within_s=DEADLINE_S)
        moved = ops(cluster, "move", "mb1")
        assert moved.returncode == 0, moved.stderr
        assert "nothing is moved to mb2 (" in moved.stderr
    finally:
        alarm(cluster, "mb2", on=False)
    cluster.wait_ready()
    got = take(bus, topic, len(ids))
    assert sorted(each.message_id for each in got) == sorted(ids)
    assert {each.broker for each in got} == {cluster.node("mb3").broker}


def counted(cluster: LocalCluster, queue: str) -> str:
    """Return how many messages the statistics of mb1 show in a queue: a move relies on them."""
    with cluster.management("mb1") as management:
        found = management.get(f"/api/queues/%2F/{quote(queue, safe='')}").json()
    return str(found.get("messages"))


def health_of(cluster: LocalCluster, name: str) -> dict[str, str]:
    answer = httpx.get(f"http://{cluster.node(name).agent}/health", trust_env=False, verify=False)
    found: dict[str, str] = answer.json()
    return found


def test_without_another_broker_nothing_begins(cluster: LocalCluster) -> None:
    with pytest.raises(ConfigError, match="no other broker"):
        move_messages(operator(cluster), ["q"], source=cluster.node("mb1").broker, targets=[])


@pytest.mark.guarantee("move-remaining")
def test_a_move_that_is_killed_loses_nothing_and_doubles_a_window_at_most(
    cluster: LocalCluster, bus: BusConfig, topic: str, tmp_path: Path
) -> None:
    declare(bus, [f"{topic}/all"])
    with Publisher(direct(cluster, "mb1")) as publisher:
        results = publisher.send_many(topic, [b"x"] * MANY)
    ids = {each.message_id for each in results}
    assert len(ids) == MANY
    script = tmp_path / "move.py"
    script.write_text(KILLED)
    words = [cluster.layout.secret("admin.password"), f"mb.sub/{topic}/all"]
    brokers = [cluster.node(name).broker for name in ("mb1", "mb2", "mb3")]
    moving = subprocess.Popen(
        [sys.executable, str(script), *map(str, words), *brokers], stdout=subprocess.PIPE, text=True
    )
    assert moving.stdout is not None
    assert int(moving.stdout.readline()) < MANY
    moving.send_signal(signal.SIGKILL)
    moving.wait()
    moving.stdout.close()
    got = Counter(each.message_id for each in take(bus, topic, MANY))
    assert set(got) == ids
    assert sum(times - 1 for times in got.values()) <= MOVES_AT_ONCE
