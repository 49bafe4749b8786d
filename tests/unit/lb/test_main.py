"""python -m lb: exit codes, errors in one line, and output."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from inventory.inventory import Inventory
from lb import __main__ as command
from lb import agents, errors, runtime
from lb.apply import Applied
from lb.errors import BalancerUnreachable, NotReached
from tests.support.balancer import PASSWORD, UP, inventory

HIDDEN_DRAIN = dataclasses.replace(UP, name="mb2", verdict="down", drained=True)


@pytest.fixture(autouse=True)
def rig(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    read = inventory(base=tmp_path)
    process = runtime.Process(pid=4711, uptime_s=1, description="marker")
    monkeypatch.setattr(command, "load", lambda _path: read)
    monkeypatch.setattr(runtime, "process", lambda _socket: process)
    monkeypatch.setattr(runtime, "servers", lambda _socket: {"mb1": UP, "mb2": HIDDEN_DRAIN})


def run(*words: str) -> Result:
    return CliRunner().invoke(command.cli, list(words), prog_name="python -m lb")


def test_every_command_has_help_with_an_example() -> None:
    context = click.Context(command.cli)
    for name in command.cli.list_commands(context):
        asked = run(name, "--help")
        assert asked.exit_code == 0
        assert f"Example:\n    python -m lb {name}" in asked.output


def test_an_unknown_command_is_wrong_use() -> None:
    assert run("stauts").exit_code == 2


def test_what_is_printed_hides_the_login() -> None:
    shown = run("render").output
    assert "server mb1 10.0.1.1:5672" in shown
    assert "tcp-check send-binary ***" in shown
    assert PASSWORD.encode().hex() not in shown


def test_what_is_written_does_not(tmp_path: Path) -> None:
    assert run("render", "--out", str(tmp_path / "out")).output == ""
    assert PASSWORD.encode().hex() in (tmp_path / "out").read_text()
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("applied", "said"),
    [
        (Applied(changed=True, reloaded=True, pid=7), "reloaded: process 7 serves\n"),
        (Applied(changed=False, reloaded=False, pid=7), "nothing to do\n"),
        (Applied(changed=True, reloaded=False, pid=0), "written; HAProxy does not run\n"),
    ],
)
def test_apply_says_what_it_did(
    applied: Applied, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def apply_all(read: Inventory, _reach: object, *, reload: bool) -> object:
        return [(read.balancer, applied)]

    monkeypatch.setattr(command, "apply_all", apply_all)
    assert run("apply").output == said


def test_status_for_people() -> None:
    shown = run("status").output
    assert "mb1" in shown
    assert "down, drained" in shown


def test_status_for_programs() -> None:
    shown = json.loads(run("status", "--json").output)
    (one,) = shown["balancers"]
    assert one["process"]["pid"] == 4711
    assert [server["verdict"] for server in one["servers"]] == ["up", "down"]


def test_a_drain_prints_what_haproxy_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    def drain(*_: object, **__: object) -> dict[str, runtime.ServerState]:
        return {"haproxy": UP}

    monkeypatch.setattr(agents, "drain", drain)
    assert run("drain", "mb1").output.startswith("mb1 up sessions=1 weight=100")


def test_a_fault_is_one_line_and_has_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise NotReached("mb1 is not\nseen as ready")

    monkeypatch.setattr(agents, "ready", fail)
    failed = run("ready", "mb1")
    assert (failed.exit_code, failed.stderr) == (6, "lb: mb1 is not seen as ready\n")


def test_a_silent_haproxy_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_socket: Path) -> None:
        raise BalancerUnreachable("nobody on the socket")

    monkeypatch.setattr(runtime, "process", fail)
    silent = run("status")
    assert (silent.exit_code, silent.output) == (6, "haproxy  no answer: nobody on the socket\n")


def test_orders_by_hand_go_to_the_socket_and_are_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    orders: list[object] = []
    shows = {"mb1": dataclasses.replace(UP, agent="L4TOUT")}

    def change(name: str, **what: object) -> None:
        orders.append(what)
        shows[name] = dataclasses.replace(shows[name], **what)  # type: ignore[arg-type]

    monkeypatch.setattr(runtime, "servers", lambda _socket: shows)
    monkeypatch.setattr(
        runtime, "maint", lambda _s, name, *, on: change(name, verdict="maint" if on else "up")
    )
    monkeypatch.setattr(runtime, "set_drain", lambda _s, name, *, on: change(name, drained=on))
    monkeypatch.setattr(runtime, "set_weight", lambda _s, name, weight: change(name, weight=weight))
    assert run("maint", "10.0.1.1:5672").output.startswith("mb1 maint ")
    assert run("maint", "mb1", "--off").exit_code == 0
    assert run("weight", "mb1", "40").exit_code == 0
    assert run("drain", "mb1", "--by-hand").exit_code == 0
    assert run("ready", "mb1", "--by-hand").exit_code == 0
    assert orders == [
        {"verdict": "maint"},
        {"verdict": "up"},
        {"weight": 40},
        {"drained": True},
        {"drained": False},
    ]


def test_a_weight_out_of_range_is_wrong_use() -> None:
    assert run("weight", "mb1", "300").exit_code == 2


NAMES = [name for name in errors.__all__ if name != "CODES"]


def test_every_error_is_in_the_printed_tree() -> None:
    told = errors.__doc__ or ""
    assert all(name in told for name in NAMES)


def test_every_error_has_one_root() -> None:
    assert all(issubclass(getattr(errors, name), errors.LbError) for name in NAMES)
