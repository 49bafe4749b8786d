from pathlib import Path

from bench.figures.client.threads import cases_of, figures_of
from bench.figures.scene import Scene
from bench.systems.turn import Turn
from tests.support.bench_task import bench_task


def test_threads_share_one_publisher_and_64_are_compared_with_one() -> None:
    cases = cases_of(bench_task(), Scene(Path(), print))
    assert [case.task.threads for case in cases] == [1, 8, 64]
    rates = {"1": 1000, "8": 4000, "64": 6000}
    turns = {
        name: [Turn(messages=rate, took_s=1, user_s=0.1, system_s=0)]
        for name, rate in rates.items()
    }
    found = {figure.id: figure for figure in figures_of(turns, "again")}
    assert found["client.threads.64.ratio"].value == 6
    assert found["client.threads.64.ratio"].met is True
    assert found["client.threads.8.ratio"].met is None
