from __future__ import annotations

from spark.bars import BARS_MAX, Bar, Bars, Part, against_mean
from spark.page import Page, Section, render_html


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
