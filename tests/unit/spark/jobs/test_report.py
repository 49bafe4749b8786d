"""The report on a run with every fault planted, and conditions that keep one from being made.

tests/integration/test_spark_jobs.py makes one by its command.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from reports.page import Page, render_html, render_text
from spark.command import Answer, exit_code, write
from spark.jobs import report
from spark.lake.ingest import ingest, plan
from spark.lake.tables import Lake
from spark.measures.faults import DoesNotAddUp, bad_faults
from spark.measures.latency import BIN_WINDOW_S
from spark.measures.run import Run
from spark.summary import check
from tests.support.events import (
    ADDED,
    KILLED,
    PUBLISHERS,
    REMOVED,
    Faults,
    Truth,
    write_run,
)

ROOT = Path(__file__).resolve().parents[4]
JOB = ROOT / "spark" / "jobs" / "report.py"
JOB_WITHIN_S = 300

FAULTS = Faults(
    lost=3,
    altered=2,
    owed=5,
    unknown=4,
    acked_without_proof=6,
    unexplained=2,
    swapped=1,
    orphans=2,
    refused=2,
    unroutable=1,
    unknown_absent=3,
    unknown_delivered=4,
    cut_lines=1,
    wrong_types=2,
    missing_fields=1,
    empty_lines=1,
)


def run_in(session: SparkSession, folder: Path) -> Run:
    """Ingest the run in a folder."""
    lake = Lake(folder / "lake")
    return Run(session, lake, ingest(session, lake, plan(folder / "run", lake)))


class Text(HTMLParser):
    """Parser for the addresses that a page would fetch, and for its text."""

    def __init__(self, page: Page) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.text = ""
        self.feed(render_html(page))
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        if tag in ("script", "link", "img", "iframe", "object"):
            self.fetched.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href") and not str(value).startswith("#"):
                self.fetched.append(str(value))

    def handle_data(self, data: str) -> None:
        self.text += data


@dataclasses.dataclass(frozen=True)
class Reported:
    truth: Truth
    run: Run
    answer: Answer

    @property
    def measured(self) -> Any:
        return self.answer.measured


@pytest.fixture(scope="module")
def planted(session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Reported:
    folder = tmp_path_factory.mktemp("planted")
    truth = write_run(folder / "run", messages=400, faults=FAULTS)
    (folder / "run" / "delivered-empty.ndjson").touch()
    run = run_in(session, folder)
    found = report.ask(run)
    with pytest.raises(DoesNotAddUp, match="402 messages judged, 403 distinct ids"):
        check(dataclasses.replace(found, distinct=found.distinct + 1))
    one, *others = found.publishers
    fewer = dataclasses.replace(
        found, publishers=[one | {"published": one["published"] - 1}, *others]
    )
    with pytest.raises(DoesNotAddUp, match="399 publishes of 400 good lines"):
        check(fewer)
    return Reported(truth, run, report.answer_of(found))


def test_every_planted_fault_is_counted(planted: Reported) -> None:
    truth, found = planted.truth, planted.measured
    assert (found["published"], found["confirmed"]) == (truth.published, truth.confirmed)
    assert (found["expected"], found["delivered"]) == (truth.expected, truth.delivered)
    assert found["deliveries"] == truth.deliveries
    assert (found["lost"], found["altered"]) == (FAULTS.lost, FAULTS.altered)
    assert found["doubled"] == {
        "total": 17,
        "unknown": FAULTS.unknown,
        "owed": FAULTS.owed,
        "acked_without_proof": FAULTS.acked_without_proof,
        "unexplained": FAULTS.unexplained,
    }
    assert (found["orphan_deliveries"], found["unexpected"], found["reused_ids"]) == (2, 0, 0)
    assert found["unconfirmed"] == {
        "refused": 2,
        "unroutable": 1,
        "unknown": 7,
        "spooled": 0,
        "pairs_delivered": 8,
        "pairs_absent": 12,
    }


def test_the_verdict_names_every_fault(planted: Reported) -> None:
    assert [*planted.answer.page.faults, *bad_faults(planted.run.ingested, 0)] == [
        "3 confirmed and never delivered",
        "2 delivered with another body",
        "2 delivered again without an explanation",
        "2 delivered and never published",
        "1 delivered after a later one of the same publisher and key",
        # A message that changed places with a later one came before it was sent.
        "1 sample of end to end: handed over to received below zero: a clock went back",
        "1 sample of end to end: sent to received below zero: a clock went back",
        "5 bad lines, 0 allowed",
    ]


def test_every_line_is_accounted_for(planted: Reported) -> None:
    truth, found = planted.truth, planted.measured
    lines = found["lines"]
    assert lines["read"] == truth.lines
    assert lines["read"] == lines["anchors"] + sum(lines["good"].values()) + lines["bad"]
    assert sorted(lines["bad_by_reason"].values()) == [1, 1, 3]
    assert sum(row["lines"] for row in lines["bad_by_file"]) == 5


def test_every_broker_and_publisher_is_there(planted: Reported) -> None:
    truth, found = planted.truth, planted.measured
    brokers = {row["broker"]: row for row in found["brokers"]}
    assert sum(row["confirmed"] for row in brokers.values()) == truth.confirmed
    assert sum(row["deliveries"] for row in brokers.values()) == truth.deliveries
    assert brokers[KILLED]["doubled"]["acked_without_proof"] == FAULTS.acked_without_proof
    assert brokers[REMOVED]["active_s"] < brokers[KILLED]["active_s"]
    assert brokers[ADDED]["confirmed"] > 0
    assert all(row["longest_gap_ms"] > 0 for row in brokers.values())
    publishers = {row["publisher"]: row for row in found["publishers"]}
    assert set(publishers) == set(PUBLISHERS)
    assert sum(row["lost"] for row in publishers.values()) == FAULTS.lost
    # Held back for 300 ms at the kill.
    assert 150 < max(row["longest_gap_ms"] for row in publishers.values()) < 450
    assert found["imbalance"]["confirmed"]["count"] == 4
    assert found["out_of_order"] == FAULTS.swapped


def test_suspects_can_be_looked_up(planted: Reported) -> None:
    found = planted.measured
    verdicts = {row["message_id"]: row["verdict"] for row in found["suspects"]}
    assert sorted(verdicts.values()) == sorted(
        ["lost"] * 3 + ["altered"] * 2 + ["unexplained"] * 2 + ["orphan"] * 2
    )


def test_tables_are_kept_for_other_tools(session: SparkSession, planted: Reported) -> None:
    truth, run = planted.truth, planted.run
    assert run.events("published").count() == truth.published
    assert run.events("delivered").count() == truth.deliveries
    assert run.fates().filter("expected").count() == truth.expected
    bins = session.read.parquet(str(run.lake.folder("latency_bins")))
    assert bins.select("window").distinct().count() > BIN_WINDOW_S  # of a short run each second
    confirms = bins.filter("measure = 'confirm_from_intended'").groupBy().sum("n").first()
    assert confirms is not None
    assert confirms[0] == truth.confirmed


def test_times_are_seconds_since_the_start(planted: Reported) -> None:
    run, found = planted.run, planted.measured
    kill = next(one for one in found["run"]["incidents"] if one["kind"] == "kill")
    at_ns = next(one.at_ns for one in run.manifest.incidents if one.kind == "kill")
    assert kill["at_s"] == (at_ns - run.manifest.start_ns) / 1e9
    held_back = max(found["publishers"], key=lambda row: row["longest_gap_ms"])
    assert kill["at_s"] - 0.5 < held_back["longest_gap_at_s"] < kill["at_s"] + 0.5
    assert found["run"]["duration_s"] == pytest.approx(found["run"]["span_s"])
    assert {row["at_s"] for row in found["timeline"]["latency"]} <= {*range(60)}


def test_the_page_needs_nothing_beside_it_and_has_every_fact(planted: Reported) -> None:
    page = Text(planted.answer.page)
    assert page.fetched == []
    assert not re.search(r"url\((?!#)|@import", render_html(planted.answer.page))
    for text in (
        "3 confirmed and never delivered",
        "unknown 4, owed 5, acked without proof 6, unexplained 2",
        f"{KILLED.partition(':')[0]} killed",
        f"{KILLED.partition(':')[0]} back",
        "balancer reloaded",
        "skipped: empty file",
        "of a message that was sent again an earlier copy came",
        "5 bad",
        "Publishes ended 390 confirmed, 7 unknown, 2 refused, 1 unroutable.",
        "per kill at most about the prefetch of 200 for each consumer",
        "their wall clocks differed by up to",
        *(row["message_id"] for row in planted.measured["suspects"]),
    ):
        assert text in page.text
    json.loads(json.dumps(planted.measured))


def test_the_page_names_files_by_their_real_paths_that_were_written_alone(
    planted: Reported, tmp_path: Path
) -> None:
    """The lake is not in the folder of the page: --lake named another one."""
    write("report", planted.answer, tmp_path, json_name="audit")
    files = re.findall(r"[\w-]+\.json\b", Text(planted.answer.page).text)
    assert {file for file in files if file != "manifest.json"} == {"audit.json"}
    assert (tmp_path / "audit.json").exists()
    [lake] = re.findall(r"Rows: (.*) \(Parquet\)", planted.answer.page.footer)
    assert Path(lake) == planted.run.lake.root
    assert any(Path(lake).rglob("*.parquet"))


def test_the_text_is_two_screenfuls(planted: Reported) -> None:
    lines = render_text(planted.answer.page).splitlines()
    assert lines[0].startswith("report, run-1: ")
    assert len(lines) < 80
    assert max(len(line) for line in lines if "(" not in line) <= 120


def test_a_verdict_calls_nothing_delivered_that_is_pending() -> None:
    counts = {
        "delivered": 10,
        "expected": 10,
        "pending": 0,
        "confirmed": 10,
        "doubled": {"total": 3},
    }
    told = report._comment(counts)
    assert told.startswith("Every one of 10 confirmed messages reached every subscription")
    assert told.endswith("3 came again, each with a known reason.")
    told = report._comment(counts | {"pending": 4, "delivered": 6, "doubled": {"total": 0}})
    assert "6 of 10 deliveries, 4 were still on their way at the end" in told
    assert "Every one of" not in told
    assert told.endswith("None came twice.")


def test_a_run_without_any_event_is_reported(session: SparkSession, tmp_path: Path) -> None:
    write_run(tmp_path / "run", messages=4)
    for path in (tmp_path / "run").glob("*.ndjson"):
        path.write_text(path.read_text().partition("\n")[0] + "\n")
    answer = report.measure(run_in(session, tmp_path))
    assert answer.page.faults == ("nothing was published",)
    assert answer.measured["imbalance"] == dict.fromkeys(
        ("confirmed", "confirmed_per_s", "deliveries")
    )
    assert "nothing was published" in render_html(answer.page)


def test_a_folder_with_publishes_alone_loses_all(session: SparkSession, tmp_path: Path) -> None:
    truth = write_run(tmp_path / "run", messages=40)
    for path in (tmp_path / "run").glob("delivered-*"):
        path.unlink()
    answer = report.measure(run_in(session, tmp_path))
    assert (answer.measured["lost"], answer.measured["delivered"]) == (truth.expected, 0)
    assert "80 confirmed and never delivered" in render_html(answer.page)


def made(argv: Sequence[str]) -> int:
    return exit_code(report.command, argv, prog_name="report")


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
    assert made(["--events", str(tmp_path / name), "--out", str(tmp_path / "out")]) == 2
    assert "no such folder" in one_line(capsys)


def test_no_manifest_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert made(["--events", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "no manifest.json" in one_line(capsys)


def test_a_broken_manifest_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "manifest.json").write_text("{")
    assert made(["--events", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "not readable JSON" in one_line(capsys)


def test_no_events_is_one_line_and_nothing_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, messages=8)
    for path in tmp_path.glob("*.ndjson"):
        path.unlink()
    assert made(["--events", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
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


@pytest.mark.timeout(900)  # three reports
def test_a_report_that_follows_a_run_ends_with_the_rows_and_numbers_of_one_of_the_whole(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Throughput, latency, imbalance: what is shown while files come is made by the jobs themselves."""

    @contextlib.contextmanager
    def session_for(_name: str, _size: int) -> Iterator[SparkSession]:
        yield session

    write_run(tmp_path / "whole", messages=120)
    growing = tmp_path / "growing"
    growing.mkdir()
    files = sorted((tmp_path / "whole").glob("*.ndjson"))
    manifest = json.loads((tmp_path / "whole" / "manifest.json").read_text())
    (growing / "manifest.json").write_text(json.dumps(manifest | {"complete": False}))
    reloading: list[bool] = []

    def goes_on(_seconds: float) -> None:
        """Between the rounds some files grow and others come, and the run is over."""
        reloading.append("http-equiv" in (tmp_path / "live" / "report.html").read_text())
        for path in files:
            shutil.copy(path, growing)
        (growing / "manifest.json").write_text(json.dumps(manifest))

    for path in files[::2]:
        text = path.read_text()
        (growing / path.name).write_text(text[: text.index("\n", len(text) // 2) + 1])
    monkeypatch.setattr("spark.command.session_for", session_for)
    monkeypatch.setattr("spark.jobs.report.sleep", goes_on)

    def reported(folder: str, *words: str) -> tuple[int, dict[str, Any]]:
        out = tmp_path / ("live" if words else "once")
        argv = ["--events", str(tmp_path / folder), "--out", str(out), *words]
        code = exit_code(report.command, argv, prog_name="report")
        return code, json.loads((out / "audit.json").read_text())

    live, once = reported("growing", "--every", "1s"), reported("whole")
    assert reloading == [True]
    assert "http-equiv" not in (tmp_path / "live" / "report.html").read_text()
    assert live == once
    tables = {
        path.relative_to(tmp_path / "once" / "tables").parts[0]
        for path in (tmp_path / "once" / "tables").rglob("*.parquet")
    }
    assert {"published", "delivered"} < tables
    for name in sorted(tables):
        rows = [
            sorted(map(str, session.read.parquet(str(tmp_path / out / "tables" / name)).collect()))
            for out in ("live", "once")
        ]
        assert rows[0] == rows[1], name
