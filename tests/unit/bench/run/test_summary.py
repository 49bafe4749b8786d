from __future__ import annotations

import json
from pathlib import Path

from bench.run.summary import page
from tests.support.runs import write_run


def test_a_run_that_is_not_there_is_said_and_the_rest_is_shown(tmp_path: Path) -> None:
    made = page("matrix", "p99 < 5 ms", tmp_path, ["gone"])
    assert "p99 &lt; 5 ms" in made
    assert 'href="gone/report.html"' in made
    assert "not the folder of a run" in made


def test_a_load_of_its_own_is_said_and_its_text_is_linked(tmp_path: Path) -> None:
    write_run(tmp_path / "theirs")
    about = tmp_path / "theirs" / "run.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"outside": True}))
    (tmp_path / "theirs" / "report.txt").write_text("500 confirmed a second")
    made = page("peers", "", tmp_path, ["theirs"])
    assert 'href="theirs/report.txt"' in made
    assert "a load of its own" in made
