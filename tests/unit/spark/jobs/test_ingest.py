from __future__ import annotations

from pathlib import Path

import pytest

from spark.jobs.frame import exit_code
from spark.jobs.ingest import _as_json, _page, command
from spark.page import render_text
from tests.unit.spark.conftest import Planted


def test_the_page_has_every_file_and_every_bad_line(planted_run: Planted) -> None:
    found = planted_run.run.ingested
    text = render_text(_page([found], planted_run.run.lake))
    assert all(source in text for source in found.files)
    assert '{"run_id": "run-1", "message_id": "00' in text
    assert _as_json([found])["run-1"]["bad"] == found.reasons()


def test_no_run_in_any_folder_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--events", str(tmp_path), "--out", str(tmp_path / "out")]
    assert exit_code(command, argv, prog_name="ingest") == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "no manifest.json" in captured.err
