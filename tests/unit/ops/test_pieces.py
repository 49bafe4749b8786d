from __future__ import annotations

from pathlib import Path

import pytest

from ops.__main__ import main

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
