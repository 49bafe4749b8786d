"""lb.keeper: the text that it writes. As a process: tests/integration/test_balancers.py."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from lb import keeper, render, state
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
    assert keeper.BACKEND == render.BROKERS
    assert (keeper.COLUMNS, keeper.ORDERED_FLAGS) == (state.COLUMNS, state.ORDERED_FLAGS)


def test_what_is_saved_is_what_a_reload_of_the_kit_would_write() -> None:
    assert keeper.brokers_of(SAID) == state.warm(SAID, inventory().brokers)


def test_at_a_start_from_nothing_all_are_down_and_orders_stay() -> None:
    ours = rows(keeper.cold(SAID))
    assert [row.text.split()[5] for row in ours.values()] == ["0", "0"]
    assert {name: row.admin_state for name, row in ours.items()} == {"mb1": 8, "mb2": 0}
    kits = rows(state.cold(SAID, inventory().brokers))
    for name, row in ours.items():
        assert row.text.split()[9:15] == kits[name].text.split()[9:15]
    assert keeper.cold(keeper.cold(SAID)) == keeper.cold(SAID)


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
