"""Settings of an agent, its consumer list, and the order of its start."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from messagebus.__main__ import cli
from messagebus.commands.exits import Exit
from messagebus.errors import ConfigError
from messagebus.services.agent import consumer_list as clients
from messagebus.services.agent import genesis
from messagebus.services.agent import service as module
from messagebus.services.agent.config import AgentConfig
from messagebus.services.agent.consumer_list import EXPIRY_MS, LEFT_MS, Client, Clients, ListFile
from messagebus.services.agent.gate import VerdictKind
from messagebus.services.agent.service import Service
from ops.local.certificates import issue_missing

GOOD: dict[str, Any] = {
    "broker": "127.0.0.11:5672",
    "user": "admin",
    "password_file": "password",
    "http": "127.0.0.11:8081",
    "check": "127.0.0.11:8082",
    "list_file": "list.txt",
    "state_dir": "state",
    "token_file": "token",
}
CERTIFICATES = {"ca": "ca.pem", "cert": "mb1.pem", "key": "mb1.key"}


def ended(path: Path) -> tuple[int, str]:
    """Return the exit code of the command with this file, and what it says."""
    done = CliRunner().invoke(cli, ["agent", "--config", str(path)], prog_name="messagebus")
    return done.exit_code, done.stderr


def test_an_agent_that_cannot_start_or_is_interrupted_says_so_by_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, told = ended(tmp_path / "none.toml")
    assert (code, told.count("\n")) == (Exit.USAGE, 1)
    assert told.startswith(f"messagebus: {tmp_path}/none.toml: ")
    assert told.endswith(" [messagebus explain configerror]\n")
    path = tmp_path / "agent.toml"
    path.write_text("\n".join(f'{key} = "{value}"' for key, value in GOOD.items()))

    async def interrupted(_config: AgentConfig) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("messagebus.services.agent._serve", interrupted)
    assert ended(path) == (Exit.INTERRUPTED, "\nmessagebus: interrupted\n")


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", None])
def test_a_secret_that_cannot_be_read_is_told_and_not_shown(
    text: bytes | None, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    if text is not None:
        path.write_bytes(text)
    config = AgentConfig.from_mapping({**GOOD, "token_file": str(path)})
    with pytest.raises(ConfigError, match=r"token_file: .*/") as refused:
        _ = config.token
    assert "0xff" not in str(refused.value)


def test_what_must_be_given_is_enough() -> None:
    config = AgentConfig.from_mapping(GOOD)
    assert config.address.name == "127.0.0.11:5672"
    assert config.management == ""


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as told:
        AgentConfig.from_mapping({"broker": "127.0.0.11:5672", "epmd_port": "4369", "htp": "x"})
    text = str(told.value)
    for part in (
        "did you mean 'http'",
        "epmd_port: int wanted, not str",
        "state_dir: must be given",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("key", "value"),
    [("broker", "a b:1"), ("http", "host:0"), ("check", "host:x"), ("epmd_port", 0), ("user", "")],
)
def test_bad_values_are_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=key):
        AgentConfig.from_mapping(GOOD | {key: value})


def test_a_url_as_the_broker_is_refused_with_what_to_write() -> None:
    with pytest.raises(ConfigError) as fault:
        AgentConfig.from_mapping(GOOD | {"broker": "amqps://admin:hunter2@mb1/"})
    assert str(fault.value) == (
        "broker: write mb1:5671, not a URL: login, vhost and TLS have settings of their own"
    )


def test_files_are_relative_to_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text("".join(f'{key} = "{value}"\n' for key, value in GOOD.items()))
    (tmp_path / "password").write_text("geheim\n")
    config = AgentConfig.from_file(path)
    assert config.list_file == str(tmp_path / "list.txt")
    assert config.password.reveal() == "geheim"
    assert "geheim" not in repr(config)


@pytest.mark.parametrize("text", ["not toml", "\x00"])
def test_a_file_that_is_not_toml_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"agent\.toml"):
        AgentConfig.from_file(path)


def test_an_absent_or_empty_secret_is_named(tmp_path: Path) -> None:
    config = AgentConfig.from_mapping(GOOD | {"token_file": str(tmp_path / "token")})
    with pytest.raises(ConfigError, match="token_file"):
        _ = config.token
    (tmp_path / "token").write_text(" \n")
    with pytest.raises(ConfigError, match="empty"):
        _ = config.token


def test_certificates_are_checked_with_the_rest(tmp_path: Path) -> None:
    issue_missing(tmp_path, {"mb1": ("127.0.0.11",)})
    files = {f"tls_{end}_file": str(tmp_path / name) for end, name in CERTIFICATES.items()}
    assert AgentConfig.from_mapping({**GOOD, "tls": True, **files}).tls_files.faults() == []
    for wrong, told in (
        ({"tls": True}, "tls_cert_file: must be given"),
        ({**files}, "tls_ca_file: without effect while tls is off"),
        ({**files, "tls": True, "tls_key_file": "/nowhere"}, "tls_key_file /nowhere: No such file"),
        ({"tls": "true"}, "tls: bool wanted, not str"),
    ):
        with pytest.raises(ConfigError, match=told):
            AgentConfig.from_mapping({**GOOD, **wrong})


def test_relative_certificates_stand_beside_the_file(tmp_path: Path) -> None:
    issue_missing(tmp_path, {"mb1": ("127.0.0.11",)})
    lines = [f'{key} = "{value}"' for key, value in GOOD.items()]
    lines += ["tls = true", *(f'tls_{end}_file = "{name}"' for end, name in CERTIFICATES.items())]
    (tmp_path / "agent.toml").write_text("\n".join(lines))
    config = AgentConfig.from_file(tmp_path / "agent.toml")
    assert config.tls_cert_file == str(tmp_path / "mb1.pem")


def text(generation: int, *hosts: str, cluster: str = "c") -> str:
    lines = "".join(f"{host}:5672\n" for host in hosts or ("a",))
    return f"# cluster: {cluster}\n# generation: {generation}\n{lines}"


def put(path: Path, content: str) -> None:
    """Replace the file as editors do: another file under the same name."""
    new = path.with_name("new")
    new.write_text(content)
    new.replace(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "list"


def test_a_file_is_read_once_until_it_changes(path: Path) -> None:
    lists = ListFile(path)
    put(path, text(1))
    assert lists.look()
    assert not lists.look()
    put(path, text(2, "a", "b"))
    assert lists.look()
    assert lists.current is not None
    assert lists.current.generation == 2
    assert lists.text == text(2, "a", "b")
    assert lists.etag == '"2"'


def test_a_change_in_place_is_seen(path: Path) -> None:
    lists = ListFile(path)
    path.write_text(text(1))
    lists.look()
    path.write_text(text(2))
    os.utime(path, ns=(1, 1))
    assert lists.look()


@pytest.mark.parametrize(
    "bad",
    ["", "\n", "<html>\n", "a:0\n", text(4), text(9, cluster="other"), "a:1\na:1\n", "\xff" * 9],
)
def test_a_bad_file_changes_nothing_and_is_counted_once(path: Path, bad: str) -> None:
    lists = ListFile(path)
    put(path, text(5, "a", "b"))
    lists.look()
    before = lists.current
    put(path, bad)
    assert not lists.look()
    assert not lists.look()
    assert lists.current == before
    assert lists.text == text(5, "a", "b")
    assert lists.faults == 1
    assert lists.fault


def test_a_missing_file_is_a_fault_until_it_is_there(path: Path) -> None:
    lists = ListFile(path)
    assert not lists.look()
    assert not lists.look()
    assert (lists.current, lists.faults) == (None, 1)
    put(path, text(1))
    assert lists.look()
    assert lists.fault == ""


def test_a_good_file_after_a_bad_one_is_taken(path: Path) -> None:
    lists = ListFile(path)
    put(path, text(1))
    lists.look()
    put(path, "bad line\n")
    lists.look()
    put(path, text(2))
    assert lists.look()
    assert lists.fault == ""


def test_a_file_without_a_generation_has_a_digest_for_its_etag(path: Path) -> None:
    lists = ListFile(path)
    put(path, "a:5672\n")
    lists.look()
    first = lists.etag
    put(path, "a:5672\nb:5672\n")
    lists.look()
    assert first.startswith('"0-')
    assert lists.etag != first


async def test_whoever_waits_when_all_waits_are_ended_hears_that_nothing_is_newer(
    path: Path,
) -> None:
    lists = ListFile(path)
    put(path, text(1))
    lists.look()
    waiting = asyncio.ensure_future(lists.newer_than(1))
    await asyncio.sleep(0)
    lists.end()
    assert not await waiting
    assert not await lists.newer_than(1)
    assert await lists.newer_than(0)


async def test_whoever_waits_hears_of_a_newer_generation(path: Path) -> None:
    lists = ListFile(path)
    put(path, text(1))
    lists.look()
    await lists.newer_than(0)
    waiting = asyncio.ensure_future(lists.newer_than(1))
    await asyncio.sleep(0)
    lists.wake()
    await asyncio.sleep(0)
    assert not waiting.done()
    put(path, text(2))
    lists.look()
    await waiting


def test_the_last_word_of_each_client_counts() -> None:
    seen = Clients()
    seen.note_request("a", "orders/x", 3, 100)
    seen.note_request("b", "orders/x", 3, 200)
    seen.note_request("a", "orders/x", 4, 300)
    assert seen.living(300) == [
        Client(id="b", subscription="orders/x", applied=3, age_ms=100),
        Client(id="a", subscription="orders/x", applied=4, age_ms=0),
    ]


def test_one_client_may_have_several_subscriptions() -> None:
    seen = Clients()
    seen.note_request("a", "orders/x", 3, 0)
    seen.note_request("a", "orders/y", 4, 0)
    assert len(seen.living(0)) == 2


def test_whoever_is_silent_is_forgotten() -> None:
    seen = Clients()
    seen.note_request("a", "", 1, 0)
    seen.note_request("b", "", 1, 1)
    assert len(seen.living(EXPIRY_MS)) == 2
    assert [client.id for client in seen.living(EXPIRY_MS + 1)] == ["b"]


def test_ids_are_bounded_and_new_ones_push_out_none_that_still_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clients, "CLIENTS_MAX", 2)
    seen = Clients()
    for number, name in enumerate(["a", "b", *(f"junk {n}" for n in range(100)), "a"]):
        seen.note_request(name, "", 1, number)
    assert [client.id for client in seen.living(200)] == ["b", "a"]
    seen.note_request("c", "", 1, EXPIRY_MS + 2)
    assert [client.id for client in seen.living(EXPIRY_MS + 2)] == ["a", "c"]
    seen.note_request("x" * 1000, "y" * 1000, 1, 3 * EXPIRY_MS)
    assert (
        max(len(client.id + client.subscription) for client in seen.living(3 * EXPIRY_MS))
        == 2 * clients.TEXT_MAX
    )


def test_who_hung_up_is_forgotten_soon_unless_he_asks_again() -> None:
    seen = Clients()
    for name in ("stays", "ends", "moves"):
        seen.note_request(name, "a/b", 1, 100)
    for name in ("ends", "moves", "unknown"):
        seen.left(name, "a/b", 1_000)
    assert len(seen.living(1_000 + LEFT_MS)) == 3
    seen.note_request("moves", "a/b", 2, 2_000)
    assert {each.id for each in seen.living(1_001 + LEFT_MS)} == {"stays", "moves"}
    assert [each.id for each in seen.living(101 + EXPIRY_MS)] == ["moves"]


def test_who_hung_up_is_named_until_no_agent_remembers_him() -> None:
    seen = Clients()
    for name in ("stays", "ends", "moves"):
        seen.note_request(name, "a/b", 1, 100)
    for name in ("ends", "moves", "unknown"):
        seen.left(name, "a/b", 1_000)
    seen.note_request("moves", "a/b", 2, 2_000)
    assert seen.gone(1_000 + LEFT_MS) == []
    later = seen.gone(2_000 + LEFT_MS)
    assert [(each.id, each.subscription, each.age_ms) for each in later] == [
        ("ends", "a/b", 1_000 + LEFT_MS)
    ]
    assert len(seen.gone(1_000 + EXPIRY_MS)) == 1
    assert seen.gone(1_001 + EXPIRY_MS) == []


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
    assert "no consumer would read" in ours.condition.draining


async def test_what_was_kept_is_read(settings: dict[str, Any]) -> None:
    genesis(settings["state_dir"])
    assert service(settings).topology.register.intact
    report = Path(settings["state_dir"]) / "report.json"
    report.write_text('{"held": {"orders": 3}, "losses": []}')
    assert service(settings).upkeep.applied.held == {"orders": 3}
    report.write_text('{"held": [], "losses": [{"x": 1}]}')
    assert service(settings).upkeep.applied.held == {}


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


def test_wrong_settings_end_with_one_line_and_2(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text('brokr = "x"\n')
    code, said = ended(tmp_path / "agent.toml")
    assert code == Exit.USAGE
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


def test_who_hung_up_or_was_answered_and_asks_elsewhere_is_soon_not_here() -> None:
    seen = Clients()
    for name in ("polls", "waits", "ended", "moved"):
        seen.note_request(name, "a/b", 1, 0)
    seen.left("ended", "a/b", 0)
    seen.answered("moved", "a/b", 0)
    seen.answered("waits", "a/b", 0)
    seen.note_request("waits", "a/b", 1, 5)
    seen.answered("unknown", "a/b", 0)
    assert {each.id for each in seen.here(LEFT_MS)} == {"polls", "waits", "ended", "moved"}
    assert {each.id for each in seen.here(LEFT_MS + 1)} == {"polls", "waits"}
    assert "moved" in {each.id for each in seen.living(LEFT_MS + 1)}
    behind = {each.name: each.value for each in seen.figures(LEFT_MS + 1, 2)}
    assert behind["clients_behind"] == 2
