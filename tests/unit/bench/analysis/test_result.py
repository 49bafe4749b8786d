"""From the files of a run to its numbers, verdicts and pages; all files are made up, each number is known."""

from __future__ import annotations

import dataclasses
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader

from bench.analysis import foreign_load
from bench.analysis.foreign_load import conduct_outside, render_outside
from bench.analysis.report import latency_series, render_html, render_text, write
from bench.analysis.result import gather, numbers_of, percentiles
from bench.analysis.verdict import Client, behind, bottlenecks, is_of_load, unsteady
from bench.errors import BenchError, InputInvalid
from bench.harness.coordinator import MACHINE, SAMPLES
from bench.harness.histograms import DIGITS, TOP_NS
from bench.harness.interface import Outside
from bench.harness.sampling import Busy, Sample, Usage, save
from bench.load.schedule import Poisson
from reports.text import NONE
from tests.support.results import CLOSED, PROFILE, profile_with, result
from tests.support.runs import BROKERS, MEASURED_S, WARM_UP_S, Nothing, write_run


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


GOOD = Client("publisher-0", cpu_share=0.4, pacing_p99_ms=1.2, intended=1000)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, None),
        ({"cpu_share": 0.95}, "used 95% of a core: the client was the bottleneck"),
        ({"pacing_p99_ms": 30.0}, "30.0 ms late or more: its pacer was the bottleneck"),
        ({"unsent": 5}, None),
        ({"unsent": 500}, "sent 500 of 1,000 intended messages: too slow"),
        ({"unsent": 500, "waited": 0.3}, "held back by its window"),
    ],
)
def test_a_load_that_was_too_slow_says_so(changed: dict[str, float], said: str | None) -> None:
    found = bottlenecks([dataclasses.replace(GOOD, **changed)])  # type: ignore[arg-type]
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


def test_many_with_one_fault_are_one_line_with_the_worst() -> None:
    slow = [
        dataclasses.replace(GOOD, name=f"publisher-{number}", pacing_p99_ms=10.0 + number)
        for number in range(25)
    ]
    (found,) = bottlenecks([*slow, GOOD])
    assert found.startswith("publisher-24 handled 1 % of its messages 34.0 ms late or more")
    assert found.endswith("(the worst of 25 clients)")
    assert len(bottlenecks(slow[:3])) == 3


@pytest.mark.parametrize(
    ("rates", "said"),
    [
        ([1000] * 30, None),
        ([1000, 1040, 960, 1000, 1000, 980, 1020], None),
        ([100] * 10 + [0] * 8 + [100] * 12, "from measured second 7 on"),
        ([100] * 20 + [0] * 9, "no steady state"),
        ([200, 400, 600, 800, 1000, 1000, 1000, 1000, 1000], "from measured second 0 on"),
        ([0] * 9, None),
        ([5, 100, 0, 7], None),
    ],
)
def test_a_load_is_steady_when_it_stays_so_to_the_end(rates: list[float], said: str | None) -> None:
    found = unsteady(rates)
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


@pytest.mark.parametrize(
    ("confirmed", "delivered", "said"),
    [
        (3000, 3000, []),
        (2980, 2960, []),
        (1500, 1500, ["did not keep up: 1,500 confirmed of 3,000 intended meanwhile"]),
        (3000, 900, ["consumers did not keep up: 900 delivered of 3,000 meanwhile"]),
    ],
)
def test_what_did_not_keep_up_is_told(confirmed: int, delivered: int, said: list[str]) -> None:
    assert behind(3000, confirmed, confirmed, delivered, 30.0) == said


def test_what_is_under_way_at_the_end_of_a_short_run_is_not_behind() -> None:
    assert behind(200, 160, 160, 130, 2.0) == []


THEIRS = profile_with(rate=100, time={"measured_s": 10})


def test_what_it_said_and_what_it_does_not_measure_are_in_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = Outside(confirmed_per_s=99.0, client_cpu_s=0.5, lacks=["fates"])
    monkeypatch.setattr(foreign_load, "measure_outside", lambda *_: said)
    found = conduct_outside(THEIRS, tmp_path / "run", Nothing(), print)
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == json.loads(
        json.dumps(found)
    )
    assert found["complete"]
    assert found["outside"]
    assert found["system"] == {"version": "1"}
    assert numbers_of(found)["client CPU us"] == pytest.approx(0.5 / 990 * 1e6)
    assert "not measured: fates" in render_outside(found)


def test_one_that_fails_leaves_a_folder_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Outside:
        raise BenchError("no java")

    monkeypatch.setattr(foreign_load, "measure_outside", fail)
    with pytest.raises(BenchError, match="no java"):
        conduct_outside(THEIRS, tmp_path / "run", Nothing(), print)
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert not about["complete"]
    assert about["faults"]


class Tags(HTMLParser):
    """Parser that raises for tags that are not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


KILL = {"at_s": 5, "what": "kill", "broker": 1, "lasts_s": 2}


def words(svg: str) -> set[str | None]:
    return {text.text for text in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")}


@pytest.mark.usefixtures("drawn")
def test_the_page_and_its_charts_are_well_formed_and_need_nothing_beside_them(
    tmp_path: Path,
) -> None:
    write_run(tmp_path, disturbances=[KILL])
    result = gather(tmp_path)
    write(result)
    assert (tmp_path / "report.txt").read_text() == render_text(result) + "\n"
    html = (tmp_path / "report.html").read_text()
    assert not re.search(r"(?:src|href)=\"(?!#)|@import|url\((?!#)", html)
    tags = Tags()
    tags.feed(html)
    assert tags.open == []
    assert all(broker in html for broker in BROKERS)
    by_percentile, over_time = map(words, re.findall(r"<svg.*?</svg>", html, re.DOTALL))
    assert by_percentile > {"publish, from intended", "publish, from sent", "end to end", "pacing"}
    assert over_time > {*BROKERS, "confirm, p99", "delivery, p50", "kill", "kill over"}
    assert "waiting" in " ".join(filter(None, over_time))


def test_what_has_no_samples_is_no_line(tmp_path: Path) -> None:
    write_run(tmp_path, outage=range(12))
    result = gather(tmp_path)
    assert latency_series(result) == []
    assert render_html(result)


def test_the_text_has_verdict_latencies_fates_and_costs(tmp_path: Path) -> None:
    write_run(tmp_path)
    text = render_text(gather(tmp_path))
    assert text.startswith(
        "made-up, messagebus: 200 confirmed a second, 200 delivered a second, p99 "
    )
    for word in (
        "intended to confirmed",
        "sent to confirmed",
        "lost",
        "CPU us / message",
        "pacing",
    ):
        assert word in text


def test_brokers_that_nobody_looked_at_meanwhile_have_dashes_and_a_line_that_says_so(
    tmp_path: Path,
) -> None:
    write_run(tmp_path)
    rows = [Sample(each, at, at, 100.0, 0, 0, 3) for each in BROKERS for at in (-5.0, 20.0)]
    save(tmp_path / SAMPLES, rows)
    result = gather(tmp_path)
    write(result)
    for said in (render_text(result), (tmp_path / "report.html").read_text()):
        assert re.search(rf"(?i)not looked at while it was measured: {', '.join(BROKERS)}", said)
    for each in result.brokers.values():
        assert (each["memory_mib"], each["messages_cpu_s"], each["cpu_us"]) == (None, None, None)
    assert "broker CPU us" not in numbers_of(result.as_json())


def row_of(text: str, name: str) -> list[str]:
    """Return the cells of the table's row that begins with the name."""
    (line,) = [each for each in text.splitlines() if each.strip().startswith(f"{name} ")]
    return line.removeprefix(f"  {name}").split()


DIED = "127.0.0.13:5672"


def test_a_broker_that_died_and_got_nothing_keeps_its_row_and_the_sums_are_unknown(
    tmp_path: Path,
) -> None:
    write_run(tmp_path, idle=[DIED])
    text = render_text(gather(tmp_path))
    assert row_of(text, DIED) == ["0", *[NONE] * 6]
    assert row_of(text, "all") == ["2,000", *[NONE] * 6]
    assert row_of(text, BROKERS[0])[2] == "0.20"


def test_brokers_that_got_nothing_are_named_with_the_number_of_publishers(tmp_path: Path) -> None:
    write_run(tmp_path / "one", idle=[DIED])
    write_run(tmp_path / "none")
    one, none = (render_text(gather(tmp_path / each)) for each in ("one", "none"))
    assert f"1 of 3 brokers got nothing: {DIED}. The load had 2 publishers" in " ".join(one.split())
    assert "got nothing" not in none


def test_the_time_that_a_killed_broker_takes_to_start_has_a_column_of_its_own(
    tmp_path: Path,
) -> None:
    write_run(tmp_path, disturbances=[KILL | {"starts_s": 3.5}])
    text = render_text(gather(tmp_path))
    assert "from     to  back at" in text
    assert row_of(text, "kill")[:6] == ["5.0", "s", "7.0", "s", "10.5", "s"]


def test_a_load_that_was_late_names_what_all_else_used_of_the_machine(tmp_path: Path) -> None:
    usage = Usage(cores=2, busy=2.0, brokers=0.2, clients=0.2, stolen=0.0, load_max=30.0)
    late = dataclasses.replace(GOOD, pacing_p99_ms=60.8)
    (fault,) = bottlenecks([late], usage.others)
    assert fault.endswith("its pacer was the bottleneck; other processes used 1.60 of 2 cores")
    assert is_of_load(fault)
    write_run(tmp_path)
    save(tmp_path / MACHINE, [Busy(at, 1.9 * at, 0.0, 30.0) for at in (0.0, 14.0)])
    result = gather(tmp_path)
    result.clients = [late]
    assert re.search(r"bottleneck; other processes used 1\.\d\d of 2 cores", result.faults[0])


def test_load_on_other_hosts_is_no_use_of_this_machine_nor_delayed_by_it(tmp_path: Path) -> None:
    write_run(tmp_path)
    save(tmp_path / MACHINE, [Busy(at, 1.9 * at, 0.0, 30.0) for at in (0.0, 14.0)])
    result = gather(tmp_path)
    result.clients = [dataclasses.replace(GOOD, cpu_share=1.5, pacing_p99_ms=60.8, per_process=0)]
    assert "load 1.50" in render_text(result)
    result.about["environment"]["load_hosts"] = ["a.example: publisher-0"]
    machine = result.machine
    assert machine is not None
    assert machine.rest == pytest.approx(machine.busy - machine.brokers)
    assert "load on other hosts" in render_text(result)
    assert result.faults[0].endswith("its pacer was the bottleneck")


def test_a_load_by_chance_says_the_rate_that_was_intended(tmp_path: Path) -> None:
    write_run(tmp_path)
    result = gather(tmp_path)
    assert "Poisson" not in render_text(result)
    load = dataclasses.replace(result.profile.load, schedule=Poisson(rate_per_s=210.0))
    result.profile = dataclasses.replace(result.profile, load=load)
    text = " ".join(render_text(result).split())
    assert "intended: 200/s (Poisson, 210/s on average); " in text


def test_other_hosts_of_the_load_are_named_with_their_clocks(tmp_path: Path) -> None:
    write_run(tmp_path)
    result = gather(tmp_path)
    assert "load from" not in render_text(result)
    result.about["environment"]["load_hosts"] = ["a.example: publisher-0; its clock +1 ms", "b"]
    text = render_text(result)
    assert "  load from a.example: publisher-0; its clock +1 ms\n" in text
    assert "  load from b\n" in text


def test_what_is_not_to_be_trusted_says_so_first(tmp_path: Path) -> None:
    write_run(tmp_path, lost=1)
    lines = render_text(gather(tmp_path)).splitlines()
    assert lines[0].endswith("not to be trusted as it stands.")
    assert lines[1] == "  ! 1 confirmed and never delivered"
