"""Commands as a person types them: exit codes, one line on standard error."""

from pathlib import Path

import pytest

from bench.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(list(arguments))
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [[], ["demo"], ["audit"], ["figures"], ["readme"], ["worker"]],
)
def test_every_command_has_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--help"]) == 0
    assert "Usage: python -m bench" in capsys.readouterr().out


def test_wrong_use_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["nonsense"], ["audit"], ["worker"], ["demo", "--nonsense"]):
        code, error = run(capsys, *arguments)
        assert code == 2
        assert error.startswith("bench: ")
        assert error.count("\n") == 1


def test_a_folder_without_a_run_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, error = run(capsys, "audit", str(tmp_path))
    assert code == 2
    assert "not the folder of a run" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "cannot read"), ("", "no record"), ("a\n\nb\n", "2 records")]
)
def test_bad_input_of_the_demo_is_one_line_and_nothing_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, reason: str
) -> None:
    source = tmp_path / "input"
    if content is not None:
        source.write_text(content)
    folder = tmp_path / "run"
    code, error = run(capsys, "demo", "--input", str(source), "--dir", str(folder))
    assert code == 2
    assert reason in error
    assert error.count("\n") == 1
    assert not folder.exists()
