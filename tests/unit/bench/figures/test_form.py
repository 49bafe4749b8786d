import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from bench.errors import InputInvalid
from bench.figures.form import (
    Figure,
    Maker,
    Results,
    at_least,
    below,
    figures_table,
    goal,
    markdown,
    newest,
)
from reports.text import significant

RATIO = Figure(
    id="way.publish.ratio",
    what="Times faster",
    value=9.512,
    unit="times",
    repeat="python -m bench figures way.publish",
    **at_least(8, 9.512, "times"),
)
RESULTS = Results(name="one", environment={"at": "2026-01-01"}, figures=(RATIO,))


def test_goals_say_what_is_wanted_and_whether_it_was_met() -> None:
    assert at_least(8, 8, "times") == {"goal": ">= 8 times", "met": True}
    assert at_least(8, 7.9) == {"goal": ">= 8", "met": False}
    assert below(1, 0.99, "s") == {"goal": "< 1 s", "met": True}
    assert below(1, 1, "s") == {"goal": "< 1 s", "met": False}


@pytest.mark.parametrize(
    ("value", "text"),
    [(12345.6, "12,346"), (99.94, "99.9"), (0.2345, "0.234"), (0, "0"), (100, "100")],
)
def test_three_digits_say_enough(value: float, text: str) -> None:
    assert significant(value) == text


def test_results_have_the_common_form_and_are_read_back(tmp_path: Path) -> None:
    path = RESULTS.save(tmp_path / "new")
    found = json.loads(path.read_text())
    assert set(found) == {"environment", "figures"}
    assert {"id", "value", "unit", "goal", "met", "repeat"} <= set(found["figures"][0])
    assert Results.load(path) == RESULTS


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"environment": {}, "figures": [{"x": 1}]}'])
def test_a_file_of_another_form_is_one_clear_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputInvalid, match="not a file of results"):
        Results.load(tmp_path / "x.json")
    with pytest.raises(InputInvalid, match="cannot read"):
        Results.load(tmp_path / "missing.json")


def test_the_readme_shows_each_figure_once_from_the_newest_results() -> None:
    newer = replace(
        RESULTS,
        name="two",
        environment={"at": "2026-02-01"},
        figures=(replace(RATIO, value=7.0, met=False),),
    )
    lines = markdown([newer, RESULTS]).splitlines()
    assert len(lines) == 3
    assert "7 times" in lines[2]
    assert "**not met**" in lines[2]
    assert "`two.json`" in lines[2]


def test_the_table_marks_what_was_missed() -> None:
    console = Console(file=io.StringIO(), width=100)
    console.print(figures_table([RATIO, replace(RATIO, id="way.other", met=False)]))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "9.51 times" in text
    assert "NO" in text


@pytest.mark.parametrize(
    ("samples", "met", "told"),
    [
        ((8.5, 9.0, 9.5), True, ">= 8 times"),
        ((7.9, 9.0, 9.5), False, ">= 8 times (**not met by every repetition**)"),
        ((7.0, 7.5, 9.5), False, ">= 8 times (**not met**)"),
    ],
)
def test_no_goal_is_met_while_a_repetition_misses_it(
    samples: tuple[float, ...], met: bool, told: str
) -> None:
    figure = Maker("way", "again")("x", "X", samples, "times", (at_least, 8))
    assert (figure.met, goal(figure)) == (met, told)
    # Also for a file that says otherwise.
    assert Figure.from_json(figure.as_json() | {"met": True}).met is met


def test_a_goal_of_another_form_is_judged_where_it_is_made() -> None:
    flat = Figure(
        id="x", what="", value=9, unit="", repeat="", goal="1 +- 0.2", met=True, samples=(9, 9)
    )
    assert flat.met is True
    assert replace(RATIO, goal="< 1,000 us", value=999, met=True, samples=(999, 1000)).met is False


def test_a_part_of_a_run_is_named_as_such() -> None:
    quarter = replace(RATIO, repeat="python -m bench run seed-s1 --repeat 3 --part 4")
    assert quarter.remarks == ", 1/4 of the run (--part 4)"
    assert RATIO.remarks == ""
    assert "Times faster, 1/4 of the run (--part 4) (`" in markdown(
        [replace(RESULTS, figures=(quarter,))]
    )


@pytest.mark.parametrize(("load", "told"), [(1.9, ""), (9.0, ", load 9 on 2 cores before")])
def test_a_figure_of_a_busy_machine_says_so(load: float, told: str) -> None:
    quiet = {"load_before": [0.1], "cores": 2}
    own = {"load_before": [load], "cores": 2}
    environment = {**quiet, "groups": {"way": quiet, "way.publish": own, "way.kill": quiet}}
    results = replace(RESULTS, environment=environment)
    figure, _ = newest([results])[RATIO.id]
    assert figure.remarks == told
    assert "busy" not in figure.as_json()
