from pathlib import Path

from bench.figures.client.batch import cases_of, figures_of
from bench.figures.scene import Scene
from bench.systems.turn import Turn
from tests.support.bench_task import bench_task


def turn(rate: float, cpu_us: float) -> Turn:
    return Turn(messages=1000, took_s=1000 / rate, user_s=cpu_us / 1000, system_s=0)


CASES = cases_of(bench_task(), Scene(Path(), print))


def test_each_size_is_measured_packed_and_one_by_one_both_ways() -> None:
    cases = {case.name: case.task for case in CASES}
    assert len(cases) == 8
    assert (cases["publish.50x200"].batch, cases["publish.50x200"].window) == (50, 50)
    assert cases["publish.50x200.unbatched"].batch == 1
    assert cases["consume.16x1k"].body_bytes == 1024
    assert cases["consume.16x1k"].verb == "consume"


def test_goals_are_those_of_the_size() -> None:
    turns = {case.name: [turn(300_000, 1.5)] for case in CASES}
    for name in [name for name in turns if name.endswith("unbatched")]:
        turns[name] = [turn(100_000, 5)]
    found = {figure.id: figure for figure in figures_of(turns, "again")}
    assert found["client.batch.publish.50x200.rate"].met is True
    assert found["client.batch.publish.50x200.cpu_us"].met is True
    assert found["client.batch.publish.50x200.ratio"].met is False
    assert found["client.batch.consume.16x1k.ratio"].met is True
    assert found["client.batch.publish.16x1k.rate"].met is None
