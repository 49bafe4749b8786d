"""`messagebus to-http`: signatures against their reference, answers, and forbidden addresses."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook

from messagebus import ConfigError, Delivery, Message, Park, Queue, Receipt, RetryLater, RetryPolicy
from messagebus.envelope import read_envelope
from messagebus.testing import MemoryBus
from messagebus.tools.webhook import (
    Posting,
    Refused,
    Target,
    as_envelope,
    is_public,
    opened,
    read_secrets,
    retry_after_s,
    signed,
)
from tests.support.eventually import eventually_async

KEY = b"k" * 32
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"


def keys(folder: Path, text: str | bytes) -> list[bytes]:
    path = folder / "secret"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_secrets(path)


NOW_S = 1_700_000_000.0


@given(st.text(alphabet="abc-_0.", min_size=1, max_size=30), st.text(max_size=50))
def test_a_signature_is_that_of_the_reference(message_id: str, body: str) -> None:
    stamp = datetime.fromtimestamp(NOW_S, tz=UTC)
    headers = signed([KEY], message_id, int(NOW_S), body.encode())
    assert headers["webhook-signature"] == Webhook(SECRET).sign(message_id, stamp, body)


def test_both_keys_of_a_rotation_sign(tmp_path: Path) -> None:
    other = f"whsec_{base64.b64encode(b'other').decode()}"
    headers = signed(keys(tmp_path, f"{SECRET}\n{other}\n"), "m", int(NOW_S), b"{}")
    assert headers["webhook-signature"].count("v1,") == 2


@pytest.mark.parametrize("text", ["", "whsec_", "whsec_*", "whsec_a", "whsec_ü", b"whsec_\xfe"])
def test_a_secret_file_that_holds_none_is_refused_and_not_shown(
    text: str | bytes, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"{tmp_path}/secret: ") as refused:
        keys(tmp_path, text)
    shown = str(refused.value).removeprefix(f"{tmp_path}/secret: ")
    assert shown in ("empty", "not UTF-8", "line 1: whsec_ and base64 wanted")
    with pytest.raises(ConfigError, match="No such file"):
        read_secrets(tmp_path / "none")


@pytest.mark.parametrize(
    ("text", "after_s"),
    [
        ("", None),
        ("soon", None),
        ("-1", None),
        ("7", 7.0),
        ("9" * 12, 604_800.0),
        ("Tue, 14 Nov 2023 22:14:20 GMT", 60.0),
        ("Tue, 14 Nov 2000 22:14:20 GMT", 0.0),
        ("Tue, 99 Nov 2000 22:14:20 GMT", None),
    ],
)
def test_retry_after_is_heard_in_both_forms(text: str, after_s: float | None) -> None:
    assert retry_after_s(text, NOW_S) == after_s


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1:248:1893:25c8:1946", True),
        *[(each, False) for each in ("127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1")],
        *[(each, False) for each in ("169.254.169.254", "0.0.0.0", "100.64.0.1", "224.0.0.1")],
        *[(each, False) for each in ("::1", "::", "fe80::1", "fc00::1", "ff02::1", "240.0.0.1")],
        *[
            (each, False)
            for each in ("fec0::1", "3fff::1", "3fff:fff:ffff::1", "4000::1", "5f00::1")
        ],
        *[(each, False) for each in ("192.0.0.8", "192.0.0.170", "192.88.99.1", "::10.0.0.1")],
        *[(each, False) for each in ("2001:db8::1", "100::1", "64:ff9b:1::a00:1", "192.0.2.1")],
        *[(each, True) for each in ("192.0.1.1", "192.88.98.1", "2a00:1450:4001::1", "3ffe::1")],
        *[(each, False) for each in ("::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::")],
    ],
)
def test_addresses_inside_are_known(address: str, public: bool) -> None:
    assert is_public(ipaddress.ip_address(address)) is public


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://x/", "/x", "http://", "http://u:hidden@x/", "http://[::1", "file:///etc/passwd"),
        *("http://a..b/", f"http://{'a' * 64}.example/", "http://u:hidden@[::1/", "http://h:x/"),
    ],
)
def test_a_url_that_is_none_is_refused_and_no_login_shown(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Target(url)
    assert "hidden" not in str(refused.value)


# Hosts that are addresses in forms that a resolver reads.
@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::1]", "127.1", "2130706433", "0x7f000001", "0"]
)
async def test_this_host_is_not_asked_unless_it_is_allowed(host: str) -> None:
    with pytest.raises(Refused, match=" not public"):
        await Target(f"http://{host}:1/").request({}, b"")
    request = await Target(f"http://{host}:1/x", ["*"]).request({}, b"")
    assert (request.headers["Host"], request.url.path) == (f"{host}:1", "/x")


async def test_a_name_is_asked_at_the_address_that_was_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second answer of its name server may lead inside; one bad address of several is enough, too."""
    answers = [["93.184.216.34"], ["10.0.0.1"], ["93.184.216.34", "10.0.0.1"]]

    async def resolve(*_: object, **__: object) -> list[Any]:
        found = answers.pop(0)
        return [(socket.AF_INET, 1, 6, "", (each, 443)) for each in found]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    target = Target("https://shop.example/hook?x=1")
    for _ in range(2):
        request = await target.request({}, b"")
        assert str(request.url) == "https://93.184.216.34/hook?x=1"
        assert request.headers["Host"] == "shop.example"
        assert request.extensions["sni_hostname"] == "shop.example"
    for _ in range(2):
        target.forget()
        with pytest.raises(Refused, match=r"10\.0\.0\.1"):
            await target.request({}, b"")


async def test_every_address_of_a_name_is_tried_and_one_that_answers_comes_first_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of localhost: its server listens at one of two addresses."""
    answers = [["127.0.0.3", "127.0.0.2", "127.0.0.1"]] * 2
    asked: list[str] = []

    async def resolve(*_: object, **__: object) -> list[Any]:
        return [(socket.AF_INET, 1, 6, "", (each, 80)) for each in answers.pop(0)]

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        if request.url.host == away or away == "all":
            raise httpx.ConnectError("refused")
        return httpx.Response(200)

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    target = Target("http://shop.example/", ["*"])
    sent = Posting([httpx.MockTransport(answer)], target, [])
    away = "127.0.0.3"
    for _ in range(3):
        await sent(delivery(Message(body=b"")))
    assert asked == ["127.0.0.3", *["127.0.0.2"] * 3]
    away = "all"
    with pytest.raises(RetryLater, match="refused"):
        await sent(delivery(Message(body=b"")))
    assert sorted(asked[4:]) == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]


async def test_an_address_inside_is_tried_again_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name server may be wrong for a moment, and the message would be parked for it."""
    answers, statuses = ["10.0.0.1", "93.184.216.34"], list[str]()

    async def resolve(*_: object, **__: object) -> list[Any]:
        return [(socket.AF_INET, 1, 6, "", (answers.pop(0), 80))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    http = httpx.MockTransport(lambda _: httpx.Response(200))
    sent = Posting([http], Target("http://shop.example/"), [], on_answer=statuses.append)
    with pytest.raises(RetryLater, match=r"10\.0\.0\.1, which is not public"):
        await sent(delivery(Message(body=b"")))
    await sent(delivery(Message(body=b"")))
    assert statuses == ["none", "200"]


def posting(answer: Callable[[httpx.Request], httpx.Response], **how: Any) -> Posting:
    http = httpx.MockTransport(answer)
    return Posting([http], Target("http://127.0.0.1/", ["*"]), [KEY], **how)


def delivery(message: Message) -> Delivery:
    return Delivery(message, Receipt("mb1:5672", 1, 1), Queue("jobs"))


@pytest.mark.parametrize("code", [200, 201, 204, 299])
async def test_any_2xx_is_done(code: int) -> None:
    sent = posting(lambda _: httpx.Response(code))
    await sent(delivery(Message(body=b"x")))
    assert sent.posted == 1


@pytest.mark.parametrize(
    ("code", "headers", "after_s"),
    [
        *[(code, {}, None) for code in (408, 425, 429, 500, 502, 503, 504)],
        (429, {"Retry-After": "30"}, 30.0),
        (503, {"Retry-After": "soon"}, None),
    ],
)
async def test_what_may_pass_is_tried_again(
    code: int, headers: dict[str, str], after_s: float | None
) -> None:
    with pytest.raises(RetryLater) as again:
        await posting(lambda _: httpx.Response(code, headers=headers))(delivery(Message(body=b"")))
    assert again.value.after_s == after_s
    assert f"HTTP {code}" in again.value.reason


@pytest.mark.parametrize("fault", [httpx.ConnectError, httpx.ReadTimeout, OSError])
async def test_no_answer_is_tried_again(fault: type[Exception]) -> None:
    def answer(_request: httpx.Request) -> httpx.Response:
        raise fault("away")

    with pytest.raises(RetryLater, match="away"):
        await posting(answer)(delivery(Message(body=b"")))


async def test_a_receiver_that_never_answers_is_given_up() -> None:
    hung_up = asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # to the end
        writer.close()
        hung_up.set()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        target = Target(f"http://127.0.0.1:{port}/", ["*"], timeout_s=0.05)
        async with httpx.AsyncHTTPTransport(trust_env=False) as http:
            with pytest.raises(RetryLater, match=r"no answer: (Read)?Timeout"):
                await Posting([http], target, [])(delivery(Message(body=b"")))
        await hung_up.wait()


@pytest.mark.parametrize(
    ("head", "told"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", ""),
        (b"HTTP/1.1 400 No\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP 400"),
        (b"HTTP/1.1 200 OK\r\n", "no answer: TimeoutError"),
    ],
)
async def test_an_answer_that_comes_a_byte_at_a_time_holds_nothing_up_and_its_status_decides(
    head: bytes, told: str
) -> None:
    """Each read has its byte in time; the whole would last for ever."""
    part = b"1\r\nx\r\n" if head.endswith(b"\r\n\r\n") else b"x: y\r\n"
    hung_up = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(head)
            while not reader.at_eof():
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.05)
        writer.close()
        hung_up.set()

    async with await asyncio.start_server(drip, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        target = Target(f"http://127.0.0.1:{port}/", ["*"], timeout_s=0.5)
        statuses: list[str] = []
        async with opened(1) as transports:
            sent = Posting(transports, target, [], on_answer=statuses.append)
            ended = await asyncio.gather(sent(delivery(Message(body=b""))), return_exceptions=True)
            await hung_up.wait()
    assert told in str(ended[0] or "")
    assert statuses == [told[5:] if "HTTP" in told else "none" if told else "200"]


@pytest.mark.parametrize("code", [301, 302, 307, 400, 401, 404, 422])
async def test_what_will_not_pass_is_parked_with_the_answer_and_redirects_are_not_followed(
    code: int,
) -> None:
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(code, text="why " * 1_000, headers={"Location": "http://inside/"})

    with pytest.raises(Park, match=f"HTTP {code}: why") as parked:
        await posting(answer)(delivery(Message(body=b"")))
    assert (len(asked), len(parked.value.reason) < 1_100) == (1, True)


async def test_410_ends_it_and_the_delivery_has_no_answer() -> None:
    sent = posting(lambda _: httpx.Response(410))
    task = asyncio.ensure_future(sent(delivery(Message(body=b""))))
    await sent.gone.wait()
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    "message",
    [
        Message(body=b"x", message_id="a\r\nx: y", content_type="a/b\r\nx: y"),
        Message(body=b"x", message_id="ü漢", content_type="ü"),
        Message(body=b"x", content_type=""),
    ],
)
async def test_no_text_of_a_message_makes_another_header(message: Message) -> None:
    asked: list[httpx.Request] = []
    sent = posting(lambda request: asked.append(request) or httpx.Response(200))  # type: ignore[func-returns-value]
    await sent(delivery(message))
    (request,) = asked
    assert "x" not in request.headers
    assert request.headers["webhook-id"].isascii()


async def test_an_envelope_is_posted_where_it_is_wanted() -> None:
    asked: list[httpx.Request] = []
    sent = posting(lambda each: asked.append(each) or httpx.Response(200), form=as_envelope)  # type: ignore[func-returns-value]
    message = Message(body=b"\xff", message_id="m1", headers={"b": b"x"})
    await sent(delivery(message))
    assert read_envelope(asked[0].content).message == message
    assert asked[0].headers["content-type"] == "application/json"


async def test_every_message_is_posted_at_least_once_and_ends_once() -> None:
    """In memory: a third fails once, a third is refused; all others are done at once."""
    bus, seen = MemoryBus(), dict[str, int]()

    def answer(request: httpx.Request) -> httpx.Response:
        name = request.content.decode()
        seen[name] = seen.get(name, 0) + 1
        if name.startswith("again") and seen[name] == 1:
            return httpx.Response(503)
        return httpx.Response(400 if name.startswith("bad") else 200)

    names = [f"{kind}{number}" for kind in ("again", "bad", "good") for number in range(10)]
    sent = posting(answer)
    async with bus.async_consumer("orders", subscription="hook") as consumer:
        async with bus.async_publisher() as publisher:
            for name in names:
                await publisher.send_safe("orders", name.encode())
        policy = RetryPolicy(first_delay_s=0, jitter=0)
        running = asyncio.ensure_future(consumer.run(sent.__call__, concurrency=4, retry=policy))
        await eventually_async(lambda: sent.posted == 20, within_s=60)
        await consumer.stop()
        await running
    assert seen == {name: 2 if name.startswith("again") else 1 for name in names}
