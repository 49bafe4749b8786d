"""From the files of a run to its numbers; the files are made up, so that every number is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader

from bench.errors import InputInvalid
from bench.harness.histograms import DIGITS, TOP_NS
from bench.run.report import render_text
from bench.run.result import gather, percentiles
from tests.support.runs import BROKERS, MEASURED_S, WARM_UP_S, write_run


def test_the_measured_part_alone_counts(tmp_path: Path) -> None:
    write_run(tmp_path, rate=200)
    result = gather(tmp_path)
    assert result.measured == range(WARM_UP_S, WARM_UP_S + MEASURED_S)
    assert result.per_s == 200
    assert sum(result.bins("confirm").values()) == 200 * MEASURED_S
    assert result.rates("confirm") == {
        broker: [100] * (WARM_UP_S + MEASURED_S) for broker in BROKERS
    }
    assert result.faults == []


def test_fates_are_of_all_messages(tmp_path: Path) -> None:
    write_run(tmp_path, rate=200, lost=3)
    result = gather(tmp_path)
    assert result.fates is not None
    assert result.fates.published == 200 * (WARM_UP_S + MEASURED_S)
    assert result.faults == ["3 confirmed and never delivered"]
    assert len(result.fates.examples["lost"]) == 3


def test_rates_are_of_when_confirms_came_and_a_system_that_falls_behind_is_told(
    tmp_path: Path,
) -> None:
    write_run(tmp_path, rate=200, behind_s=4.0)
    result = gather(tmp_path)
    assert sum(result.bins("confirm").values()) == 200 * MEASURED_S
    assert result.per_s < 160
    assert any("did not keep up" in fault for fault in result.faults)


def test_what_brokers_cost_is_per_message(tmp_path: Path) -> None:
    write_run(tmp_path, rate=200)
    found = gather(tmp_path).brokers[BROKERS[0]]
    assert found["confirmed"] == 100 * MEASURED_S
    assert found["cpu_us"] == pytest.approx(0.2 * MEASURED_S / (100 * MEASURED_S) * 1e6)


def test_a_run_that_was_cut_short_has_what_is_there_and_says_so(tmp_path: Path) -> None:
    write_run(tmp_path, complete=False)
    result = gather(tmp_path)
    assert result.faults[0].startswith("publisher-1 ended by itself")
    assert [part.name for part in result.parts] == ["consumer-0", "publisher-0"]
    assert result.fates is None
    assert "not judged" in render_text(result)


def test_results_are_json_and_logs_that_the_usual_tools_read(tmp_path: Path) -> None:
    write_run(tmp_path, rate=200)
    result = gather(tmp_path)
    result.save()
    found = json.loads((tmp_path / "result.json").read_text())
    assert found["confirmed_per_s"] == 200
    assert {each["seconds"] for each in found["clients"]} == {MEASURED_S}
    assert found["percentiles_ms"]["confirm"]["samples"] == 200 * MEASURED_S
    log = HistogramLogReader(str(tmp_path / "confirm.hlog"), HdrHistogram(1, TOP_NS, DIGITS))
    whole = HdrHistogram(1, TOP_NS, DIGITS)
    while (interval := log.get_next_interval_histogram()) is not None:
        whole.add(interval)
    log.close()
    assert whole.get_total_count() == 200 * (WARM_UP_S + MEASURED_S)


def test_percentiles_go_as_far_as_the_count_supports_them() -> None:
    assert "p99" in percentiles({5: 100})
    assert "p99.9" not in percentiles({5: 100})
    assert percentiles({}) == {}


@pytest.mark.parametrize("text", [None, "{", "[]", "{}", '{"faults": []}'])
def test_a_folder_that_is_no_run_is_one_line(tmp_path: Path, text: str | None) -> None:
    if text:
        write_run(tmp_path)
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(InputInvalid, match="not the folder of a run"):
        gather(tmp_path)


def test_a_profile_that_is_none_is_one_line(tmp_path: Path) -> None:
    write_run(tmp_path)
    (tmp_path / "profile.json").write_text("[]")
    with pytest.raises(InputInvalid, match=r"profile\.json: a table wanted"):
        gather(tmp_path)


def test_a_part_that_is_spoilt_is_a_fault_and_the_others_are_reported(tmp_path: Path) -> None:
    write_run(tmp_path)
    (tmp_path / "parts" / "publisher-0.parquet").write_bytes(b"")
    result = gather(tmp_path)
    assert result.faults[0].startswith("publisher-0: not readable: publisher-0.parquet: ")
    assert [part.name for part in result.parts] == ["consumer-0", "publisher-1"]
    assert not result.about["complete"]


@pytest.mark.parametrize("name", ["brokers.parquet", "machine.parquet"])
def test_samples_that_are_spoilt_are_a_fault(tmp_path: Path, name: str) -> None:
    write_run(tmp_path)
    (tmp_path / name).write_bytes(b"")
    result = gather(tmp_path)
    assert result.about["faults"][0].startswith(f"{name}: not readable: ")
    assert result.about["complete"]
