"""Conditions that keep a report from being made; tests/integration/test_spark_jobs.py makes one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark.jobs.report import main
from tests.support.events import write_run

ROOT = Path(__file__).resolve().parents[4]
JOB = ROOT / "spark" / "jobs" / "report.py"
JOB_WITHIN_S = 300


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize("name", ["nowhere", "manifest.json"])
def test_a_missing_folder_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / "manifest.json").touch()
    assert main(["--events", str(tmp_path / name), "--out", str(tmp_path / "out")]) == 2
    assert "no such folder" in one_line(capsys)


def test_no_manifest_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--events", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "no manifest.json" in one_line(capsys)


def test_a_broken_manifest_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "manifest.json").write_text("{")
    assert main(["--events", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "not readable JSON" in one_line(capsys)


def test_no_events_is_one_line_and_nothing_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, messages=8)
    for path in tmp_path.glob("*.ndjson"):
        path.unlink()
    assert main(["--events", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "no events" in one_line(capsys)
    assert not (tmp_path / "out").exists()


def test_missing_java_is_one_line_with_the_package(tmp_path: Path) -> None:
    write_run(tmp_path / "events", messages=8)
    environ = {
        k: v for k, v in os.environ.items() if k not in ("JAVA_HOME", "PYSPARK_GATEWAY_PORT")
    }
    done = subprocess.run(
        [sys.executable, str(JOB), "--events", "events", "--out", "out"],
        cwd=tmp_path,
        env=environ | {"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=JOB_WITHIN_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "openjdk-17-jre-headless" in done.stderr
