"""The agent's HTTP server, on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from messagebus.broker import Broker
from messagebus.errors import ConfigError
from messagebus_agent.web import server as serving
from tests.support.eventually import eventually_async

ENDED_WITHIN_S = 30.0


async def echo(request: Request) -> PlainTextResponse:
    try:
        return PlainTextResponse(f"{len(await request.body())}")
    except ClientDisconnect:
        return PlainTextResponse("", 499)


@pytest.fixture
async def address(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[str, int]]:
    monkeypatch.setattr(serving._Protocol, "closed", 0)
    monkeypatch.setattr(serving._Protocol, "told_at_s", 0.0)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        routes = [Route("/echo", echo, methods=["GET", "POST"])]
        server = serving.Server(Starlette(routes=routes), None)
        running = asyncio.create_task(server.run_on(listener))
        yield listener.getsockname()
        server.stop()
        await running


async def ended(address: tuple[str, int], sent: bytes) -> bytes:
    """Send this; return the data received before the server closed the connection."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(sent)
    try:
        async with asyncio.timeout(ENDED_WITHIN_S):
            with contextlib.suppress(ConnectionResetError):
                return await reader.read()
        return b""
    finally:
        writer.close()


HALF_BODY = b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc"
WHOLE = b"GET /echo HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.mark.guarantee("slow-connections-are-bounded")
async def test_who_sends_no_whole_request_in_time_is_hung_up_on_and_others_are_served(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving, "REQUEST_WITHIN_S", 0.2)
    caplog.set_level(logging.WARNING)
    slow = [b"", b"GET /echo HT", HALF_BODY]
    told = await asyncio.gather(*(ended(address, sent) for sent in slow * 5))
    assert set(told) == {b""}
    async with httpx.AsyncClient(base_url=f"http://{address[0]}:{address[1]}") as http:
        assert (await http.get("/echo")).text == "0"
    assert [record.message.split()[:2] for record in caplog.records] == [["connections", "closed"]]


async def test_who_waits_for_an_answer_or_between_two_requests_is_not_slow(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "REQUEST_WITHIN_S", 0.2)
    loop = asyncio.get_running_loop()
    async with httpx.AsyncClient(base_url=f"http://{address[0]}:{address[1]}") as http:
        assert (await http.get("/echo")).text == "0"
        began_s = loop.time()
        connections = set(http._transport._pool.connections)  # type: ignore[attr-defined]
        await eventually_async(lambda: loop.time() > began_s + 0.5, within_s=ENDED_WITHIN_S)
        assert (await http.post("/echo", content=b"four")).text == "4"
        assert set(http._transport._pool.connections) == connections  # type: ignore[attr-defined]


@pytest.mark.guarantee("slow-connections-are-bounded")
async def test_of_more_connections_than_descriptors_the_last_are_closed_at_once(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving, "_connections_max", lambda: 3)
    kept = [await asyncio.open_connection(*address) for _ in range(3)]
    for _reader, writer in kept:
        writer.write(WHOLE)
    for reader, _writer in kept:
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    assert [await ended(address, WHOLE) for _ in range(5)] == [b""] * 5
    assert len(caplog.records) == 1
    for _reader, writer in kept:
        writer.close()


async def test_junk_writes_no_log(
    address: tuple[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        assert (await ended(address, b"\x16\x03\x01junk\r\n\r\n")).startswith(b"HTTP/1.1 400")
    assert caplog.records == []


def test_a_port_that_cannot_be_had_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match=r"^http 127\.0\.0\.1:"):
            serving.listen("http", Broker("127.0.0.1", taken.getsockname()[1]))
