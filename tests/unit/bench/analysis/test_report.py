from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from bench.analysis.report import render_html, render_text, write
from bench.analysis.result import gather, numbers_of
from bench.harness.coordinator import SAMPLES
from bench.harness.sampling import Sample, save
from tests.support.runs import BROKERS, write_run


class Tags(HTMLParser):
    """Parser that raises for tags that are not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_needs_nothing_beside_it_and_is_well_formed(tmp_path: Path) -> None:
    write_run(tmp_path)
    html = render_html(gather(tmp_path))
    assert not re.search(r"(?:src|href)=\"(?!#)|@import|url\((?!#)", html)
    tags = Tags()
    tags.feed(html)
    assert tags.open == []
    assert all(broker in html for broker in BROKERS)


def test_the_text_has_verdict_latencies_fates_and_costs(tmp_path: Path) -> None:
    write_run(tmp_path)
    text = render_text(gather(tmp_path))
    assert text.startswith(
        "made-up, messagebus: 200 confirmed a second, 200 delivered a second, p99 "
    )
    for word in (
        "intended to confirmed",
        "sent to confirmed",
        "lost",
        "CPU us / message",
        "pacing",
    ):
        assert word in text


def test_brokers_that_nobody_looked_at_meanwhile_have_dashes_and_a_line_that_says_so(
    tmp_path: Path,
) -> None:
    write_run(tmp_path)
    rows = [Sample(each, at, at, 100.0, 0, 0, 3) for each in BROKERS for at in (-5.0, 20.0)]
    save(tmp_path / SAMPLES, rows)
    result = gather(tmp_path)
    write(result)
    for said in (render_text(result), (tmp_path / "report.html").read_text()):
        assert re.search(rf"(?i)not looked at while it was measured: {', '.join(BROKERS)}", said)
    for each in result.brokers.values():
        assert (each["memory_mib"], each["messages_cpu_s"], each["cpu_us"]) == (None, None, None)
    assert "broker CPU us" not in numbers_of(result.as_json())


def test_what_is_not_to_be_trusted_says_so_first(tmp_path: Path) -> None:
    write_run(tmp_path, lost=1)
    lines = render_text(gather(tmp_path)).splitlines()
    assert lines[0].endswith("not to be trusted as it stands.")
    assert lines[1] == "  ! 1 confirmed and never delivered"


def test_text_and_page_are_written_beside_the_run(tmp_path: Path) -> None:
    write_run(tmp_path)
    result = gather(tmp_path)
    write(result)
    text = render_text(result)
    assert (tmp_path / "report.txt").read_text() == text + "\n"
    assert (tmp_path / "report.html").exists()
