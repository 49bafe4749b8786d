from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from bench.clients.messagebus_calls import WAYS
from bench.figures.client import speed
from bench.figures.full_speed import Table
from bench.figures.groups import Setup
from bench.harness.timed_turn import Turn
from ops.local.cluster import LocalCluster
from tests.support.bench_task import bench_task

CLUSTER = cast(LocalCluster, SimpleNamespace(client_env=dict))
SETUP = Setup(Path(), print, started=CLUSTER)
TABLES = {
    each.__name__: each(bench_task(), SETUP)
    for each in (
        *(speed.publish, speed.batch, speed.consume),
        *(speed.handlers, speed.redundant, speed.threads),
    )
}


def turn(rate: float, cpu_us: float) -> Turn:
    return Turn(messages=1000, took_s=1000 / rate, cpu_s=cpu_us / 1000)


@pytest.mark.parametrize("name", TABLES)
def test_each_line_can_be_run_and_gives_figures_of_its_own(name: str) -> None:
    table: Table = TABLES[name]
    for task in (line.task for line in table.lines):
        assert task.system == "perf-test" or not task.profile.faults()  # it has a load of its own
        assert task.system != "messagebus" or task.way in WAYS
    turns = {line.name: [turn(1000, 5)] * 3 for line in table.lines}
    found = [each.id for each in table.figures(f"client.{name}", turns, "again")]
    assert len(found) == len({*found}) >= len(table.lines)


def test_goals_stand_where_they_are_promised() -> None:
    turns = {line.name: [turn(1000, 20)] * 3 for line in TABLES["publish"].lines}
    turns["w50.submit"] = [turn(1600, 5), turn(1700, 5), turn(900, 5)]
    turns["w1000.submit"] = [turn(20_000, 15)] * 3
    made = TABLES["publish"].figures("client.publish", turns, "again")
    found = {figure.id: figure for figure in made}
    assert found["client.publish.w50.ratio_pika_async"].value == 1.6
    # The median meets it, one repetition does not.
    assert found["client.publish.w50.ratio_pika_async"].is_unsure
    assert found["client.publish.w50.cpu_ratio_pika_async"].met is True
    assert found["client.publish.w1000.cpu_ratio_pika_async"].met is False
    assert found["client.publish.w1000.ratio_pika_async"].met is None
    assert not [each for each in found.values() if each.goal and each.unit != "times"]


def test_without_java_its_figures_are_left_out() -> None:
    table = TABLES["publish"]
    turns = {line.name: [turn(1, 2)] for line in table.lines if line.task.system != "perf-test"}
    found = [figure.id for figure in table.figures("client.publish", turns, "again")]
    assert "client.publish.kombu_rate" in found
    assert not [id for id in found if "perf_test" in id]


# Line -> us of each repetition.
COSTS = {
    "receive": (10, 20, 30),
    "run": (12, 24, 66),
    "app": (21, 51, 71),
    "pika_async": (20, 30, 40),
}


def test_cpu_times_are_compared_within_each_repetition() -> None:
    turns = {line.name: [turn(1000, 45)] * 3 for line in TABLES["handlers"].lines}
    for name, costs in COSTS.items():
        turns[name] = [turn(1000, us) for us in costs]
    made = TABLES["handlers"].figures("client.handlers", turns, "again")
    found = {figure.id: figure for figure in made}
    assert round(found["client.handlers.run_ratio"].value, 3) == 1.2
    assert found["client.handlers.run_ratio"].is_unsure
    assert found["client.handlers.app_ratio"].met is None
    assert found["client.handlers.app_cpu_ratio_pika_async"].met is False
    assert found["client.handlers.run_otel_ratio"].met is True  # as much as by hand
