from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from inventory.errors import TAIL_LINES, CommandFailed, tail
from ops import fab
from ops.__main__ import cli
from ops.commands.kits import CHECKOUT
from ops.errors import LockHeld, PlanFailed


@pytest.mark.parametrize(
    ("task", "ran"),
    [
        (lambda: fab.add.body(None, "mb4", dry_run=True), ["add", "mb4", "--dry-run"]),
        (lambda: fab.remove.body(None, "mb2", yes=True), ["remove", "mb2", "--yes"]),
        (
            lambda: fab.remove.body(None, "mb2", move_remaining=True),
            ["remove", "mb2", "--move-remaining"],
        ),
        (lambda: fab.restart.body(None, rolling=True), ["restart", "--rolling"]),
        (lambda: fab.restart.body(None, "mb1", yes=True), ["restart", "mb1", "--yes"]),
        (lambda: fab.upgrade.body(None, "mb1"), ["upgrade", "mb1"]),
        (
            lambda: fab.upgrade.body(None, "mb1", to="3.12.1-1", yes=True),
            ["upgrade", "mb1", "--yes", "--to", "3.12.1-1"],
        ),
        (
            lambda: fab.storage.body(None, "failover", "mb1", dead="db1"),
            ["storage", "failover", "mb1", "--dead", "db1"],
        ),
        (lambda: fab.drbd.body(None, "status"), ["drbd", "status"]),
        (
            lambda: fab.drbd.body(None, "connect", "mb1", yes=True),
            ["drbd", "connect", "mb1", "--yes"],
        ),
        (lambda: fab.bootstrap.body(None, dry_run=True), ["bootstrap", "--dry-run"]),
        (lambda: fab.backup.body(None, "x", with_secrets=True), ["backup", "x", "--with-secrets"]),
        (lambda: fab.restore.body(None, "x", files=True), ["restore", "x", "--files"]),
        (
            lambda: fab.restore.body(None, "x", users=True, topology="a/*"),
            ["restore", "x", "--users", "--topology", "a/*"],
        ),
        (
            lambda: fab.replace.body(None, "mb1", lose_messages=True),
            ["replace", "mb1", "--lose-messages"],
        ),
        (lambda: fab.restart.body(None, name=["mb1", "mb3"]), ["restart", "mb1", "mb3"]),
        (
            lambda: fab.replace.body(None, "mb1", dead="mb1", lose_messages=True),
            ["replace", "mb1", "--lose-messages", "--dead", "mb1"],
        ),
        (
            lambda: fab.remove.body(None, "mb1", dead=["mb2", "lb2"]),
            ["remove", "mb1", "--dead", "mb2", "--dead", "lb2"],
        ),
        (lambda: fab.topology.body(None, "diff"), ["topology", "diff"]),
        (lambda: fab.check.body(None), ["check"]),
        (lambda: fab.provision.body(None, dry_run=True), ["provision", "--dry-run"]),
        (lambda: fab.local.body(None, "up"), ["local", "up"]),
    ],
)
def test_a_task_is_the_command_of_its_name(
    task: Callable[[], None], ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []

    def main(argv: list[str]) -> int:
        seen.append(argv)
        return 3

    monkeypatch.setattr(fab, "main", main)
    with pytest.raises(SystemExit) as ended:
        task()
    assert ended.value.code == 3
    assert seen == [ran]


def test_several_brokers_are_named_by_as_many_options(tmp_path: Path) -> None:
    """As typed: Fabric itself parses it."""
    words = ["restart", "--name", "mb1", "--name", "mb3", "--inventory", str(tmp_path / "none")]
    told = subprocess.run(
        [str(Path(sys.executable).with_name("fab")), *words],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 2
    assert f"{tmp_path}/none" in told.stderr


def test_every_task_says_what_it_does_and_is_in_the_fabfile() -> None:
    listed = subprocess.run(
        [str(Path(sys.executable).with_name("fab")), "--list"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in fab.__all__:
        task = getattr(fab, name)
        assert task.__doc__
        assert f"  {name} " in listed
        assert name in cli.list_commands(click.Context(cli))


def test_a_tail_is_one_line_of_what_was_said_last() -> None:
    assert tail("a\n\n  b  \n") == "a | b"
    assert tail("") == "no output"
    assert tail("\n".join(map(str, range(100)))).startswith(str(100 - TAIL_LINES))


def test_errors_say_where_and_how() -> None:
    failed = CommandFailed(("systemctl", "start", "x"), 5, "no unit x\n", "mb4.example")
    assert str(failed) == "systemctl on mb4.example: exit code 5: no unit x"
    assert "did not end in time" in str(CommandFailed(("sleep",), -1, ""))
    assert str(PlanFailed("start broker mb4", "no")) == "step 'start broker mb4': no"
    assert str(LockHeld("ann", "noon")) == "ann is changing this cluster since noon"
