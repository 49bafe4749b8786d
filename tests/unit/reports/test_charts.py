from __future__ import annotations

import re

from reports import charts
from reports.charts import (
    DASHED,
    LABEL_LINES,
    ROWS_MAX,
    Around,
    Gap,
    Mark,
    Panel,
    Series,
    Span,
    silences,
)
from reports.page import LOOKS
from reports.svg import COLOURS, HATCHES, MARKERS

MARKS = [Mark(2, "mb1 killed", alarm=True), Mark(2.1, "mb1 back"), Mark(9, "balancer reloaded")]


def drawn() -> str:
    return charts.over_time(
        [
            Panel(
                "confirmed",
                [Series("mb1", [0, 1, 2], [5, 6, 6]), Series("mb2", [0, 1, 2], [1, 0, 0])],
                "stack",
            ),
            Panel("delivered", [Series("orders/billing", [0, 1, 2], [6, 6, 6])], "step"),
            Panel("latency", [Series("publish, p99", [0, 1], [3.5, 4.5], "", DASHED)], unit="ms"),
        ],
        marks=MARKS,
        spans=[Span(2, 2.1, alarm=True)],
        until_s=10,
    )


def test_a_chart_names_its_series_and_incidents() -> None:
    text = drawn()
    for name in ("mb1", "mb2", "orders/billing", "publish, p99", *[mark.label for mark in MARKS]):
        assert f">{name}<" in text


def test_a_chart_takes_colours_and_font_from_the_page_and_fetches_nothing() -> None:
    text = drawn()
    assert text.startswith('<svg role="img" aria-label=')
    assert "var(--ink)" in text
    assert "var(--font)" in text
    assert not re.search(r"DejaVu|<metadata|<!DOCTYPE", text)
    assert not re.findall(r"(?:href|src)=\"(?!#)[^\"]*\"", text)


def test_the_same_numbers_make_the_same_picture() -> None:
    assert drawn() == drawn()


def test_close_labels_go_on_different_lines() -> None:
    lines = charts._label_lines(MARKS, 10)
    assert lines == [0, 1, 0]
    crowd = charts._label_lines([Mark(n / 100, "x") for n in range(9)], 10)
    assert crowd == [*range(LABEL_LINES), *[None] * (9 - LABEL_LINES)]


def test_names_without_room_are_left_out_and_counted() -> None:
    marks = [Mark(n / 100, f"kill {n}") for n in range(5)]
    text = charts.over_time([Panel("nothing", [])], marks=marks, until_s=10)
    assert "2 marks had no room for their names" in text
    assert ">kill 2<" in text
    assert ">kill 3<" not in text


def test_a_name_near_the_end_stands_before_its_mark() -> None:
    assert charts._extent(Mark(9.9, "mb1 killed"), 10)[1] == 0.99


def test_percentiles_leave_the_maximum_out() -> None:
    text = charts.percentiles([Series("publish", [0, 50, 99, 100], [1, 2, 30, 900])])
    assert ">publish<" in text
    assert ">99<" in text


def test_nothing_to_draw_is_said() -> None:
    assert ">no samples<" in charts.over_time([Panel("nothing", [], "stack")], until_s=0)
    assert ">no samples<" in charts.percentiles([])


def test_durations_stand_between_two_powers_of_ten_that_have_their_names() -> None:
    text = drawn()
    assert ">1 ms<" in text
    assert ">10 ms<" in text
    assert "no samples" not in text


def test_each_event_has_its_longest_silences_with_their_names_and_lengths() -> None:
    gaps = [Gap("publisher", f"publisher-{n}", 10.0, 2.5 - n / 10) for n in range(ROWS_MAX + 3)]
    svg = silences([Around("kill mb1", 9.5, 12.0, gaps), Around("reload", 20.0, 20.0, [])])
    assert f"kill mb1, at 9.5 s (the {ROWS_MAX} longest of {ROWS_MAX + 3})" in svg
    assert ">publisher-0<" in svg
    assert "2.50 s" in svg
    assert "reload" not in svg
    assert "seconds since" not in svg
    assert "+1 s" in svg


def test_nothing_silent_is_no_chart() -> None:
    assert silences([]) == ""
    assert silences([Around("reload", 1.0, 1.0, [])]) == ""


def test_names_that_are_too_long_keep_their_ends() -> None:
    name = "a-very-long-name-of-a-publisher-that-nobody-would-read-0007"
    svg = silences([Around("kill mb1", 1.0, 1.0, [Gap("publisher", name, 1.0, 0.1)])])
    assert name not in svg
    assert "nobody-would-read-0007"[-12:] in svg


def test_whatever_has_a_colour_has_a_mark_a_hatch_and_a_look_of_its_own() -> None:
    assert len({*COLOURS}) == len({*HATCHES}) == len({*MARKERS}) == LOOKS


def test_of_more_series_than_colours_the_first_are_drawn_and_the_others_counted() -> None:
    series = [Series(f"mb{number}", [0, 1], [1, 2]) for number in range(20)]
    text = charts.over_time([Panel("waiting", series)], until_s=10)
    assert set(re.findall(r">(mb\d+)<", text)) == {one.label for one in series[: len(COLOURS)]}
    assert ">waiting, 8 of 20<" in text


def test_a_name_is_no_formula_and_the_axis_says_what_it_shows() -> None:
    panel = Panel("load", [Series("a$b$c <d>", [0, 1], [1, 2])])
    text = charts.over_time([panel], until_s=1, axis="seconds since the load began")
    assert ">a$b$c &lt;d&gt;<" in text
    assert ">seconds since the load began<" in text
