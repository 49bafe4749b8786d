from pathlib import Path

from bench.figures.comfort.handlers import cases_of, figures_of
from bench.figures.scene import Scene
from bench.systems.turn import Turn
from tests.support.bench_task import bench_task


def turn(cpu_us: float) -> Turn:
    return Turn(messages=1000, took_s=1, user_s=cpu_us / 1000, system_s=0)


def test_all_ways_take_the_same_messages() -> None:
    cases = cases_of(bench_task(), Scene(Path(), print))
    assert len({case.task.messages for case in cases}) == 1
    assert [case.task.way for case in cases] == [
        "receive",
        "run",
        "run_threads",
        "app",
        "app_typed",
        "run_otel",
        "run_otel_few",
        "app_otel",
    ]


def test_what_is_on_top_is_taken_within_each_repetition() -> None:
    turns = {
        "receive": [turn(10), turn(20), turn(30)],
        "run": [turn(12), turn(22), turn(39)],
        "run_threads": [turn(40)] * 3,
        "app": [turn(21), turn(31), turn(41)],
        "app_typed": [turn(22)] * 3,
        "run_otel": [turn(45)] * 3,
        "run_otel_few": [turn(45)] * 3,
        "app_otel": [turn(99)] * 3,
    }
    found = {figure.id: figure for figure in figures_of(turns, "again")}
    assert round(found["comfort.handlers.run_more_us"].value, 3) == 2
    assert found["comfort.handlers.run_more_us"].is_unsure
    assert found["comfort.handlers.app_more_us"].met is False
    assert found["comfort.handlers.app_typed_more_us"].met is None
    assert found["comfort.handlers.run_otel_more_us"].is_unsure
