"""`ops storage`, on hosts that answer from records."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.__main__ import main
from ops.run import shell
from tests.support.mirrors import FakeHosts, mirrored_inventory

HOSTS = {"db1": ("10.0.0.1", "10.9.0.1"), "db2": ("10.0.0.2", "10.9.0.2")}
NO_AGENT: dict[str, str | None] = {"systemctl cat messagebus-agent": None}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "inventory.toml"
    path.write_text(mirrored_inventory(HOSTS, address="10.0.0.9"))
    return path


def storage(file: Path, monkeypatch: pytest.MonkeyPatch, one: str, two: str, *words: str) -> int:
    hosts = FakeHosts({"db1": one, "db2": two}, NO_AGENT)
    monkeypatch.setattr(shell, "remote", hosts.connect)
    return main(["storage", *words, "--inventory", str(file)])


def test_a_failover_goes_to_the_host_that_the_broker_is_not_on(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("failover", "mb1", "--dead", "db1", "--dry-run")
    assert storage(file, monkeypatch, "", "07 B", *words) == 0
    assert "ssh db2 'drbdadm primary mb1'" in capsys.readouterr().out


def test_a_failover_without_a_proof_is_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert storage(file, monkeypatch, "", "07 B", "failover", "mb1", "--yes") == 1
    assert "nothing is known of db1" in capsys.readouterr().err


def test_replacing_a_mirrored_broker_is_a_failover_with_the_same_proof(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = FakeHosts({"db1": "", "db2": "07 B"}, NO_AGENT)
    monkeypatch.setattr(shell, "remote", hosts.connect)
    replace = ["replace", "mb1", "--inventory", str(file)]
    assert main([*replace, "--yes"]) == 1
    assert "nothing is known of db1" in capsys.readouterr().err
    assert main([*replace, "--dead", "db1", "--dry-run"]) == 0
    replaced = capsys.readouterr().out
    assert main(["storage", "failover", *replace[1:], "--dead", "db1", "--dry-run"]) == 0
    assert replaced == capsys.readouterr().out


def test_a_failback_wants_a_whole_mirror(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert storage(file, monkeypatch, "04 A", "04 B", "failback", "mb1", "--yes") == 1
    assert "only a whole mirror is moved; db1 says SyncSource" in capsys.readouterr().err
    assert storage(file, monkeypatch, "06 A", "06 B", "failback", "mb1", "--dry-run") == 0
    assert "ssh db2 'drbdadm primary mb1'" in capsys.readouterr().out


def test_the_inventory_is_told_where_a_broker_is(file: Path) -> None:
    words = ["inventory", "move", "mb1", "db2", "--inventory", str(file)]
    assert main(words) == 0
    assert '\nhost = "db2"\n' in file.read_text()
    assert main([*words[:3], "db9", *words[4:]]) == 2


@pytest.mark.parametrize("words", [[], ["failover"], ["failback"], ["start"], ["stop"]])
def test_every_command_has_help_with_an_example(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["storage", *words, "--help"]) == 0
    assert "Example:" in capsys.readouterr().out
