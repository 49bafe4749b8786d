"""The lines are what DRBD 8.4.11 showed in these states."""

from __future__ import annotations

from pathlib import Path

import pytest

from messagebus.agent.mirror import MirrorState, figures_of_mirror, look, read

HEAD = """version: 8.4.11 (api:1/proto:86-101)
srcversion: 96ED19D4C144624490A9AB1
"""
COUNTS = "\n    ns:40 nr:0 dw:40 dr:1153 al:3 bm:0 lo:0 pe:0 ua:0 ap:0 ep:1 wo:f oos:0\n"


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
