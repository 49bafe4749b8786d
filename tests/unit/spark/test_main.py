from __future__ import annotations

import pytest

from spark.__main__ import jobs, main


@pytest.mark.parametrize("argv", [["--help"], ["report", "--help"]])
def test_help_has_an_example(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 0
    assert "Example: python -m spark report --events" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["latencyy"],
        ["report"],
        ["report", "--events", "x", "--max-bad", "-1"],
        ["audit", "--out", "o"],
        ["audit", "--out", "o", "--events", "x", "--run", "r"],
        ["audit", "--out", "o", "--run", "r", "--date", "yesterday"],
        ["compare", "--lake", "l", "--out", "o", "only-one"],
    ],
)
def test_wrong_use_is_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert capsys.readouterr().err.startswith("spark: " if argv else "Usage: python -m spark")


@pytest.mark.parametrize("name", sorted(jobs.commands))
def test_every_job_of_that_name_has_an_example(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name, "--help"]) == 0
    assert f"Example: python -m spark {name} " in capsys.readouterr().out


def test_all_jobs_are_there() -> None:
    assert set(jobs.commands) == {
        *("ingest", "throughput", "latency", "audit", "imbalance", "backlog", "failover"),
        *("compare", "capacity", "report", "live", "pack"),
    }
