from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.session import SQL, _interrupted_afterwards, java_path


def executable(folder: Path) -> str:
    folder.mkdir(parents=True)
    path = folder / "java"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def test_java_home_beats_the_path(tmp_path: Path) -> None:
    home, other = executable(tmp_path / "home" / "bin"), executable(tmp_path / "other")
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "other")}
    assert java_path(environ) == home
    assert java_path({"PATH": str(tmp_path / "other")}) == other


@pytest.mark.parametrize("environ", [{"PATH": "/nowhere"}, {"JAVA_HOME": "/nowhere"}])
def test_no_java_is_none(environ: dict[str, str]) -> None:
    assert java_path(environ) is None


def test_a_given_setting_beats_the_kits(session: SparkSession) -> None:
    assert (
        session.conf.get("spark.sql.shuffle.partitions")
        == "1"
        != SQL["spark.sql.shuffle.partitions"]
    )
    assert session.conf.get("spark.sql.session.timeZone") == "UTC"


def test_workers_run_this_interpreter(session: SparkSession) -> None:
    assert session.sparkContext.pythonExec == sys.executable


def test_an_interrupt_while_the_jvm_starts_takes_effect_when_it_has_started() -> None:
    done: list[str] = []
    before = signal.getsignal(signal.SIGINT)

    def start() -> None:
        with _interrupted_afterwards():
            signal.raise_signal(signal.SIGINT)
            done.append("started")

    with pytest.raises(KeyboardInterrupt):
        start()
    assert done == ["started"]
    assert signal.getsignal(signal.SIGINT) is before
