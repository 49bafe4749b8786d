from __future__ import annotations

from bench.run.tables import NONE, table, told


def test_names_stand_left_and_values_right() -> None:
    assert table([("a", "b"), ("long", "1"), ("", "22")]) == [
        "a      b",
        "long   1",
        "      22",
    ]


def test_what_is_not_known_is_a_dash_and_never_a_zero() -> None:
    assert [told(each) for each in (None, 0.0, 1.234, 1234.5)] == [NONE, "0", "1.23", "1,234"]
