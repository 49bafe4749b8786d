from __future__ import annotations

from pathlib import Path

import pytest

from ops import shell
from ops.errors import CommandFailed


def test_words_reach_the_command_as_they_are() -> None:
    assert shell.run(["printf", "%s|", "a b", "$HOME", "*"], timeout_s=10) == "a b|$HOME|*|"


def test_a_command_runs_in_the_folder_it_is_given(tmp_path: Path) -> None:
    assert shell.run(["pwd"], timeout_s=10, cwd=tmp_path).strip() == str(tmp_path)


def test_a_failure_keeps_the_whole_output() -> None:
    script = "i=0; while [ $i -lt 500 ]; do echo line $i; i=$((i+1)); done; echo bad >&2; exit 3"
    with pytest.raises(CommandFailed, match=r"sh: exit code 3: .*line 499") as caught:
        shell.run(["sh", "-c", script], timeout_s=10)
    assert caught.value.exit_code == 3
    assert caught.value.output.count("line") == 500
    assert "bad" in caught.value.output


def test_a_missing_program_is_told() -> None:
    with pytest.raises(CommandFailed, match="no such program"):
        shell.run(["/no/such/program"], timeout_s=10)


def test_a_command_that_takes_too_long_is_ended() -> None:
    with pytest.raises(CommandFailed, match="did not end in time"):
        shell.run(["sleep", "60"], timeout_s=0.1)
