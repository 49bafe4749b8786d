from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from bench.errors import BenchError
from bench.load.cli import _prepare_folder, _report, load
from bench.load.control import Progress


@pytest.mark.parametrize(
    "arguments",
    [
        ["publish"],
        ["publish", "--run", "x", "--name", "p1", "--rate", "-1"],
        ["publish", "--run", "x", "--name", "p1", "--size", "0"],
        ["consume", "--run", "x", "--name", "c1"],
        ["consume", "--run", "x", "--name", "c1", "-s", "s", "--prefetch", "2001"],
    ],
)
def test_wrong_use_is_told_before_anything_is_done(arguments: list[str]) -> None:
    result = CliRunner().invoke(load, arguments)
    assert result.exit_code == 2
    assert "Error" in result.output


def test_the_folder_of_a_run_is_made_or_told(tmp_path: Path) -> None:
    _prepare_folder(tmp_path / "run")
    assert (tmp_path / "run" / "progress").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(BenchError, match="cannot be written to"):
        _prepare_folder(tmp_path / "file")


def test_anything_but_all_good_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    @click.command()
    def good() -> None:
        _report(Progress("p1", done=10), "confirmed", "ended otherwise")

    result = CliRunner().invoke(good)
    assert "p1: 10 confirmed, 0 ended otherwise, 0 open" in result.output
    with pytest.raises(BenchError, match="1 ended otherwise"):
        _report(Progress("p1", done=10, bad=1), "confirmed", "ended otherwise")
    with pytest.raises(BenchError, match="2 open"):
        _report(Progress("p1", done=10, held=2), "confirmed", "ended otherwise")
