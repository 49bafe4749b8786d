from __future__ import annotations

import dataclasses
import json
import math
import random
import statistics
from pathlib import Path
from typing import Any

import pytest

from bench.analysis.compare import (
    Compared,
    Ratio,
    about_arm,
    are_by_turns,
    compare,
    is_worse,
    paired_steps,
    profile_of_arm,
    ratio_of,
    read_arm,
    refuse_unlike,
    refuse_unlike_machines,
    table_of,
    why_left_out,
)
from bench.analysis.result import NUMBERS
from bench.errors import InputInvalid
from bench.load.profile import Profile, System
from tests.support.results import CLOSED, PROFILE, result

RATE, P99 = NUMBERS[0], NUMBERS[3]


def test_a_regression_is_told_and_the_rest_is_not() -> None:
    a = [result(p99=each) for each in (10, 11, 12, 10, 11)]
    b = [result(p99=each * 1.5) for each in (10, 11, 12, 10, 11)]
    compared = compare(a, b)
    assert compared.regressions(0.1) == ["confirm p50", "confirm p99"]
    assert compared.regressions(0.6) == []
    lines = table_of(compared, ("a", "b"), 0.1)
    assert [line for line in lines if "REGRESSION" in line and "confirm p99" in line]
    assert lines[0].startswith("medians of 5 pairs")


def test_what_is_told_of_an_even_number_of_pairs_is_their_median() -> None:
    compared = compare([result(p99=10), result(p99=20)], [result(p99=10), result(p99=20)])
    (line,) = (each for each in table_of(compared, ("a", "b"), 0.1) if "confirm p99" in each)
    assert line.split()[2:4] == ["15", "15"]


def test_a_second_that_confirms_nothing_is_a_regression() -> None:
    nothing = result(rate=0, percentiles_ms={}, faults=["nothing was confirmed"])
    compared = compare([result()] * 2, [nothing] * 2)
    assert compared.regressions(0.1) == [
        *("confirmed a second", "confirm p50", "confirm p99"),
        "nothing was confirmed: in 0 and 2 of 2 pairs",
    ]
    assert any(
        "only the first has it  REGRESSION" in line for line in table_of(compared, ("a", "b"), 0.1)
    )


def test_what_only_the_second_has_is_told_and_judged_by_nobody() -> None:
    compared = compare([result(delivery=None)] * 2, [result(delivery=5.0)] * 2)
    assert compared.regressions(0.1) == []
    assert any(
        "delivery p99" in line and "only the second has it" in line
        for line in table_of(compared, ("a", "b"), 0.1)
    )


def test_what_a_load_of_its_own_does_not_measure_is_no_regression() -> None:
    theirs = result(outside=True, percentiles_ms={}, clients=[])
    assert compare([result()] * 2, [theirs] * 2).regressions(0.1) == []


def test_a_number_of_some_pairs_says_of_how_many() -> None:
    some = Compared(P99, (1.0, 2.0, None), (2.0, 4.0, 4.0))
    assert some.in_words == "2.000 (2.000 to 2.000), 2 of 3 pairs"
    assert not some.vanished
    assert Compared(RATE, (1.0, 2.0), (2.0, 0.0)).is_regression(0.1)


SLOW = "publisher-0 used 95% of a core: the client was the bottleneck"
LATE = "publisher-0 handled 1 % of its messages 9.0 ms late or more: its pacer was the bottleneck"


@pytest.mark.parametrize(
    ("x", "y", "why"),
    [
        (result(), result(), ""),
        (result(complete=False, faults=["cut"]), result(), "the first: cut"),
        (result(rate=0), result(), "the first confirmed nothing"),
        (result(), result(faults=[SLOW]), ""),
        (result(), result(faults=[LATE]), ""),
        (result(faults=[SLOW]), result(faults=[SLOW]), f"the first: {SLOW}"),
        (result(faults=[LATE]), result(), f"the first: {LATE}"),
        (result(profile=CLOSED), result(profile=CLOSED, faults=[SLOW]), ""),
        (result(profile=CLOSED, fates={"faults": ["1 altered"]}), result(), ""),
        (result(), result(fates={"faults": ["3 lost"]}), ""),
        (result(), result(faults=["no steady state: 5 a second"]), ""),
        (result(), result(rate=0, complete=False, faults=["died"]), ""),
    ],
)
def test_a_pair_is_left_out_for_what_the_load_did_alone(
    x: dict[str, Any], y: dict[str, Any], why: str
) -> None:
    assert why_left_out(x, y) == why


@pytest.mark.parametrize(
    "bad",
    [
        {"faults": ["did not keep up: 30,000 confirmed of 60,000 intended meanwhile"], "rate": 50},
        {
            "faults": [
                "no steady state: 500 a second from measured second 3 on, 1,000 at the median"
            ]
        },
        {"faults": ["publisher-0 sent 5 of 10 intended messages: held back by its window"]},
        {"faults": ["5,000 publishes did not end confirmed"]},
        {"fates": {"faults": ["5,000 confirmed and never delivered"]}},
        {"complete": False, "faults": ["died"], "rate": 0.0},
        # Client and load share a process: a client that stalls or is slow shows there.
        {"faults": [LATE]},
        {"faults": [SLOW], "rate": 50},
    ],
)
def test_what_the_second_alone_does_badly_is_a_regression(bad: dict[str, Any]) -> None:
    """It does so in three pairs of five; the others are alike to the digit."""
    a, b = [result()] * 5, [result(**bad)] * 3 + [result()] * 2
    compared = compare(a, b)
    assert (compared.pairs, compared.left_out) == (5, [])
    (worse,) = (each for each in compared.regressions(0.1) if " and " in each)
    assert worse.endswith("in 0 and 3 of 5 pairs")
    assert [
        line for line in table_of(compared, ("a", "b"), 0.1) if worse in line and "REGR" in line
    ]
    # The first alone: nothing that the second does worse.
    assert not [each for each in compare(b, a).regressions(0.1) if "pairs" in each]


def test_of_what_both_have_more_messages_are_a_regression() -> None:
    few, many = (
        [result(fates={"faults": [f"{count} confirmed and never delivered"]})] * 2
        for count in ("9", "1,099")
    )
    worse = compare(few, many).regressions(0.1)
    assert worse == ["confirmed and never delivered: in 2 and 2 of 2 pairs"]
    assert compare(many, few).regressions(0.1) == []


def test_what_the_load_did_costs_its_pair_and_is_counted() -> None:
    a, b = [result(), result(faults=[SLOW]), result()], [result()] * 3
    compared = compare(a, b)
    assert (compared.pairs, compared.left_out) == (2, [f"pair 2 is left out: the first: {SLOW}"])
    assert table_of(compared, ("a", "b"), 0.1)[0].startswith("medians of 2 pairs, 1 left out")
    with pytest.raises(InputInvalid, match="1 of 2 pairs can be compared, 2 are wanted; pair 2 is"):
        compare(a[:2], b[:2])
    with pytest.raises(InputInvalid, match="3 and 2 repetitions"):
        compare(a, b[:2])


def test_a_ratio_is_the_geometric_mean_of_the_pairs() -> None:
    found = ratio_of([1, 2, 4], [2, 4, 8])
    assert found is not None
    assert found.value == pytest.approx(2)
    assert found.low == pytest.approx(2)
    assert found.high == pytest.approx(2)


def test_one_pair_says_nothing_about_chance() -> None:
    found = ratio_of([1], [3])
    assert found is not None
    assert (found.low, found.high, found.pairs) == (0.0, math.inf, 1)
    assert str(found) == "3.000 (of one pair)"
    assert not is_worse(found, more_is_better=False, bound=0.1)


def test_no_pairs_have_no_ratio() -> None:
    assert ratio_of([], []) is None
    assert ratio_of([0], [1]) is None


def test_the_interval_holds_the_truth_nineteen_times_of_twenty() -> None:
    chance, held = random.Random(1), 0
    for _ in range(1000):
        machine = [chance.lognormvariate(0, 1) for _ in range(5)]
        a = [each * chance.lognormvariate(0, 0.1) for each in machine]
        b = [1.5 * each * chance.lognormvariate(0, 0.1) for each in machine]
        found = ratio_of(a, b)
        assert found is not None
        held += found.low <= 1.5 <= found.high
    assert 930 <= held <= 970


@pytest.mark.parametrize(("freedom", "t"), [(30, 2.042), (40, 2.021), (60, 2.000), (120, 1.980)])
def test_beyond_the_table_the_interval_still_holds_95_of_100(freedom: int, t: float) -> None:
    logs = [0.1 * (-1) ** number for number in range(freedom + 1)]
    found = ratio_of([1.0] * len(logs), [math.exp(each) for each in logs])
    assert found is not None
    half = math.log(found.high / found.value)
    assert half / (statistics.stdev(logs) / math.sqrt(len(logs))) == pytest.approx(t, abs=0.001)


@pytest.mark.parametrize(
    ("ratio", "more_is_better", "worse"),
    [
        (Ratio(0.8, 0.7, 0.9, 5), True, True),
        (Ratio(0.8, 0.5, 1.2, 5), True, False),
        (Ratio(0.95, 0.94, 0.96, 5), True, False),
        (Ratio(1.3, 1.2, 1.4, 5), False, True),
        (Ratio(1.3, 0.9, 1.9, 5), False, False),
        (Ratio(0.5, 0.4, 0.6, 5), False, False),
    ],
)
def test_worse_is_beyond_the_bound_and_not_by_chance(
    ratio: Ratio, more_is_better: bool, worse: bool
) -> None:
    assert is_worse(ratio, more_is_better=more_is_better, bound=0.1) is worse


ONE = Profile.from_values(PROFILE, "x")
TWO = dataclasses.replace(ONE, system=System(brokers=2))


def at(minute: int) -> dict[str, Any]:
    found = result()
    return found | {"environment": found["environment"] | {"at": f"2026-11-21T00:{minute:02}:00Z"}}


def test_each_arm_is_first_as_often_as_the_other() -> None:
    names = [step.name for step in paired_steps(ONE, TWO, 3)]
    assert names == ["a/01", "b/01", "b/02", "a/02", "a/03", "b/03"]


def test_an_arm_is_one_result_or_a_folder_of_them(tmp_path: Path) -> None:
    with pytest.raises(InputInvalid, match="no results"):
        read_arm(tmp_path)
    for name in ("02", "01"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(json.dumps({"profile": {}, "n": name}))
    assert [each["n"] for each in read_arm(tmp_path)] == ["01", "02"]
    assert read_arm(tmp_path / "01")[0]["n"] == "01"
    for broken in ("{", "[]"):
        (tmp_path / "01" / "result.json").write_text(broken)
        with pytest.raises(InputInvalid, match="not results"):
            read_arm(tmp_path)


def test_runs_on_more_and_more_brokers_are_no_repetitions() -> None:
    with pytest.raises(InputInvalid, match=r"out/x: not repetitions .*system.brokers: 1 and 2"):
        profile_of_arm("out/x", [result(), result(profile=TWO.as_json())])
    assert profile_of_arm("out/x", [result(), result()]) == ONE


def test_a_confirm_that_means_something_else_is_refused_unless_it_is_asked_for() -> None:
    other = dataclasses.replace(ONE, system=System(brokers=1, durability="page-cache"))
    with pytest.raises(InputInvalid, match=r"'fsync' and 'page-cache'; --unlike-durability"):
        refuse_unlike(ONE, other, any_durability=False)
    refuse_unlike(ONE, other, any_durability=True)
    refuse_unlike(ONE, TWO, any_durability=False)
    longer = dataclasses.replace(ONE, time=dataclasses.replace(ONE.time, measured_s=99.0))
    with pytest.raises(InputInvalid, match=r"not alike: time\.measured_s: 30\.0 and 99\.0"):
        refuse_unlike(ONE, longer, any_durability=True)


def test_machines_that_differ_are_refused() -> None:
    other = result() | {"environment": result()["environment"] | {"cores": 64}}
    with pytest.raises(InputInvalid, match="slow, 2 cores; slow, 64 cores"):
        refuse_unlike_machines([result()], [other])
    elsewhere = {**result()["environment"], "load_hosts": ["a:2222: publisher-0; its clock +1 ms"]}
    with pytest.raises(InputInvalid, match="slow, 2 cores; slow, 2 cores, load from a:2222"):
        refuse_unlike_machines([result()], [result() | {"environment": elsewhere}])


@pytest.mark.parametrize(
    ("a", "b", "by_turns"),
    [((0, 3), (1, 2), True), ((0, 1), (2, 3), False), ((0,), (1,), True), ((0, 1), (2,), False)],
)
def test_arms_of_folders_ran_by_turns_when_each_pair_followed_the_other(
    a: tuple[int, ...], b: tuple[int, ...], by_turns: bool
) -> None:
    assert are_by_turns([at(each) for each in a], [at(each) for each in b]) is by_turns


def test_an_arm_is_told_with_its_code_and_its_promise() -> None:
    assert about_arm("x", [result()] * 2) == "x: commit abc; a confirm means: fsynced"
