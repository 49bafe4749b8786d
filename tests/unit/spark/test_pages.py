from __future__ import annotations

from reports.svg import COLOURS
from spark import pages
from tests.unit.spark.conftest import Planted


def test_windows_are_no_more_than_a_chart_can_show() -> None:
    assert [pages.window_for(s) for s in (0, 1, 150, 151, 3_000)] == [1, 1, 1, 2, 20]


def test_the_largest_series_are_drawn_and_holes_are_zero() -> None:
    rates = {("a", at): 1.0 for at in (0, 4)}
    rates |= {(f"n{n}", 0): 2.0 for n in range(len(COLOURS) - 1)} | {("small", 0): 0.5}
    drawn = pages.series_by(rates, width=2)
    assert drawn[-1].label == "2 others"
    assert [(one.x, one.y) for one in drawn if one.label == "a"] == [([0, 2, 4], [1.0, 0.0, 1.0])]
    assert pages.series_by({}) == []


def test_what_is_not_drawn_by_itself_is_drawn_together() -> None:
    ages = {(f"n{n:02}", at): float(n) for n in range(12) for at in (0, 1)}
    added = pages.series_by(ages)
    assert len(added) == len(COLOURS)
    assert added[-1].label == "5 others"
    assert list(added[-1].y) == [0 + 1 + 2 + 3 + 4] * 2
    oldest = pages.series_by(ages, together=max)
    assert list(oldest[-1].y) == [4, 4]


def test_an_incident_is_a_mark_and_one_that_lasts_is_a_span(planted_run: Planted) -> None:
    drawn = pages.marks_and_spans(planted_run.run)
    names = [mark.label for mark in drawn["marks"]]
    assert names[-3:] == ["127.0.0.13 killed", "127.0.0.13 back", "balancer reloaded"]
    killed, back = (drawn["marks"][at].at_s for at in (-3, -2))
    down = [span for span in drawn["spans"] if span.alarm]
    assert [(span.from_s, span.to_s) for span in down] == [(killed, back)]


def test_the_input_is_told_with_what_was_left_out(planted_run: Planted) -> None:
    page = pages.page_of(planted_run.run, "audit", words={}, tables="fates", verdict="")
    text = page.words["input"]
    assert "2,000 published" in text
    assert "1 bad line " in text
    assert page.meta[0].startswith("started 2026-09-21")


def test_brokers_of_one_port_are_told_apart_by_their_hosts() -> None:
    assert pages.short_names(["a:1", "b:1"]) == {"a:1": "a", "b:1": "b"}
    assert pages.short_names(["a:1", "a:2"]) == {"a:1": "a:1", "a:2": "a:2"}
