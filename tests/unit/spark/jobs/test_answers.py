"""The answer of each job about one run with one of each fault, and its page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hdrh.histogram import HdrHistogram

from reports.page import render_html, render_text
from spark.command import exit_code
from spark.jobs import backlog, imbalance, ingest, latency, throughput
from spark.measures import hdr
from spark.measures.latency import CONFIRM, CURVE, END_TO_END, RECEIVED_SENT, SENT
from tests.support.events import BROKERS, KILLED, PUBLISHERS
from tests.unit.spark.conftest import Planted


def test_every_dimension_adds_up_to_the_whole(planted_run: Planted) -> None:
    answer = throughput.measure(planted_run.run)
    whole = {row["kind"]: row["messages"] for row in answer.found["whole"]}
    assert whole == {
        "confirmed": planted_run.truth.confirmed,
        "delivered": planted_run.truth.deliveries,
    }
    for dim in ("brokers", "topics", "subscriptions", "publishers"):
        for kind, messages in whole.items():
            rows = [row for row in answer.found[dim] if row["kind"] == kind]
            assert sum(row["messages"] for row in rows) == messages
    # One message was planted as lost, and no repeat hides it here.
    assert answer.found["missing_at_least"] == 1
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
    for row in answer.found["percentiles"]:
        if row["scope"] == "all" and row["measure"] in reference:
            expected = reference[row["measure"]]
            assert row["total"] == expected.get_total_count()
            for each in CURVE:
                assert row[hdr.name(each)] == expected.get_value_at_percentile(each)
    assert {
        name: text for name, text in answer.found["histograms"].items() if name in reference
    } == {name: each.encode().decode() for name, each in reference.items()}
    assert set(answer.found["histograms"]) == {CONFIRM, SENT, END_TO_END, RECEIVED_SENT}
    # The planted swap lets one message arrive before it was sent; one clock alone never goes back.
    assert set(answer.found["below_zero"]) <= {END_TO_END, RECEIVED_SENT}
    assert "sent to confirmed" in render_html(answer.page)


def test_brokers_and_connections_are_judged_and_no_key_is_no_hot_key(planted_run: Planted) -> None:
    answer = imbalance.measure(planted_run.run)
    judged = answer.found["judged"]
    assert judged["brokers, messages confirmed"]["count"] == len(BROKERS)
    assert judged["connections, messages confirmed"]["count"] == len(BROKERS) * len(PUBLISHERS)
    assert judged["keys, messages"] is None
    assert answer.found["hot_keys"] == []
    assert "the busiest broker took" in render_text(answer.page)


def test_what_a_dead_broker_held_is_its_backlog_and_what_is_lost_stays(
    planted_run: Planted,
) -> None:
    answer = backlog.measure(planted_run.run)
    drains = answer.found["drains"]
    oldest = max(row["age_ms"] for row in drains if row["broker"] == KILLED)
    assert 2_000 < oldest < 6_000
    not_emptied = [row for row in drains if row["empty_second"] is None]
    assert [row["subscription"] for row in not_emptied] == ["audit"]
    assert len(answer.page.faults) == 1
    assert "audit: not empty at the end" in answer.page.faults[0]
    assert "oldest" in render_html(answer.page)


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
