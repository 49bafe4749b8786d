"""Settling, with fake programs."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from messagebus_agent.broker import settle as module
from messagebus_agent.broker.settle import Settler


def program(folder: Path, text: str) -> str:
    path = folder / "erl_call"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def settler(folder: Path, text: str, *, data_dir: str = "") -> Settler:
    return Settler.prepare(
        node_name="mb1@localhost",
        epmd_port=4421,
        cookie="COOKIE",
        home=folder / "home",
        erl_call=program(folder, text),
        data_dir=data_dir,
    )


@pytest.mark.parametrize(
    ("answer", "synced"),
    [
        ("{ok, [ok, ok]}", True),
        ("{ok, [ok]}", True),
        ("{ok, []}", False),
        ("{ok, [ok, {error, x}]}", False),
        ("{error, x}", False),
        ("", False),
    ],
)
async def test_only_ok_for_every_table_counts(tmp_path: Path, answer: str, synced: bool) -> None:
    assert await settler(tmp_path, f"cat >/dev/null; echo '{answer}'").names_synced() == synced


@pytest.mark.parametrize(
    ("answer", "revived"),
    [
        ("{ok, []}", 0),
        ("{ok, [alive, ok, alive, ok]}", 2),
        ("{ok, [alive, {error, x}]}", None),
        ("", None),
    ],
)
async def test_dead_queues_are_counted(tmp_path: Path, answer: str, revived: int | None) -> None:
    ours = settler(tmp_path, f"cat >/dev/null; echo '{answer}'")
    assert await ours.queues_revived() == revived
    assert await ours.dead_lettering_revived() == revived


@pytest.mark.parametrize(
    ("answer", "count"), [("{ok, 0}", 0), ("{ok,12}", 12), ("{badrpc, x}", None), ("", None)]
)
async def test_queues_without_a_leader_are_counted(
    tmp_path: Path, answer: str, count: int | None
) -> None:
    ours = settler(tmp_path, f"cat >/dev/null; echo '{answer}'")
    assert await ours.queues_without_leader() == count
    assert await replace(ours, erl_call="").queues_without_leader() is None


async def test_a_program_that_fails_or_is_missing_is_no_success(tmp_path: Path) -> None:
    failing = settler(tmp_path, "cat >/dev/null; echo '{ok, [ok]}'; exit 1")
    missing = replace(failing, erl_call=str(tmp_path / "absent"))
    assert not await failing.names_synced()
    assert not await missing.names_synced()


async def test_a_program_that_hangs_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CALL_TIMEOUT_S", 0.05)
    ours = settler(tmp_path, "exec sleep 60")
    assert await module._run([ours.erl_call], b"", {}, timeout_s=0.05) is None


async def test_the_cookie_is_in_the_home_and_not_on_the_command_line(tmp_path: Path) -> None:
    ours = settler(
        tmp_path,
        'cat >/dev/null; echo said "$@" "$ERL_EPMD_PORT" > "$HOME/said"; cat "$HOME/.erlang.cookie"'
        ' >> "$HOME/said"; echo "{ok, [ok]}"',
    )
    assert await ours.names_synced()
    assert (tmp_path / "home" / "said").read_text() == "said -n mb1@localhost -e 4421\nCOOKIE"
    assert (tmp_path / "home" / ".erlang.cookie").stat().st_mode & 0o777 == 0o400


@pytest.mark.parametrize(("cookie", "node"), [("", "mb1@localhost"), ("COOKIE", "")])
async def test_without_cookie_or_node_there_is_no_call(
    tmp_path: Path, cookie: str, node: str
) -> None:
    ours = Settler.prepare(
        node_name=node,
        epmd_port=1,
        cookie=cookie,
        home=tmp_path / "home",
        erl_call=program(tmp_path, "echo '{ok, [ok]}'"),
        data_dir="",
    )
    assert not await ours.names_synced()
    assert not (tmp_path / "home").exists()


async def test_the_file_system_of_the_data_folder_is_synced(tmp_path: Path) -> None:
    assert await settler(tmp_path, "", data_dir=str(tmp_path)).files_synced()
    assert await settler(tmp_path, "").files_synced()
    assert not await settler(tmp_path, "", data_dir=str(tmp_path / "absent")).files_synced()


@pytest.mark.parametrize(
    ("answer", "left"),
    [
        ("{ok, {0,12}}", {"a": 0, "b": 12}),
        ("{ok, {0,\n 12}}", {"a": 0, "b": 12}),
        ("{ok, {0}}", {}),
        ('{ok, "\\f"}', {}),
        ("", {}),
    ],
)
async def test_what_is_left_is_known_of_all_queues_or_of_none(
    tmp_path: Path, answer: str, left: dict[str, int]
) -> None:
    ours = settler(tmp_path, f"cat >/dev/null; printf '%s' '{answer}'")
    assert await ours.messages_left(["a", "b"]) == left


async def test_channels_that_did_not_all_answer_have_not_passed(tmp_path: Path) -> None:
    assert await settler(tmp_path, "cat >/dev/null; echo '{ok, 7}'").channels_passed()
    assert not await settler(tmp_path, "cat >/dev/null; echo '{error, x}'").channels_passed()
