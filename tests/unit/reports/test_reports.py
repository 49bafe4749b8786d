"""Pages, charts and texts of reports."""

from __future__ import annotations

import re

import pytest

from reports import charts
from reports.charts import (
    DASHED,
    LABEL_LINES,
    ROWS_MAX,
    Around,
    Gap,
    Mark,
    Panel,
    Series,
    Span,
    silences,
)
from reports.page import (
    BARS_MAX,
    BEFORE_END,
    LOOKS,
    Bar,
    Bars,
    Figure,
    Page,
    Part,
    Section,
    against_mean,
    render_html,
    render_text,
    with_picture,
)
from reports.svg import COLOURS, HATCHES, MARKERS
from reports.text import (
    NONE,
    Columns,
    Table,
    cell,
    milliseconds,
    per_second,
    significant,
    table_of,
    text_table,
)

PAGE = Page(
    kind="audit",
    title="run <1>",
    meta=("3 brokers",),
    verdict="The promise does not hold.",
    faults=("1 lost & found",),
    figures=(Figure("1", "lost", "of 3"),),
    sections=(
        Section(
            title="Brokers",
            note="All of them.",
            chart="<svg></svg>",
            tables=(Table(("broker", "lost"), (("mb1", "1"), ("mb22", "0"))),),
            after=("mb3 said <nothing>.",),
        ),
        Section(title="Nothing", note="None.", tables=(Table(("x",), ()),)),
        Section(
            title="Suspects", link="s/x.html", tables=(Table(("id",), (("a1",),)),), is_long=True
        ),
    ),
    words={"lost": "never came."},
    footer="Rows: fates.",
)


NAN = float("nan")


def test_the_page_needs_nothing_beside_it_and_escapes_what_it_is_given() -> None:
    html = render_html(PAGE)
    assert "run &lt;1&gt;" in html
    assert "1 lost &amp; found" in html
    assert "<svg></svg>" in html
    assert "Nothing</h2>" not in html
    assert "mb3 said &lt;nothing&gt;." in html
    assert "Rows: fates. Nothing on this page" in html
    assert '<h2><a href="s/x.html">Suspects</a></h2>' in html
    assert not re.search(r"src=|@import|url\(", html)
    assert re.findall("href", html) == ["href"]


def test_a_cell_of_a_table_says_its_heading_where_a_row_is_a_card() -> None:
    table = Table(("broker", "confirmed", "lost", "mean/s of the run"), (("mb1", "9", "0", "3"),))
    few = Table(("broker", "lost"), (("mb1", "0"),))
    section = Section(title="Brokers", tables=(table, few))
    html = render_html(Page(kind="audit", title="r", verdict="", sections=(section,)))
    assert html.count('<table class="many">') == 1
    assert '<td data-l="confirmed">9</td>' in html
    assert '<td data-l="mean/s of the run">3</td>' in html
    assert '<td class="left">mb1</td>' in html


def test_a_picture_stands_in_the_page_before_its_words() -> None:
    html = render_html(PAGE)
    made = with_picture(html, "The <page>", b"\x89PNG")
    assert 'alt="The &lt;page&gt;" src="data:image/png;base64,iVBORw=="' in made
    mark = BEFORE_END[0] if BEFORE_END[0] in html else BEFORE_END[1]
    assert made.index("<img") < made.index(mark)
    assert with_picture("no page of ours", "x", b"") == "no page of ours"


def test_the_text_has_the_same_numbers() -> None:
    text = render_text(PAGE)
    assert "audit, run <1>: The promise does not hold." in text
    assert "  ! 1 lost & found" in text
    assert "  mb1        1\n  mb22       0" in text
    assert "  mb3 said <nothing>." in text
    assert "Nothing" not in text
    assert "Suspects" not in text


def test_bars_have_one_scale_and_a_legend_of_what_there_is() -> None:
    one = Bar(
        "<mb1>", (Part("fine", 30), Part("lost", 10, "alarm"), Part("late", 0, 2)), "30 of 40"
    )
    other = Bar("mb2", (Part("fine", 20), Part("lost", 0, "alarm")), "20 of 20")
    bars = Bars((one, other))
    assert bars.whole == 40
    assert [(part.what, part.value) for part in bars.legend] == [("fine", 50), ("lost", 10)]
    section = Section(title="Fates", bars=bars)
    html = render_html(Page(kind="audit", title="r", verdict="", sections=(section,)))
    assert "&lt;mb1&gt;" in html
    assert 'class="look-0" style="width: 75.00%"' in html
    assert 'class="look-alarm" style="width: 25.00%"' in html
    assert ">late" not in html


def test_the_largest_stand_beside_the_mean_of_all() -> None:
    loads = [(f"key-{n}", 100.0 - n) for n in range(BARS_MAX + 5)]
    bars = against_mean(loads, "messages", mean=10.0, total=1000.0, count=300)
    assert len(bars.bars) == BARS_MAX
    assert bars.bars[0].text == "100 (10.0%)"
    assert bars.note == "Upright line: the mean, 10 messages. The 20 largest of 300."
    assert bars.legend == []


def test_no_load_is_no_bar_and_nothing_is_divided_by_zero() -> None:
    assert against_mean([("mb1", 0.0)], "messages", mean=0.0, total=0.0, count=1).bars == ()
    assert Bars().whole == 1.0


def test_the_text_begins_with_a_name_and_is_as_wide_as_the_terminal() -> None:
    page = Page(kind="run", title="r", name="small, ours", verdict="fine", meta=("word " * 40,))
    first, *lines = render_text(page, 60).splitlines()
    assert first == "small, ours: fine"
    assert len(lines) > 3
    assert max(map(len, lines)) <= 60


MARKS = [Mark(2, "mb1 killed", alarm=True), Mark(2.1, "mb1 back"), Mark(9, "balancer reloaded")]


def drawn() -> str:
    return charts.over_time(
        [
            Panel(
                "confirmed",
                [Series("mb1", [0, 1, 2], [5, 6, 6]), Series("mb2", [0, 1, 2], [1, 0, 0])],
                "stack",
            ),
            Panel("delivered", [Series("orders/billing", [0, 1, 2], [6, 6, 6])], "step"),
            Panel("latency", [Series("publish, p99", [0, 1], [3.5, 4.5], "", DASHED)], unit="ms"),
        ],
        marks=MARKS,
        spans=[Span(2, 2.1, alarm=True)],
        until_s=10,
    )


def test_a_chart_names_its_series_and_incidents() -> None:
    text = drawn()
    for name in ("mb1", "mb2", "orders/billing", "publish, p99", *[mark.label for mark in MARKS]):
        assert f">{name}<" in text


def test_a_chart_takes_colours_and_font_from_the_page_and_fetches_nothing() -> None:
    text = drawn()
    assert text.startswith('<svg role="img" aria-label=')
    assert "var(--ink)" in text
    assert "var(--font)" in text
    assert not re.search(r"DejaVu|<metadata|<!DOCTYPE", text)
    assert not re.findall(r"(?:href|src)=\"(?!#)[^\"]*\"", text)


def test_the_same_numbers_make_the_same_picture() -> None:
    assert drawn() == drawn()


def test_close_labels_go_on_different_lines() -> None:
    lines = charts._label_lines(MARKS, 10)
    assert lines == [0, 1, 0]
    crowd = charts._label_lines([Mark(n / 100, "x") for n in range(9)], 10)
    assert crowd == [*range(LABEL_LINES), *[None] * (9 - LABEL_LINES)]


def test_names_without_room_are_left_out_and_counted() -> None:
    marks = [Mark(n / 100, f"kill {n}") for n in range(5)]
    text = charts.over_time([Panel("nothing", [])], marks=marks, until_s=10)
    assert "2 marks had no room for their names" in text
    assert ">kill 2<" in text
    assert ">kill 3<" not in text


def test_a_name_near_the_end_stands_before_its_mark() -> None:
    assert charts._extent(Mark(9.9, "mb1 killed"), 10)[1] == 0.99


def test_percentiles_leave_the_maximum_out() -> None:
    text = charts.percentiles([Series("publish", [0, 50, 99, 100], [1, 2, 30, 900])])
    assert ">publish<" in text
    assert ">99<" in text


def test_a_line_without_a_value_is_not_in_the_legend() -> None:
    """As where clocks differ by more than a latency: its figures are not given."""
    drawn, not_given = Series("publish", [0, 50], [1, 2]), Series("end to end", [0, 50], [NAN, NAN])
    panel = Panel("latency", [drawn, not_given, Series("none", [], [])], unit="ms")
    for text in (charts.percentiles(panel.series), charts.over_time([panel], until_s=60)):
        assert ">publish<" in text
        assert ">end to end<" not in text
        assert ">none<" not in text
    assert ">no samples<" in charts.percentiles([not_given])


def test_nothing_to_draw_is_said() -> None:
    assert ">no samples<" in charts.over_time([Panel("nothing", [], "stack")], until_s=0)
    assert ">no samples<" in charts.percentiles([])


def test_durations_stand_between_two_powers_of_ten_that_have_their_names() -> None:
    text = drawn()
    assert ">1 ms<" in text
    assert ">10 ms<" in text
    assert "no samples" not in text


@pytest.mark.parametrize(("depth", "age_ms"), [(23_400_000, 9e8), (9, 20), (1_000, 2e7)])
def test_no_label_of_an_axis_is_cut(depth: float, age_ms: float) -> None:
    """A label is right-aligned, and an SVG begins at 0. A letter is 4.6 wide on average, at 8 px."""
    panels = [
        Panel("waiting", [Series("a", [0, 60], [1, depth])]),
        Panel("oldest", [Series("a", [0, 60], [1, age_ms])], unit="ms"),
    ]
    curve = charts.percentiles([Series("end to end", [0, 50, 99], [1, 2, age_ms])])
    for text in (charts.over_time(panels, until_s=60), curve):
        labels = re.findall(r'text-anchor: end[^>]* x="([\d.]+)"[^>]*>([^<]+)<', text)
        assert labels
        assert [label for x, label in labels if float(x) < 4.6 * len(label)] == []


def test_each_event_has_its_longest_silences_with_their_names_and_lengths() -> None:
    gaps = [Gap("publisher", f"publisher-{n}", 10.0, 2.5 - n / 10) for n in range(ROWS_MAX + 3)]
    svg = silences([Around("kill mb1", 9.5, 12.0, gaps), Around("reload", 20.0, 20.0, [])])
    assert f"kill mb1, at 9.5 s (the {ROWS_MAX} longest of {ROWS_MAX + 3})" in svg
    assert ">publisher-0<" in svg
    assert "2.50 s" in svg
    assert "reload" not in svg
    assert "seconds since" not in svg
    assert "+1 s" in svg


def test_nothing_silent_is_no_chart() -> None:
    assert silences([]) == ""
    assert silences([Around("reload", 1.0, 1.0, [])]) == ""


def test_names_that_are_too_long_keep_their_ends() -> None:
    name = "a-very-long-name-of-a-publisher-that-nobody-would-read-0007"
    svg = silences([Around("kill mb1", 1.0, 1.0, [Gap("publisher", name, 1.0, 0.1)])])
    assert name not in svg
    assert "nobody-would-read-0007"[-12:] in svg


def test_whatever_has_a_colour_has_a_mark_a_hatch_and_a_look_of_its_own() -> None:
    assert len({*COLOURS}) == len({*HATCHES}) == len({*MARKERS}) == LOOKS


def test_of_more_series_than_colours_the_first_are_drawn_and_the_others_counted() -> None:
    series = [Series(f"mb{number}", [0, 1], [1, 2]) for number in range(20)]
    text = charts.over_time([Panel("waiting", series)], until_s=10)
    assert set(re.findall(r">(mb\d+)<", text)) == {one.label for one in series[: len(COLOURS)]}
    assert ">waiting, 8 of 20<" in text


def test_a_name_is_no_formula_and_the_axis_says_what_it_shows() -> None:
    panel = Panel("load", [Series("a$b$c <d>", [0, 1], [1, 2])])
    text = charts.over_time([panel], until_s=1, axis="since the load began")
    assert ">a$b$c &lt;d&gt;<" in text
    assert ">seconds since the load began<" in text


@pytest.mark.parametrize(
    ("until_s", "unit", "last"),
    [(7_199, "seconds", 7_000), (7_200, "hours", 2), (86_400, "hours", 20), (471_122, "days", 5)],
)
def test_times_are_read_in_the_largest_unit_of_which_there_are_two(
    until_s: float, unit: str, last: int
) -> None:
    text = charts.over_time([Panel("load", [Series("a", [0, until_s], [1, 1])])], until_s=until_s)
    assert f">{unit} since the start of the run<" in text
    assert f">{last}<" in text


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
        (99_999.0, "100.00 s"),
        (123_000.0, "2 min 3 s"),
        (12_345_000.0, "3 h 25 min"),
    ],
)
def test_durations_are_for_people(value: float, text: str) -> None:
    assert milliseconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((120 / 86_460, "0.00139/s"), (1 / 86_400, "0.0000116/s"), (0.4, "0.4/s"), (0.0, "0/s")),
        *((12.34, "12.3/s"), (99.96, "100/s"), (1_240.4, "1,240/s"), (20, "20/s")),
    ],
)
def test_only_a_rate_of_nothing_is_nothing(value: float, text: str) -> None:
    assert per_second(value) == text
    assert f"{cell(float(value))}/s" == text
