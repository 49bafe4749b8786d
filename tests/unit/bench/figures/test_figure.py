from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from bench.figures.figure import Figure, Maker, at_least, below, figures_table

RATIO = Figure(
    id="client.publish.ratio",
    what="Times faster",
    value=9.512,
    unit="times",
    repeat="python -m bench figures client.publish",
    **at_least(8, 9.512, "times"),
)


def test_goals_say_what_is_wanted_and_whether_it_was_met() -> None:
    assert at_least(8, 8, "times") == {"goal": ">= 8 times", "met": True}
    assert at_least(8, 7.9) == {"goal": ">= 8", "met": False}
    assert below(1, 0.99, "s") == {"goal": "< 1 s", "met": True}
    assert below(1, 1, "s") == {"goal": "< 1 s", "met": False}


def test_a_figure_is_read_back_with_its_range_and_without_its_samples() -> None:
    figure = Maker("client", "again")("x", "X", (8.5, 9.123456789, 10), "times", (at_least, 8))
    found = figure.as_json()
    assert found["value"] == 9.12346
    assert found["between"] == [8.5, 10]
    assert Figure.from_json(found, "again") == replace(
        figure, value=9.12346, between=(8.5, 10), samples=()
    )


def test_the_table_marks_what_was_missed() -> None:
    console = Console(file=io.StringIO(), width=100)
    console.print(figures_table([RATIO, replace(RATIO, id="client.other", met=False)]))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "9.51 times" in text
    assert "NO" in text


@pytest.mark.parametrize(
    ("samples", "met", "unsure"),
    [
        ((8.5, 9.0, 9.5), True, False),
        ((7.9, 9.0, 9.5), False, True),
        ((7.0, 7.5, 9.5), False, False),
    ],
)
def test_no_goal_is_met_while_a_repetition_misses_it(
    samples: tuple[float, ...], met: bool, unsure: bool
) -> None:
    figure = Maker("client", "again")("x", "X", samples, "times", (at_least, 8))
    assert (figure.met, figure.is_unsure) == (met, unsure)
    # Also for a file that says otherwise.
    assert Figure.from_json(figure.as_json() | {"met": True}, "again").met is met


def test_a_goal_of_thousands_is_read_as_such() -> None:
    between = (999.0, 1000.0)
    figure = replace(RATIO, goal="< 1,000 us", value=999, met=True, between=between)
    assert figure.met is False
