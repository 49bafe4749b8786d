from __future__ import annotations

import re

from spark.page import Figure, Page, Section, render_html, render_text
from spark.tables import table_of

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
