from pathlib import Path

from bench.figures.client.publish import cases_of, figures_of
from bench.figures.scene import Scene
from bench.systems.turn import Turn
from tests.support.bench_task import bench_task


def turn(rate: float, cpu_us: float) -> Turn:
    return Turn(messages=1000, took_s=1000 / rate, user_s=cpu_us / 1000, system_s=0)


SCENE = Scene(Path(), print)


def test_every_peer_is_measured_at_the_windows_that_it_has() -> None:
    cases = {case.name: case for case in cases_of(bench_task(), SCENE)}
    assert cases["w50.submit"].task.window == 50
    assert cases["w1000.send_many"].task.way == "send_many"
    assert cases["aio_pika"].task.window == 500
    assert {"w50.perf_test", "w1000.pika_async", "pika_blocking", "kombu"} <= set(cases)


def test_goals_stand_where_they_are_promised() -> None:
    turns = {case.name: [turn(1000, 20)] * 3 for case in cases_of(bench_task(), SCENE)}
    turns["w50.submit"] = [turn(1600, 5), turn(1700, 5), turn(900, 5)]
    turns["w1000.submit"] = [turn(20_000, 4.5)] * 3
    found = {figure.id: figure for figure in figures_of(turns, "again")}
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
    turns = {
        case.name: [turn(1000, 20)]
        for case in cases_of(bench_task(), SCENE)
        if case.system != "perf_test"
    }
    assert not [f.id for f in figures_of(turns, "again") if "perf_test" in f.id]
