from __future__ import annotations

import pytest

from spark.compare import Row, compared, worse


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
    ],
)
def test_worse_is_more_faults_fewer_messages_or_longer_waits(row: Row, said: str | None) -> None:
    assert worse([row], 0.2) == ([said] if said else [])
