"""Every client that figures compare, with a few messages each: it confirms, receives, counts."""

from __future__ import annotations

import dataclasses

import pytest

from bench.figures.scene import Case, take_turn
from bench.systems.turn import Task
from messagebus import BusConfig, declare
from ops.local.cluster import LocalCluster

MESSAGES, WARM_UP = 300, 100


@pytest.fixture
def task(cluster: LocalCluster, topic: str) -> Task:
    env = cluster.client_env()
    declare(BusConfig.from_env(env), [f"{topic}/sink"])
    node = cluster.node(cluster.names[0])
    return Task(
        verb="publish",
        broker=node.broker,
        list_url=f"http://{node.agent}/consumer-list",
        user=env["MESSAGEBUS_USER"],
        password_file=env["MESSAGEBUS_PASSWORD_FILE"],
        topic=topic,
        subscription="sink",
        window=50,
        messages=MESSAGES,
        warm_up=WARM_UP,
    )


@pytest.mark.parametrize(
    ("system", "options"),
    [
        ("ours_async", {"way": "submit"}),
        ("ours_async", {"way": "send_many"}),
        ("ours_async", {"batch": 10, "body_bytes": 200}),
        ("ours_blocking", {"way": "submit"}),
        ("ours_blocking", {"way": "send_safe", "threads": 8}),
        ("pika_async", {}),
        ("pika_blocking", {}),
        ("aio_pika_client", {}),
        ("kombu_client", {}),
    ],
)
def test_it_publishes_all_and_our_consumer_finds_them(
    task: Task, system: str, options: dict[str, object]
) -> None:
    publishing = dataclasses.replace(task, **options)  # type: ignore[arg-type]
    turn = take_turn(Case("publish", system, publishing))
    assert turn.messages >= MESSAGES
    assert turn.user_s + turn.system_s > 0
    consuming = dataclasses.replace(task, verb="consume")
    assert take_turn(Case("consume", "ours_async", consuming)).messages == MESSAGES


@pytest.mark.parametrize(
    ("system", "way"),
    [
        ("ours_async", ""),
        ("ours_async", "receive_many"),
        ("ours_blocking", ""),
        ("ours_blocking", "receive_many"),
        ("pika_async", ""),
        ("aio_pika_client", ""),
    ],
)
def test_it_consumes_all(task: Task, system: str, way: str) -> None:
    take_turn(Case("publish", "ours_async", task))
    turn = take_turn(Case("consume", system, dataclasses.replace(task, verb="consume", way=way)))
    assert turn.messages == MESSAGES


@pytest.mark.parametrize("system", ["ours_async", "pika_async"])
def test_latencies_of_all_messages_are_kept(task: Task, system: str) -> None:
    paced = dataclasses.replace(task, verb="latency", rate_per_s=1000.0)
    turn = take_turn(Case("latency", system, paced))
    assert set(turn.histograms) == {"confirm", "delivery"}


def test_a_whole_test_in_memory_is_one_turn(task: Task) -> None:
    started = take_turn(Case("start", "ours_memory", dataclasses.replace(task, way="start")))
    assert started.messages == 1
