"""_io.agents.http: requests to a name with several addresses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from messagebus import BusConfig
from messagebus._io.agents.http import http_client
from messagebus._io.agents.subscriptions import _why_not
from tests.support.resolver import resolve

NAME = "lb.example"
ADDRESSES = ["127.0.0.2", "127.0.0.3"]


class Server:
    """A server at one address. status: of its answers; 0 answers nothing. heads, bodies: of its requests."""

    def __init__(self, host: str, status: int) -> None:
        self.host, self.status = host, status
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.accepted = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self, port: int) -> int:
        self._server = await asyncio.start_server(self._serve, self.host, port)
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._writers.append(writer)
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode().lower():
                self.heads.append(head)
                size = int(head.partition("content-length: ")[2].partition("\r")[0] or 0)
                self.bodies.append(await reader.readexactly(size))
                if self.status:
                    body = self.host.encode()
                    told = f"HTTP/1.1 {self.status} X\r\nContent-Length: {len(body)}\r\n\r\n"
                    writer.write(told.encode() + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def stop(self) -> None:
        self._server.close()
        for each in self._writers:
            each.close()
        await self._server.wait_closed()


@asynccontextmanager
async def servers(
    monkeypatch: pytest.MonkeyPatch, first: int, second: int = 200
) -> AsyncIterator[tuple[str, Server, Server]]:
    """Run two servers behind one name, which answer so. Yields the address of the name, and both."""
    resolve(monkeypatch, {NAME: ADDRESSES})
    one, two = Server(ADDRESSES[0], first), Server(ADDRESSES[1], second)
    port = await one.start(0)
    await two.start(port)
    try:
        yield f"http://{NAME}:{port}/list", one, two
    finally:
        await one.stop()
        await two.stop()


def client(url: str) -> httpx.AsyncClient:
    return http_client(BusConfig(broker=f"{NAME}:5672", list_urls=(url,)), timeout=60.0)


@pytest.mark.guarantee("names-and-slow-lines")
async def test_a_first_address_that_accepts_and_says_nothing_holds_up_no_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with servers(monkeypatch, first=0) as (url, silent, good), client(url) as http:
        answers = [(await http.get(url)).text for _ in range(3)]
        assert answers == 3 * [good.host]
        assert silent.accepted == 1, "those behind it go where an answer came from"


async def test_each_address_gets_the_whole_request_for_the_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with servers(monkeypatch, first=0) as (url, silent, good), client(url) as http:
        await http.post(url, json={"wanted": ["orders"]})
    for each in (silent, good):
        assert f"host: {NAME}:" in each.heads[0]
        assert each.bodies == [b'{"wanted":["orders"]}']


async def test_an_address_in_trouble_is_asked_last_the_next_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with servers(monkeypatch, first=503) as (url, bad, good), client(url) as http:
        assert (await http.get(url)).status_code == 503
        assert (await http.get(url)).text == good.host
        good.status = 502
        assert (await http.get(url)).status_code == 502
        bad.status = 200
        assert (await http.get(url)).text == bad.host


async def test_an_address_that_has_gone_is_replaced_by_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with servers(monkeypatch, first=200) as (url, one, two), client(url) as http:
        assert (await http.get(url)).text == one.host
        await one.stop()
        found = [await asyncio.gather(http.get(url), return_exceptions=True) for _ in range(2)]
        assert isinstance(found[1][0], httpx.Response)
        assert found[1][0].text == two.host


async def test_a_name_that_nobody_knows_is_an_error_of_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolve(monkeypatch, {NAME: []})
    url = f"http://{NAME}:8081/list"
    async with client(url) as http:
        with pytest.raises(httpx.ConnectError, match="not known"):
            await http.get(url)


async def test_requests_of_a_client_leave_no_line_in_the_applications_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    caplog.set_level(
        logging.INFO, logger="httpx"
    )  # commands that ran in this process have raised it
    async with servers(monkeypatch, first=200) as (url, _one, _two), client(url) as http:
        assert (await http.get(url)).status_code == 200
        assert caplog.messages == []
        async with httpx.AsyncClient(trust_env=False) as others:
            address = url.replace(NAME, ADDRESSES[0])
            assert (await others.get(address)).status_code == 200
    assert len(caplog.messages) == 1, "the application's own requests keep theirs"


def test_a_broker_that_is_down_is_not_reported_as_a_fault_of_the_login() -> None:
    said = {"error": "cannot check the login", "reason": "Connection refused", "linked": False}
    assert _why_not(httpx.Response(503, json=said)) == (
        "the broker is down (its agent says: Connection refused)"
    )
    for other in ({**said, "linked": True}, {"error": "cannot check the login"}):
        assert _why_not(httpx.Response(503, json=other)) == "HTTP 503 cannot check the login"
