from pathlib import Path

from bench.figures.client.consume import cases_of, figures_of
from bench.figures.scene import Scene
from bench.systems.turn import Turn
from tests.support.bench_task import bench_task


def turn(rate: float, cpu_us: float) -> Turn:
    return Turn(messages=1000, took_s=1000 / rate, user_s=cpu_us / 1000, system_s=0)


def test_everybody_consumes_with_the_same_window() -> None:
    cases = cases_of(bench_task(), Scene(Path(), print))
    assert {(case.task.verb, case.task.window) for case in cases} == {("consume", 1000)}


def test_ratios_to_each_peer_have_their_goals() -> None:
    turns = {
        "ours": [turn(60_000, 4)],
        "blocking": [turn(50_000, 6)],
        "pika_async": [turn(40_000, 15)],
        "aio_pika": [turn(6_000, 100)],
    }
    found = {figure.id: figure for figure in figures_of(turns, "again")}
    assert found["client.consume.cpu_us"].met is True
    assert found["client.consume.ratio_pika_async"].met is False
    assert found["client.consume.ratio_aio_pika"].met is True
    assert "client.consume.ratio_perf_test" not in found
    assert found["client.consume.blocking_cpu_us"].met is None
