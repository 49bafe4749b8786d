from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from messagebus_tools.moving import MessagesMoved
from ops.__main__ import main
from ops.cluster.management import Queue
from ops.cluster.view import View
from ops.local import files, secrets
from ops.local.layout import Layout

TEXT = """\
cluster = "prod"

[[brokers]]
name = "mb1"
address = "a:1"

[[brokers]]
name = "mb2"
address = "b:1"
"""


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    file = tmp_path / "inventory.toml"
    file.write_text(TEXT)
    return file


def test_a_broker_that_was_dropped_and_kept_is_put_back(inventory: Path, tmp_path: Path) -> None:
    kept, where = tmp_path / "journal" / "mb1.toml", ["--inventory", str(inventory)]
    drop = ["inventory", "drop", "mb1", "--keep", str(kept), *where]
    assert main(drop) == 0
    assert "mb1" not in inventory.read_text()
    # Taken up again after an interruption, what was kept is still there.
    assert main(drop) == 0
    assert main(["inventory", "put", str(kept), *where]) == 0
    assert main(["inventory", "put", str(kept), *where]) == 0
    assert inventory.read_text().count('name = "mb1"\naddress = "a:1"') == 1


def test_what_was_not_kept_is_told(inventory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inventory", "put", "/none", "--inventory", str(inventory)]) == 2
    assert "/none" in capsys.readouterr().err


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, dict[str, Any]]:
    """An inventory of four brokers; the report on each, a reason or "" for ready, and on the move."""
    layout = Layout(dir=tmp_path, numbers=(1, 2, 3, 4))
    layout.inventory.write_text(files.inventory_toml(layout))
    layout.list_file.parent.mkdir()
    listed = "".join(f"127.0.0.{10 + number}:5672\n" for number in (1, 2, 3, 4))
    layout.list_file.write_text(f"# generation: 1\n{listed}")
    told: dict[str, Any] = {"mb2": "", "mb3": "", "mb4": ""}

    def health(_view: View, name: str) -> dict[str, str]:
        return {"verdict": "drain" if told[name] else "ready", "reason": told[name]}

    def move(_bus: object, queues: Iterable[str], **asked: Any) -> MessagesMoved:
        told["targets"] = asked["targets"]
        return MessagesMoved({(queue, "x"): 1 for queue in queues})

    monkeypatch.setattr(View, "health", health)
    monkeypatch.setattr(View, "queues", lambda *_: [Queue(name="q", messages=1, consumers=0)])
    monkeypatch.setattr("ops.playbooks.step_commands.move_messages", move)
    return layout.inventory, told


@pytest.mark.guarantee("move-remaining")
def test_nothing_is_moved_to_a_broker_that_takes_no_publishes(
    cluster: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """A broker in alarm would confirm nothing."""
    inventory, told = cluster
    told |= {"mb2": "memory alarm", "mb4": "disk alarm"}
    secrets.ensure(inventory.parent / "secrets")
    assert main(["move", "mb1", "--inventory", str(inventory)]) == 0
    assert told["targets"] == ["127.0.0.13:5672"]
    said = capsys.readouterr()
    assert said.err == "nothing is moved to mb2 (memory alarm), mb4 (disk alarm)\n"
    assert "moved 1 message of 1 queue" in said.out
    told["mb3"] = "memory alarm"
    assert main(["move", "mb1", "--inventory", str(inventory)]) == 1
    assert capsys.readouterr().err.endswith(": no other broker takes publishes\n")
