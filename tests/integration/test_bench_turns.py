"""Every client that figures compare, with a few messages each: it confirms, receives, counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.figures.full_speed import direct_task, fill, take_turn
from bench.figures.groups import Setup
from bench.harness.turn import Task
from ops.local.cluster import LocalCluster

MESSAGES, WARM_UP = 300, 100


@pytest.fixture
def task(cluster: LocalCluster, topic: str, tmp_path: Path) -> Task:
    setup = Setup(tmp_path, print, started=cluster)
    made = direct_task(setup, topic)
    return replace(made, way="submit", window=50, messages=MESSAGES, warm_up=WARM_UP)


@pytest.mark.parametrize(
    "options",
    [
        {"way": "submit"},
        {"way": "send_many"},
        {"batch": 10, "body_bytes": 200},
        {"way": "submit_blocking"},
        {"way": "send_safe", "threads": 8},
        {"system": "pika"},
        {"system": "pika-blocking"},
        {"system": "aio-pika"},
        {"system": "kombu"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_it_publishes_all_and_our_consumer_finds_them(
    task: Task, options: dict[str, object]
) -> None:
    turn = take_turn("publish", replace(task, **options))  # type: ignore[arg-type]
    assert turn.messages == MESSAGES
    assert turn.cpu_s > 0
    consuming = replace(task, verb="consume", way="receive")
    assert take_turn("consume", consuming).messages == MESSAGES


@pytest.mark.parametrize(
    "options",
    [
        *({"way": way} for way in ("receive", "receive_many", "run", "run_threads", "app")),
        {"way": "receive_blocking"},
        {"way": "receive_many_blocking"},
        {"way": "app_typed", "typed": True},
        {"way": "run", "traced": 1.0},
        {"system": "pika"},
        {"system": "aio-pika"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_it_consumes_all(task: Task, options: dict[str, object]) -> None:
    consuming = replace(task, verb="consume", **options)  # type: ignore[arg-type]
    fill(consuming)
    assert take_turn("consume", consuming).messages == MESSAGES
