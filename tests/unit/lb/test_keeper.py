"""lb.keeper: the text that it writes. As a process: tests/integration/test_balancers.py."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from lb import keeper, render, runtime, state
from lb.hosts import LocalMachine
from lb.state import rows
from tests.support.balancer import inventory

SAID = (
    state.HEAD
    + "3 mb_brokers 1 mb1 10.0.1.1 2 8 40 100 2 15 3 3 6 22 0 0 - 5672 - 0 0 - - 0\n"
    + "3 mb_brokers 2 mb2 10.0.1.2 2 4 100 100 2 15 3 3 6 22 0 0 - 5672 - 0 0 - - 0\n"
    + "4 mb_agents 1 mb1 10.0.1.1 2 0 1 1 2 15 3 3 6 22 0 0 - 8081 - 0 0 - - 0\n"
    + "\n"
)


def test_it_is_a_file_by_itself() -> None:
    """Its host has no other file of this kit, and no package."""
    tree = ast.parse(Path(keeper.__file__).read_text())
    named = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [each.name for each in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert named <= set(sys.stdlib_module_names)


def test_it_says_what_the_kit_says() -> None:
    assert (keeper.BACKEND, keeper.WEIGHT) == (render.BROKERS, render.WEIGHT)
    assert keeper.WEIGHT_MAX == runtime.WEIGHT_MAX
    assert (keeper.HEAD, keeper.COLUMNS) == (state.HEAD, state.COLUMNS)
    assert keeper.ORDERED_FLAGS == state.ORDERED_FLAGS


def test_what_is_saved_is_what_a_reload_of_the_kit_would_write() -> None:
    assert keeper.brokers_of(SAID) == state.warm(SAID, inventory().brokers)


def test_at_a_start_from_nothing_all_are_down_and_orders_stay() -> None:
    ours = rows(keeper.cold(SAID))
    assert [row.text.split()[5] for row in ours.values()] == ["0", "0"]
    assert {name: row.admin_state for name, row in ours.items()} == {"mb1": 8, "mb2": 0}
    kits = rows(state.cold(SAID, inventory().brokers))
    for name, row in ours.items():
        assert row.text.split()[9:15] == kits[name].text.split()[9:15]
    assert [row.text.split()[7:9] for row in ours.values()] == [["40", "100"], ["100", "100"]]
    assert keeper.cold(keeper.cold(SAID)) == keeper.cold(SAID)


def test_a_broker_that_the_file_does_not_tell_of_starts_as_down() -> None:
    """It is new, or lost with the end of a file that was cut off anywhere."""
    read = inventory(3)
    config = render.render(read)
    assert keeper.cold("", config) == state.cold("", read.brokers)
    for end in range(len(SAID)):
        ours = rows(keeper.cold(SAID[:end], config))
        assert list(ours) == ["mb1", "mb2", "mb3"]
        assert {row.text.split()[5] for row in ours.values()} == {"0"}
    assert rows(keeper.cold(SAID, config))["mb1"].admin_state == 8


@pytest.mark.parametrize(
    "damage",
    [b"\xff\xfe\x00", b"\x00" * 4096, b"mb_brokers " * 40, b"9" * 5000, b"1 " * 30 + b"\n"],
)
@pytest.mark.parametrize("at", [0, 1, 500, 600, -20])
def test_a_damaged_file_keeps_nobody_from_starting_and_takes_no_broker_as_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes, at: int
) -> None:
    file, config = tmp_path / "state", tmp_path / "haproxy.cfg"
    raw = SAID.encode()
    file.write_bytes(raw[:at] + damage + raw[at:])
    read = inventory(3)
    kits = rows(state.cold(LocalMachine().read(file), read.brokers))
    config.write_text(render.render(read))
    said = [
        "--cold",
        "--file",
        str(file),
        "--config",
        str(config),
        "--lock",
        str(tmp_path / "lock"),
    ]
    monkeypatch.setattr(sys, "argv", ["keeper.py", *said])
    keeper.main()
    ours = rows(file.read_text())
    for found in (ours, kits):
        assert list(found) == ["mb1", "mb2", "mb3"]
        assert {row.text.split()[5] for row in found.values()} == {"0"}


def test_a_file_that_cannot_be_read_is_told_and_counts_as_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert keeper.read(tmp_path / "none") == ""
    assert capsys.readouterr().err == ""
    assert keeper.read(tmp_path) == ""
    assert "not read" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "1\n", "rubbish\nof any kind\nmb_brokers\n"])
def test_what_is_no_state_stays_none(text: str) -> None:
    assert rows(keeper.cold(text)) == {}


def test_a_socket_that_is_not_there_is_told_and_the_last_file_stands(tmp_path: Path) -> None:
    file = tmp_path / "state"
    keeper.write(file, "old")
    assert "No such file" in keeper.save(tmp_path / "none.sock", file, None)
    assert keeper.read(file) == "old"
    assert file.stat().st_mode & 0o777 == 0o600


def test_it_does_not_write_while_another_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "LOCK_WITHIN_S", 0)
    with keeper.locked(tmp_path / "lock"):
        assert "somebody else holds" in keeper.save(
            tmp_path / "none", tmp_path / "x", tmp_path / "lock"
        )
