"""From the files of a run to its numbers; the files are made up, so that every number is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader

from bench.analysis.report import render_text
from bench.analysis.result import gather, numbers_of, percentiles
from bench.errors import InputInvalid
from bench.harness.histograms import DIGITS, TOP_NS
from tests.support.results import CLOSED, PROFILE, result
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


def test_costs_are_per_message() -> None:
    found = numbers_of(result())
    assert found["client CPU us"] == pytest.approx(3000)
    assert found["broker CPU us"] == pytest.approx(1000)
    assert "delivery p99" not in found


def test_parts_of_a_closed_loop_count_for_the_time_that_each_took() -> None:
    both = [{"cpu_share": 0.5, "seconds": 10}, {"cpu_share": 0.5, "seconds": 20}]
    closed = result(profile=CLOSED, measured_s=10.0, clients=both)
    assert numbers_of(closed)["client CPU us"] == pytest.approx(15 / 1000 * 1e6)


@pytest.mark.parametrize("clients", [[], [{"cpu_share": 0.5, "seconds": 10}, {"cpu_share": 0.5}]])
def test_what_is_not_known_of_the_clients_is_left_out(clients: list[dict[str, float]]) -> None:
    assert "client CPU us" not in numbers_of(result(profile=CLOSED, clients=clients))


def test_the_cost_of_fewer_brokers_than_there_were_is_left_out() -> None:
    two = PROFILE | {"system": PROFILE["system"] | {"brokers": 2}}
    assert "broker CPU us" not in numbers_of(result(profile=two))


def test_a_rate_of_nothing_is_a_number_and_costs_of_nothing_are_none() -> None:
    assert numbers_of(result(rate=0, delivered_per_s=0.0, percentiles_ms={})) == {
        "confirmed a second": 0.0,
        "delivered a second": 0.0,
    }


def test_without_consumers_there_is_no_rate_of_deliveries() -> None:
    alone = PROFILE | {"load": PROFILE["load"] | {"consumers": 0}}
    assert "delivered a second" not in numbers_of(result(profile=alone, delivered_per_s=0.0))


def test_what_a_message_costs_brokers_is_not_told_of_a_short_run() -> None:
    assert "broker CPU us" not in numbers_of(result(profile=CLOSED, measured_s=9.9))
    assert "broker CPU us" in numbers_of(result(profile=CLOSED, measured_s=10.0))


def test_all_that_brokers_used_for_the_messages_of_a_closed_loop_counts() -> None:
    """Deliveries after the last confirm, too: it is not spread over the time that is measured."""
    brokers = {"mb1": {"cpu_s": 4.0, "seconds": 16.0, "messages_cpu_s": 4.0}}
    found = numbers_of(result(profile=CLOSED, measured_s=10.0, brokers=brokers))
    assert found["broker CPU us"] == pytest.approx(4.0 / 1000 * 1e6)
