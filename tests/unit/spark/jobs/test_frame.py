from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark.jobs.frame import Answer, bad_faults, in_one_line, write
from spark.manifest import RunInvalid
from spark.page import Page
from tests.unit.spark.conftest import Planted

PAGE = Page(job="audit", title="r", meta="", verdict="The promise holds.")


def test_an_answer_is_json_text_and_a_page(tmp_path: Path) -> None:
    assert write("audit", Answer({"lost": 0}, PAGE), tmp_path / "out") == 0
    found = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert found == {"lost": 0, "holds": True, "faults": []}
    assert "The promise holds." in (tmp_path / "out" / "audit.html").read_text()
    assert "The promise holds." in (tmp_path / "out" / "audit.txt").read_text()


def test_a_fault_of_the_input_is_one_of_the_answer(tmp_path: Path) -> None:
    assert write("audit", Answer({}, PAGE), tmp_path, ["3 bad lines, 0 allowed"]) == 1
    assert json.loads((tmp_path / "audit.json").read_text())["holds"] is False


def test_bad_lines_are_a_fault_beyond_what_is_put_up_with(planted_run: Planted) -> None:
    assert bad_faults(planted_run.run.ingested, 0) == ["1 bad lines, 0 allowed"]
    assert bad_faults(planted_run.run.ingested, 1) == []


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (RunInvalid("no run"), "audit: no run\n"),
        (OSError(28, "No space left on device"), "audit: [Errno 28] No space left on device\n"),
        (
            RunInvalid("An error occurred\nCaused by: first\nCaused by: java.io.IOException: full"),
            "audit: java.io.IOException: full\n",
        ),
    ],
)
def test_whatever_ends_a_job_is_one_line(
    fault: Exception, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> int:
        raise fault

    assert in_one_line("audit", work) == 1
    assert capsys.readouterr().err == said
