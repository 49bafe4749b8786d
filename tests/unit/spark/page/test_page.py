from __future__ import annotations

import re

from spark.page.page import (
    BARS_MAX,
    TEXT_ROWS_MAX,
    Bar,
    Bars,
    Figure,
    Page,
    Part,
    Section,
    against_mean,
    render_html,
    render_text,
    table_of,
    text_table,
)

PAGE = Page(
    job="audit",
    title="run <1>",
    meta="3 brokers",
    verdict="The promise does not hold.",
    faults=("1 lost & found",),
    figures=(Figure("1", "lost", "of 3"),),
    sections=(
        Section(
            title="Brokers",
            note="All of them.",
            chart="<svg></svg>",
            tables=(table_of(("broker", "lost"), [("mb1", "1"), ("mb22", "0")]),),
        ),
        Section(title="Nothing", tables=(table_of(("x",), []),)),
    ),
    words=(("lost", "never came."),),
    tables="fates",
)


def test_the_page_needs_nothing_beside_it_and_escapes_what_it_is_given() -> None:
    html = render_html(PAGE)
    assert "run &lt;1&gt;" in html
    assert "1 lost &amp; found" in html
    assert "<svg></svg>" in html
    assert "Nothing</h2>" not in html
    assert not re.search(r"(?:src|href)=|@import|url\(", html)


def test_the_text_has_the_same_numbers() -> None:
    text = render_text(PAGE)
    assert "audit, run <1>: The promise does not hold." in text
    assert "  ! 1 lost & found" in text
    assert "  mb1        1\n  mb22       0" in text
    assert "Nothing" not in text


def test_bars_have_one_scale_and_a_legend_of_what_there_is() -> None:
    one = Bar(
        "<mb1>", (Part("fine", 30), Part("lost", 10, "alarm"), Part("late", 0, 2)), "30 of 40"
    )
    other = Bar("mb2", (Part("fine", 20), Part("lost", 0, "alarm")), "20 of 20")
    bars = Bars((one, other))
    assert bars.whole == 40
    assert [(part.what, part.value) for part in bars.legend] == [("fine", 50), ("lost", 10)]
    section = Section(title="Fates", bars=bars)
    html = render_html(Page(job="audit", title="r", meta="", verdict="", sections=(section,)))
    assert "&lt;mb1&gt;" in html
    assert 'class="look-0" style="width: 75.00%"' in html
    assert 'class="look-alarm" style="width: 25.00%"' in html
    assert ">late" not in html


def test_the_largest_stand_beside_the_mean_of_all() -> None:
    loads = [(f"key-{n}", 100.0 - n) for n in range(BARS_MAX + 5)]
    bars = against_mean(loads, "messages", mean=10.0, total=1000.0, count=300)
    assert len(bars.bars) == BARS_MAX
    assert bars.bars[0].told == "100 (10.0%)"
    assert bars.note == "Upright line: the mean, 10 messages. The 20 largest of 300."
    assert bars.legend == []


def test_no_load_is_no_bar_and_nothing_is_divided_by_zero() -> None:
    assert against_mean([("mb1", 0.0)], "messages", mean=0.0, total=0.0, count=1).bars == ()
    assert Bars().whole == 1.0


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
