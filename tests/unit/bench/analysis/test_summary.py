from __future__ import annotations

import json
from pathlib import Path

from bench.analysis.summary import Summary, faults_of, page
from reports.page import Bar
from tests.support.runs import write_run

SUMMARY = Summary(
    head=("system", "p99 < 5 ms"),
    rows=[("kafka", "no")],
    bars_title="Confirmed a second",
    bars=[Bar.of("kafka", 2.0, "2/s"), Bar.of("<ours>", 4.0, "4/s", 1)],
    notes=["on one machine"],
    faults=["kafka: late"],
)


def test_a_run_that_is_not_there_is_said_and_the_rest_is_shown(tmp_path: Path) -> None:
    made = page("matrix", SUMMARY, tmp_path, ["gone"])
    assert "p99 &lt; 5 ms" in made
    assert 'href="gone/report.html"' in made
    assert "not the folder of a run" in made


def test_a_load_of_its_own_is_said_and_its_text_is_linked(tmp_path: Path) -> None:
    write_run(tmp_path / "theirs")
    about = tmp_path / "theirs" / "run.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"outside": True}))
    (tmp_path / "theirs" / "report.txt").write_text("500 confirmed a second")
    made = page("peers", SUMMARY, tmp_path, ["theirs"])
    assert 'href="theirs/report.txt"' in made
    assert "a load of its own" in made


def test_faults_come_first_and_bars_have_one_scale(tmp_path: Path) -> None:
    made = page("peers", SUMMARY, tmp_path, [])
    assert made.index("kafka: late") < made.index("Confirmed a second")
    assert "width: 50.00%" in made
    assert "&lt;ours&gt;" in made


def test_a_table_its_notes_and_its_faults_are_lines() -> None:
    told = Summary(
        head=("system", "rate"),
        rows=[("ours", "10")],
        title="by turns",
        notes=["word " * 30],
        meant={"ours": "fsynced"},
        faults=["ours: late"],
    )
    lines = told.lines(80)
    assert lines[:3] == ["by turns", "system  rate", "ours      10"]
    assert lines[-3:] == ["What a confirm means:", "  ours: fsynced", "  ! ours: late"]
    assert max(map(len, lines)) <= 80


def test_every_fault_has_the_name_of_its_run() -> None:
    assert faults_of({"a": {"faults": []}, "b": {"faults": ["x", "y"]}}) == ["b: x", "b: y"]
