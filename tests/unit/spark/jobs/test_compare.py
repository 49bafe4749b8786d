from __future__ import annotations

import pytest

from spark.jobs.compare import Row, compared, numbers, worse


def test_numbers_of_both_stand_in_one_row() -> None:
    a = [{"name": "lost", "unit": "", "value": 0.0}, {"name": "x p99", "unit": "ms", "value": 2.0}]
    b = [
        {"name": "x p99", "unit": "ms", "value": 3.0},
        {"name": "y p99", "unit": "ms", "value": 1.0},
    ]
    rows = compared(a, b)
    assert [(row.name, row.a, row.b) for row in rows] == [
        ("lost", 0.0, None),
        ("x p99", 2.0, 3.0),
        ("y p99", None, 1.0),
    ]
    assert [row.ratio for row in rows] == [None, 1.5, None]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (Row("lost", "", 0, 1), "lost: 1 after 0"),
        (Row("lost", "", 2, 2), None),
        (Row("confirmed per second", "/s", 100, 79), "confirmed per second: 21% less"),
        (Row("confirmed per second", "/s", 100, 81), None),
        (
            Row("confirm_from_intended p99", "ms", 10, 12.5),
            "confirm_from_intended p99: 1.25 times as long",
        ),
        (Row("confirm_from_intended p99", "ms", 10, 5), None),
        # One value, which chance decides.
        (Row("confirm_from_intended p100", "ms", 10, 50), None),
        (Row("messages confirmed", "", 100, 10), None),
        (Row("messages confirmed", "", 0, 0), "the second confirmed nothing"),
        (Row("unconfirmed", "", 0, 5), "unconfirmed: 5 after 0"),
        (Row("incomplete", "", 0, 1), "incomplete: 1 after 0"),
        (
            Row("confirm_from_intended p99", "ms", 10, None),
            "confirm_from_intended p99: the second has none",
        ),
        (Row("confirm_from_intended p99", "ms", None, 10), None),
    ],
)
def test_worse_is_more_faults_fewer_messages_or_longer_waits(row: Row, said: str | None) -> None:
    assert worse([row], 0.2) == ([said] if said else [])


def test_a_percentile_that_too_few_samples_support_is_not_missed() -> None:
    rows = [Row("x p50", "ms", 1, 1), Row("x p99.9", "ms", 9, None)]
    assert worse(rows, 0.2) == []


def test_rates_are_over_the_span_of_the_run_and_figures_over_what_clocks_bear() -> None:
    row = {"measure": "x", "total": 500, "p50": 2_000_000, "p99": 9_000_000}
    row |= {"p99_9": 9_500_000, "p100": 9_900_000}
    found = numbers([row], confirmed=500, span_s=50, faults={"late": 2}, errors={"x": 500_000})
    values = {each["name"]: each["value"] for each in found}
    assert values["confirmed per second"] == 10
    assert (values["late"], values["lost"]) == (2, 0)
    assert [values[f"x p{each}"] for each in ("50", "99", "99.9", "100")] == [None, 9, None, 9.9]
