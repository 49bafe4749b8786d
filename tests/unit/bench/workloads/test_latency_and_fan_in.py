from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from bench.load.profile import Profile, System
from bench.workloads import latency_and_fan_in as lines
from reports.text import NONE

PROFILES = Path(__file__).resolve().parents[4] / "bench" / "profiles"


def result(profile: Profile, p50: float) -> dict[str, Any]:
    found = {"p50": p50, "p99": 2 * p50, "samples": 1000}
    return {
        "profile": profile.as_json(),
        "faults": [],
        "measured_s": 10,
        "confirmed_per_s": 100.0,
        "percentiles_ms": {"confirm": found, "service": found},
        "clients": [{"cpu_share": 0.1}],
        "brokers": {f"mb{n}": {"cpu_s": 1.0, "seconds": 10} for n in range(profile.system.brokers)},
    }


def test_every_line_of_the_matrix_has_its_profile() -> None:
    profiles = [Profile.load_file(PROFILES / f"{name}.toml") for name in lines.MATRIX]
    assert [step.name for step in lines.matrix_steps(profiles)] == list(lines.MATRIX)
    assert {profile.time.measured_s for profile in profiles} == {30}


def test_percentiles_that_the_count_does_not_support_are_dashes() -> None:
    profile = Profile.load_file(PROFILES / "latency-256.toml")
    told = lines.matrix_told({"latency-256": result(profile, 5.0)})
    head, corrected, uncorrected, *_ = told.lines()
    assert corrected.split()[1] == "corrected"
    assert uncorrected.split()[0] == "uncorrected"
    assert corrected.split()[-7:] == ["5", NONE, "10", *[NONE] * 4]
    assert head.split()[-1] == "p100"


def test_fan_in_is_the_same_load_on_more_brokers() -> None:
    steps = lines.fan_in_steps(Profile.load_file(PROFILES / "fan-in.toml"), part=10)
    assert [step.profile.system.brokers for step in steps] == list(lines.FAN_IN)
    assert len({str(step.profile.load) for step in steps}) == 1
    found = {step.name: result(step.profile, 1.0) for step in steps}
    figures = {each.id: each.value for each in lines.fan_in_figures(found, "again")}
    assert figures["measure.fan_in.8_brokers.client_cpu_us"] == 1000.0
    assert len(lines.fan_in_told(found).rows) == len(steps)


def test_a_shorter_run_still_has_some_seconds() -> None:
    time = lines.shorter(Profile.load_file(PROFILES / "fan-in.toml"), 10).time
    assert (time.measured_s, time.warm_up_s) == (5.0, 5.0)


def test_repetitions_are_whole_rounds_and_figures_their_medians() -> None:
    base = Profile.load_file(PROFILES / "fan-in.toml")
    steps = lines.fan_in_steps(base, repeat=3)
    names = [step.name for step in steps]
    assert names[:5] == ["1-brokers", "2-brokers", "4-brokers", "8-brokers", "1-brokers-2"]
    found = {step.name: result(step.profile, 1.0) for step in steps}
    found["1-brokers-3"]["clients"] = [{"cpu_share": 0.5}]
    figures = {each.id: each for each in lines.fan_in_figures(found, "again")}
    assert figures["measure.fan_in.1_brokers.client_cpu_us"].samples == (1000.0, 1000.0, 5000.0)
    assert figures["measure.fan_in.1_brokers.client_cpu_us"].value == 1000.0
    matrix = [Profile.load_file(PROFILES / f"{name}.toml") for name in lines.MATRIX]
    runs = {
        step.name: result(step.profile, float(number))
        for number, step in enumerate(lines.matrix_steps(matrix, repeat=2))
    }
    p50 = {each.id: each for each in lines.matrix_figures(runs, "again")}
    assert p50["measure.latency_matrix.256.confirm_p50_ms"].samples == (0.0, 5.0)
    runs["latency-256-2"]["faults"] = ["its pacer was the bottleneck"]
    p50 = {each.id: each for each in lines.matrix_figures(runs, "again")}
    assert p50["measure.latency_matrix.256.confirm_p50_ms"].samples == (0.0,)
    assert len(lines.matrix_told(runs).rows) == 3 * len(lines.MATRIX)


def test_a_cost_that_is_not_known_is_a_dash() -> None:
    profile = Profile.load_file(PROFILES / "fan-in.toml")
    killed = result(dataclasses.replace(profile, system=System(brokers=4)), 1.0)
    del killed["brokers"]["mb0"]
    (row,) = lines.fan_in_told({"4-brokers": killed | {"clients": []}}).rows
    assert list(row[:4]) == ["4", "100", NONE, NONE]


def test_a_shorter_run_measures_whole_seconds() -> None:
    profile = Profile.load_file(PROFILES / "fan-in.toml")
    times = [lines.shorter(profile, part).time for part in (1, 2, 3, 7)]
    assert [(time.warm_up_s, time.measured_s) for time in times] == [
        (5, 20),
        (5, 10),
        (5, 7),
        (5, 5),
    ]
