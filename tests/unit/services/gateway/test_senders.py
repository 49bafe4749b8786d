"""Requests that pages of other sites send to a gateway: nothing is taken, published, declared or shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.gateway import gateway_on, make_bus, token_entry, write_tokens

BILLING = "orders/billing"
EVENTS = f"/v1/subscriptions/{BILLING}/events"
# Sent by an image, a frame, a script, a form, fetch.
REQUESTS = [
    ("GET", f"{EVENTS}?ack=sent"),
    ("POST", f"/v1/subscriptions/{BILLING}/pull"),
    ("POST", "/v1/topics/orders/messages"),
    ("POST", "/v1/topics/orders/messages:batch"),
    ("POST", "/v1/leases/ack"),
    ("PUT", "/v1/queues/jobs"),
]
OVER_TLS_OR_LOOPBACK = [{"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}]
ORIGINS = [{"Origin": "http://evil.example"}, {"Origin": "null"}]


@pytest.mark.guarantee("pages-of-others-do-nothing")
@pytest.mark.parametrize("said", [*OVER_TLS_OR_LOOPBACK, *ORIGINS], ids=str)
@pytest.mark.parametrize(("method", "path"), REQUESTS, ids=lambda text: text)
async def test_a_page_of_another_site_takes_publishes_and_declares_nothing(
    method: str, path: str, said: dict[str, str]
) -> None:
    bus = make_bus()
    async with gateway_on(bus) as served:
        await served.publish("kept")
        answer = await served.http.request(method, path, headers={**said, "Accept": "image/*"})
        assert answer.status_code == 403
        assert answer.json()["detail"] == "pages of this origin may not call"
        assert bus.waiting(BILLING) == 1


@pytest.mark.guarantee("pages-of-others-do-nothing")
@pytest.mark.parametrize(
    "said",
    [{"Accept": "image/*"}, {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}],
    ids=["an image over plain HTTP says nothing", "a link in a mail is as if it was typed"],
)
async def test_what_no_program_has_sent_takes_nothing(said: dict[str, str]) -> None:
    bus = make_bus()
    async with gateway_on(bus) as served:
        await served.publish("kept")
        answer = await served.http.get(f"{EVENTS}?ack=sent", headers=said)
        assert answer.status_code == 403
        assert "MB-Client" in answer.json()["detail"]
        assert bus.waiting(BILLING) == 1
        # Whoever sends that header with all requests publishes, too.
        assert (await served.publish("more", MB_Client="report")).status_code == 201


@pytest.mark.parametrize(
    "shown",
    [
        {"MB-Client": "report"},
        {"Authorization": "Bearer shop"},
        {"Sec-Fetch-Site": "same-origin"},
        {"Origin": "https://shop.example", "Sec-Fetch-Site": "cross-site"},
    ],
    ids=str,
)
async def test_programs_tokens_and_named_origins_read_a_stream(
    shown: dict[str, str], tmp_path: Path
) -> None:
    bus = make_bus()
    tokens = write_tokens(tmp_path / "tokens.toml", token_entry("shop", "shop", consume=[BILLING]))
    settings: dict[str, Any] = {
        "tokens_file": str(tokens),
        "anonymous": "all",
        "origins": ["https://shop.example"],
    }
    async with (
        gateway_on(bus, **settings) as served,
        served.http.stream("GET", EVENTS, headers=shown) as answer,
    ):
        assert answer.status_code == 200


@pytest.mark.guarantee("pages-of-others-do-nothing")
@pytest.mark.parametrize(
    "host", ["evil.example:8080", "127.evil.example", "127.0.0.1.evil.example"]
)
async def test_a_foreign_name_that_leads_here_reads_nothing_where_nobody_logs_in(host: str) -> None:
    bus = make_bus()
    async with gateway_on(bus) as served:
        await served.publish("kept")
        for method, path in REQUESTS:
            headers = {"Host": host, "MB-Client": "page", "Sec-Fetch-Site": "same-origin"}
            answer = await served.http.request(method, path, headers=headers)
            assert answer.status_code == 421, (method, path)
        socket = await served.raw(
            f"GET /v1/subscriptions/{BILLING}/socket",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            host=host,
        )
        assert " 421 " in socket.partition("\r\n")[0]
        assert bus.waiting(BILLING) == 1


async def test_the_public_name_is_right_behind_a_proxy() -> None:
    async with gateway_on(make_bus(), url="https://bus.example") as served:
        answer = await served.publish("x", host="bus.example")
        assert answer.status_code == 201


async def test_whoever_logs_in_may_call_by_any_name() -> None:
    """Another gateway passes answers on by a name of this one that `url` does not have."""
    path, shown = "/v1/topics/orders/messages", {"host": "gw-1.gateway.svc:8080"}
    async with gateway_on(make_bus(), url="https://bus.example", bus_login=True) as served:
        for password, code in (("good", 201), ("wrong", 401)):
            login = httpx.BasicAuth("ann", password)
            answer = await served.http.post(path, headers=shown, auth=login)
            assert answer.status_code == code


@pytest.mark.guarantee("pages-of-others-do-nothing")
async def test_an_empty_login_excuses_no_foreign_name() -> None:
    async with gateway_on(make_bus()) as served:
        for login, code in (("", 421), ("  ", 421), ("Basic YTpi", 401)):
            headers = ("MB-Client: page", f"Authorization:{login}")
            answer = await served.raw(f"GET {EVENTS}", *headers, host="evil.example")
            assert f" {code} " in answer.partition("\r\n")[0], repr(login)
