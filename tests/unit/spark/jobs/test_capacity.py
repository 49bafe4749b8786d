"""Capacity and failover, measured by jobs."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from bench.analysis.verdict import Client, behind, bottlenecks
from bench.commands import profile_of
from bench.workloads.tables import capacity_steps
from messagebus.recording.manifest import RunInvalid
from reports.page import render_text
from reports.text import milliseconds
from spark.jobs import failover
from spark.jobs.capacity import command, read_runs
from spark.lake.ingest import ingest
from spark.lake.ingest import plan as ingest_plan
from spark.lake.tables import Lake
from spark.measures import gaps
from spark.measures.capacity import Load, Measured, at_ends, error_of, fitted, unseen
from spark.measures.run import Run
from tests.support.events import (
    BROKERS,
    KILLED,
    MILLISECOND,
    MONOTONIC_START_NS,
    PUBLISHERS,
    SECOND,
    TOPIC,
    Row,
    anchor,
    write_rows,
)
from tests.unit.spark.conftest import Planted

MEASURING = Path(__file__).resolve().parents[4] / "docs" / "MEASURING.md"
COSTS = (0.05, 60.0, 25.0, 4.0, 6.0, 300.0)


def cost_us(load: Load) -> float:
    return sum(cost * part for cost, part in zip(COSTS, load.parts, strict=True))


def result(profile: dict[str, Any], factor: float = 1.0) -> dict[str, Any]:
    """Make the result of a run of the grid, as the bench writes it. The machine decides on the syncs."""
    messages, rate = profile["messages"], profile["load"]["schedule"]["rate_per_s"]
    load = Load(
        rate_per_s=rate,
        size=messages["size"],
        fan_out=messages["subscriptions"],
        syncs=(messages["size"] * 7 + rate) % 11 / 10,
    )
    confirmed = rate * 10
    broker = {
        "syncs": load.syncs * confirmed,
        "messages_cpu_s": cost_us(load) * factor * confirmed / 1e6,
        "written_bytes": confirmed * (messages["size"] * messages["subscriptions"] + 1_000),
    }
    return {
        "profile": profile,
        "complete": True,
        "faults": [],
        "confirmed_per_s": float(rate),
        "measured_s": 10.0,
        "brokers": {"mb1:5672": broker},
    }


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Return a folder with the whole grid, of which one run is a tenth dearer than the others say."""
    folder = tmp_path / "runs"
    for number, step in enumerate(capacity_steps(profile_of("capacity"))):
        (folder / step.name).mkdir(parents=True)
        made = result(step.profile.as_json(), 1.1 if number == 5 else 1.0)
        (folder / step.name / "result.json").write_text(json.dumps(made))
    return folder


def plan(runs: Path, out: Path, *words: str) -> tuple[int, str]:
    done = CliRunner().invoke(
        command,
        ["--runs", str(runs), "--out", str(out), *words],
        standalone_mode=False,
    )
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return int(done.return_value or 0), done.output


def test_the_costs_that_runs_were_made_with_are_found_and_predict_each_run(runs: Path) -> None:
    grid = read_runs([runs])
    assert not grid.left
    found = grid.runs
    pages = [run for run in found if run.durability == "page-cache"]
    assert fitted(pages).costs == pytest.approx(COSTS)
    assert max(error_of(*each) for each in unseen(pages)) < 1e-6
    assert {name: rate for name, (rate, _) in at_ends(unseen(pages)).items()} == {
        "lowest": 100,
        "highest": 1_000,
    }
    synced = [run for run in found if run.durability == "fsync"]
    assert 0.05 < max(error_of(*each) for each in unseen(synced)) < 0.15


def test_a_cost_that_grows_with_the_rate_is_an_error_at_the_highest_rate() -> None:
    """A broker whose messages cost twice as much at ten times the rate: no run alone shows it."""
    runs = [
        Measured(name="", durability="", load=load, cpu_us=cost_us(load), written_bytes=0)
        for rate in (100, 300, 500)
        for size, fan_out in ((100, 1), (1_000, 2), (8_000, 3), (16_000, 4))
        for load in [
            Load(rate_per_s=rate, size=size, fan_out=fan_out, syncs=fan_out * size % 7 / 10)
        ]
    ]
    rate, error = at_ends(unseen(runs))["highest"]
    assert rate == 500
    assert error == pytest.approx(0, abs=1e-6)
    dear = [
        dataclasses.replace(
            run, load=dataclasses.replace(run.load, rate_per_s=1_000), cpu_us=2 * run.cpu_us
        )
        for run in runs[:4]
    ]
    rate, error = at_ends(unseen([*runs, *dear]))["highest"]
    assert rate == 1_000
    assert error > 0.4
    with pytest.raises(RunInvalid, match="all runs are at 1,000/s: add others"):
        unseen(dear)


def test_the_documented_example_holds(runs: Path, tmp_path: Path) -> None:
    [line] = re.findall(r"^python -m spark capacity (.*)$", MEASURING.read_text(), re.MULTILINE)
    words = shlex.split(line)
    kept = [each for each in words if each not in ("--runs", "out/capacity", "--out", "out/plan")]
    code, text = plan(runs, tmp_path / "out", *kept, "--syncs", "100")
    assert code == 0, text
    assert "at the highest rate, 1,000/s" in text


def test_a_cost_is_never_below_nothing() -> None:
    loads = [
        Load(rate_per_s=rate, size=size, fan_out=fan_out, syncs=0.1)
        for rate, size, fan_out in [(100, 10, 1), (200, 5_000, 2), (300, 100, 3), (50, 9_000, 4)]
    ]
    runs = [
        Measured(name="", durability="", load=each, cpu_us=50 - number, written_bytes=0)
        for number, each in enumerate([*loads, *loads])
    ]
    assert all(cost >= 0 for cost in fitted(runs).costs)


def test_twice_the_brokers_are_needed_for_twice_the_rate_and_a_spare_one_is_added(
    runs: Path, tmp_path: Path
) -> None:
    asked = ("--size", "2000", "--fan-out", "3", "--durability", "page-cache", "--cores", "0.3")
    code, text = plan(runs, tmp_path / "out", "--rate", "3000", "--syncs", "100", *asked)
    assert code == 0, text
    found = json.loads((tmp_path / "out" / "capacity.json").read_text())
    # 3,000 messages of 60 + 3 * 25 + 2 * 4 + 6 * 6 us, on 0.3 cores of which 0.18 are used, less 0.05 at
    # rest and 0.03 for 100 syncs of 300 us.
    assert found["brokers"] == 6 + 1
    assert found["busy"] <= 0.6
    brokers = {each["load"]: each["brokers"] for each in found["variants"]}
    assert brokers["twice the rate"] == 11 + 1
    assert brokers["as asked"] == found["brokers"]
    assert "capacity" in (tmp_path / "out" / "capacity.html").read_text()
    assert "off on average" in text
    page = (tmp_path / "out" / "capacity.html").read_text()
    assert "when 1 of 7 brokers is away; " in page
    assert "syncs a message" in page
    code, text = plan(
        runs, tmp_path / "all", "--rate", "3000", "--syncs", "100", "--spare", "0", *asked
    )
    assert "of 6 brokers; " in (tmp_path / "all" / "capacity.html").read_text()


def test_a_load_beyond_all_runs_is_a_fault_and_so_is_a_model_that_does_not_carry(
    runs: Path, tmp_path: Path
) -> None:
    code, text = plan(runs, tmp_path / "a", "--rate", "10", "--size", "1000000")
    assert code == 7
    assert "1,000,000 bytes: measured were 100 to 16,000 only" in text
    code, text = plan(runs, tmp_path / "b", "--rate", "10", "--error-max", "0.001")
    assert code == 7
    assert "do not carry a model" in text
    sizes: dict[float, set[float]] = {}
    for run in read_runs([runs]).of("fsync").runs:
        sizes.setdefault(run.load.rate_per_s, set()).add(run.load.size)
    single = [f"{rate:,.0f}/s" for rate in sorted(sizes) if len(sizes[rate]) == 1]
    assert (
        "its numbers are not to be used; add runs of a second size at "
        f"{', '.join(single)}, and above {max(sizes):,.0f}/s" in text
    )
    figures = [line for line in text.splitlines() if "(not to be used: " in line]
    assert [line.strip().split("  ")[1].split(" (")[0] for line in figures] == [
        "brokers needed",
        "of a broker's cores are busy",
        "CPU of a message",
        "written by each broker",
    ]


def test_a_mean_of_subscriptions_is_printed_as_it_is_with_the_runs_that_are_missing(
    runs: Path, tmp_path: Path
) -> None:
    code, text = plan(runs, tmp_path / "a", "--rate", "10", "--fan-out", "4.5")
    assert code == 7
    assert "! 4.5 subscriptions: measured were 1 to 4 only; add runs of 5 subscriptions" in text


def test_the_number_of_brokers_that_the_runs_bear_out_names_its_bound(
    runs: Path, tmp_path: Path
) -> None:
    """Four times 6,000/s are 24,000 deliveries a second."""
    loads = [run.load for run in read_runs([runs]).of("page-cache").runs]
    delivered_most = max(load.rate_per_s * load.fan_out for load in loads)
    asked = ("--fan-out", "4", "--durability", "page-cache", "--cores", "100", "--spare", "0")
    code, text = plan(runs, tmp_path / "a", "--rate", "6000", "--syncs", "0", *asked)
    assert code == 7
    words = " ".join(text.split())
    [count, bound, most] = re.findall(
        r"With ([\d,]+), each broker .* shown\. With one fewer, each broker would deliver ([\d,]+)/s: "
        r"measured were up to ([\d,]+)/s only, in the run page-cache-",
        words,
    )[0]
    assert float(most.replace(",", "")) == delivered_most
    assert 24_000 / int(count) <= delivered_most < 24_000 / (int(count) - 1)
    assert float(bound.replace(",", "")) == pytest.approx(24_000 / (int(count) - 1), abs=1)


def test_what_a_broker_writes_is_explained_by_the_copies_in_its_queues(
    runs: Path, tmp_path: Path
) -> None:
    """The runs were made to write the copies' bytes and 1,000 more: 9,000 of 2,000 x 4 are 1.1 times."""
    asked = ("--rate", "100", "--size", "2000", "--fan-out", "4", "--spare", "1")
    _, text = plan(runs, tmp_path / "a", *asked)
    assert (
        "MB/s  written by each broker (when 1 of 2 brokers is away; 1.1 x the bytes of the" in text
    )
    found = json.loads((tmp_path / "a" / "capacity.json").read_text())
    assert found["written_mb_per_s"] == pytest.approx(100 * 9_000 / 1e6)


def test_more_of_a_broker_than_was_ever_measured_is_a_fault_and_a_queue_has_one_core(
    runs: Path, tmp_path: Path
) -> None:
    """At 50 times the rate of any run, on as many cores as a broker could have."""
    asked = ("--size", "1000", "--durability", "page-cache", "--cores", "1000", "--syncs", "0")
    code, text = plan(runs, tmp_path / "out", "--rate", "50000", "--spare", "0", *asked)
    assert code == 7
    assert "measured were up to 1,000/s only" in text
    found = json.loads((tmp_path / "out" / "capacity.json").read_text())
    # 60 + 25 + 4 + 6 us of a message in its only queue: 4.75 cores, of which one gives 0.6.
    assert found["brokers"] == 8
    assert found["queue_cores"] == pytest.approx(50_000 / 8 * 95e-6)
    code, text = plan(runs, tmp_path / "in", "--rate", "500", *asked)
    assert code == 0, text


def test_the_first_line_says_whether_cores_or_a_queue_limit_the_answer(
    runs: Path, tmp_path: Path
) -> None:
    asked = ("--size", "1000", "--durability", "page-cache", "--syncs", "0", "--spare", "0")
    # 60 + 25 + 4 + 6 us of a message in its only queue: eight brokers, however many cores each has.
    for cores in ("2", "16"):
        _, text = plan(runs, tmp_path / cores, "--rate", "50000", "--cores", cores, *asked)
        line = text.splitlines()[0]
        assert "8 brokers" in line
        assert "Limited by one queue (59% of the one core that it can use, of 60% allowed)" in line
        assert "more cores do not help" in line
    _, text = plan(runs, tmp_path / "few", "--rate", "3000", "--cores", "0.3", *asked)
    assert "Limited by cores (" in text.splitlines()[0]
    _, text = plan(runs, tmp_path / "one", "--rate", "500", "--cores", "4", *asked)
    assert "1 broker. On runs" in text
    assert "Limited" not in text


def test_no_load_that_grows_needs_fewer_brokers(runs: Path, tmp_path: Path) -> None:
    asked = ("--durability", "page-cache", "--cores", "8", "--size", "1000", "--syncs", "0")
    needed = []
    for fan_out in ("1", "2", "3"):
        plan(runs, tmp_path / fan_out, "--rate", "50000", "--fan-out", fan_out, *asked)
        found = json.loads((tmp_path / fan_out / "capacity.json").read_text())
        needed.append(found["brokers"])
    assert needed == sorted(needed)


def test_what_says_nothing_of_a_message_is_left_out_by_name_and_too_few_runs_are_refused(
    runs: Path, tmp_path: Path
) -> None:
    path = runs / "fsync-100-x1-1000" / "result.json"
    made = json.loads(path.read_text())
    made["profile"]["disturbances"] = [{"what": "kill"}]
    path.write_text(json.dumps(made))
    grid = read_runs([runs])
    assert grid.left == {"fsync-100-x1-1000": "with disturbances"}
    assert len(grid.runs) == 2 * 13 - 1
    code, text = plan(runs, tmp_path / "a", "--rate", "10", "--durability", "none")
    assert code != 0
    assert (
        "0 runs with durability none: 7 at least are required, so 7 more; there are runs of: fsync"
        in text
    )
    assert "Left out, with disturbances: fsync-100-x1-1000" in text
    path.write_text("[]")
    code, text = plan(runs, tmp_path / "b", "--rate", "10")
    assert code != 0
    assert "not the result of a run" in text
    assert "Traceback" not in text
    (tmp_path / "empty").mkdir()
    code, text = plan(tmp_path / "empty", tmp_path / "c", "--rate", "10")
    assert "no run of the bench in it" in text


def changed(runs: Path, name: str, **values: Any) -> None:
    path = runs / name / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_run_that_did_not_keep_up_is_a_bound_and_shows_neither_cost_nor_capacity(
    runs: Path, tmp_path: Path
) -> None:
    asked = ("--size", "1000", "--durability", "fsync", "--spare", "0")
    code, text = plan(runs, tmp_path / "before", "--rate", "900", *asked)
    assert code == 0, text
    # 1,000/s were sent; the consumers had less.
    late = behind(15_000, 12_000, 12_000, 9_000, 15.0)
    assert len(late) == 2
    changed(runs, "fsync-1000-x1-1000", faults=late, confirmed_per_s=800.0)
    grid = read_runs([runs])
    assert len(grid.runs) == 2 * 13 - 1
    assert [run.name for run in grid.bounds] == ["fsync-1000-x1-1000"]
    code, text = plan(runs, tmp_path / "after", "--rate", "900", *asked)
    assert code == 7
    assert "in the run fsync-1000-x1-1000 consumers did not keep up with 800/s of 1,000 B" in text
    # A broker that gets less is within all that was measured.
    assert "With 2, each broker would get no more than a run has shown." in text
    assert "Left out, consumers did not keep up: fsync-1000-x1-1000." in " ".join(text.split())
    # Of another durability it bounds nothing.
    _, text = plan(runs, tmp_path / "cache", "--rate", "900", "--durability", "page-cache")
    assert "Left out" not in text
    code, text = plan(runs, tmp_path / "less", "--rate", "700", *asked)
    assert code == 0, text
    changed(runs, "fsync-1000-x1-1000", faults=late[:1])
    assert read_runs([runs]).bounds[0].limit == "the broker did not keep up"


def test_a_load_that_was_late_itself_bounds_no_broker(runs: Path) -> None:
    client = Client("publisher-1", cpu_share=0.97, pacing_p99_ms=30.0, intended=15_000)
    assert bottlenecks([client])
    late = [*bottlenecks([client]), *behind(15_000, 12_000, 12_000, 9_000, 15.0)]
    changed(runs, "fsync-1000-x1-1000", faults=late[:-1])
    grid = read_runs([runs])
    assert not grid.bounds
    assert not grid.left
    _, text = plan(runs, runs.parent / "out", "--rate", "500", "--size", "1000")
    told = "1 of 13 runs failed the verdict of bench, for example because the load was late."
    assert told in " ".join(text.split())
    # Without their deliveries messages cost less than they do.
    changed(runs, "fsync-1000-x1-1000", faults=late)
    grid = read_runs([runs])
    assert not grid.bounds
    assert "deliveries are missing" in grid.left["fsync-1000-x1-1000"]


def test_more_of_a_brokers_cores_than_any_run_used_is_a_fault(runs: Path, tmp_path: Path) -> None:
    """Rate, size and subscriptions are each within the runs; no run had them together."""
    asked = ("--rate", "950", "--size", "16000", "--fan-out", "4", "--durability", "page-cache")
    code, text = plan(runs, tmp_path / "out", "--cores", "32", "--spare", "0", *asked)
    assert code == 7
    found = json.loads((tmp_path / "out" / "capacity.json").read_text())
    assert found["brokers"] == 1
    assert re.search(
        r"would use [\d.]+ cores: of no run does the model predict more than [\d.]+", text
    )
    [more] = re.findall(r"With (\d+), each broker would get no more than a run has shown", text)
    assert found["brokers_within_runs"] == int(more) > 1
    assert text.startswith(
        "capacity, 950/s of 16,000 B to 4 subscriptions, page-cache: By the model 1 broker, which"
    )


def test_a_variant_beyond_the_runs_says_so(runs: Path, tmp_path: Path) -> None:
    asked = ("--size", "9000", "--fan-out", "4", "--durability", "page-cache")
    code, text = plan(runs, tmp_path / "out", "--rate", "50", "--syncs", "100", *asked)
    assert code == 0, text
    variants = json.loads((tmp_path / "out" / "capacity.json").read_text())["variants"]
    beyond = {each["load"]: each["beyond"] for each in variants}
    assert beyond["as asked"] == []
    assert beyond["twice the size"] == ["bytes"]
    assert beyond["one subscription more"] == ["subscriptions"]


def test_a_variant_that_no_number_of_brokers_can_take_leaves_the_answer(
    runs: Path, tmp_path: Path
) -> None:
    asked = ("--size", "1000", "--durability", "page-cache", "--cores", "0.15")
    code, text = plan(runs, tmp_path / "out", "--rate", "25000000", "--syncs", "0", *asked)
    assert code == 0, text
    variants = json.loads((tmp_path / "out" / "capacity.json").read_text())["variants"]
    [twice] = [each for each in variants if each["load"] == "twice the rate"]
    assert twice["brokers"] is None
    assert twice["beyond"] == ["no number of brokers is enough"]


def test_runs_that_say_nothing_are_named_by_their_reason(runs: Path, tmp_path: Path) -> None:
    names = sorted(each.name for each in runs.iterdir())
    for name in names:
        changed(runs, name, measured_s=4.0)
    code, text = plan(runs, tmp_path / "out", "--rate", "10")
    assert code != 0
    assert "0 runs with durability fsync: 7 at least are required, so 7 more. Left out" in text
    [line] = text.splitlines()
    assert line.endswith(
        f"Left out, measured for less than 10 s: {', '.join(names[:3])} and 23 more"
    )


FROZEN, HEALTHY = BROKERS[:2]
FROZEN_AT_NS = MONOTONIC_START_NS + 4 * SECOND
THAWED_AT_NS = FROZEN_AT_NS + 3 * SECOND


def test_the_silence_around_a_kill_is_found_per_publisher_and_broker(planted_run: Planted) -> None:
    answer = failover.measure(planted_run.run)
    kinds = [one["kind"] for one in answer.measured["incidents"]]
    assert kinds == ["add", "remove", "kill", "start", "reload"]
    killed = kinds.index("kill")
    held_back = {
        row["publisher"]: row["gap_ms"]
        for row in answer.measured["publishers"]
        if row["number"] == killed
    }
    assert set(held_back) == set(PUBLISHERS)
    # All were held back for 300 ms.
    assert all(250 < gap < 400 for gap in held_back.values())
    down = [
        row["gap_ms"]
        for row in answer.measured["brokers"]
        if row["number"] == killed and row["broker"] == KILLED
    ]
    assert down
    assert all(2_900 < gap < 3_500 for gap in down)
    text = render_text(answer.page)
    assert f"kill {KILLED}" in text
    expected = costs_by_hand(planted_run)
    assert {
        row["publisher"]: _numbers(row) for row in answer.measured["met"] if row["number"] == killed
    } == expected
    its = [name for name, (connected, *_) in expected.items() if connected]
    longest_ms = max(held_back[name] for name in its)
    [told] = [line for line in answer.page.meta if line.startswith(f"kill {KILLED} at ")]
    assert f"to whom it had confirmed, had no confirm for up to {milliseconds(longest_ms)}" in told
    assert f"({milliseconds(max(expected[name][2] for name in its))} in the 5 s before)" in told
    [kill, back] = [one for one in answer.measured["incidents"] if one["broker"] == KILLED]
    assert f"It was down from {kill['at_s']:,.1f} s to {back['at_s']:,.1f} s." in told
    # The first number is that of an incident.
    of_incident = milliseconds(answer.measured["publishers"][0]["gap_ms"])
    assert answer.page.verdict.startswith(f"No publisher waited longer than {of_incident} around ")
    # Each incident has its line.
    assert [line.split()[0] for line in answer.page.meta[1:]] == kinds
    # A tile is about somebody who was silent.
    assert "of 0 publishers" not in text


def test_a_sentence_says_whom_an_incident_cost_what() -> None:
    """Publishers 1 and 5 had confirms of the dead broker; the others waited no longer than before."""
    at = {"number": 0, "kind": "kill", "at_broker": "mb1:5672"}
    silent = {1: 326.0, 5: 302.0, 2: 59.0, 3: 60.0, 4: 58.0, 6: 61.0}
    measured: dict[str, Any] = {
        "incidents": [
            {"number": 0, "kind": "kill", "broker": "mb1:5672", "at_s": 12.0, "lasted_s": 0.0},
            {"number": 1, "kind": "start", "broker": "mb1:5672", "at_s": 114.6, "lasted_s": 0.5},
        ],
        "publishers": [at | {"publisher": f"p{n}", "gap_ms": gap} for n, gap in silent.items()],
        "met": [
            {
                "number": 0,
                "publisher": f"p{n}",
                "connected": 90 if n in (1, 5) else 0,
                "resent": 5 if n in (1, 5) else 0,
                "before_ms": 59.0,
            }
            for n in sorted(silent)
        ],
    }
    assert failover.costs(measured) == [
        "kill mb1:5672 at 12.0 s: p1 and p5, to whom it had confirmed, had no confirm for up to 326 ms "
        "(59 ms in the 5 s before), and sent 10 messages again; the other 4 publishers had no confirm for up "
        "to 61 ms (59 ms in the 5 s before). It was down from 12.0 s to 114.6 s.",
        "start mb1:5672 at 114.6 s: no publisher was waiting.",
    ]
    del measured["incidents"][1]
    assert failover.costs(measured)[0].endswith("It was down from 12.0 s to the end.")


def _numbers(row: dict[str, Any]) -> tuple[int, int, float]:
    return row["connected"], row["resent"], round(row["before_ms"], 6)


def costs_by_hand(planted: Planted) -> dict[str, tuple[int, int, float]]:
    """Return publisher -> confirms by the killed broker in the 5 s before, resent, silence before (ms).

    By loops over the recorded lines, in their own clock.
    """
    manifest = planted.run.manifest
    offset_ns = manifest.start_ns - MONOTONIC_START_NS
    every = sorted(manifest.incidents, key=lambda one: one.at_ns)
    [place] = [number for number, one in enumerate(every) if one.kind == "kill"]
    at_ns, next_ns = every[place].at_ns - offset_ns, every[place + 1].at_ns - offset_ns
    last_ns = min(at_ns + 2 * MILLISECOND + 5 * SECOND, next_ns)
    found = {}
    for path in planted.folder.glob("published-*.ndjson"):
        rows = [
            row for row in map(json.loads, path.read_text().splitlines()[1:]) if "outcome" in row
        ]
        confirms = sorted({row["confirmed_ns"] for row in rows})
        silences = []
        for before, confirm in zip([-1, *confirms], confirms, strict=False):
            waiting = [
                r["intended_ns"] for r in rows if r["intended_ns"] < confirm <= r["confirmed_ns"]
            ]
            silences.append((max(before, min(waiting)), confirm))
        found[rows[0]["publisher"]] = (
            sum(
                r["broker"] == KILLED and at_ns - 5 * SECOND <= r["confirmed_ns"] < at_ns
                for r in rows
            ),
            sum(
                r["attempts"] > 1 and r["intended_ns"] <= last_ns and r["confirmed_ns"] >= at_ns
                for r in rows
            ),
            round(
                max(e - b for b, e in silences if e < at_ns and b >= at_ns - 5 * SECOND)
                / MILLISECOND,
                6,
            ),
        )
    return found


def test_a_freeze_of_three_seconds_is_three_seconds_whatever_is_delivered_again_in_it(
    session: SparkSession, tmp_path: Path
) -> None:
    write_frozen_run(tmp_path / "run")
    lake = Lake(tmp_path / "lake")
    run = Run(session, lake, ingest(session, lake, ingest_plan(tmp_path / "run", lake)))
    found = failover.measure(run).measured
    publishers = {row["publisher"]: row["gap_ms"] for row in found["publishers"]}
    brokers = {row["broker"]: row["gap_ms"] for row in found["brokers"]}
    assert publishers[PUBLISHERS[0]] == pytest.approx(3000, abs=100)
    assert brokers[FROZEN] == pytest.approx(3000, abs=100)
    assert publishers[PUBLISHERS[1]] < 50
    assert brokers[HEALTHY] < 50
    # Counted with what came again, there would be no such silence.
    every = run.events("delivered").withColumn("since", F.lit(run.manifest.start_ns))
    filled = gaps.longest(every, ["broker"], start="since", end="received_ns").collect()
    assert max(row["gap_ns"] for row in filled) < SECOND


def write_frozen_run(folder: Path) -> None:
    """Write a run of ten seconds with one publisher to each broker.

    Deliveries before one broker froze that had no answer come again while it is silent, and trail behind the
    end.
    """
    folder.mkdir()
    published: list[Row] = []
    delivered: list[Row] = []
    for number in range(1_000):
        message = _message(number)
        published.append(message)
        delivered.append(_delivery(message, message["confirmed_ns"] + MILLISECOND))
    held = [row for row in published if row["broker"] == FROZEN and row["sent_ns"] < FROZEN_AT_NS]
    # Confirmed just before, delivered after.
    delivered[held[-1]["sequence"] * 2]["received_ns"] = THAWED_AT_NS
    for number, message in enumerate(held[:150]):
        delivered[message["sequence"] * 2] |= {"ack": "stale", "acknowledged_ns": None}
        again_ns = FROZEN_AT_NS + number * 60 * MILLISECOND
        delivered.append(_delivery(message, again_ns) | {"redelivered": 1})
    write_rows(folder, "published", published, "publisher")
    write_rows(folder, "delivered", delivered, "consumer")
    (folder / "manifest.json").write_text(json.dumps(_manifest()))


def _message(number: int) -> dict[str, Any]:
    broker, publisher = (FROZEN, HEALTHY)[number % 2], PUBLISHERS[number % 2]
    sent_ns = MONOTONIC_START_NS + number * 10 * MILLISECOND
    answered_ns = sent_ns + 2 * MILLISECOND
    if broker == FROZEN and FROZEN_AT_NS <= sent_ns < THAWED_AT_NS:
        answered_ns = THAWED_AT_NS + number * 1_000
    return {
        **{"run_id": "run-1", "message_id": f"{number:032x}", "topic": TOPIC, "broker": broker},
        **{"publisher": publisher, "sequence": number // 2, "key": None, "size": 9},
        **{"body_hash": "0" * 32, "outcome": "confirmed", "attempts": 1},
        **{"intended_ns": sent_ns, "sent_ns": sent_ns, "confirmed_ns": answered_ns},
    }


def _delivery(message: Row, received_ns: int) -> Row:
    same = ("run_id", "message_id", "topic", "broker", "publisher", "sequence", "size", "body_hash")
    return {name: message[name] for name in same} | {
        **{"subscription": "billing", "consumer": "billing-1", "redelivered": 0, "ack": "acked"},
        **{"received_ns": received_ns, "acknowledged_ns": received_ns + MILLISECOND},
    }


def _manifest() -> dict[str, Any]:
    cut = {"kind": "cut", "broker": FROZEN, "at_ns": FROZEN_AT_NS, "done_ns": THAWED_AT_NS}
    return {
        **{"run_id": "run-1", "topics": {TOPIC: ["billing"]}, "brokers": [FROZEN, HEALTHY]},
        **{"anchor": anchor("coordinator"), "start_ns": MONOTONIC_START_NS},
        **{"end_ns": MONOTONIC_START_NS + 15 * SECOND, "publishers": list(PUBLISHERS[:2])},
        **{"consumers": [{"name": "billing-1", "subscription": "billing"}], "incidents": [cut]},
        "complete": True,
    }
