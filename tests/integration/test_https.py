"""HTTP clients whose peer misbehaves."""

from __future__ import annotations

import asyncio

import pytest

from messagebus._io.agents.http import http_client
from messagebus.config import BusConfig

GONE_WITHIN_S = 10.0


async def test_a_request_given_up_during_its_handshake_leaves_no_socket() -> None:
    hello, gone = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        hello.set()
        while await reader.read(1_000):
            pass
        gone.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with http_client(BusConfig(tls=True)) as http:
        work = asyncio.ensure_future(http.get(f"https://127.0.0.1:{port}/", timeout=0.3))
        await hello.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
    await asyncio.wait_for(gone.wait(), GONE_WITHIN_S)
    server.close()
