"""One agent put together, before it listens."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from messagebus.errors import ConfigError
from messagebus_agent import genesis, run
from messagebus_agent import service as module
from messagebus_agent.config import AgentConfig
from messagebus_agent.gate import VerdictKind
from messagebus_agent.service import Service


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    for name in ("password", "token"):
        (tmp_path / name).write_text("geheim")
    return {
        "broker": "127.0.0.11:5672",
        "user": "admin",
        "password_file": str(tmp_path / "password"),
        "http": "127.0.0.11:8081",
        "check": "127.0.0.11:8082",
        "list_file": str(tmp_path / "list"),
        "state_dir": str(tmp_path / "state"),
        "token_file": str(tmp_path / "token"),
    }


def service(settings: dict[str, Any]) -> Service:
    return Service(AgentConfig.from_mapping(settings))


def write(path: str, text: str) -> None:
    Path(path).write_text(text)


async def test_at_first_the_broker_is_down_for_want_of_a_link(settings: dict[str, Any]) -> None:
    assert service(settings).verdict().kind is VerdictKind.DOWN


async def test_operators_drain_is_kept(settings: dict[str, Any]) -> None:
    first = service(settings)
    await first.set_draining(True)
    assert service(settings).condition.draining
    await first.set_draining(False)
    assert not service(settings).condition.draining


async def test_a_broker_that_drains_in_the_list_drains(settings: dict[str, Any]) -> None:
    ours = service(settings)
    write(settings["list_file"], "127.0.0.11:5672 draining\n127.0.0.12:5672\n")
    ours.lists.look()
    assert "list" in ours.condition.draining


async def test_a_broker_that_the_list_does_not_name_takes_no_publishers(
    settings: dict[str, Any],
) -> None:
    ours = service(settings)
    assert not ours.condition.draining, "without a list nothing is known"
    write(settings["list_file"], "127.0.0.12:5672\n")
    ours.lists.look()
    assert "nobody would consume" in ours.condition.draining


async def test_what_was_kept_is_read(settings: dict[str, Any]) -> None:
    genesis(settings["state_dir"])
    assert service(settings).topology.register.intact
    report = Path(settings["state_dir"]) / "report.json"
    report.write_text('{"held": {"orders": 3}, "losses": []}')
    assert service(settings).upkeep.held == {"orders": 3}
    report.write_text('{"held": [], "losses": [{"x": 1}]}')
    assert service(settings).upkeep.held == {}


async def test_figures_have_names_of_their_own(settings: dict[str, Any]) -> None:
    names = [figure.name for figure in service(settings)._figures()]
    assert len(names) == len(set(names))


async def test_a_cookie_is_put_where_only_erl_call_looks(settings: dict[str, Any]) -> None:
    cookie = Path(settings["state_dir"]).parent / "cookie"
    cookie.write_text("COOKIE\n")
    extra = {"cookie_file": str(cookie), "node_name": "n@h", "erl_call": "/bin/true"}
    service(settings | extra)
    kept = Path(settings["state_dir"]) / "erlang" / ".erlang.cookie"
    assert kept.read_text() == "COOKIE"
    assert kept.stat().st_mode & 0o777 == 0o400


@pytest.mark.parametrize("key", ["password_file", "token_file"])
async def test_an_absent_secret_is_told_before_anything_starts(
    settings: dict[str, Any], key: str
) -> None:
    with pytest.raises(ConfigError, match=key):
        service(settings | {key: "/nowhere"})


def test_wrong_settings_end_with_one_line_and_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "agent.toml").write_text('brokr = "x"\n')
    assert run(tmp_path / "agent.toml") == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "did you mean 'broker'" in said


@pytest.mark.guarantee("no-task-ends-the-agent")
async def test_a_task_that_fails_is_told_counted_and_begun_again(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "TASK_PAUSE_MIN_S", 0.001)
    ours, runs = service(settings), list[int]()

    async def task() -> None:
        runs.append(1)
        if len(runs) < 4:
            raise KeyError("gone meanwhile")

    await asyncio.wait_for(ours._kept("expiry", task), 60)
    assert (len(runs), ours.task_faults) == (4, 3)
    assert caplog.text.count("task failed, begun again task=expiry") == 3
    assert {f.name: f.value for f in ours._figures()}["task_faults"] == 3
