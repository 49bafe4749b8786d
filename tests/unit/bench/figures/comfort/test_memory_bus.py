from pathlib import Path

from bench.figures.comfort.memory_bus import cases_of, figures_of
from bench.figures.scene import Scene
from bench.systems.turn import Turn


def test_the_rate_and_the_start_have_goals_and_the_import_is_told() -> None:
    assert [case.name for case in cases_of(Scene(Path(), print))] == ["async", "start"]
    turns = {
        "async": [Turn(messages=150_000, took_s=1, user_s=0.9, system_s=0)],
        "start": [Turn(messages=1, took_s=0.06, user_s=0.01, system_s=0)],
    }
    found = {figure.id: figure for figure in figures_of(turns, [140.0], "again")}
    assert found["comfort.memory.rate"].met is True
    assert found["comfort.memory.cpu_us"].value == 6
    assert found["comfort.memory.start_ms"].met is False
    assert found["comfort.memory.import_ms"].value == 140
