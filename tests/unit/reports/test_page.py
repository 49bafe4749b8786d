from __future__ import annotations

import re

from reports.page import (
    BARS_MAX,
    BEFORE_END,
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
from reports.text import Table

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
    assert bars.bars[0].told == "100 (10.0%)"
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
