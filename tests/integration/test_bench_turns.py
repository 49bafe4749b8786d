"""Every client that figures compare, with a few messages each: it confirms, receives, counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.figures.full_speed import direct_task, fill, take_turn
from bench.figures.groups import Setup
from bench.harness.timed_turn import Task
from ops.local.cluster import LocalCluster

MESSAGES, WARM_UP = 300, 100


@pytest.fixture
def task(cluster: LocalCluster, topic: str, tmp_path: Path) -> Task:
    setup = Setup(tmp_path, print, started=cluster)
    made = direct_task(setup, topic)
    return replace(made, way="submit", window=50, messages=MESSAGES, warm_up=WARM_UP)


@pytest.mark.parametrize(
    ("published", "consumed"),
    [
        ({"way": "submit"}, {"way": "receive"}),
        ({"way": "send_many"}, {"way": "receive_many"}),
        ({"batch": 10, "body_bytes": 200}, {"way": "run"}),
        ({"way": "submit_blocking"}, {"way": "receive_blocking"}),
        ({"way": "send_safe", "threads": 8}, {"way": "receive_many_blocking"}),
        ({"system": "pika"}, {"system": "pika"}),
        ({"system": "pika-blocking"}, {"way": "run_threads"}),
        ({"system": "aio-pika"}, {"system": "aio-pika"}),
        ({"system": "kombu"}, {"way": "app"}),
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_what_one_client_publishes_another_consumes_to_the_last_message(
    task: Task, published: dict[str, object], consumed: dict[str, object]
) -> None:
    turn = take_turn("publish", replace(task, **published))  # type: ignore[arg-type]
    assert turn.messages == MESSAGES
    assert turn.cpu_s > 0
    consuming = replace(task, verb="consume", **consumed)  # type: ignore[arg-type]
    assert take_turn("consume", consuming).messages == MESSAGES


@pytest.mark.parametrize("options", [{"way": "app_typed", "typed": True}, {"traced": 1.0}], ids=str)
def test_a_consumer_finds_the_messages_that_are_made_for_it(
    task: Task, options: dict[str, object]
) -> None:
    consuming = replace(task, verb="consume", **{"way": "run", **options})  # type: ignore[arg-type]
    fill(consuming)
    assert take_turn("consume", consuming).messages == MESSAGES
