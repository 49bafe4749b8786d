from __future__ import annotations

from spark.tables import TEXT_ROWS_MAX, table_of, text_table


def test_rows_that_are_not_shown_are_counted() -> None:
    table = table_of(("n",), [(str(n),) for n in range(100)], shown_max=10)
    assert len(table.rows) == 10
    assert table.left_out.startswith("90 more rows")


def test_what_is_too_wide_for_the_terminal_goes_below_with_its_words_again() -> None:
    table = table_of(
        ("broker", "count", "p99"), [("mb1", "12", "3.5 ms"), ("mb22", "1,000", "12 ms")]
    )
    assert text_table(table) == [
        "  broker  count     p99",
        "  mb1        12  3.5 ms",
        "  mb22    1,000   12 ms",
    ]
    assert text_table(table, columns=18) == [
        "  broker  count",
        "  mb1        12",
        "  mb22    1,000",
        "  broker     p99",
        "  mb1     3.5 ms",
        "  mb22     12 ms",
    ]


def test_a_terminal_gets_the_first_rows_and_how_many_more_there_are() -> None:
    table = table_of(("n",), [(str(n),) for n in range(30)])
    lines = text_table(table)
    assert len(lines) == 1 + TEXT_ROWS_MAX + 1
    assert lines[-1] == "  5 more rows are on the page."
