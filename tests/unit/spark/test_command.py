"""The command, its session, and its start."""

from __future__ import annotations

import dataclasses
import json
import logging
import signal
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import click
import pytest
from pyspark.sql import SparkSession

from messagebus.commands.exits import Exit
from messagebus.recording.files import Anchor
from messagebus.recording.manifest import Manifest, RunInvalid, parsed
from reports.page import Page, render_text
from spark.__main__ import jobs, main
from spark.command import Answer, check_day, in_one_line, is_no_interrupt, run_of, write
from spark.jobs import audit, backlog, failover, imbalance, latency, throughput
from spark.lake.ingest import ingest, plan
from spark.lake.tables import Lake
from spark.measures.faults import bad_faults
from spark.measures.run import Run
from spark.pages import page_of
from spark.session import SQL, _signals_afterwards, java_path
from tests.support.events import write_run
from tests.unit.spark.conftest import Planted

JOBS = [throughput, latency, audit, imbalance, backlog, failover]

PAGE = Page(kind="audit", title="r", verdict="The promise holds.")


def test_an_answer_is_json_text_and_a_page(tmp_path: Path) -> None:
    assert write("audit", Answer({"lost": 0}, PAGE), tmp_path / "out") == 0
    found = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert found == {"lost": 0, "holds": True, "faults": []}
    assert "The promise holds." in (tmp_path / "out" / "audit.html").read_text()
    assert "The promise holds." in (tmp_path / "out" / "audit.txt").read_text()


def test_a_fault_of_the_input_is_one_of_the_answer(tmp_path: Path) -> None:
    assert write("audit", Answer({}, PAGE), tmp_path, ["3 bad lines, 0 allowed"]) == Exit.FOUND
    assert json.loads((tmp_path / "audit.json").read_text())["holds"] is False


def test_bad_lines_are_a_fault_beyond_what_is_put_up_with(planted_run: Planted) -> None:
    assert bad_faults(planted_run.run.ingested, 0) == ["1 bad line, 0 allowed"]
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
        (
            RunInvalid("An error occurred while calling o1.parquet.\n: java.io.IOException: no"),
            "audit: java.io.IOException: no\n",
        ),
        (
            RunInvalid(
                "[STREAM_FAILED] Query\nTraceback\nmessagebus.errors.ReplayGap: mb1:5672: it lost its end"
                "\nCaused by: org.apache.spark.api.python.PythonException: Traceback"
            ),
            "audit: mb1:5672: it lost its end\n",
        ),
    ],
)
def test_whatever_ends_a_job_is_one_line(
    fault: Exception, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> int:
        raise fault

    assert in_one_line("audit", work) == (Exit.USAGE if type(fault) is RunInvalid else Exit.FAILED)
    assert capsys.readouterr().err == said


def test_an_interrupt_is_not_logged_with_its_stack_and_all_else_is() -> None:
    def record(error: BaseException) -> logging.LogRecord:
        return logging.LogRecord("root", 40, "", 0, "", (), (type(error), error, None))

    because = OSError()
    because.__cause__ = KeyboardInterrupt()
    assert not is_no_interrupt(record(KeyboardInterrupt()))
    assert not is_no_interrupt(record(because))
    assert is_no_interrupt(record(OSError()))


@pytest.mark.parametrize("day", ["2026", "2026-13-01", "yesterday", ""])
def test_what_is_no_day_is_wrong_use(day: str) -> None:
    with pytest.raises(click.UsageError, match="a day such as"):
        check_day(day)


def test_a_day_without_rows_is_told_with_the_days_that_have_some(planted_run: Planted) -> None:
    run = planted_run.run
    assert run_of(run.session, run.lake, run.ingested, "2026-09-21").day == "2026-09-21"
    with pytest.raises(
        RunInvalid, match="run-1 has nothing on 2020-01-01; days with rows: 2026-09-21"
    ):
        run_of(run.session, run.lake, run.ingested, "2020-01-01")


@pytest.fixture(scope="module")
def nothing(session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run in which nothing was published."""
    folder = tmp_path_factory.mktemp("nothing")
    write_run(folder / "run", messages=4)
    for path in (folder / "run").glob("*.ndjson"):
        path.write_text(path.read_text().partition("\n")[0] + "\n")
    return run_in(session, folder)


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.__name__.rpartition(".")[2])
def test_a_run_without_a_message_says_so_and_divides_nothing_by_zero(
    nothing: Run, job: ModuleType
) -> None:
    page = job.measure(nothing).page
    assert "4 files" not in render_text(page)
    assert any("nothing" in text.lower() for text in (*page.faults, page.verdict, page.comment))


def test_a_run_of_one_message_has_its_numbers_and_no_percentile_that_one_cannot_support(
    session: SparkSession, tmp_path: Path
) -> None:
    write_run(tmp_path / "run", messages=1)
    run = run_in(session, tmp_path)
    audited = audit.measure(run)
    assert audited.page.faults == ()
    assert audited.measured["verdicts"]["ok"] == 1
    answer = latency.measure(run)
    assert answer.page.faults == ()
    (row,) = [
        row
        for row in answer.measured["percentiles"]
        if (row["measure"], row["scope"]) == ("confirm_from_intended", "all")
    ]
    assert row["total"] == 1
    assert "99.9" not in render_text(answer.page).splitlines()[0]


def test_a_run_that_was_killed_is_reported_and_does_not_hold(
    session: SparkSession, tmp_path: Path
) -> None:
    write_run(tmp_path / "run", messages=40)
    path = tmp_path / "run" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"complete": False, "end_ns": None}))
    run = run_in(session, tmp_path)
    assert audit.measure(run).measured["verdicts"]["ok"] == 40
    assert bad_faults(run.ingested, 0)[0].startswith("the run did not end in order")


def run_in(session: SparkSession, folder: Path) -> Run:
    lake = Lake(folder / "lake")
    return Run(session, lake, ingest(session, lake, plan(folder / "run", lake)))


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_jvm_starts_takes_effect_when_it_has_started(
    number: signal.Signals,
) -> None:
    def end(*_: object) -> None:
        done.append("ended")

    done: list[str] = []
    before = signal.signal(number, end)
    try:
        with _signals_afterwards():
            signal.raise_signal(number)
            done.append("started")
        assert signal.getsignal(number) is end
    finally:
        signal.signal(number, before)
    assert done == ["started", "ended"]


def test_a_client_of_spark_connect_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://host")
    write_run(tmp_path / "run", messages=4)
    argv = ["audit", "--events", str(tmp_path / "run"), "--out", str(tmp_path / "out")]
    assert main(argv) == Exit.FAILED
    assert capsys.readouterr().err == (
        "audit: SPARK_REMOTE is set: jobs call the JVM of their driver, and with Spark Connect there is "
        "none; unset it, and use spark-submit --master\n"
    )


def test_a_page_says_that_the_warm_up_counts(tmp_path: Path) -> None:
    manifest = Manifest(run_id="r", topics={}, brokers=(), anchor=Anchor("h", "p", 0), start_ns=0)
    for warm_up_s, is_said in ((0.0, False), (1.5, True)):
        ingested: Any = SimpleNamespace(
            manifest=dataclasses.replace(manifest, warm_up_s=warm_up_s),
            **{"files": {}, "bad": 0, "skipped": [], "reasons": dict},
        )
        no_session: Any = None
        run = Run(no_session, Lake(tmp_path), ingested, "1970-01-01")
        page = page_of(run, "latency", words={}, tables=(), verdict="")
        assert ("the warm-up of 1.5 s counts too" in page.meta[0]) is is_said
    values = {"run_id": "r", "topics": {}, "brokers": [], "start_ns": 0} | {
        "anchor": manifest.anchor.as_json()
    }
    assert parsed(values | {"warm_up_s": 2}, "").warm_up_s == 2
    with pytest.raises(RunInvalid, match="warm_up_s -1: a number of seconds wanted"):
        parsed(values | {"warm_up_s": -1}, "")
