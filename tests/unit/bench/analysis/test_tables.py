from __future__ import annotations

from bench.analysis.tables import NONE, html_table, text_table, told

ROWS = [("mb1", "12", "3.5 ms"), ("mb22", "1,000", "12 ms")]


def test_words_stand_to_the_left_and_numbers_to_the_right() -> None:
    assert text_table(("broker", "count", "p99"), ROWS, indent="  ") == [
        "  broker  count     p99",
        "  mb1        12  3.5 ms",
        "  mb22    1,000   12 ms",
    ]


def test_what_is_too_wide_for_the_terminal_goes_below_with_its_words_again() -> None:
    lines = text_table(("broker", "count", "p99"), ROWS, columns=16)
    assert lines == [
        "broker  count",
        "mb1        12",
        "mb22    1,000",
        "broker     p99",
        "mb1     3.5 ms",
        "mb22     12 ms",
    ]


def test_no_rows_are_no_table() -> None:
    assert text_table(("x",), []) == []
    assert "Nothing" in html_table(("x",), [])


def test_a_cell_is_no_markup() -> None:
    assert "&lt;b&gt;" in html_table(("x",), [("<b>",)])


def test_what_is_not_known_is_a_dash_and_never_a_zero() -> None:
    assert [told(each) for each in (None, 0.0, 1.234, 1234.5)] == [NONE, "0", "1.23", "1,234"]
