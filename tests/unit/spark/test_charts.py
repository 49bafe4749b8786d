from __future__ import annotations

import re

from spark import charts
from spark.charts import DASHED, LABEL_LINES, Mark, Panel, Series, Span

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
