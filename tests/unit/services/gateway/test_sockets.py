"""The gateway's WebSocket: deliveries for credit, answers, publishes, its ends; brokers in memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from messagebus.http.fast import WebSockets
from messagebus.services.gateway.sockets import PROTOCOL
from tests.support.eventually import eventually_async
from tests.support.gateway import Served, gateway_on, make_bus, token_entry, write_tokens

BILLING = "orders/billing"
PATH = "/v1/subscriptions/orders/billing/socket"


@asynccontextmanager
async def opened(served: Served, path: str = PATH, **how: Any) -> AsyncIterator[ClientConnection]:
    url = served.gateway.url.replace("http", "ws", 1) + path
    async with connect(url, subprotocols=[PROTOCOL], proxy=None, **how) as socket:  # type: ignore[list-item]
        yield socket


async def say(socket: ClientConnection, kind: str, **members: Any) -> None:
    await socket.send(json.dumps({"t": kind, **members}))


async def hear(socket: ClientConnection, kind: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await socket.recv())
    assert found.pop("t") == kind, found
    return found


async def test_it_delivers_for_credit_alone_and_takes_answers() -> None:
    bus = make_bus()
    async with gateway_on(bus) as served, opened(served) as socket:
        assert socket.subprotocol == PROTOCOL
        for body in "abc":
            await served.publish(body)
        await say(socket, "credit", n=2)
        first, second = [await hear(socket, "deliver") for _ in range(2)]
        assert [first["body"], second["body"]] == ["a", "b"]
        await say(socket, "ack", leases=[first["lease"]], ref=7)
        told = await hear(socket, "answered")  # and no third delivery before it
        assert (told["done"], told["ref"]) == (1, 7)
        await say(socket, "release", leases=[second["lease"]])
        await hear(socket, "answered")
        await say(socket, "credit", n=2)
        later = {(await hear(socket, "deliver"))["body"] for _ in range(2)}
        assert later == {"b", "c"}
        await say(socket, "ack", leases=[first["lease"]])
        assert (await hear(socket, "answered"))["leases"][0]["answer"] == "done"
    await eventually_async(lambda: bus.waiting(BILLING) == 2, within_s=60)  # they come again


async def test_it_publishes_and_says_each_outcome() -> None:
    bus = make_bus()
    async with gateway_on(bus) as served, opened(served) as socket:
        await say(socket, "publish", to="orders", id="o-1", body="x", key="k", ref="a")
        told = await hear(socket, "outcome")
        assert (told["id"], told["outcome"], told["ref"]) == ("o-1", "confirmed", "a")
        await say(socket, "publish", to="nobody", body="x")
        assert (await hear(socket, "outcome"))["outcome"] == "unroutable"
        for wrong in ({"to": "a b"}, {"to": "orders", "nonsense": 1}, {}):
            await say(socket, "publish", **wrong)
            assert (await hear(socket, "error"))["status"] == 400
        await say(socket, "nonsense", leases=["x"])
        assert (await hear(socket, "error"))["status"] == 400
    (message,) = bus.assert_published("orders", count=1)
    assert (message.body, message.key) == (b"x", "k")


@pytest.mark.parametrize("frame", ["{oops", "[]", "{}", '{"t": "credit"}', b"\x00"])
async def test_a_frame_that_is_none_ends_it_and_nothing_is_lost(frame: str | bytes) -> None:
    bus = make_bus()
    async with gateway_on(bus) as served, opened(served) as socket:
        await served.publish("a")
        await say(socket, "credit", n=1)
        await hear(socket, "deliver")
        await socket.send(frame)
        with pytest.raises(ConnectionClosed) as caught:
            await socket.recv()
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1008
        await eventually_async(lambda: bus.waiting(BILLING) == 1, within_s=60)


@pytest.mark.parametrize("number", [-1, 1.5, "x", True, None, 1e308, 10**30])
async def test_a_credit_that_is_no_number_is_an_error_and_the_next_one_counts(number: Any) -> None:
    async with gateway_on(make_bus()) as served, opened(served) as socket:
        await served.publish("a")
        await say(socket, "credit", n=number)
        told = await hear(socket, "error")
        assert (told["status"], told["detail"]) == (400, "n: 0 to 9,007,199,254,740,992")
        await say(socket, "credit", n=1)
        assert (await hear(socket, "deliver"))["body"] == "a"


async def test_it_ends_with_the_gateway() -> None:
    async with gateway_on(make_bus()) as served, opened(served) as socket:
        await served.gateway.stop(0, 0)
        with pytest.raises(ConnectionClosed) as caught:
            await socket.recv()
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1012


async def test_who_may_not_and_pages_of_other_sites_are_refused_before_it_opens(
    tmp_path: Path,
) -> None:
    path = write_tokens(tmp_path / "tokens.toml", token_entry("shop", "s", consume=[BILLING]))
    login = {"authorization": "Bearer s"}
    statuses = []
    async with gateway_on(make_bus(), tokens_file=str(path)) as served:
        for where, headers, origin in (
            (PATH, {}, None),
            ("/v1/subscriptions/orders/other/socket", login, None),
            (PATH, login, "https://elsewhere.example"),
            (f"{PATH}?lease_s=0", login, None),
        ):
            with pytest.raises(InvalidStatus) as caught:
                async with opened(served, where, additional_headers=headers, origin=origin):
                    pass
            statuses.append(caught.value.response.status_code)
        async with opened(served, additional_headers=login) as socket:
            await say(socket, "publish", to="orders", body="x")
            assert (await hear(socket, "error"))["status"] == 403
    assert statuses == [401, 403, 403, 400]


HEAD = (
    f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


def text_frame(body: bytes, size: int, *, is_last: bool = True) -> bytes:
    """Return the beginning of a frame of text, masked by zeros."""
    return struct.pack("!BBQ", 0x80 * is_last | 1, 0x80 | 127, size) + bytes(4) + body


@pytest.mark.guarantee("slow-connections-are-bounded")
@pytest.mark.parametrize("is_last", [True, False])
async def test_messages_that_hold_back_their_end_are_bounded_together_for_each_principal(
    is_last: bool, tmp_path: Path
) -> None:
    rights = {"consume": ["orders/billing"], "publish": ["orders"]}
    entries = [token_entry(name, name, **rights) for name in ("shop", "other")]
    file = write_tokens(tmp_path / "tokens.toml", *entries)
    limits = {"bodies_bytes_max": 1_000_000}
    async with gateway_on(make_bus(), tokens_file=str(file), limits=limits) as served:
        body = b" " * 400_000
        frame = text_frame(body, len(body) + is_last, is_last=is_last)
        held = []
        for _ in range(4):
            head = f"{HEAD}Authorization: Bearer shop\r\n\r\n"
            reader, writer = await served.connect(head.encode())
            assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
            writer.write(frame)
            held.append((reader, writer))
        answers = [asyncio.create_task(reader.readexactly(4)) for reader, _ in held]
        await eventually_async(lambda: sum(each.done() for each in answers) == 2, within_s=60)
        refused = [each.result() for each in answers if each.done()]
        assert {struct.unpack("!xxH", each)[0] for each in refused} == {1013}
        token = {"Authorization": "Bearer other"}
        async with opened(served, additional_headers=token) as socket:
            for number in range(3):
                await say(socket, "publish", to="orders", body="x" * 900_000, id=f"o-{number}")
                assert (await hear(socket, "outcome"))["outcome"] == "confirmed"
        for each in answers:
            each.cancel()
        for _, writer in held:
            writer.close()
        room = served.gateway._people.by_name()["shop"].bodies
        await eventually_async(lambda: not room.taken, within_s=60)


@pytest.mark.guarantee("slow-connections-are-bounded")
async def test_a_message_that_holds_back_its_end_is_hung_up_on_at_its_time() -> None:
    async with gateway_on(make_bus(), limits={"request_s": 0.5}) as served:
        reader, writer = await served.connect(f"{HEAD}\r\n".encode())
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        writer.write(text_frame(b"{", 2))
        async with asyncio.timeout(15):  # before any ping
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize(
    ("is_paused", "heard_s", "lives"),
    [(True, 1.0, True), (False, 3.0, True), (False, 1.0, False)],
    ids=["its answer waits behind what is not read", "it sends", "silent"],
)
def test_a_client_that_sends_faster_than_it_is_read_is_not_taken_for_dead(
    is_paused: bool, heard_s: float, lives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[str] = []
    monkeypatch.setattr(
        WebSocketsSansIOProtocol, "keepalive_timeout", lambda _self: ends.append("hung up")
    )
    monkeypatch.setattr(WebSockets, "schedule_ping", lambda _self: ends.append("asked again"))
    socket = object.__new__(WebSockets)
    socket.read_paused, socket._heard_s, socket.ping_sent_at = is_paused, heard_s, 2.0
    socket.keepalive_timeout()
    assert ends == ["asked again" if lives else "hung up"]
