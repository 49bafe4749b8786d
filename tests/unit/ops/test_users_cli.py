from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ops.__main__ import main
from ops.local import files, secrets
from ops.local.layout import Layout


@pytest.fixture
def changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was changed, of a cluster whose inventory the environment names."""
    layout = Layout(dir=tmp_path, numbers=(1, 2))
    layout.inventory.write_text(files.inventory_toml(layout))
    secrets.ensure(layout.secrets_dir)
    monkeypatch.setenv("MESSAGEBUS_INVENTORY", str(layout.inventory))
    made: list[Any] = []
    monkeypatch.setattr(
        "ops.users_cli.change_password",
        lambda _view, user, *, given, without, say: made.append((user.name, given, without)),
    )
    return made


def test_a_dry_run_says_where_and_changes_nothing(
    changed: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["users", "password", "bus", "--dry-run"]) == 0
    assert "on mb1, mb2; in " in capsys.readouterr().out
    assert changed == []


def test_a_given_password_is_read_and_never_printed(
    changed: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "new").write_text("correct horse\n")
    words = ["users", "password", "bus", "--from", str(tmp_path / "new"), "--without", "mb2"]
    assert main([*words, "--yes"]) == 0
    ((name, given, without),) = changed
    assert (name, given.reveal(), without) == ("bus", "correct horse", ("mb2",))
    assert "horse" not in "".join(capsys.readouterr())


def test_an_empty_password_is_refused(changed: list[Any], tmp_path: Path) -> None:
    (tmp_path / "new").write_text("\n")
    words = ["users", "password", "bus", "--from", str(tmp_path / "new"), "--yes"]
    assert main(words) != 0
    assert changed == []
