from __future__ import annotations

from spark.page import words
from spark.page.drawing import COLOURS
from tests.unit.spark.conftest import Planted


def test_windows_are_no_more_than_a_chart_can_show() -> None:
    assert [words.window_for(s) for s in (0, 1, 150, 151, 3_000)] == [1, 1, 1, 2, 20]


def test_the_largest_series_are_drawn_and_holes_are_zero() -> None:
    rows = [{"name": "a", "at": at, "rate": 1.0} for at in (0, 4)]
    rows += [{"name": f"n{n}", "at": 0, "rate": 2.0} for n in range(len(COLOURS) - 1)]
    rows += [{"name": "small", "at": 0, "rate": 0.5}]
    drawn = words.series_by(rows, "name", "at", "rate", width=2)
    assert drawn[-1].label == "2 others"
    assert [(one.x, one.y) for one in drawn if one.label == "a"] == [([0, 2, 4], [1.0, 0.0, 1.0])]
    assert words.series_by([], "name", "at", "rate") == []


def test_what_is_not_drawn_by_itself_is_drawn_together() -> None:
    rows = [{"name": f"n{n:02}", "at": at, "age": n} for n in range(12) for at in (0, 1)]
    added = words.series_by(rows, "name", "at", "age")
    assert len(added) == len(COLOURS)
    assert added[-1].label == "5 others"
    assert list(added[-1].y) == [0 + 1 + 2 + 3 + 4] * 2
    oldest = words.series_by(rows, "name", "at", "age", together=max)
    assert list(oldest[-1].y) == [4, 4]


def test_the_input_is_told_with_what_was_left_out(planted_run: Planted) -> None:
    _, text = words.input_words(planted_run.run)
    assert "2,000 published" in text
    assert "1 bad line " in text
    assert words.meta(planted_run.run).startswith("started 2026-09-21")


def test_brokers_of_one_port_are_told_apart_by_their_hosts() -> None:
    assert words.short_names(["a:1", "b:1"]) == {"a:1": "a", "b:1": "b"}
    assert words.short_names(["a:1", "a:2"]) == {"a:1": "a:1", "a:2": "a:2"}
