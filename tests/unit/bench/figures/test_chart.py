"""The README's chart of ratios."""

from __future__ import annotations

from xml.etree import ElementTree

from bench.figures.chart import Bar, ratios

SVG = "{http://www.w3.org/2000/svg}"
BARS = [
    Bar("rate", "kombu & friends", 8.0, (6.0, 10.0)),
    Bar("rate", "Java", 0.9),
    Bar("CPU", "pika", 0.25, less_is_better=True),
]


def test_each_bar_goes_from_one_to_its_ratio_and_says_which_side_is_better() -> None:
    drawn = ElementTree.fromstring(ratios(BARS, "ratios <1 to 8>"))
    rects = drawn.findall(f"{SVG}rect")
    assert [each.get("class") for each in rects] == ["better", "worse", "better"]
    kombu, java, pika = [float(each.attrib["x"]) for each in rects]
    widths = [float(each.attrib["width"]) for each in rects]
    assert widths[0] > widths[2] > widths[1] > 0
    one = kombu  # a ratio above 1 begins there, one below ends there
    assert java + widths[1] == pika + widths[2] == one
    texts = [each.text for each in drawn.findall(f"{SVG}text")]
    assert [texts.count(each) for each in ("rate", "CPU", "kombu & friends", "8 x")] == [1, 1, 1, 2]
    assert len(drawn.findall(f"{SVG}line[@class='range']")) == 1


def test_without_figures_there_is_an_axis_and_no_bar() -> None:
    drawn = ElementTree.fromstring(ratios([], "nothing yet"))
    assert drawn.findall(f"{SVG}rect") == []
    assert len(drawn.findall(f"{SVG}line")) == 2
