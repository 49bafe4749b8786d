import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bench.errors import InputInvalid
from bench.figures.cli import PAGES, RESULTS
from bench.figures.form import Figure, Results, newest
from bench.figures.readme import BEGIN, FIRST, NAMED, in_short, read_results, update

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
