"""Rights end when they are taken: streams, sockets, leases and pulls that are open, and bus logins."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets

from messagebus import AsyncConsumer, Durability, NotReady, Outcome, Published, Subscription, Topic
from messagebus.errors import ChannelRefused
from messagebus.services.gateway import clients
from messagebus.services.gateway.people import Principal
from messagebus.services.gateway.publishing import answer_batch, problem_of
from messagebus.services.gateway.streaming import Stream
from tests.support.eventually import eventually_async
from tests.support.gateway import gateway_on, make_bus, token_entry, write_tokens

BILLING = "orders/billing"
SHOP = {"Authorization": "Bearer shop"}
EVENTS, PULL = f"/v1/subscriptions/{BILLING}/events", f"/v1/subscriptions/{BILLING}/pull"
RIGHTS = {"publish": ["orders"], "consume": [BILLING]}
OTHER = token_entry("other", "other", **RIGHTS)


def replace_tokens(file: Path, *entries: str) -> None:
    new = write_tokens(file.with_suffix(".new"), *entries)
    os.replace(new, file)  # noqa: PTH105


async def answered(status: int, request: Callable[[], Awaitable[Any]]) -> None:
    """Send a request again and again until it is answered so."""
    async with asyncio.timeout(60):
        while (await request()).status_code != status:
            pass


TAKEN: dict[str, Callable[[], list[str]]] = {
    "token gone": lambda: [OTHER],
    "token replaced": lambda: [OTHER, token_entry("shop", "new", **RIGHTS)],
    "rights narrowed": lambda: [OTHER, token_entry("shop", "shop", publish=["orders"])],
}


@pytest.mark.guarantee("rights-end-when-taken")
@pytest.mark.parametrize("taken", TAKEN, ids=lambda text: text)
async def test_a_stream_a_socket_and_a_pull_end_with_the_rights_of_their_token(
    taken: str, tmp_path: Path
) -> None:
    bus = make_bus()
    file = write_tokens(tmp_path / "tokens.toml", OTHER, token_entry("shop", "shop", **RIGHTS))
    async with gateway_on(bus, tokens_file=str(file)) as served:
        address = f"{served.gateway.url.replace('http', 'ws')}/v1/subscriptions/{BILLING}/socket"
        async with (
            served.http.stream("GET", EVENTS, headers=SHOP) as stream,
            websockets.connect(address, additional_headers=SHOP, proxy=None) as socket,
        ):
            lines = stream.aiter_lines()
            assert await anext(lines) == ": messagebus"
            await socket.send(json.dumps({"t": "publish", "to": "orders", "body": "x"}))
            assert json.loads(await socket.recv())["outcome"] == "confirmed"
            replace_tokens(file, *TAKEN[taken]())
            async with asyncio.timeout(60):
                async for _ in lines:
                    pass
                await socket.wait_closed()
                with pytest.raises(websockets.ConnectionClosed):
                    await socket.send(json.dumps({"t": "publish", "to": "orders", "body": "x"}))
        # What was delivered to them comes again, to those who may.
        found = await served.http.post(PULL, json={}, headers={"Authorization": "Bearer other"})
        assert len(found.json()["deliveries"]) == 1


@pytest.mark.guarantee("rights-end-when-taken")
async def test_leases_of_a_token_that_is_gone_come_again_to_others(tmp_path: Path) -> None:
    bus = make_bus()
    file = write_tokens(tmp_path / "tokens.toml", OTHER, token_entry("shop", "shop", **RIGHTS))
    async with gateway_on(bus, tokens_file=str(file)) as served:
        served.http.headers.update(SHOP)
        await served.publish("x")
        found = await served.pull(lease_s=900)
        waiting = asyncio.create_task(served.http.post(PULL, json={"wait_s": 60}, timeout=90))
        assert len(found) == 1
        replace_tokens(file, OTHER)
        assert (await waiting).status_code in (401, 403)
        await eventually_async(lambda: not len(served.gateway.pulls.leases), within_s=60)
        served.http.headers["Authorization"] = "Bearer other"
        assert [each["id"] for each in await served.pull()] == [found[0]["id"]]


@pytest.mark.guarantee("rights-end-when-taken")
@pytest.mark.parametrize(
    ("path", "media"),
    [
        ("messages:batch", "application/x-ndjson"),
        ("messages:batch?whole=1", "application/x-ndjson"),
        ("messages:batch", "application/cloudevents-batch+json"),
        ("messages", "text/plain"),
    ],
)
async def test_what_comes_after_the_rights_were_taken_is_not_published(
    path: str, media: str, tmp_path: Path
) -> None:
    file = write_tokens(tmp_path / "tokens.toml", token_entry("shop", "s", publish=["orders"]))
    bus, go_on = make_bus(), asyncio.Event()
    event = b'{"specversion": "1.0", "id": "1", "type": "t", "source": "/s"}'
    first, rest = b"[", event + b"]"
    if "json" not in media:
        first, rest = b"x", b"y"
    elif "ndjson" in media:
        first, rest = b'{"body": "before"}\n', b'{"body": "after"}\n'

    async def body() -> AsyncIterator[bytes]:
        yield first
        await go_on.wait()
        yield rest

    async with gateway_on(bus, tokens_file=str(file)) as served:
        shop = served.gateway._people.by_name()["shop"]
        sending = asyncio.create_task(
            served.http.post(
                f"/v1/topics/orders/{path}",
                content=body(),
                headers={"authorization": "Bearer s", "content-type": media},
            )
        )
        await eventually_async(lambda: shop.requests.taken == 1, within_s=60)
        before = int("ndjson" in media and "whole" not in path)
        await eventually_async(lambda: len(bus.published("orders")) == before, within_s=60)
        replace_tokens(file, token_entry("other", "o", publish=["orders"]))
        await shop.over.wait()
        go_on.set()
        answer = await sending
        assert answer.status_code == 403
        assert answer.json().get("confirmed", 0) == before
    assert len(bus.published("orders")) == before


@pytest.mark.guarantee("rights-end-when-taken")
async def test_a_slow_reader_gets_no_more_of_what_was_taken_for_it_before() -> None:
    async with gateway_on(make_bus()) as served:
        for _ in range(5):
            await served.publish("x")
        pulls, shop = served.gateway.pulls, Principal("anonymous", consume=("*",), declare=("*",))
        reader = await pulls.reader(shop, Subscription(Topic("orders"), "billing"), 5)
        await eventually_async(lambda: reader.consumer.stats().buffered == 5, within_s=60)
        shop.sockets.enter()
        stream = Stream(
            *(pulls, reader, shop),
            in_flight=5,
            lease_s=60,
            acks_sent=False,
            ending=asyncio.Event(),
        )
        events = stream._events()
        await anext(events)
        assert b"event: message" in await anext(events)
        shop.over.set()
        for _ in range(10):  # turns of the loop, while the reader does not read
            await asyncio.sleep(0)
        assert [each async for each in events] == []


async def test_a_file_that_says_the_same_ends_nothing(tmp_path: Path) -> None:
    bus = make_bus()
    file = write_tokens(tmp_path / "tokens.toml", OTHER, token_entry("shop", "shop", **RIGHTS))
    async with (
        gateway_on(bus, tokens_file=str(file)) as served,
        served.http.stream("GET", EVENTS, headers=SHOP) as stream,
    ):
        lines = stream.aiter_lines()
        assert await anext(lines) == ": messagebus"
        new = token_entry("new", "new", **RIGHTS)
        replace_tokens(file, token_entry("shop", "shop", **RIGHTS), new)
        await answered(201, lambda: served.publish("x", authorization="Bearer new"))
        async with asyncio.timeout(60):
            while not (await anext(lines)).startswith("event"):
                pass


@pytest.mark.guarantee("rights-end-when-taken")
async def test_a_bus_login_is_proved_again_and_what_it_has_open_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bus = make_bus()
    monkeypatch.setattr(clients, "PROVEN_MS", 300)
    async with gateway_on(bus, bus_login=True) as served:
        login = httpx.BasicAuth("ann", "old")

        async def publish(auth: httpx.BasicAuth) -> Any:
            return await served.http.post("/v1/topics/orders/messages", content=b"x", auth=auth)

        assert (await publish(login)).status_code == 201
        async with served.http.stream(
            "GET", EVENTS, auth=login, headers={"MB-Client": "test"}
        ) as stream:
            lines = stream.aiter_lines()
            assert await anext(lines) == ": messagebus"
            served.bus.refused.add(("ann", "old"))
            # Used all the time, it is not believed for longer for that.
            await answered(401, lambda: publish(login))
            async with asyncio.timeout(60):
                async for _ in lines:
                    pass
        assert (await publish(httpx.BasicAuth("ann", "new"))).status_code == 201


REFUSED = "403 ACCESS_REFUSED - access to exchange 'mb.topic/orders' refused for user 'olga'"
LOGIN = httpx.BasicAuth("olga", "geheim")


def end(reason: str, outcome: Outcome = Outcome.REFUSED) -> Published:
    return Published("id", outcome, Durability.NONE, attempts=1, reason=reason)


def test_a_publish_that_the_users_rights_do_not_cover_is_403_and_no_try_helps() -> None:
    told = problem_of(end(REFUSED)).body
    assert (told["status"], told["retry"], told["detail"]) == (403, False, REFUSED)
    told = problem_of(end("404 NOT_FOUND - no ACCESS_REFUSED here")).body
    assert (told["status"], told["retry"]) == (503, True)


@pytest.mark.parametrize(
    ("ends", "status", "retry"),
    [
        ([end(REFUSED), end(REFUSED)], 403, False),
        ([end(REFUSED), end("full")], 503, True),
        ([end(REFUSED), end("", Outcome.UNKNOWN)], 504, True),
        ([end("", Outcome.UNROUTABLE)], 404, False),
        ([end(REFUSED), end("", Outcome.UNROUTABLE)], 503, True),
        ([end(REFUSED), end("", Outcome.CONFIRMED)], 403, False),
    ],
)
def test_a_batch_is_403_where_that_is_all_that_failed(
    ends: list[Published], status: int, retry: bool
) -> None:
    code, body = answer_batch(ends, None)
    assert (code, json.loads(body)["retry"]) == (status, retry)


async def test_what_the_rights_of_a_bus_login_do_not_cover_is_403(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def forbidden(*_: Any) -> Any:
        raise ChannelRefused("http://agent/topology", 403, "ACCESS_REFUSED (403) not olga's")

    async def not_ready(*_: Any, **_more: Any) -> Any:
        raise NotReady("not fulfilled")

    async def may_not(*_: Any) -> bool:
        return False

    async with gateway_on(make_bus(), bus_login=True) as served:
        monkeypatch.setattr(served.bus, "declare", forbidden)
        answer = await served.http.put(f"/v1/subscriptions/{BILLING}", auth=LOGIN)
        assert (answer.status_code, answer.json()["retry"]) == (403, False)
        monkeypatch.setattr(AsyncConsumer, "start", not_ready)
        answer = await served.http.post(PULL, json={}, auth=LOGIN)
        assert (answer.status_code, answer.json()["retry"]) == (503, True), "brokers are away"
        monkeypatch.setattr(served.bus, "may_read", may_not)
        answer = await served.http.post(PULL, json={}, auth=LOGIN)
        assert (answer.status_code, answer.json()["retry"]) == (403, False)
