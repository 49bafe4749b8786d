from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from bench.figures.client.publish import batch, publish, redundant, threads
from bench.figures.scene import Scene
from bench.harness.turn import Turn
from ops.local.cluster import LocalCluster
from tests.support.bench_task import bench_task


def turn(rate: float, cpu_us: float) -> Turn:
    return Turn(messages=1000, took_s=1000 / rate, cpu_s=cpu_us / 1000)


SCENE = Scene(Path(), print)
TABLE = publish(bench_task(), SCENE)
BATCHES = batch(bench_task(), SCENE)


def test_every_peer_is_measured_at_the_windows_that_it_has() -> None:
    tasks = {line.name: line.task for line in TABLE.lines}
    assert tasks["w50.submit"].window == 50
    assert tasks["w1000.send_many"].way == "send_many"
    assert (tasks["aio_pika"].window, tasks["aio_pika"].system) == (500, "aio-pika")
    assert {"w50.perf_test", "w1000.pika_async", "pika_blocking", "kombu"} <= set(tasks)
    assert tasks["w50.perf_test"].seconds == 8


def test_goals_stand_where_they_are_promised() -> None:
    turns = {line.name: [turn(1000, 20)] * 3 for line in TABLE.lines}
    turns["w50.submit"] = [turn(1600, 5), turn(1700, 5), turn(900, 5)]
    turns["w1000.submit"] = [turn(20_000, 4.5)] * 3
    found = {figure.id: figure for figure in TABLE.figures("client.publish", turns, "again")}
    assert found["client.publish.w50.ratio_pika_async"].value == 1.6
    # The median meets it, one repetition does not.
    assert found["client.publish.w50.ratio_pika_async"].is_unsure
    assert found["client.publish.w50.cpu_us"].met is True
    assert found["client.publish.w1000.cpu_us"].met is False
    assert found["client.publish.w1000.ratio_pika_blocking"].met is True
    assert found["client.publish.w1000.ratio_pika_async"].met is None
    assert found["client.publish.w1000.blocking_rate"].goal == ""
    assert found["client.publish.w50.rate"].repeat == "again"


def test_without_java_its_figures_are_left_out() -> None:
    java = "perf-test"
    turns = {line.name: [turn(1, 2)] for line in TABLE.lines if line.task.system != java}
    found = [figure.id for figure in TABLE.figures("client.publish", turns, "again")]
    assert "client.publish.kombu_rate" in found
    assert not [id for id in found if "perf_test" in id]


def test_threads_share_one_publisher_and_64_are_compared_with_one() -> None:
    table = threads(bench_task(), SCENE)
    assert [line.task.threads for line in table.lines] == [1, 8, 64]
    turns = {"1": [turn(1000, 1)], "8": [turn(4000, 1)], "64": [turn(6000, 1)]}
    found = {figure.id: figure for figure in table.figures("client.threads", turns, "again")}
    assert found["client.threads.64.ratio"].value == 6
    assert found["client.threads.64.ratio"].met is True
    assert found["client.threads.8.ratio"].met is None


def test_each_size_is_measured_packed_and_one_by_one_both_ways() -> None:
    tasks = {line.name: line.task for line in BATCHES.lines}
    assert len(tasks) == 8
    assert (tasks["publish.50x200"].batch, tasks["publish.50x200"].window) == (50, 50)
    assert tasks["publish.50x200.unbatched"].batch == 1
    assert tasks["consume.16x1k"].body_bytes == 1024
    assert tasks["consume.16x1k"].verb == "consume"
    assert all(not replace(task, messages=1).profile.faults() for task in tasks.values())


def test_goals_are_those_of_the_size() -> None:
    turns = {line.name: [turn(300_000, 1.5)] for line in BATCHES.lines}
    for name in [name for name in turns if name.endswith("unbatched")]:
        turns[name] = [turn(100_000, 5)]
    found = {figure.id: figure for figure in BATCHES.figures("client.batch", turns, "again")}
    assert found["client.batch.publish.50x200.rate"].met is True
    assert found["client.batch.publish.50x200.cpu_us"].met is True
    assert found["client.batch.publish.50x200.ratio"].met is False
    assert found["client.batch.consume.16x1k.ratio"].met is True
    assert found["client.batch.publish.16x1k.rate"].met is None


def test_two_confirms_are_measured_against_one() -> None:
    cluster = cast(LocalCluster, SimpleNamespace(client_env=dict))
    scene = Scene(Path(), print, started=cluster)
    table = redundant(bench_task(), scene)
    turns = {
        line.name: [turn(500, 6) if line.task.redundant else turn(1000, 4)] for line in table.lines
    }
    found = {each.id: each for each in table.figures("once.redundant", turns, "again")}
    assert (found["once.redundant.ratio"].value, found["once.redundant.ratio"].met) == (0.5, True)
    assert found["once.redundant.send_many.cpu_ratio"].value == 1.5
