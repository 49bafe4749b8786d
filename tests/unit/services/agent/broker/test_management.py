"""Answers of the broker to its agent: management, settled queues, refusals."""

from __future__ import annotations

import ssl
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from messagebus.services.agent.broker import settle as module
from messagebus.services.agent.broker.management import Load, Management, ManagementUnavailable
from messagebus.services.agent.broker.refusals import REFUSED_RETRY_S, Refusals, differences
from messagebus.services.agent.broker.settle import Settler
from messagebus.services.agent.config import AgentConfig
from messagebus.services.agent.topology.register import Entry
from messagebus.topology import QueueSpec, declarations, parse_wanted
from ops.local.certificates import issue_missing

DURABLE = {"durable": True, "auto_delete": False}


@pytest.fixture
def config(tmp_path: Path) -> AgentConfig:
    (tmp_path / "password").write_text("pw")
    return AgentConfig(
        broker="a:5672",
        user="admin",
        password_file=str(tmp_path / "password"),
        http="a:8081",
        check="a:8082",
        list_file="list",
        state_dir="state",
        token_file="token",
        management="a:15672",
    )


@pytest.fixture
def make(config: AgentConfig) -> Callable[..., Management]:
    def answering(code: int, value: Any) -> Management:
        def answer(request: httpx.Request) -> httpx.Response:
            assert request.headers["Authorization"] == "Basic YWRtaW46cHc="
            return httpx.Response(code, json=value)

        return Management(config, httpx.MockTransport(answer))

    return answering


async def test_births_by_queue(make: Callable[..., Management]) -> None:
    queues = [
        {"name": "q1", "arguments": {"mb-born": 3}},
        {"name": "q2", "arguments": {"mb-born": "3"}},
        {"name": "q3"},
    ]
    assert await make(200, queues).births() == {"q1": 3, "q2": None, "q3": None}


@pytest.mark.parametrize(("code", "value"), [(500, []), (401, []), (200, {"error": "x"})])
async def test_no_answer_is_not_an_empty_one(
    make: Callable[..., Management], code: int, value: Any
) -> None:
    with pytest.raises(ManagementUnavailable):
        await make(code, value).births()


async def test_a_broker_has_what_its_lists_show_exactly_as_it_is_wanted(
    config: AgentConfig,
) -> None:
    wanted = declarations(parse_wanted("orders/a"), born=3)
    queues: list[dict[str, Any]] = [
        {"name": each.name, "arguments": dict(each.arguments), "exclusive": False, **DURABLE}
        for each in wanted.queues
    ]
    exchanges: list[dict[str, Any]] = [
        {"name": each.name, "type": each.type, "arguments": [], "internal": False, **DURABLE}
        for each in wanted.exchanges
    ]
    bindings: list[dict[str, Any]] = [
        {
            "source": each.exchange,
            "destination": each.queue,
            "destination_type": "queue",
            "routing_key": each.routing_key,
            "arguments": {},
        }
        for each in wanted.bindings
    ]

    async def has(**lists: list[dict[str, Any]]) -> bool:
        rows = {"queues": queues, "exchanges": exchanges, "bindings": bindings, **lists}

        def answer(request: httpx.Request) -> httpx.Response:
            what = request.url.path.split("/")[2]
            columns = request.url.params["columns"].split(",")
            return httpx.Response(
                200, json=[{k: each[k] for k in columns if k in each} for each in rows[what]]
            )

        found = await Management(config, httpx.MockTransport(answer)).definitions()
        assert found.births == {each["name"]: 3 for each in rows["queues"]}
        return found.has(wanted)

    assert await has()
    lists: dict[str, list[dict[str, Any]]]
    lists = {"queues": queues, "exchanges": exchanges, "bindings": bindings}
    for what, rows in lists.items():
        for number, row in enumerate(rows):
            without = [*rows[:number], *rows[number + 1 :]]
            assert not await has(**{what: without}), f"without {row}"
            for key, value in row.items():
                if key in ("name", "arguments"):
                    continue
                other = not value if isinstance(value, bool) else f"{value}?"
                other = "exchange" if key == "destination_type" else other
                changed = [*without, {**row, key: other}]
                assert not await has(**{what: changed}), f"{key} of {row}"
    short = {**queues[1], "arguments": {**queues[1]["arguments"], "x-max-length": 5}}
    assert not await has(queues=[queues[0], short])
    for state, is_there in (("running", True), ("minority", True), ("down", False)):
        assert await has(queues=[queues[0], {**queues[1], "state": state}]) is is_there
    theirs = {**queues[1], "arguments": {**queues[1]["arguments"], "of-theirs": 5}}
    assert await has(queues=[queues[0], theirs]), "the broker compares no such argument"
    assert not await has(bindings=[{**each, "arguments": {"x": 1}} for each in bindings])
    assert not await has(exchanges=[{**exchanges[0], "arguments": {"alternate-exchange": "e"}}])


@pytest.mark.parametrize(
    ("code", "value"), [(500, []), (200, {"error": "x"}), (200, [{"name": 1}])]
)
async def test_lists_that_cannot_be_read_are_no_definitions(
    make: Callable[..., Management], code: int, value: Any
) -> None:
    with pytest.raises(ManagementUnavailable):
        await make(code, value).definitions()


async def test_alarms_in_words(make: Callable[..., Management]) -> None:
    assert await make(200, {"status": "ok"}).alarm() == ""
    failed = {"alarms": [{"node": "n", "resource": "memory"}, {"node": "n", "resource": "disk"}]}
    assert await make(503, failed).alarm() == "alarm: disk, memory"
    assert await make(503, ["?"]).alarm() == "alarm"
    with pytest.raises(ManagementUnavailable):
        await make(404, {}).alarm()


async def test_the_load_of_queues_that_are_shared_and_counted(
    make: Callable[..., Management],
) -> None:
    counted = {"durable": True, "exclusive": False, "messages": 3, "consumers": 1}
    queues = [
        {**counted, "name": "q1", "message_stats": {"ack": 5, "get_no_ack": 2, "publish": 9}},
        {**counted, "name": "q0", "message_stats": []},
        {**counted, "name": "q2"},
        {"name": "new", "durable": True},
        {**counted, "name": "own", "exclusive": True},
        {**counted, "name": "passing", "durable": False},
    ]
    assert await make(200, queues).loads() == [
        Load(queue="q1", messages=3, consumers=1, departed=7),
        Load(queue="q0", messages=3, consumers=1, departed=0),
        Load(queue="q2", messages=3, consumers=1, departed=0),
    ]
    for wrong in ({"error": "x"}, [{"durable": True, "messages": "x", "name": "q"}]):
        with pytest.raises(ManagementUnavailable):
            await make(200, wrong).loads()


async def test_consumers_have_the_name_of_their_client_and_what_their_channel_owes(
    config: AgentConfig,
) -> None:
    def consumer(queue: str, number: int, **more: Any) -> dict[str, Any]:
        peer = {"peer_host": "10.0.0.9", "peer_port": 5}
        channel = {"name": f"c1 ({number})", "connection_name": f"c{number}", **peer}
        told = {"queue": {"name": queue}, "channel_details": channel, "prefetch_count": 200}
        return {**told, "active": True, "exclusive": False, **more}

    says: dict[str, Any] = {
        "/api/consumers/%2F": [
            consumer("q1", 1),
            consumer("q2", 1),
            consumer("q1", 2, active=False),
            consumer("own", 3, exclusive=True),
            consumer("ends", 4, channel_details=[]),
        ],
        "/api/channels": [{"name": "c1 (1)", "messages_unacknowledged": 7}, {"name": "c1 (2)"}],
        "/api/connections": [
            {
                "name": "c1",
                "client_properties": {
                    "connection_name": "billing@web-3",
                    "product": "messagebus",
                    "version": "0.1.0",
                },
            },
            {"name": "c2", "client_properties": {"product": "amqplib", "version": "0.10"}},
        ],
    }
    transport = httpx.MockTransport(
        lambda request: httpx.Response(200, json=says[request.url.raw_path.decode().split("?")[0]])
    )
    management = Management(config, transport)
    first, second, third = await management.attached()
    assert (first.queue, first.client, first.peer) == ("q1", "billing@web-3", "10.0.0.9:5")
    assert (first.prefetch, first.owed, first.active) == (200, 7, True)
    assert (second.queue, second.client, second.owed) == ("q2", "billing@web-3", None)
    assert (third.client, third.owed, third.active) == ("", None, False)
    assert (first.version, third.version) == ("0.1.0", "amqplib 0.10")
    for path in says:
        says[path] = {"error": "x"}
        with pytest.raises(ManagementUnavailable):
            await management.attached()


async def test_the_room_that_a_broker_has(make: Callable[..., Management]) -> None:
    node = {"disk_free": 9, "disk_free_limit": 2, "mem_used": 3, "mem_limit": 4}
    room = await make(200, [node]).room()
    assert (room.disk_free_bytes, room.memory_limit_bytes) == (9, 4)
    for wrong in ([], [node, node], [{"disk_free": 9}]):
        with pytest.raises(ManagementUnavailable):
            await make(200, wrong).room()


async def test_with_tls_a_broker_that_speaks_none_is_not_asked_in_clear(
    config: AgentConfig, tmp_path: Path
) -> None:
    issue_missing(tmp_path, {"mb1": ("a",)})
    config = replace(
        config,
        tls=True,
        tls_ca_file=str(tmp_path / "ca.pem"),
        tls_cert_file=str(tmp_path / "mb1.pem"),
        tls_key_file=str(tmp_path / "mb1.key"),
    )
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.scheme)
        raise httpx.ConnectError("no TLS") from ssl.SSLError(1, "[SSL] record layer failure")

    with pytest.raises(ManagementUnavailable):
        await Management(config, httpx.MockTransport(answer)).births()
    assert asked == ["https"]


async def test_the_broker_as_a_whole(make: Callable[..., Management]) -> None:
    told = {
        "rabbitmq_version": "3.12.14",
        "object_totals": {"connections": 4},
        "message_stats": {"publish": 9, "publish_details": {"rate": 0.0}},
    }
    overview = await make(200, told).overview()
    assert (overview.version, overview.connections, overview.totals) == (
        "3.12.14",
        4,
        {"publish": 9},
    )
    wrongs: list[Any] = [[], {}, {**told, "object_totals": None}]
    for wrong in wrongs:
        with pytest.raises(ManagementUnavailable):
            await make(200, wrong).overview()


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


@pytest.mark.parametrize(
    ("answer", "names"),
    [
        ("{ok, []}", []),
        ('{ok, ["mb.sub/t/s", "mb.queue/jobs"]}', ["mb.sub/t/s", "mb.queue/jobs"]),
        ("{badrpc, x}", None),
    ],
)
async def test_dead_queues_are_named(tmp_path: Path, answer: str, names: list[str] | None) -> None:
    ours = settler(tmp_path, f"cat >/dev/null; echo '{answer}'")
    assert await ours.queues_dead() == names


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
    assert (tmp_path / "home" / "said").read_text() == "said -R -n mb1@localhost -e 4421\nCOOKIE"
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


ENTRY = Entry(wanted="queue:a", number=1, origin="mb1", alive=True, tomb=0)
QUEUE = QueueSpec(name="q", arguments={"x-queue-type": "quorum", "mb-born": 7})


def test_a_refused_entry_rests_and_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 10.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    made = Refusals()
    assert not made.rests(ENTRY)
    made.refused(ENTRY, "two values")
    assert made.rests(ENTRY)
    assert not made.rests(replace(ENTRY, number=2))
    now_s += REFUSED_RETRY_S
    assert not made.rests(ENTRY)


def test_reasons_are_of_those_that_are_refused() -> None:
    made = Refusals()
    made.refused(ENTRY, "two values")
    assert "queue:a" in made
    assert made.reasons(["queue:a", "queue:b"]) == ["queue:a: two values"]
    made.taken("queue:a")
    assert made.reasons(["queue:a"]) == []


def test_what_is_wanted_otherwise_now_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 10.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    made = Refusals()
    made.refused(ENTRY, "queue 'a': x is wanted 1 and exists 2")
    other = replace(ENTRY, wanted="queue:b")
    made.refused(other, "exchange 'b': type is wanted 1 and exists 2")
    assert (len(made), made.is_due) == (2, False)
    assert made.is_about_a_queue("queue:a")
    assert not made.is_about_a_queue("queue:b")
    made.keep({"queue:a": ENTRY, "queue:b": replace(other, alive=False)})
    assert (len(made), made.is_about_a_queue("queue:b")) == (1, False)
    now_s += REFUSED_RETRY_S
    assert made.is_due


@pytest.mark.parametrize(
    ("exists", "told"),
    [
        ({"durable": True, "x-queue-type": "quorum", "mb-born": 3}, ""),
        ({"durable": True}, "x-queue-type is wanted 'quorum' and exists 'classic'"),
        ({"durable": False, "x-queue-type": "quorum"}, "durable is wanted True and exists False"),
        (
            {"durable": True, "x-queue-type": "quorum", "x-expires": 5},
            "x-expires is wanted none and exists 5",
        ),
    ],
)
def test_each_argument_that_differs_is_named(exists: dict[str, Any], told: str) -> None:
    assert differences(QUEUE, exists) == told
