from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.analysis.series import Step
from bench.commands import profile_of
from bench.load.profile import Profile, System
from bench.workloads import predecessor, tables
from bench.workloads.knee import PRECISION, Knee, fault_of
from bench.workloads.overhead import Overhead, figures, measure
from reports.text import NONE
from tests.support.results import PROFILE, result


def result_of_line(profile: Profile, p50: float) -> dict[str, Any]:
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


def test_percentiles_that_the_count_does_not_support_are_dashes() -> None:
    profile = profile_of("latency-256")
    told = tables.MATRIX.summary({"latency-256": result_of_line(profile, 5.0)})
    head, corrected, uncorrected, *_ = told.lines()
    assert corrected.split()[1] == "corrected"
    assert uncorrected.split()[1] == "uncorrected"
    assert corrected.split()[-7:] == ["5", NONE, "10", *[NONE] * 4]
    assert head.split()[-1] == "p100"


def test_repetitions_are_whole_rounds_and_figures_their_medians() -> None:
    base = profile_of("fan-in")
    steps = tables.fan_in_steps(base, repeat=3)
    names = [step.name for step in steps]
    assert names[:5] == ["1-brokers", "2-brokers", "4-brokers", "8-brokers", "1-brokers-2"]
    found = {step.name: result_of_line(step.profile, 1.0) for step in steps}
    found["1-brokers-3"]["clients"] = [{"cpu_share": 0.5}]
    figures = {each.id: each for each in tables.FAN_IN.figures(found, "again")}
    assert figures["measure.fan_in.1_brokers.client_cpu_us"].samples == (1000.0, 1000.0, 5000.0)
    assert figures["measure.fan_in.1_brokers.client_cpu_us"].value == 1000.0
    matrix = [profile_of(name) for name in tables.MATRIX_PROFILES]
    runs = {
        step.name: result_of_line(step.profile, float(number))
        for number, step in enumerate(tables.matrix_steps(matrix, repeat=2))
    }
    p50 = {each.id: each for each in tables.MATRIX.figures(runs, "again")}
    assert p50["measure.latency_matrix.256.confirm_p50_ms"].samples == (0.0, 5.0)
    runs["latency-256-2"]["faults"] = ["its pacer was the bottleneck"]
    p50 = {each.id: each for each in tables.MATRIX.figures(runs, "again")}
    assert p50["measure.latency_matrix.256.confirm_p50_ms"].samples == (0.0,)
    assert len(tables.MATRIX.summary(runs).rows) == 3 * len(tables.MATRIX_PROFILES)


def test_a_cost_that_is_not_known_is_a_dash() -> None:
    profile = profile_of("fan-in")
    killed = result_of_line(dataclasses.replace(profile, system=System(brokers=4)), 1.0)
    del killed["brokers"]["mb0"]
    (row,) = tables.FAN_IN.summary({"4-brokers": killed | {"clients": []}}).rows
    assert list(row[:4]) == ["4", "100", NONE, NONE]


def test_a_shorter_run_measures_whole_seconds() -> None:
    profile = profile_of("fan-in")
    times = [tables.shorter(profile, part).time for part in (1, 2, 3, 7)]
    assert [(time.warm_up_s, time.measured_s) for time in times] == [
        (5, 20),
        (5, 10),
        (5, 7),
        (5, 5),
    ]


def arms(repeat: int = 1) -> list[Step]:
    paced, full = (profile_of(name) for name in ("peers", "peers-full"))
    return tables.peers_steps(paced, full, repeat, part=10)


def result_of_arm(profile: Profile, *, measure: str = "confirm") -> dict[str, Any]:
    return {
        "profile": profile.as_json(),
        "durability": f"words of {profile.system.name}",
        "faults": [],
        "measured_s": 10,
        "confirmed_per_s": 1234.0,
        "delivered_per_s": 1230.0,
        "percentiles_ms": {measure: {"p50": 1.5, "p99": 20.0, "samples": 1000}},
        "clients": [{"cpu_share": 0.1}],
        "brokers": {"mb1": {"cpu_s": 1.0, "seconds": 10}},
    }


def test_every_line_says_what_is_on_disk_and_what_a_confirm_means() -> None:
    found = {step.name: result_of_arm(step.profile) for step in arms()}
    head, *told = tables.PEERS.summary(found).lines(200)
    assert "on disk at confirm" in head
    kafka = [line.split() for line in told if line.split()[:2] == ["kafka", "1"]]
    assert [(line[2], line[3]) for line in kafka] == [("yes", "1,234"), ("no", "1,234")]
    assert "  kafka, 1 nodes, page-cache: words of kafka" in told


def test_what_was_not_run_or_is_not_measured_is_a_dash_or_no_line() -> None:
    java = next(each for each in arms() if each.name == "perf-test-1-fsync-paced")
    told = tables.PEERS.summary({java.name: result_of_arm(java.profile, measure="service")})
    _head, line, *_ = told.lines(200)
    assert line.split() == ["perf-test", "1", "yes", *[NONE] * 4, "1.5", "20", NONE, NONE]


def test_repetitions_of_all_systems_are_whole_rounds_too() -> None:
    found = {step.name: result_of_arm(step.profile) for step in arms(3)}
    assert len(found) == 3 * len(arms())
    found["kafka-1-fsync-full-3"]["confirmed_per_s"] = 1.0
    figures = {each.id: each for each in tables.PEERS.figures(found, "again")}
    assert figures["measure.peers.kafka_1_fsync.rate"].samples == (1234.0, 1234.0, 1.0)
    assert figures["measure.peers.kafka_1_fsync.rate"].value == 1234.0
    once = {step.name: result_of_arm(step.profile) for step in arms()}
    assert len(tables.PEERS.summary(found).rows) == len(tables.PEERS.summary(once).rows)


BASE = profile_of("seed-s1")


def results_of_seed(repeat: int, base: Profile = BASE) -> dict[str, dict[str, Any]]:
    """Return results where standalone is twice as fast with 2 nodes and three times with 3."""
    return {
        step.name: {
            "profile": step.profile.as_json(),
            "faults": [],
            "confirmed_per_s": 100.0
            * (step.profile.system.brokers if "standalone" in step.name else 1),
            "delivered_per_s": 50.0,
            "measured_s": 10.0,
            "percentiles_ms": {},
            "clients": [],
            "brokers": {
                f"mb{number}": {
                    "cpu_s": (1.0 if "standalone" in step.name else 2.0) / nodes,
                    "seconds": 10.0,
                }
                for nodes in [step.profile.system.brokers]
                for number in range(nodes)
            },
        }
        for step in predecessor.steps(base, repeat)
    }


def test_both_sides_take_turns_and_each_goes_first() -> None:
    steps = predecessor.steps(BASE, 2)
    sides = [step.profile.system.name for step in steps if step.name.startswith("2")]
    assert sides == [
        *["messagebus"] * 2,
        *["native"] * 4,
        *["messagebus"] * 2,
    ]
    assert len({step.name for step in steps}) == len(steps)


def test_ratios_are_of_standalone_over_native_within_each_repetition() -> None:
    figures = {
        each.id: each for each in predecessor.figures("seed-s1", results_of_seed(3), "again")
    }
    assert figures["measure.seed_s1.n2_w50.confirmed_ratio"].samples == (2.0, 2.0, 2.0)
    assert figures["measure.seed_s1.n3_w1.confirmed_ratio"].value == 3.0
    assert "2.38" in figures["measure.seed_s1.n2_w50.confirmed_ratio"].what


def test_what_is_told_has_the_predecessors_number_beside() -> None:
    found = results_of_seed(2, profile_of("seed-s2"))
    text = "\n".join(predecessor.summary("seed-s2", found).lines())
    assert "1.97" in text
    assert "delivered" in text


def test_what_not_all_repetitions_have_is_left_out() -> None:
    some = results_of_seed(2)
    del some[predecessor.step_name(2, 50, "native", 1)]
    ids = [each.id for each in predecessor.figures("seed-s1", some, "again")]
    assert "measure.seed_s1.n2_w50.confirmed_ratio" not in ids
    assert "measure.seed_s1.n2_w1.confirmed_ratio" in ids


def test_every_part_of_the_harness_has_a_cost() -> None:
    # Other work may make a single measurement nonsense, but hardly most of them.
    found = {each.id: each.value for each in figures(measure(20_000, repeat=3))}
    assert min(found.values()) > 0


def test_the_whole_of_a_message_is_the_sum_of_its_parts_and_no_machine_s_us_is_a_goal() -> None:
    found = {
        each.id: each
        for each in figures(
            [Overhead(0.3, 2.0, 1.0), Overhead(0.3, 2.5, 1.5), Overhead(0.3, 1.5, 1.0)]
        )
    }
    whole = found["measure.overhead.message_us"]
    assert (whole.value, whole.samples) == (3.0, (3.0, 4.0, 2.5))
    assert not [each.id for each in found.values() if each.goal]


TRIES_MAX = 60
FAULT = "p99 of confirm 99 ms"


def searched(search: Knee, knee: float, fault: str = FAULT) -> list[float]:
    """Return the rates that were tried, of a system that sustains up to knee."""
    while (rate := search.next_rate()) is not None:
        search.note(rate, "" if rate <= knee else fault)
        assert len(search.tries) < TRIES_MAX
    return [each.rate for each in search.tries]


@given(st.floats(1, 1e6), st.floats(1, 1e5))
def test_the_knee_is_found_within_its_precision_in_few_tries(knee: float, first: float) -> None:
    search = Knee(first=first, top=2e6)
    searched(search, knee)
    if search.held:
        assert search.held <= knee <= search.held * (1 + PRECISION) * 1.001
        assert search.count(search.held) == 2
    else:
        assert knee < first / 32


@given(st.data())
def test_whatever_the_tries_say_the_search_ends_and_its_answer_has_held_twice(
    data: st.DataObject,
) -> None:
    search = Knee(first=100, top=1600)
    while (rate := search.next_rate()) is not None:
        search.note(rate, data.draw(st.sampled_from(["", FAULT])))
        assert len(search.tries) < 300
    if search.held:
        held = [each for each in search.tries if each.rate == search.held]
        assert sum(not each.fault for each in held) >= 2
        assert sum(bool(each.fault) for each in held) < 2


def test_an_answer_that_fails_when_it_is_tried_again_is_none() -> None:
    search = Knee(first=100, top=200)
    search.note(100)
    search.note(200)
    assert search.next_rate() == 200
    search.note(200, FAULT)
    search.note(200, FAULT)
    assert search.held == 100
    rate = search.next_rate()
    assert rate is not None
    assert 100 < rate < 200


@pytest.mark.parametrize("first", [64, 6400])
def test_a_system_that_takes_nothing_ends_the_search(first: float) -> None:
    search = Knee(first=first, top=10_000)
    searched(search, 0)
    assert search.held == 0
    assert search.answer(20) == "no rate holds with p99 within 20 ms"


def test_a_search_ends_after_three_rates_at_which_the_load_was_the_limit() -> None:
    search = Knee(first=600, top=10_000)
    searched(
        search,
        0,
        "publisher-0 handled 1 % late or more: its pacer was the bottleneck; other processes",
    )
    assert [each.rate for each in search.tries] == [600, 600, 300, 300, 150, 150]
    assert search.answer(20) == (
        "no rate was measured with p99 within 20 ms: the load was the limit at 600/s, 300/s, 150/s, not the "
        "system"
    )


def test_a_knee_that_is_the_clients_is_told_as_such() -> None:
    theirs, ours = Knee(first=100, top=1000), Knee(first=100, top=1000)
    searched(theirs, 150)
    searched(ours, 150, "publisher-0 used 99% of a core: the client was the bottleneck")
    assert theirs.answer(20).startswith("knee: 1")
    assert ours.answer(20).startswith("knee of the client, not of the system: 1")


@pytest.mark.parametrize(
    ("run", "fault"),
    [
        (result(p99=10, delivery=10), ""),
        (result(p99=30, delivery=10), "p99 of confirm 30 ms"),
        (result(p99=10, delivery=30), "p99 of delivery 30 ms"),
        (result(p99=10), "too few messages for a p99 of delivery"),
        (result(faults=["1 lost", "2 altered"]), "1 lost; 2 altered"),
        (result(profile=PROFILE | {"load": PROFILE["load"] | {"consumers": 0}}), ""),
    ],
)
def test_a_rate_holds_by_both_latencies_where_there_are_consumers(
    run: dict[str, Any], fault: str
) -> None:
    assert fault_of(run, 20) == fault
