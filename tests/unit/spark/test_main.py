from __future__ import annotations

import pytest

from spark.__main__ import main


@pytest.mark.parametrize("argv", [["--help"], ["throughput", "--help"]])
def test_help_has_an_example(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 0
    assert "Example: python -m spark throughput --events" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv", [[], ["latencyy"], ["throughput"], ["throughput", "--events", "x", "--max-bad", "-1"]]
)
def test_wrong_use_is_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert "Usage: python -m spark" in capsys.readouterr().err
