from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from spark.page.pipeline import CURVE
from spark.page.report import BROKERS_DRAWN_MAX, render_html, render_text, write_reports

REPEATS = {"unknown": 0, "owed": 2, "acked_without_proof": 1, "unexplained": 0}


def summary(**changed: Any) -> dict[str, Any]:
    pair = {
        "expected": 10,
        "delivered": 10,
        "deliveries": 13,
        "lost": 0,
        "pending": 0,
        "altered": 0,
    }
    gap = {"longest_gap_ms": 312.0, "longest_gap_at_s": 4.2}
    broker = {
        "listed": True,
        "confirmed": 5,
        "confirmed_bytes": 2_000_000,
        "active_s": 2,
        "confirmed_per_s": 2.5,
        "peak_per_s": 3,
        "deliveries": 6,
        "lost": 0,
        "doubled": REPEATS,
    }
    even = {"count": 2, "mean": 5.0, "max_over_mean": 1.25, "gini": 0.1}
    curve = [[each, 1.0 + each] for each in CURVE]
    latency = [
        {"measure": measure, "scope": scope, "name": name, "samples": 10, "percentiles_ms": curve}
        for measure, scope, name in [
            ("confirm_from_intended", "all", ""),
            ("confirm_from_intended", "broker", "mb1:5672"),
            ("confirm_from_sent", "all", ""),
            ("received_from_intended", "all", ""),
            ("received_from_intended", "subscription", "orders/billing"),
        ]
    ]
    load = {"kind": "confirmed", "broker": "mb1:5672", "topic": "orders", "subscription": ""}
    return {
        "run_id": "run-<1>",
        "holds": True,
        "faults": [],
        "run": {
            "started_at": "2026-01-02T03:04:05+00:00",
            "duration_s": 10.0,
            "last_event_before_s": 11,
            "complete": True,
            "topics": {"orders": ["billing"]},
            "brokers": ["mb1:5672", "mb2:5672"],
            "publishers": 1,
            "consumers": 1,
            "prefetch": 200,
            "clock_spread_ms": 0.4,
            "incidents": [
                {"kind": "kill", "broker": "mb1:5672", "at_s": 4.0, "done_s": 4.1},
                {"kind": "start", "broker": "mb1:5672", "at_s": 6.0, "done_s": 7.0},
                {"kind": "reload", "broker": "", "at_s": 8.0, "done_s": 8.1},
            ],
        },
        "published": 10,
        "confirmed": 10,
        **pair,
        "doubled": {"total": 3} | REPEATS,
        "unconfirmed": {
            "refused": 0,
            "unroutable": 0,
            "unknown": 0,
            "pairs_delivered": 0,
            "pairs_absent": 0,
        },
        "orphan_deliveries": 0,
        "unexpected": 0,
        "reused_ids": 0,
        "verdicts": {"ok": 7, "doubled": 3, "lost": 0},
        "lines": {
            "read": 25,
            "anchors": 2,
            "good": {"published": 10, "delivered": 13},
            "bad": 0,
            "bad_by_reason": {},
            "bad_by_file": [],
            "files": 2,
            "files_skipped": [],
            "files_without_anchor": [],
        },
        "subscriptions": [
            {"topic": "orders", "subscription": "billing"}
            | pair
            | REPEATS
            | {"unconfirmed_delivered": 0, "orphan_deliveries": 0}
        ],
        "brokers": [
            broker | {"broker": "mb1:5672"} | gap,
            broker | {"broker": "mb2:5672", "longest_gap_ms": None, "longest_gap_at_s": None},
        ],
        "publishers": [
            {
                "publisher": "p1",
                "published": 10,
                "confirmed": 10,
                "refused": 0,
                "unroutable": 0,
                "unknown": 0,
                "retried": 0,
                "bytes": 4_000_000,
                "lost": 0,
            }
            | gap
        ],
        "imbalance": {"confirmed": even, "confirmed_per_s": even, "deliveries": even},
        "latency": latency,
        "negative_latencies": {"received_from_intended": 0},
        "out_of_order": 0,
        "suspects": [],
        "timeline": {
            "window_s": 1,
            "throughput": [load | {"at_s": at, "per_s": 2.0 + at} for at in (0, 2, 9)],
            "latency": [
                {
                    "measure": "confirm_from_intended",
                    "at_s": at,
                    "p50_ms": 1.0,
                    "p99_ms": 2.0,
                    "max_ms": 3.0,
                }
                for at in range(3)
            ],
        },
    } | changed


class Page(HTMLParser):
    """Parser for the addresses that a page would fetch, and for its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "link", "img", "iframe", "object"):
            self.fetched.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href") and not str(value).startswith("#"):
                self.fetched.append(str(value))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_needs_nothing_beside_it() -> None:
    html = render_html(summary())
    assert Page(html).fetched == []
    assert not re.search(r"url\((?!#)|@import", html)


def test_the_page_says_that_it_holds_and_what_was_explained() -> None:
    text = " ".join(Page(render_html(summary())).text.split())
    assert "The promise holds. Every one of 10 confirmed messages" in text
    assert "3 came again, each with a known reason" in text
    assert "312 ms at 4.2 s" in text
    assert "mb1 killed" in text
    assert "mb1 back" in text
    assert "balancer reloaded" in text


def test_the_page_says_why_it_does_not_hold() -> None:
    text = Page(render_html(summary(holds=False, faults=["3 confirmed and never delivered"]))).text
    assert "The promise does not hold." in text
    assert "3 confirmed and never delivered" in text


def test_pending_is_not_called_delivered() -> None:
    text = " ".join(Page(render_html(summary(pending=4, delivered=6))).text.split())
    assert "6 of 10 deliveries, 4 were still on their way at the end" in text
    assert "Every one of" not in text


def test_text_from_outside_is_escaped() -> None:
    bad = {"file": "<b>f</b>", "reason": "empty line", "lines": 1, "example": "<script>alert()"}
    lines = summary()["lines"] | {"bad_by_file": [bad]}
    html = render_html(summary(lines=lines))
    assert "<script" not in html
    assert "&lt;script&gt;alert()" in html
    assert "run-&lt;1&gt;" in html


def test_what_was_skipped_is_listed() -> None:
    lines = summary()["lines"] | {
        "files_skipped": [{"file": "a.ndjson", "reason": "empty file"}],
        "files_without_anchor": ["b.ndjson"],
    }
    text = Page(render_html(summary(lines=lines))).text
    assert "skipped: empty file" in text
    assert "no clock anchor" in text


def test_negative_latencies_are_shown() -> None:
    text = Page(render_html(summary(negative_latencies={"received_from_intended": 7}))).text
    assert "7 values of received from intended were negative" in text


def test_a_run_without_any_event_still_renders() -> None:
    nothing = summary(
        published=0,
        confirmed=0,
        latency=[],
        publishers=[],
        subscriptions=[],
        imbalance={"confirmed": None, "confirmed_per_s": None, "deliveries": None},
        timeline={"window_s": 1, "throughput": [], "latency": []},
    )
    assert "No broker confirmed anything." in render_html(nothing)
    assert "run run-<1>: holds" in render_text(nothing)


def test_many_brokers_are_drawn_as_a_few_and_others() -> None:
    one = summary()["brokers"][0]
    names = [f"mb{number}:5672" for number in range(1, 21)]
    brokers = [one | {"broker": name, "confirmed": n} for n, name in enumerate(names)]
    load = summary()["timeline"]["throughput"][0]
    timeline = summary()["timeline"] | {"throughput": [load | {"broker": name} for name in names]}
    html = render_html(summary(brokers=brokers, timeline=timeline))
    drawn = set(re.findall(r">(mb\d+|others)</text>", html)) - {"mb1"}
    assert "others" in drawn
    assert len(drawn) == BROKERS_DRAWN_MAX


def test_the_text_is_a_screenful() -> None:
    text = render_text(summary())
    assert text.splitlines()[0] == "run run-<1>: holds"
    assert "unknown 0, owed 2, acked without proof 1, unexplained 0" in text
    assert len(text.splitlines()) < 35
    assert max(map(len, text.splitlines())) <= 110


@pytest.mark.parametrize("name", ["report.html", "report.txt"])
def test_both_reports_are_written(tmp_path: Path, name: str) -> None:
    text = write_reports(summary(), tmp_path)
    assert (tmp_path / name).stat().st_size > 500
    assert (tmp_path / "report.txt").read_text() == text + "\n"
