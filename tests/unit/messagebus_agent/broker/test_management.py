"""Answers of the management API."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from messagebus_agent.broker.management import Load, Management, ManagementUnavailable
from messagebus_agent.config import AgentConfig
from ops.local.certificates import issue_missing


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


async def test_the_room_that_a_broker_has(make: Callable[..., Management]) -> None:
    node = {"disk_free": 9, "disk_free_limit": 2, "mem_used": 3, "mem_limit": 4}
    room = await make(200, [node]).room()
    assert (room.disk_free_bytes, room.memory_limit_bytes) == (9, 4)
    for wrong in ([], [node, node], [{"disk_free": 9}]):
        with pytest.raises(ManagementUnavailable):
            await make(200, wrong).room()


@pytest.mark.parametrize("old_management", [True, False])
async def test_with_tls_only_a_broker_of_before_is_asked_without_it(
    config: AgentConfig, tmp_path: Path, old_management: bool
) -> None:
    issue_missing(tmp_path, {"mb1": ("a",)})
    config = replace(
        config,
        tls=True,
        tls_ca_file=str(tmp_path / "ca.pem"),
        tls_cert_file=str(tmp_path / "mb1.pem"),
        tls_key_file=str(tmp_path / "mb1.key"),
        old_management=old_management,
    )
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.scheme)
        if request.url.scheme == "https":
            raise httpx.ConnectError("no TLS") from ssl.SSLError(1, "[SSL] record layer failure")
        return httpx.Response(200, json=[])

    management = Management(config, httpx.MockTransport(answer))
    if old_management:
        assert await management.births() == {}
        assert asked == ["https", "http"]
    else:
        with pytest.raises(ManagementUnavailable):
            await management.births()
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
