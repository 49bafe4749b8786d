"""The server of the services, by both parsers, plain and with TLS: what costs without a login is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from messagebus import ConfigError
from messagebus.http.connections import Bounds, connections_below_descriptors
from messagebus.http.listening import Tls, listen
from messagebus.http.server import Server
from messagebus.tls import TlsFiles
from ops.local.certificates import issue_missing
from tests.support.eventually import eventually_async

ENDED_WITHIN_S = 60.0
BOUNDS = Bounds(connections_max=1_000, head_s=30, request_s=30, write_s=30)
HALF_BODY = b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc"
WHOLE = b"GET /echo HTTP/1.1\r\nHost: a\r\n\r\n"
ENDLESS = b"GET /endless HTTP/1.1\r\nHost: a\r\n\r\n"


async def echo(request: Request) -> Response:
    try:
        return PlainTextResponse(f"{len(await request.body())}")
    except ClientDisconnect:
        return PlainTextResponse("", 499)


async def endless(_request: Request) -> Response:
    async def chunks() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 65_536
            await asyncio.sleep(0)

    return StreamingResponse(chunks())


async def events(_request: Request) -> Response:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"first"
        await asyncio.Event().wait()

    return StreamingResponse(chunks())


async def news(_request: Request) -> Response:
    await asyncio.Event().wait()
    return PlainTextResponse("")


async def mirror(socket: WebSocket) -> None:
    await socket.accept()
    async for text in socket.iter_text():
        await socket.send_text(text)


APP = Starlette(
    routes=[
        Route("/echo", echo, methods=["GET", "POST"]),
        Route("/endless", endless),
        Route("/events", events),
        Route("/news", news),
        WebSocketRoute("/mirror", mirror),
    ]
)


@dataclass
class Serving:
    server: Server
    address: tuple[str, int]
    tls: ssl.SSLContext | None

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(
            *self.address, ssl=self.tls, server_hostname="localhost" if self.tls else None
        )

    async def ended(self, sent: bytes) -> bytes:
        """Send this; return the data received before the server closed the connection."""
        reader, writer = await self.open()
        try:
            async with asyncio.timeout(ENDED_WITHIN_S):
                with contextlib.suppress(OSError):
                    writer.write(sent)
                    await writer.drain()
                    return await reader.read()
            return b""
        finally:
            writer.close()

    async def is_served(self) -> bool:
        reader, writer = await self.open()
        writer.write(WHOLE)
        async with asyncio.timeout(ENDED_WITHIN_S):
            line = await reader.readline()
        writer.close()
        return line.startswith(b"HTTP/1.1 200")


Serve = Callable[[Bounds], contextlib.AbstractAsyncContextManager[Serving]]


def issued(folder: Path) -> TlsFiles:
    folder.mkdir(exist_ok=True)
    issue_missing(folder, {"server": ("localhost",)})
    cert, key = folder / "server.pem", folder / "server.key"
    return TlsFiles(ca_file=str(folder / "ca.pem"), cert_file=str(cert), key_file=str(key))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return issued(tmp_path_factory.mktemp("tls"))


@pytest.fixture(params=["h11", "httptools", "h11 over TLS", "httptools over TLS"])
def serve(request: pytest.FixtureRequest, files: TlsFiles) -> Serve:
    """Return a context that serves with these bounds."""
    how: str = request.param

    @contextlib.asynccontextmanager
    async def serving(bounds: Bounds) -> AsyncIterator[Serving]:
        listener = listen("test", "127.0.0.1:0")
        has_tls = how.endswith("TLS")
        tls = Tls(files, ssl.CERT_NONE) if has_tls else None
        server = Server(APP, listener, bounds, tls=tls, is_fast=how.startswith("httptools"))
        running = asyncio.create_task(server.run())
        await server.begun.wait()
        trust = ssl.create_default_context(cafile=files.ca_file) if has_tls else None
        yield Serving(server, listener.getsockname(), trust)
        server.stop()
        await running
        listener.close()

    return serving


@pytest.mark.guarantee("slow-connections-are-bounded")
@pytest.mark.parametrize("sent", [b"", b"GET /echo HT", HALF_BODY])
async def test_who_sends_no_whole_request_in_time_is_hung_up_on_and_others_are_served(
    serve: Serve, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "messagebus.http")
    async with serve(replace(BOUNDS, head_s=0.5, request_s=0.5)) as serving:
        got = await asyncio.gather(*(serving.ended(sent) for _ in range(5)))
        assert set(got) == {b""}
        assert await serving.is_served()
        await eventually_async(lambda: len(serving.server.connections) == 0, within_s=60)
    assert [record.message.split()[:2] for record in caplog.records] == [["connections", "closed"]]


@pytest.mark.parametrize("begin", [b"\r\n", b"GET /"])
async def test_a_second_request_has_its_time_from_its_first_byte(
    serve: Serve, begin: bytes
) -> None:
    async with serve(replace(BOUNDS, head_s=0.5)) as serving:
        reader, writer = await serving.open()
        writer.write(WHOLE)
        await reader.readuntil(b"\r\n\r\n0")
        writer.write(begin)
        await eventually_async(lambda: not len(serving.server.connections), within_s=ENDED_WITHIN_S)
        writer.close()


async def test_a_connection_that_agrees_on_no_tls_in_time_is_hung_up_on(files: TlsFiles) -> None:
    listener = listen("test", "127.0.0.1:0")
    bounds = replace(BOUNDS, head_s=0.5, connections_max=10)
    server = Server(APP, listener, bounds, tls=Tls(files, ssl.CERT_NONE))
    running = asyncio.create_task(server.run())
    await server.begun.wait()
    silent = [await asyncio.open_connection(*listener.getsockname()) for _ in range(50)]
    try:
        await eventually_async(lambda: len(server.connections) == 0, within_s=60)
        # As many as have come before the first ones' time was over.
        assert 0 < server.connections.evicted <= 45
        for reader, _ in silent:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
    finally:
        for _, writer in silent:
            writer.close()
        server.stop()
        await running


async def test_a_new_certificate_is_shown_without_a_restart(tmp_path: Path) -> None:
    files, others = issued(tmp_path / "1"), issued(tmp_path / "2")
    listener = listen("test", "127.0.0.1:0")
    server = Server(APP, listener, BOUNDS, tls=Tls(files, ssl.CERT_NONE))
    running = asyncio.create_task(server.run())
    await server.begun.wait()
    serving = Serving(
        server, listener.getsockname(), ssl.create_default_context(cafile=files.ca_file)
    )
    assert await serving.is_served()
    replaced = [(files.cert_file, others.cert_file), (files.key_file, others.key_file)]
    for ours, theirs in replaced:
        shutil.copy(theirs, ours)
        if ours == files.cert_file:
            assert await serving.is_served(), "the last good pair counts"
    with pytest.raises(ssl.SSLError):
        await serving.is_served()
    serving.tls = ssl.create_default_context(cafile=others.ca_file)
    assert await serving.is_served()
    server.stop()
    await running


async def test_who_waits_for_an_answer_or_between_two_requests_is_not_slow(serve: Serve) -> None:
    loop = asyncio.get_running_loop()
    async with serve(replace(BOUNDS, head_s=0.2, request_s=0.2)) as serving:
        reader, writer = await serving.open()
        writer.write(WHOLE)
        assert (await reader.readuntil(b"\r\n\r\n0")).startswith(b"HTTP/1.1 200")
        began_s = loop.time()
        await eventually_async(lambda: loop.time() > began_s + 0.5, within_s=ENDED_WITHIN_S)
        writer.write(HALF_BODY + b"defghi")
        assert (await reader.readuntil(b"\r\n\r\n9")).startswith(b"HTTP/1.1 200")
        writer.close()


@pytest.mark.guarantee("slow-connections-are-bounded")
@pytest.mark.parametrize(
    "begin",
    [
        b"GET /echo HTTP/1.1\r\nHost: a\r\nA: ",
        b"GET /",
        b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nA: ",
    ],
    ids=["field", "address", "trailer"],
)
async def test_a_head_without_an_end_costs_what_is_read_at_once(
    serve: Serve, begin: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No time limit ends it: its bytes do."""
    async with serve(BOUNDS) as serving:
        reader, writer = await serving.open()
        sent = 0
        with contextlib.suppress(OSError):
            writer.write(begin)
            while sent < 64 << 20:
                writer.write(b"a" * 65_536)
                await writer.drain()
                sent += 65_536
        assert sent < 64 << 20
        with contextlib.suppress(OSError):
            assert b" 200 " not in await reader.read()
        writer.close()
        assert await serving.is_served()


@pytest.mark.guarantee("slow-connections-are-bounded")
async def test_hundreds_that_send_nothing_give_way_to_who_sends_a_request(serve: Serve) -> None:
    async with serve(replace(BOUNDS, connections_max=20)) as serving:
        silent = [socket.create_connection(serving.address) for _ in range(200)]
        for _ in range(10):
            assert await serving.is_served()
            assert len(serving.server.connections) <= 20
        assert serving.server.connections.evicted >= 190
        for each in silent:
            each.close()


async def test_who_is_being_answered_gives_way_to_nobody(serve: Serve) -> None:
    async with serve(replace(BOUNDS, connections_max=6)) as serving:
        kept = [await serving.open() for _ in range(3)]
        for reader, writer in kept:
            writer.write(ENDLESS)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        for _ in range(5):
            with contextlib.suppress(OSError):  # half of the places are for other sources
                assert await serving.ended(WHOLE) == b""
        assert serving.server.connections.refused == 5
        for reader, writer in kept:
            assert len(await reader.readexactly(65_536)) == 65_536
            writer.close()


@pytest.mark.guarantee("slow-connections-are-bounded")
async def test_who_reads_nothing_or_hardly_anything_is_hung_up_on(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(replace(BOUNDS, write_s=0.3)) as serving:
        reader, writer = await serving.open()
        writer.write(ENDLESS)
        await reader.readline()
        assert len(serving.server.connections) == 1

        await eventually_async(lambda: not len(serving.server.connections), within_s=ENDED_WITHIN_S)
        writer.transport.abort()


async def test_junk_writes_no_log(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    async with serve(BOUNDS) as serving:
        for _ in range(5):
            got = await serving.ended(b"\x16\x03\x01junk\r\n\r\n")
            assert got.startswith(b"HTTP/1.1 400")
    assert caplog.records == []


async def test_a_stop_ends_streams_and_waiting_requests_as_http_does_and_without_a_log(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve(BOUNDS) as serving:
        streaming, waiting = [(await serving.open()) for _ in range(2)]
        streaming[1].write(b"GET /events HTTP/1.1\r\nHost: a\r\n\r\n")
        waiting[1].write(b"GET /news HTTP/1.1\r\nHost: a\r\n\r\n")
        async with asyncio.timeout(ENDED_WITHIN_S):
            await streaming[0].readuntil(b"first\r\n")
            serving.server.stop()
            assert await streaming[0].read() == b"0\r\n\r\n"
            assert (await waiting[0].read()).startswith(b"HTTP/1.1 503 ")
        for _reader, writer in (streaming, waiting):
            writer.close()
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.guarantee("slow-connections-are-bounded")
@pytest.mark.parametrize(
    ("limit", "found"),
    [(200, 72), (65_536, 10_000), (resource.RLIM_INFINITY, 10_000), (64, 1)],
)
def test_connections_leave_descriptors_for_links_files_and_other_listeners(
    limit: int, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (limit, limit))
    assert connections_below_descriptors(10_000) == found


def test_a_port_that_cannot_be_had_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match=r"^http 127\.0\.0\.1:"):
            listen("http", f"127.0.0.1:{taken.getsockname()[1]}")
