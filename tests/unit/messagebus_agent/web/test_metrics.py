"""Figures for Prometheus."""

from __future__ import annotations

from pathlib import Path

import pytest

from messagebus_agent.web.metrics import Figure, Metrics, MirrorState, figures_of_mirror, look, read

HEAD = """version: 8.4.11 (api:1/proto:86-101)
srcversion: 96ED19D4C144624490A9AB1
"""
COUNTS = "\n    ns:40 nr:0 dw:40 dr:1153 al:3 bm:0 lo:0 pe:0 ua:0 ap:0 ep:1 wo:f oos:0\n"


def test_figures_are_read_at_each_scrape() -> None:
    value = [1.0]
    metrics = Metrics(
        "h:1",
        lambda: [Figure("ready", "Ready.", value[0]), Figure("lost", "Lost.", 2, counter=True)],
    )
    assert b'messagebus_agent_ready{broker="h:1"} 1.0' in metrics.text()
    value[0] = 0
    text = metrics.text()
    assert b'messagebus_agent_ready{broker="h:1"} 0.0' in text
    assert b'messagebus_agent_lost_total{broker="h:1"} 2.0' in text


def test_nothing_is_collected_before_the_first_scrape() -> None:
    def too_early() -> list[Figure]:
        raise AssertionError("collected")

    Metrics("h:1", too_early)


def test_figures_of_queues_have_their_names() -> None:
    figures = [
        Figure("ready", "Ready.", 1),
        Figure("queue_messages", "There.", 3, queue="mb.sub/a/b"),
        Figure("queue_messages", "There.", 4, queue='"\\'),
    ]
    text = Metrics("h:1", lambda: figures).text().decode()
    assert 'messagebus_agent_queue_messages{broker="h:1",queue="mb.sub/a/b"} 3.0' in text
    assert 'messagebus_agent_queue_messages{broker="h:1",queue="\\"\\\\"} 4.0' in text
    assert text.count("# TYPE messagebus_agent_queue_messages gauge") == 1


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("cs:Connected ro:Primary/Secondary ds:UpToDate/UpToDate C r-----", (2, True, False)),
        ("cs:WFConnection ro:Primary/Unknown ds:UpToDate/Outdated C r-----", (1, False, False)),
        ("cs:WFConnection ro:Primary/Unknown ds:UpToDate/DUnknown C s-----", (1, False, False)),
        ("cs:StandAlone ro:Primary/Unknown ds:UpToDate/DUnknown   r-----", (1, False, True)),
        ("cs:SyncSource ro:Primary/Secondary ds:UpToDate/Inconsistent C r-----", (1, True, False)),
        ("cs:Connected ro:Primary/Secondary ds:Diskless/UpToDate C r-----", (1, True, False)),
        ("cs:WFConnection ro:Secondary/Unknown ds:Outdated/DUnknown C r-----", (0, False, False)),
    ],
)
def test_a_state_in_three_numbers(line: str, state: tuple[int, bool, bool]) -> None:
    other = " 1: cs:Connected ro:Primary/Secondary ds:UpToDate/UpToDate C r-----"
    text = f"{HEAD}{other}{COUNTS}10: {line}{COUNTS} 0: {line}{COUNTS}"
    assert read(text, "/dev/drbd0") == MirrorState(*state)
    assert read(text, "/dev/drbd10") == MirrorState(*state)
    assert read(text, "/dev/drbd1") == MirrorState(2, True, False)


@pytest.mark.parametrize("text", ["", HEAD, f"{HEAD} 0: cs:Unconfigured\n"])
def test_a_device_that_is_not_there_has_no_state(text: str) -> None:
    assert read(text, "/dev/drbd0") is None
    assert read(text, "/dev/sda") is None


def test_without_drbd_there_is_nothing_to_see(tmp_path: Path) -> None:
    assert look("/dev/drbd0", tmp_path / "none") is None


def test_what_monitoring_sees(tmp_path: Path) -> None:
    proc = tmp_path / "drbd"
    assert list(figures_of_mirror("", proc)) == []
    assert [figure.value for figure in figures_of_mirror("/dev/drbd0", proc)] == [0, False, False]
    proc.write_text(f"{HEAD} 0: cs:StandAlone ro:Primary/Unknown ds:UpToDate/DUnknown   r-----\n")
    assert [figure.value for figure in figures_of_mirror("/dev/drbd0", proc)] == [1, False, True]
