from __future__ import annotations

from pathlib import Path

from bench.run.summary import page


def test_a_run_that_is_not_there_is_said_and_the_rest_is_shown(tmp_path: Path) -> None:
    made = page("matrix", "p99 < 5 ms", tmp_path, ["gone"])
    assert "p99 &lt; 5 ms" in made
    assert 'href="gone/report.html"' in made
    assert "not the folder of a run" in made
