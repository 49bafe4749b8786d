from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.errors import InputInvalid
from bench.run.compare import compare, numbers_of, order, read_arm, told
from bench.run.profile import Profile

PROFILE = Profile.from_values(
    {"name": "x", "load": {"schedule": {"kind": "constant", "rate_per_s": 100}}}, "x"
).as_json()


def result(rate: float = 100, p99: float = 10, **changed: Any) -> dict[str, Any]:
    return {
        "profile": PROFILE,
        "faults": [],
        "confirmed_per_s": rate,
        "percentiles_ms": {"confirm": {"p50": p99 / 2, "p99": p99}, "delivery": {}},
        "clients": [{"cpu_share": 0.3}],
        "brokers": {"mb1": {"cpu_s": 3.0}},
    } | changed


def test_each_arm_is_first_as_often_as_the_other() -> None:
    assert order(3) == ["a", "b", "b", "a", "a", "b"]


def test_costs_are_per_message() -> None:
    found = numbers_of(result())
    assert found["client CPU us"] == pytest.approx(3000)
    assert found["broker CPU us"] == pytest.approx(1000)
    assert "delivery p99" not in found


def test_a_regression_is_told_and_the_rest_is_not() -> None:
    a = [result(p99=each) for each in (10, 11, 12, 10, 11)]
    b = [result(p99=each * 1.5) for each in (10, 11, 12, 10, 11)]
    compared = {each.number.name: each for each in compare(a, b)}
    assert compared["confirm p99"].is_regression(0.1)
    assert not compared["confirmed a second"].is_regression(0.1)
    assert not compared["confirm p99"].is_regression(0.6)
    lines = told(list(compared.values()), ("a", "b"), 0.1)
    assert [line for line in lines if "REGRESSION" in line and "confirm p99" in line]


@pytest.mark.parametrize(
    ("b", "said"),
    [
        ([result(profile=PROFILE | {"messages": PROFILE["messages"] | {"size": 99}})], "not alike"),
        ([result(), result()], "1 and 2 repetitions"),
        ([result(faults=["3 lost"])], "not to be trusted: 3 lost"),
    ],
)
def test_what_cannot_be_compared_is_refused(b: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(InputInvalid, match=said):
        compare([result()], b)


def test_an_arm_is_one_result_or_a_folder_of_them(tmp_path: Path) -> None:
    with pytest.raises(InputInvalid, match="no results"):
        read_arm(tmp_path)
    for name in ("02", "01"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(json.dumps({"n": name}))
    assert [each["n"] for each in read_arm(tmp_path)] == ["01", "02"]
    assert read_arm(tmp_path / "01") == [{"n": "01"}]
    (tmp_path / "01" / "result.json").write_text("{")
    with pytest.raises(InputInvalid, match="not results"):
        read_arm(tmp_path)
