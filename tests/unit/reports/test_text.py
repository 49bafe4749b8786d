from __future__ import annotations

import pytest

from reports.text import NONE, Columns, Table, cell, milliseconds, significant, table_of, text_table

TABLE = Table(("broker", "count", "p99"), (("mb1", "12", "3.5 ms"), ("mb22", "1,000", "12 ms")))


def test_words_stand_to_the_left_and_numbers_to_the_right() -> None:
    assert text_table(TABLE) == [
        "  broker  count     p99",
        "  mb1        12  3.5 ms",
        "  mb22    1,000   12 ms",
    ]


def test_what_is_too_wide_for_the_terminal_goes_below_with_its_words_again() -> None:
    assert text_table(TABLE, columns=16, indent="") == [
        "broker  count",
        "mb1        12",
        "mb22    1,000",
        "broker     p99",
        "mb1     3.5 ms",
        "mb22     12 ms",
    ]


def test_what_is_wider_than_the_terminal_by_itself_is_not_cut() -> None:
    wide = Table(("why", "n"), (("x" * 300 + " [b]", "1"),))
    assert text_table(wide, columns=20, indent="")[1] == "x" * 300 + " [b]  1"


def test_no_rows_are_no_table() -> None:
    assert text_table(Table(("x",), ())) == []


def test_a_terminal_gets_the_first_rows_and_how_many_more_there_are() -> None:
    lines = text_table(table_of([{"n": n} for n in range(30)], {"n": "n"}), rows_max=25)
    assert len(lines) == 1 + 25 + 1
    assert lines[-1] == "  5 more rows are on the page."


def test_rows_that_are_not_shown_are_counted() -> None:
    table = table_of([{"n": n} for n in range(100)], {"n": "n"}, shown_max=10)
    assert len(table.rows) == 10
    assert table.left_out.startswith("90 more rows")
    assert text_table(table)[-1] == f"  {table.left_out}"


def test_a_cell_is_a_value_of_its_row_or_is_made_of_the_row() -> None:
    columns: Columns = {
        "broker": "name",
        "share": lambda row: f"{row['share']:.0%}",
        "lost": "lost",
    }
    table = table_of([{"name": "mb1", "share": 0.25, "lost": None}], columns)
    assert (table.head, table.rows) == (("broker", "share", "lost"), (("mb1", "25%", NONE),))
    assert [cell(each) for each in (1234567, "", "a")] == ["1,234,567", NONE, "a"]


def test_what_is_not_known_is_a_dash_and_never_a_zero() -> None:
    assert [significant(each) for each in (None, 0.0, 1.234, 1234.5)] == [
        *(NONE, "0", "1.23", "1,234")
    ]
    assert milliseconds(None) == NONE


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0851, "85.1 µs"),
        (1.239, "1.24 ms"),
        (120.4, "120 ms"),
        (999.4, "999 ms"),
        (999.6, "1.00 s"),
        (10_510.0, "10.51 s"),
    ],
)
def test_durations_are_for_people(value: float, text: str) -> None:
    assert milliseconds(value) == text
