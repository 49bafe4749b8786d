"""The capacity model finds the costs that runs were made with, tells its error, and says when it guesses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bench.commands import profile_of
from bench.workloads.lines import capacity_steps
from spark.jobs.capacity import Load, Measured, command, error_of, fitted, read_runs, unseen

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
    found, left = read_runs([runs])
    assert left == []
    pages = [run for run in found if run.durability == "page-cache"]
    assert fitted(pages).costs == pytest.approx(COSTS)
    assert max(error_of(*each) for each in unseen(pages)) < 1e-6
    synced = [run for run in found if run.durability == "fsync"]
    assert 0.05 < max(error_of(*each) for each in unseen(synced)) < 0.15


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
    asked = ("--size", "2000", "--fan-out", "3", "--durability", "page-cache", "--cores", "8")
    code, text = plan(runs, tmp_path / "out", "--rate", "100000", "--syncs", "1000", *asked)
    assert code == 0, text
    found = json.loads((tmp_path / "out" / "capacity.json").read_text())
    # 100,000 messages of 60 + 3 * 25 + 2 * 4 + 6 * 6 us, on 8 cores of which 4.8 are used, less 0.05
    # at rest and 0.3 for 1,000 syncs of 300 us.
    assert found["brokers"] == 5 + 1
    assert found["busy"] <= 0.6
    brokers = {each["load"]: each["brokers"] for each in found["variants"]}
    assert brokers["twice the rate"] == 9 + 1
    assert brokers["as asked"] == found["brokers"]
    assert "capacity" in (tmp_path / "out" / "capacity.html").read_text()
    assert "off on average" in text


def test_a_load_beyond_all_runs_is_a_fault_and_so_is_a_model_that_does_not_carry(
    runs: Path, tmp_path: Path
) -> None:
    code, text = plan(runs, tmp_path / "a", "--rate", "10", "--size", "1000000")
    assert code == 7
    assert "1,000,000 bytes: measured were 100 to 16,000 only" in text
    code, text = plan(runs, tmp_path / "b", "--rate", "10", "--error-max", "0.001")
    assert code == 7
    assert "do not carry a model" in text


def test_what_says_nothing_of_a_message_is_left_out_by_name_and_too_few_runs_are_refused(
    runs: Path, tmp_path: Path
) -> None:
    path = runs / "fsync-100-x1-1000" / "result.json"
    made = json.loads(path.read_text())
    made["profile"]["disturbances"] = [{"what": "kill"}]
    path.write_text(json.dumps(made))
    found, left = read_runs([runs])
    assert left == ["fsync-100-x1-1000: with disturbances"]
    assert len(found) == 2 * 12 - 1
    code, text = plan(runs, tmp_path / "a", "--rate", "10", "--durability", "none")
    assert code != 0
    assert "0 runs with durability none: 7 at least are wanted; there are runs of: fsync" in text
    path.write_text("[]")
    code, text = plan(runs, tmp_path / "b", "--rate", "10")
    assert code != 0
    assert "not the result of a run" in text
    assert "Traceback" not in text
    (tmp_path / "empty").mkdir()
    code, text = plan(tmp_path / "empty", tmp_path / "c", "--rate", "10")
    assert "no run of the bench in it" in text
