from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from bench.clients.ways import WAYS
from bench.figures.client.speed import (
    batch,
    consume,
    handlers,
    publish,
    redundant,
    threads,
)
from bench.figures.groups import Setup
from bench.harness.turn import Turn
from ops.local.cluster import LocalCluster
from tests.support.bench_task import bench_task


def turn(rate: float, cpu_us: float) -> Turn:
    return Turn(messages=1000, took_s=1000 / rate, cpu_s=cpu_us / 1000)


SETUP = Setup(Path(), print)
TABLE = publish(bench_task(), SETUP)
BATCHES = batch(bench_task(), SETUP)


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
    table = threads(bench_task(), SETUP)
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
    setup = Setup(Path(), print, started=cluster)
    table = redundant(bench_task(), setup)
    turns = {
        line.name: [turn(500, 6) if line.task.redundant else turn(1000, 4)] for line in table.lines
    }
    found = {each.id: each for each in table.figures("client.redundant", turns, "again")}
    assert (found["client.redundant.ratio"].value, found["client.redundant.ratio"].met) == (
        0.5,
        True,
    )
    assert found["client.redundant.send_many.cpu_ratio"].value == 1.5


HANDLERS = handlers(bench_task(), SETUP)


def test_everybody_consumes_with_the_same_window() -> None:
    table = consume(bench_task(), SETUP)
    assert {(line.task.verb, line.task.window) for line in table.lines} == {("consume", 1000)}
    own = [line.task.way for line in table.lines if line.task.system == "messagebus"]
    assert len(set(own)) == 4
    assert set(own) <= set(WAYS)


def test_ratios_to_each_peer_have_their_goals() -> None:
    turns = {
        "ours": [turn(60_000, 4)],
        "blocking": [turn(50_000, 6)],
        "pika_async": [turn(40_000, 15)],
        "aio_pika": [turn(6_000, 100)],
    }
    table = consume(bench_task(), SETUP)
    found = {figure.id: figure for figure in table.figures("client.consume", turns, "again")}
    assert found["client.consume.cpu_us"].met is True
    assert found["client.consume.ratio_pika_async"].met is False
    assert found["client.consume.ratio_aio_pika"].met is True
    assert "client.consume.ratio_perf_test" not in found
    assert found["client.consume.blocking_cpu_us"].met is None


def test_all_handlers_take_the_same_messages() -> None:
    tasks = {line.name: line.task for line in HANDLERS.lines}
    assert len({task.messages for task in tasks.values()}) == 1
    assert list(tasks) == [
        "receive",
        "run",
        "run_threads",
        "app",
        "app_typed",
        "run_otel",
        "run_otel_few",
        "app_otel",
    ]
    assert {task.way for task in tasks.values()} <= set(WAYS)
    traced = {name: task.traced for name, task in tasks.items() if task.traced}
    assert traced == {"run_otel": 1, "run_otel_few": 0.01, "app_otel": 1}


def test_what_is_on_top_is_taken_within_each_repetition() -> None:
    costs = {
        "receive": (10, 20, 30),
        "run": (12, 22, 39),
        "run_threads": (40, 40, 40),
        "app": (21, 31, 41),
        "app_typed": (22, 22, 22),
        "run_otel": (45, 45, 45),
        "run_otel_few": (45, 45, 45),
        "app_otel": (99, 99, 99),
    }
    turns = {name: [turn(1000, us) for us in each] for name, each in costs.items()}
    found = {each.id: each for each in HANDLERS.figures("client.handlers", turns, "again")}
    assert round(found["client.handlers.run_more_us"].value, 3) == 2
    assert found["client.handlers.run_more_us"].is_unsure
    assert found["client.handlers.app_more_us"].met is False
    assert found["client.handlers.app_typed_more_us"].met is None
    assert found["client.handlers.run_otel_more_us"].is_unsure
