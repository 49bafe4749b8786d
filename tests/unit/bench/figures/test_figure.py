from __future__ import annotations

import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from bench.errors import InputInvalid
from bench.figures.cli import PAGES, RESULTS
from bench.figures.figure import (
    BEGIN,
    FIRST,
    NAMED,
    Figure,
    Maker,
    Results,
    at_least,
    below,
    figures_table,
    goal,
    in_short,
    markdown,
    newest,
    read_results,
    update,
)

RATIO = Figure(
    id="way.publish.ratio",
    what="Times faster",
    value=9.512,
    unit="times",
    repeat="python -m bench figures way.publish",
    **at_least(8, 9.512, "times"),
)
ONE = Results(name="one", environment={"at": "2026-01-01"}, figures=(RATIO,))


def test_goals_say_what_is_wanted_and_whether_it_was_met() -> None:
    assert at_least(8, 8, "times") == {"goal": ">= 8 times", "met": True}
    assert at_least(8, 7.9) == {"goal": ">= 8", "met": False}
    assert below(1, 0.99, "s") == {"goal": "< 1 s", "met": True}
    assert below(1, 1, "s") == {"goal": "< 1 s", "met": False}


def test_results_have_the_common_form_and_are_read_back(tmp_path: Path) -> None:
    path = ONE.save(tmp_path / "new")
    found = json.loads(path.read_text())
    assert set(found) == {"environment", "figures"}
    assert {"id", "value", "unit", "goal", "met", "repeat"} <= set(found["figures"][0])
    assert Results.load(path) == ONE


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"environment": {}, "figures": [{"x": 1}]}'])
def test_a_file_of_another_form_is_one_clear_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputInvalid, match="not a file of results"):
        Results.load(tmp_path / "x.json")
    with pytest.raises(InputInvalid, match="cannot read"):
        Results.load(tmp_path / "missing.json")


def test_the_readme_shows_each_figure_once_from_the_newest_results() -> None:
    newer = replace(
        ONE,
        name="two",
        environment={"at": "2026-02-01"},
        figures=(replace(RATIO, value=7.0, met=False),),
    )
    lines = markdown([newer, ONE]).splitlines()
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
        [replace(ONE, figures=(quarter,))]
    )


@pytest.mark.parametrize(("load", "told"), [(1.9, ""), (9.0, ", load 9 on 2 cores before")])
def test_a_figure_of_a_busy_machine_says_so(load: float, told: str) -> None:
    quiet = {"load_before": [0.1], "cores": 2}
    own = {"load_before": [load], "cores": 2}
    environment = {**quiet, "groups": {"way": quiet, "way.publish": own, "way.kill": quiet}}
    results = replace(ONE, environment=environment)
    figure, _ = newest([results])[RATIO.id]
    assert figure.remarks == told
    assert "busy" not in figure.as_json()


ROOT = Path(__file__).resolve().parents[4]
REPEAT = "python -m bench figures"
FIGURE = Figure(id="way.x", what="What", value=1, unit="s", repeat=REPEAT, goal="<= 2 s", met=True)
NO_GOAL = Figure(id="way.y", what="Beside it", value=1, unit="s", repeat=REPEAT)


def test_only_the_text_between_the_markers_changes(tmp_path: Path) -> None:
    readme = tmp_path / "top.md"
    readme.write_text("before\n<!-- figures -->\nold\n<!-- /figures -->\nafter\n")
    Results(name="r", environment={}, figures=(FIGURE,)).save(tmp_path)
    assert update(readme, tmp_path) == 1
    text = readme.read_text()
    assert text.startswith("before\n<!-- figures -->\n| | value |")
    assert "Of 1 figure that has a goal 1 meets it" in text
    assert text.endswith("<!-- /figures -->\nafter\n")
    assert "old" not in text
    assert update(readme, tmp_path) == 1
    assert readme.read_text() == text


def test_the_readme_shows_what_is_asked_for_first_and_a_page_beside_the_results_shows_all(
    tmp_path: Path,
) -> None:
    readme, folder = tmp_path / "README.md", tmp_path / "results"
    readme.write_text("<!-- figures -->\n<!-- /figures -->\n")
    Results(name="r", environment={}, figures=(FIGURE, NO_GOAL)).save(folder)
    update(readme, folder)
    assert "What" not in readme.read_text()
    everything = (folder / "README.md").read_text()
    assert "way.x" in everything
    assert "way.y" in everything


def test_what_is_asked_for_first_stands_first_also_when_it_is_missed() -> None:
    name, *_ = FIRST
    missed = replace(FIGURE, id=name, value=3, met=False)
    lines = in_short([Results(name="r", environment={}, figures=(FIGURE, missed))]).splitlines()
    assert lines[2] == f"| {FIRST[name]} | 3 s | <= 2 s (**not met**) |"
    assert "Of 2 figures that have a goal 1 meets it" in lines[4]


def test_the_pages_have_the_figures_of_the_results(tmp_path: Path) -> None:
    """`python -m bench readme` writes them; nobody else does."""
    results = tmp_path / "results"
    shutil.copytree(RESULTS, results)
    pages = {tmp_path / page.name: page for page in (ROOT / "README.md", *PAGES)}
    for copy, page in pages.items():
        shutil.copy(page, copy)
    readme, *others = pages
    update(readme, results, others)
    assert [copy.name for copy, page in pages.items() if copy.read_text() != page.read_text()] == []
    assert (results / "README.md").read_text() == (RESULTS / "README.md").read_text()


def test_what_measuring_has_shown_has_no_figure_that_was_written_by_hand() -> None:
    text = (ROOT / "docs" / "MEASURING.md").read_text()
    _, _, shown = text.partition("## What measuring has shown")
    shown, _, _ = shown.partition("\n## ")
    readme, _, _ = (ROOT / "README.md").read_text().partition("## Figures")[2].partition(BEGIN)
    assert NAMED.search(shown)
    for words in (NAMED.sub("", shown), readme):
        assert not re.findall(r"\d[\d.,]*\s?(?:us|µs|ms|s|MB|%|times)\b", words)


def test_a_figure_that_no_results_have_is_one_clear_error(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("It takes <!-- figure way.z -->1 s<!-- / -->.")
    readme = tmp_path / "top.md"
    readme.write_text("<!-- figures -->\n<!-- /figures -->\n")
    Results(name="r", environment={}, figures=(FIGURE,)).save(tmp_path)
    with pytest.raises(InputInvalid, match=r"no results have way\.z"):
        update(readme, tmp_path, [page])
    page.write_text("It takes <!-- figure way.x -->9 s<!-- / -->.")
    update(readme, tmp_path, [page])
    assert page.read_text() == "It takes <!-- figure way.x -->1 s<!-- / -->."


def test_every_figure_that_is_asked_for_first_has_been_measured() -> None:
    known = newest(read_results(RESULTS))
    assert not [name for name in FIRST if name not in known]


def test_missing_markers_or_results_are_one_clear_error(tmp_path: Path) -> None:
    readme = tmp_path / "top.md"
    readme.write_text("nothing")
    with pytest.raises(InputInvalid, match="no results"):
        update(readme, tmp_path)
    Results(name="r", environment={}, figures=(FIGURE,)).save(tmp_path)
    with pytest.raises(InputInvalid, match="no <!-- figures -->"):
        update(readme, tmp_path)
