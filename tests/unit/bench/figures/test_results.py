"""The file of figures, how old each is, and the pages that are made from it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import environment as environments
from bench.environment import commit
from bench.errors import InputInvalid
from bench.figures import results
from bench.figures.cli import GROUPS
from bench.figures.figure import Figure
from bench.figures.results import (
    BEGIN,
    FIRST,
    NAMED,
    PAGES,
    README,
    RESULTS,
    ROWS_MAX,
    Results,
    Source,
    check_keeping,
    counted_now,
    goals_met,
    in_short,
    keep,
    named,
    page_of,
    update,
)

REPEAT = "python -m bench figures client.publish"
GROUP = "client.publish"
FIGURE = Figure(id="way.x", what="What", value=1, unit="s", repeat=REPEAT, goal="<= 2 s", met=True)
SOURCE = Source(at="2026-11-20T10:00:00Z", commit="0123456789ab", repeat=REPEAT, load=0.5, since=3)


def results_of(*figures: Figure, source: Source = SOURCE) -> Results:
    return Results("2026-11-29T00:00:00Z", "c" * 12).with_group(GROUP, source, figures)


def environment(at: str = "2026-11-20T10:00:00Z") -> dict[str, Any]:
    return {"at": at, "commit": "0123456789ab", "load_before": [0.5, 1, 2], "cores": 2}


def test_the_file_has_a_line_for_each_group_and_figure_and_is_read_back(tmp_path: Path) -> None:
    found = results_of(FIGURE, replace(FIGURE, id="way.y", between=(0.5, 1.5)))
    path = tmp_path / "figures.json"
    found.save(path)
    assert Results.load(path) == found
    assert len([line for line in path.read_text().splitlines() if '"what"' in line]) == 2


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"at": "", "commit": "", "groups": {}}'])
def test_a_file_of_another_form_is_one_clear_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "figures.json"
    path.write_text(text)
    with pytest.raises(InputInvalid, match="not a file of figures"):
        Results.load(path)
    with pytest.raises(InputInvalid, match="cannot read"):
        Results.load(tmp_path / "missing.json")


def test_a_group_that_is_measured_again_replaces_all_that_it_had(tmp_path: Path) -> None:
    """Else a figure that is no longer made would be shown with the new commit."""
    path, raw = tmp_path / "figures.json", tmp_path / "raw"
    old, gone = replace(FIGURE, id="a.x"), replace(FIGURE, id="a.y")
    other, new = replace(FIGURE, id="b.x"), replace(FIGURE, id="a.x", value=1.5)
    keep("a", [old, gone], environment(), publish=True, results=path, raw=raw)
    keep("b", [other], environment(), publish=True, results=path, raw=raw)
    keep("a", [new], environment("2026-11-21T10:00:00Z"), publish=True, results=path, raw=raw)
    found = Results.load(path)
    assert {id: figure.value for id, figure in found.figures.items()} == {"a.x": 1.5, "b.x": 1}
    assert found.source_of("a.x").at == "2026-11-21T10:00:00Z"
    assert found.source_of("b.x").at == "2026-11-20T10:00:00Z"


def test_samples_are_in_a_file_of_their_own_and_nothing_is_published_unasked(
    tmp_path: Path,
) -> None:
    path = tmp_path / "figures.json"
    figure = replace(FIGURE, samples=(1.0, 2.0))
    raw = keep("a", [figure], environment(), publish=False, results=path, raw=tmp_path / "raw")
    assert json.loads(raw.read_text())["figures"][0]["samples"] == [1.0, 2.0]
    assert not path.exists()


def test_no_figure_of_a_changed_checkout_is_published_and_its_samples_stay(tmp_path: Path) -> None:
    path, raw = tmp_path / "figures.json", tmp_path / "raw"
    changed = environment() | {"commit": "0123456789ab+"}
    with pytest.raises(InputInvalid, match="files differ from the commit"):
        keep("a", [FIGURE], changed, publish=True, results=path, raw=raw)
    assert not path.exists()
    assert len([*raw.iterdir()]) == 1
    keep("a", [FIGURE], changed, publish=False, results=path, raw=raw)


def test_nothing_is_measured_to_be_kept_in_a_changed_checkout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(results, "commit", lambda: "0123456789ab+")
    with pytest.raises(InputInvalid, match="files differ from the commit"):
        check_keeping(print)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, "2026-11-20 `01234567`"),
        ({"commit": "0123456789ab+"}, "2026-11-20 `01234567`, uncommitted changes"),
        ({"load": 2.85}, "2026-11-20 `01234567`, load 2.9"),
        ({"load": 2.0, "since": 300}, "2026-11-20 `01234567`"),
        ({"since": 301}, "2026-11-20 `01234567`, **outdated**"),
        ({"since": None}, "2026-11-20 `01234567`, **outdated**"),
        ({"at": "2026-10-29T23:00:00Z"}, "2026-10-29 `01234567`, **outdated**"),
        ({"at": "2026-10-30T00:00:00Z"}, "2026-10-30 `01234567`"),
    ],
)
def test_each_figure_says_its_commit_its_day_and_what_speaks_against_it(
    changed: dict[str, Any], told: str
) -> None:
    found = results_of(FIGURE, source=replace(SOURCE, **changed))
    assert found.row("way.x", "Words") == f"| Words | 1 s | {found.goal('way.x')} | {told} |"
    assert found.short_row("way.x", "Words") == f"| Words | 1 s | {told} |"


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"load": 2.0}, "1 s"),
        ({"load": 2.85}, "1 s (load 2.9)"),
        ({"load": 2.85, "more": {"path": "no process: agents in virtual time"}}, "1 s"),
        ({"since": 301}, "1 s (**outdated**)"),
        (
            {"commit": "0123456789ab+", "since": 301},
            "1 s (uncommitted changes, **outdated**)",
        ),
    ],
)
def test_a_figure_in_a_sentence_says_that_it_is_outdated_of_no_commit_or_of_a_busy_machine(
    changed: dict[str, Any], told: str
) -> None:
    found = results_of(FIGURE, source=replace(SOURCE, **changed))
    page = "It takes <!-- figure way.x -->9 s<!-- / -->."
    assert named(page, found) == f"It takes <!-- figure way.x -->{told}<!-- / -->."


def test_the_file_changes_when_a_mark_does_and_not_with_each_commit(tmp_path: Path) -> None:
    path, now = tmp_path / "figures.json", commit().rstrip("+")
    fresh = replace(SOURCE, at="2999-01-01T00:00:00Z", commit=now, since=7)
    results_of(FIGURE, source=fresh).save(path)
    before = path.read_text()
    counted_now(path)
    assert path.read_text() == before
    results_of(FIGURE, source=replace(fresh, commit="0" * 12)).save(path)
    counted_now(path)
    assert Results.load(path).source_of("way.x").since is None


def test_no_goal_is_met_beside_other_work() -> None:
    missed = replace(FIGURE, id="way.y", value=3, met=False)
    quiet = results_of(FIGURE, missed)
    busy = results_of(FIGURE, missed, source=replace(SOURCE, load=2.1))
    assert (quiet.goal("way.x"), busy.goal("way.x")) == ("<= 2 s", "<= 2 s (not judged)")
    assert quiet.goal("way.y") == busy.goal("way.y") == "<= 2 s (**not met**)"
    assert goals_met(quiet).startswith("Of 2 goals 1 are met and 1 are not; 0 are not judged")
    assert goals_met(busy).startswith("Of 2 goals 0 are met and 1 are not; 1 are not judged")


def test_a_goal_that_a_repetition_missed_says_so() -> None:
    unsure = replace(FIGURE, between=(0.5, 2.5), met=True)
    assert results_of(unsure).goal("way.x") == "<= 2 s (**not met by every repetition**)"


def test_a_part_of_a_run_is_named_and_the_load_is_in_no_label() -> None:
    repeat = "python -m bench run seed-s1 --repeat 3 --part 4"
    part = replace(FIGURE, repeat=repeat)
    found = results_of(part, source=replace(SOURCE, repeat=repeat, load=9))
    assert found.row("way.x", "Words").startswith("| Words, 1/4 of the run | 1 s |")


def test_commits_are_counted_to_what_a_group_measures() -> None:
    now = commit().rstrip("+")
    found = results_of(FIGURE, source=replace(SOURCE, commit=now)).counted("2026-12-01", now)
    assert (found.at, found.commit, found.source_of("way.x").since) == ("2026-12-01", now, 0)
    unknown = results_of(FIGURE, source=replace(SOURCE, commit="0" * 12)).counted("x", now)
    assert unknown.source_of("way.x").since is None


def test_only_the_text_between_the_markers_changes(tmp_path: Path) -> None:
    readme, path = tmp_path / "top.md", tmp_path / "results" / "figures.json"
    path.parent.mkdir()
    readme.write_text("before\n<!-- figures -->\nold\n<!-- /figures -->\nafter\n")
    name, *_ = FIRST
    results_of(FIGURE, replace(FIGURE, id=name)).save(path)
    update(path, readme, [])
    text = readme.read_text()
    assert text.startswith("before\n<!-- figures -->\n| | value |")
    assert f"| {FIRST[name]} | 1 s | 20" in text
    assert "What" not in text
    assert text.endswith("<!-- /figures -->\nafter\n")
    assert "old" not in text
    update(path, readme, [])
    assert readme.read_text() == text
    assert f"| {FIRST[name]} | 1 s |" in (path.parent / "README.md").read_text()


def test_what_is_asked_for_first_stands_first_also_when_it_is_missed() -> None:
    name, *_ = FIRST
    missed = replace(FIGURE, id=name, value=3, met=False)
    found = results_of(FIGURE, missed)
    assert in_short(found)[2].startswith(f"| {FIRST[name]} | 3 s |")
    assert f"| {FIRST[name]} | 3 s | <= 2 s (**not met**) |" in "\n".join(page_of(found))


def test_the_landing_page_has_at_most_twelve_figures_and_no_goals() -> None:
    lines = in_short(Results.load(RESULTS))
    assert len(lines) - 2 == len(FIRST)
    assert len(FIRST) + len(NAMED.findall(README.read_text())) <= 12
    assert [line for line in lines if "goal" in line or "met" in line.split()] == []


def test_the_pages_have_the_figures_of_the_file(tmp_path: Path) -> None:
    """`python -m bench readme` writes them; nobody else does."""
    shutil.copy(RESULTS, tmp_path)
    (tmp_path / "pages").mkdir()
    pages = {tmp_path / "pages" / page.name: page for page in (README, *PAGES)}
    for copy, page in pages.items():
        shutil.copy(page, copy)
    readme, *others = pages
    update(tmp_path / RESULTS.name, readme, others)
    assert [copy.name for copy, page in pages.items() if copy.read_text() != page.read_text()] == []
    beside = RESULTS.with_name("README.md")
    assert (tmp_path / "README.md").read_text() == beside.read_text()


def test_the_page_beside_the_file_is_one_that_a_person_reads() -> None:
    rows = [line for line in page_of(Results.load(RESULTS)) if re.match(r"\| [^|-]", line)]
    assert 40 <= len(rows) - sum(row.startswith("| | value") for row in rows) <= ROWS_MAX


def test_what_measuring_has_shown_has_no_figure_that_was_written_by_hand() -> None:
    text = PAGES[0].read_text()
    _, _, shown = text.partition("## What measuring has shown")
    shown, _, _ = shown.partition("\n## ")
    readme, _, _ = README.read_text().partition("## Figures")[2].partition(BEGIN)
    assert NAMED.search(shown)
    for words in (NAMED.sub("", shown), readme):
        assert not re.findall(r"\d[\d.,]*\s?(?:us|µs|ms|s|MB|%|times)\b", words)


def test_a_figure_that_the_file_has_not_is_one_clear_error(tmp_path: Path) -> None:
    page, readme, path = (tmp_path / name for name in ("page.md", "top.md", "figures.json"))
    page.write_text("It takes <!-- figure way.z -->1 s<!-- / -->.")
    readme.write_text("<!-- figures -->\n<!-- /figures -->\n")
    results_of(FIGURE).save(path)
    with pytest.raises(InputInvalid, match=r"no results have way\.z"):
        update(path, readme, [page])
    page.write_text("It takes <!-- figure way.x -->9 s<!-- / -->.")
    update(path, readme, [page])
    assert page.read_text() == "It takes <!-- figure way.x -->1 s<!-- / -->."


def test_every_figure_that_is_asked_for_first_has_been_measured_and_can_be_again() -> None:
    found = Results.load(RESULTS)
    assert [name for name in FIRST if name not in found.figures] == []
    known = {group.name for group in GROUPS}
    words = {source.repeat.removeprefix("python -m bench ") for source in found.groups.values()}
    named = {each.split()[1] for each in words if each.startswith("figures ")}
    assert named <= known


def test_missing_markers_are_one_clear_error(tmp_path: Path) -> None:
    readme, path = tmp_path / "top.md", tmp_path / "figures.json"
    readme.write_text("nothing")
    results_of(FIGURE).save(path)
    with pytest.raises(InputInvalid, match="no <!-- figures -->"):
        update(path, readme, [])


def test_what_measuring_writes_changes_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each group that is kept would be of a changed checkout, but the first one."""
    monkeypatch.setattr(environments, "CHECKOUT", tmp_path)
    files = [tmp_path / name for name in ("bench/results/figures.json", "README.md", "program.py")]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("old")
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    *written, program = files
    for file in written:
        file.write_text("new")
    assert re.fullmatch("[0-9a-f]{12}", commit())
    program.write_text("new")
    assert commit().endswith("+")


def test_an_archive_without_commits_makes_no_figure_outdated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "figures.json"
    results_of(FIGURE, source=SOURCE).save(path)
    before = path.read_text()
    monkeypatch.setattr(environments, "CHECKOUT", tmp_path)
    counted_now(path)
    assert path.read_text() == before


def test_a_figure_that_is_kept_waits_until_earlier_work_has_left_the_load_but_not_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loads, now_s, said = [8.0, 8.0, 3.0, 2.0], [0.0], list[str]()

    def sleep(seconds: float) -> None:
        now_s[0] += seconds
        if len(loads) > 1:
            loads.pop(0)

    monkeypatch.setattr(environments, "load_average", lambda: loads)
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    monkeypatch.setattr("time.sleep", sleep)
    environments.calm(said.append)
    assert loads == [2.0]
    assert said == ["load 8: waiting up to 180 s until it is 2"]
    environments.calm(said.append)
    assert len(said) == 1
    loads[:] = [9.0]
    environments.calm(said.append)
    assert environments.CALM_WITHIN_S <= now_s[0] < 2 * environments.CALM_WITHIN_S
