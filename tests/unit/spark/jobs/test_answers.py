"""Answers of the audit and of the comparison of runs."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hdrh.histogram import HdrHistogram
from pyspark.sql import SparkSession

from bench.figures import generated_run
from bench.figures.audit import differences
from bench.figures.duckdb_audit import audit as audit_by_duckdb
from bench.figures.duckdb_audit import opened
from reports.page import render_html, render_text
from spark.command import Answer, exit_code, write
from spark.jobs import audit, backlog, failover, imbalance, ingest, latency, throughput
from spark.jobs.compare import Row, compared, numbers, worse
from spark.lake.ingest import ingested
from spark.lake.tables import Lake
from spark.measures import hdr
from spark.measures.latency import CONFIRM, CURVE, END_TO_END, RECEIVED_SENT, SENT
from spark.measures.run import Run
from tests.support.events import BROKERS, KILLED, PUBLISHERS
from tests.unit.spark.conftest import Laid, Planted


def test_every_dimension_adds_up_to_the_whole(planted_run: Planted) -> None:
    answer = throughput.measure(planted_run.run)
    whole = {row["kind"]: row["messages"] for row in answer.measured["whole"]}
    assert whole == {
        "confirmed": planted_run.truth.confirmed,
        "delivered": planted_run.truth.deliveries,
    }
    for dim in ("brokers", "topics", "subscriptions", "publishers"):
        for kind, messages in whole.items():
            rows = [row for row in answer.measured[dim] if row["kind"] == kind]
            assert sum(row["messages"] for row in rows) == messages
    # One message was planted as lost, and no repeat hides it here.
    assert answer.measured["missing_at_least"] == 1
    assert len(answer.page.faults) == 1
    assert "confirmed per second" in render_html(answer.page)


def test_percentiles_are_those_of_the_rows_themselves(planted_run: Planted) -> None:
    """HdrHistogram is fed the same rows one by one."""
    answer = latency.measure(planted_run.run)
    reference = {name: HdrHistogram(1, hdr.TOP_NS, hdr.DIGITS) for name in (CONFIRM, SENT)}
    for path in planted_run.folder.glob("published-*.ndjson"):
        for line in path.read_text().splitlines()[1:]:
            row = json.loads(line)
            for name, since in ((CONFIRM, "intended_ns"), (SENT, "sent_ns")):
                reference[name].record_value(row["confirmed_ns"] - row[since])
    for row in answer.measured["percentiles"]:
        if row["scope"] == "all" and row["measure"] in reference:
            expected = reference[row["measure"]]
            assert row["total"] == expected.get_total_count()
            for each in CURVE:
                assert row[hdr.name(each)] == expected.get_value_at_percentile(each)
    assert {
        name: text for name, text in answer.measured["histograms"].items() if name in reference
    } == {name: each.encode().decode() for name, each in reference.items()}
    assert set(answer.measured["histograms"]) == {CONFIRM, SENT, END_TO_END, RECEIVED_SENT}
    # The planted swap lets one message arrive before it was sent; one clock alone never goes back.
    assert set(answer.measured["below_zero"]) <= {END_TO_END, RECEIVED_SENT}
    assert "sent to confirmed" in render_html(answer.page)


@pytest.mark.parametrize("job", [audit, backlog, failover, imbalance, latency, throughput])
def test_a_page_names_files_by_their_real_paths_that_were_written_alone(
    planted_run: Planted, tmp_path: Path, job: ModuleType
) -> None:
    name = job.__name__.rpartition(".")[2]
    answer = job.measure(planted_run.run)
    write(name, answer, tmp_path)
    page = render_html(answer.page)
    files = re.findall(r"[\w-]+\.json", page.partition("</style>")[2])
    assert set(files) == {f"{name}.json"}
    assert all((tmp_path / file).exists() for file in files)
    rows = re.findall(r"Rows: (.*) \(Parquet\)", answer.page.footer)
    folders = [Path(folder) for each in rows for folder in each.split(", ")]
    assert folders
    assert all(any(folder.rglob("*.parquet")) for folder in folders), folders


def test_brokers_and_connections_are_judged_and_no_key_is_no_hot_key(planted_run: Planted) -> None:
    answer = imbalance.measure(planted_run.run)
    judged = answer.measured["judged"]
    assert judged["brokers, messages confirmed"]["count"] == len(BROKERS)
    assert judged["connections, messages confirmed"]["count"] == len(BROKERS) * len(PUBLISHERS)
    assert judged["keys, messages"] is None
    assert answer.measured["hot_keys"] == []
    assert "the busiest broker took" in render_text(answer.page)


def test_what_a_dead_broker_held_is_its_backlog_and_what_is_lost_stays(
    planted_run: Planted,
) -> None:
    answer = backlog.measure(planted_run.run)
    drains = answer.measured["drains"]
    oldest = max(row["age_ms"] for row in drains if row["broker"] == KILLED)
    assert 2_000 < oldest < 6_000
    not_emptied = [row for row in drains if row["empty_second"] is None]
    assert [row["subscription"] for row in not_emptied] == ["audit"]
    # The planted swap lets one message arrive before it was sent.
    back, left = answer.page.faults
    assert back == "1 message came before the sending: a clock went back"
    assert "audit: not empty at the end" in left
    assert "oldest" in render_html(answer.page)


def test_the_most_at_once_is_of_one_queue_and_names_its_subscription() -> None:
    rows = [
        {"broker": "127.0.0.11:5672", "topic": "packages", "subscription": name, "peak": peak}
        for name, peak in (("audit", 23), ("billing", 30))
    ]
    assert backlog._worst(rows) == (30, "packages/billing on 127.0.0.11:5672")
    assert backlog._worst([]) == (None, "")


def test_the_page_has_every_file_and_every_bad_line(planted_run: Planted) -> None:
    found = planted_run.run.ingested
    text = render_text(ingest._page([found], planted_run.run.lake))
    assert all(source in text for source in found.files)
    assert '{"run_id": "run-1", "message_id": "00' in text
    assert ingest._as_json([found])["run-1"]["bad"] == found.reasons()


def test_no_run_in_any_folder_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--events", str(tmp_path), "--out", str(tmp_path / "out")]
    assert exit_code(ingest.command, argv, prog_name="ingest") == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "no manifest.json" in captured.err


@pytest.fixture(scope="module")
def answer(planted_run: Planted) -> Answer:
    return audit.measure(planted_run.run)


def test_one_of_each_fault_is_found_with_its_id(planted_run: Planted, answer: Answer) -> None:
    found, ids = answer.measured, planted_run.truth.ids
    assert {(row["verdict"], row["message_id"]) for row in found["suspects"]} == {
        (verdict, ids[verdict][0]) for verdict in ("lost", "altered", "unexplained", "orphan")
    }
    assert [row["message_id"] for row in found["late"]] == ids["swapped"]
    assert found["order"]["out_of_order"] == 1
    text = render_text(answer.page)
    assert all(message_id in text for each in ids.values() for message_id in each)
    assert len(answer.page.faults) == 5


def test_every_id_has_one_verdict(planted_run: Planted, answer: Answer) -> None:
    events = [planted_run.run.events(kind) for kind in ("published", "delivered")]
    ids = {row.message_id for rows in events for row in rows.select("message_id").collect()}
    assert sum(answer.measured["verdicts"].values()) == len(ids)
    [orphan] = planted_run.truth.ids["orphan"]
    assert len(ids) == planted_run.truth.published + len([orphan])


def test_a_day_without_anything_says_so(planted_run: Planted) -> None:
    """It is the day after the run's: of that one nothing is counted."""
    answer = audit.measure(dataclasses.replace(planted_run.run, day="2026-09-22"))
    assert answer.page.faults == ("nothing was published",)
    assert not any(answer.measured["verdicts"].values())
    assert (answer.measured["late"], answer.measured["suspects"]) == ([], [])


def test_a_day_is_judged_with_its_neighbours(planted_run: Planted, answer: Answer) -> None:
    """The run lies in one day, so that day is the whole run."""
    found = audit.measure(dataclasses.replace(planted_run.run, day="2026-09-21")).measured
    for name in ("verdicts", "late", "suspects"):
        assert found[name] == answer.measured[name]


def test_spark_and_duckdb_agree_on_a_run_with_one_of_each(laid: Laid) -> None:
    planted = laid.planted
    found = audit.measure(laid.run).measured
    with opened(laid.run.lake.root) as database:
        assert differences(found, audit_by_duckdb(database)) == []
    assert {(row["verdict"], row["message_id"]) for row in found["suspects"]} == {
        ("lost", planted.lost),
        ("altered", planted.altered),
        ("unexplained", planted.doubled),
        ("orphan", planted.orphan),
    }
    assert [row["message_id"] for row in found["late"]] == [planted.late]


def test_spark_and_duckdb_agree_on_what_came_early_was_reused_or_was_refused(
    session: SparkSession, tmp_path: Path
) -> None:
    """Verdicts of docs/MEASURING.md on whole messages, beside one that is not early by a little."""
    generated_run.lay(tmp_path, 1_000)

    def change(kind: str, changes: dict[int, dict[str, Any]]) -> None:
        [path] = (tmp_path / kind).rglob("*.parquet/*.parquet")
        table = pq.ParquetFile(path).read()
        rows = table.to_pylist()
        for number, values in changes.items():
            rows[number] |= values
        pq.write_table(pa.Table.from_pylist(rows, table.schema), path)

    [path] = (tmp_path / "published").rglob("*.parquet/*.parquet")
    sent = pq.ParquetFile(path).read(["sent_ns", "message_id"]).to_pylist()
    second_ns = 1_000_000_000
    change(
        "delivered",
        {
            10: {"received_ns": sent[10]["sent_ns"] - second_ns - 1},
            20: {"received_ns": sent[20]["sent_ns"] - second_ns},
            30: {"received_ns": sent[30]["sent_ns"] - 2 * second_ns},
        },
    )
    change(
        "published",
        {
            30: {"attempts": 2, "intended_ns": sent[30]["sent_ns"] - 3 * second_ns},
            40: {"message_id": sent[41]["message_id"]},
            50: {"outcome": "refused", "confirmed_ns": None},
        },
    )
    lake = Lake(tmp_path)
    found = audit.measure(Run(session, lake, ingested(lake, generated_run.RUN_ID))).measured
    with opened(tmp_path) as database:
        assert differences(found, audit_by_duckdb(database)) == []
    verdicts = found["verdicts"]
    assert (verdicts["early"], verdicts["reused"], verdicts["refused_delivered"]) == (1, 1, 1)


def test_numbers_of_both_stand_in_one_row() -> None:
    a = [{"name": "lost", "unit": "", "value": 0.0}, {"name": "x p99", "unit": "ms", "value": 2.0}]
    b = [
        {"name": "x p99", "unit": "ms", "value": 3.0},
        {"name": "y p99", "unit": "ms", "value": 1.0},
    ]
    rows = compared(a, b)
    assert [(row.name, row.a, row.b) for row in rows] == [
        ("lost", 0.0, None),
        ("x p99", 2.0, 3.0),
        ("y p99", None, 1.0),
    ]
    assert [row.ratio for row in rows] == [None, 1.5, None]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (Row("lost", "", 0, 1), "lost: 1 after 0"),
        (Row("lost", "", 2, 2), None),
        (
            Row("confirmed a second, while messages were sent", "/s", 100, 79),
            "confirmed a second, while messages were sent: 21% less",
        ),
        (Row("confirmed a second, while messages were sent", "/s", 100, 81), None),
        # It waited for consumers behind its load.
        (Row("confirmed a second, over the whole run", "/s", 100, 50), None),
        (
            Row("confirm_from_intended p99", "ms", 10, 12.5),
            "confirm_from_intended p99: 1.25 times as long",
        ),
        (Row("confirm_from_intended p99", "ms", 10, 5), None),
        # One value, which chance decides.
        (Row("confirm_from_intended p100", "ms", 10, 50), None),
        (Row("messages confirmed", "", 100, 10), None),
        (Row("messages confirmed", "", 0, 0), "the second confirmed nothing"),
        (Row("unconfirmed", "", 0, 5), "unconfirmed: 5 after 0"),
        (Row("incomplete", "", 0, 1), "incomplete: 1 after 0"),
        (
            Row("confirm_from_intended p99", "ms", 10, None),
            "confirm_from_intended p99: the second has none",
        ),
        (Row("confirm_from_intended p99", "ms", None, 10), None),
    ],
)
def test_worse_is_more_faults_fewer_messages_or_longer_waits(row: Row, said: str | None) -> None:
    assert worse([row], 0.2) == ([said] if said else [])


def test_a_percentile_that_too_few_samples_support_is_not_missed() -> None:
    rows = [Row("x p50", "ms", 1, 1), Row("x p99.9", "ms", 9, None)]
    assert worse(rows, 0.2) == []


def test_rates_are_over_the_load_and_over_the_run_and_figures_over_what_clocks_bear() -> None:
    row = {"measure": "x", "total": 500, "p50": 2_000_000, "p99": 9_000_000}
    row |= {"p99_9": 9_500_000, "p100": 9_900_000}
    spans = {"load_s": 25, "span_s": 50}
    found = numbers([row], confirmed=500, **spans, faults={"late": 2}, errors={"x": 500_000})
    values = {each["name"]: each["value"] for each in found}
    assert values["confirmed a second, while messages were sent"] == 20
    assert values["confirmed a second, over the whole run"] == 10
    assert (values["late"], values["lost"]) == (2, 0)
    assert [values[f"x p{each}"] for each in ("50", "99", "99.9", "100")] == [None, 9, None, 9.9]
