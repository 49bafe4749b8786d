from __future__ import annotations

import io
from pathlib import Path

import pytest

from ops.__main__ import main
from ops.local import files
from ops.local.layout import Layout


@pytest.fixture
def inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The inventory of a local cluster of which nothing runs."""
    layout = Layout(dir=tmp_path, numbers=(1, 2))
    layout.inventory.write_text(files.inventory_toml(layout))
    layout.state_file.write_text(layout.to_json())
    layout.list_file.parent.mkdir()
    layout.list_file.write_text("# generation: 1\n127.0.0.11:5672\n127.0.0.12:5672\n")
    monkeypatch.setattr("ops.cluster.absent._is_ended", lambda *_: True)
    return layout.inventory


def run(inventory: Path, *words: str) -> int:
    return main([*words, "--inventory", str(inventory)])


def test_a_new_local_broker_gets_the_address_of_its_number(
    inventory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(inventory, "add", "mb7", "--dry-run") == 0
    printed = capsys.readouterr().out
    assert "add 127.0.0.17:5672 --agent-port 8081" in printed
    assert f"ops local provision mb7 --dir {inventory.parent}" in printed


def test_a_dry_run_leaves_no_trace(inventory: Path) -> None:
    assert run(inventory, "remove", "mb2", "--dry-run") == 0
    assert not (inventory.parent / "journal").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("add", "mb1"), (2, "mb1 is on the list already")),
        (("remove", "mb9"), (2, "no broker 'mb9' in the inventory")),
        (("replace", "mb1", "--dead", "db1"), (2, "mb1 has no mirror that could take over")),
        (("add", "mb3", "--undo", "--yes"), (1, "no unfinished run of 'add mb3' to take back")),
    ],
)
def test_what_cannot_be_done_is_one_line_and_has_its_exit_code(
    inventory: Path,
    words: tuple[str, ...],
    said: tuple[int, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, why = said
    assert run(inventory, *words) == code
    assert why in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("answer", ["n\n", "\n", ""])
def test_nothing_is_done_without_a_yes(
    inventory: Path,
    answer: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    assert run(inventory, "remove", "mb2") == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith("not confirmed; nothing was done. --yes does not ask")


def test_wrong_use_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["add"]) == 2
    assert main(["local", "kill", "mb1", "--signal", "HUP"]) == 2
    assert main(["nothing"]) == 2


@pytest.mark.parametrize("words", [[], ["local"], ["add"], ["remove"], ["local", "up"], ["hangup"]])
def test_every_command_has_help_with_an_example(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--help"]) == 0
    assert "Example:" in capsys.readouterr().out


def test_a_broker_is_dropped_from_the_inventory(inventory: Path) -> None:
    assert run(inventory, "inventory", "drop", "mb1") == 0
    assert 'name = "mb1"' not in inventory.read_text()
    assert 'name = "mb2"' in inventory.read_text()
