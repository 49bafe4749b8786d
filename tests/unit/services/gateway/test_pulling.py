"""The gateway's pulls, leases, streams and webhooks over real HTTP, with brokers in memory."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import standardwebhooks
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from messagebus import ConfigError, Delivery, Message, Queue, Subscription, Topic
from messagebus.bodies import decode_json
from messagebus.core.deliveries import Receipt
from messagebus.http import listening
from messagebus.http.connections import Bounds
from messagebus.http.listening import listen
from messagebus.http.server import Server
from messagebus.services.gateway import pulling
from messagebus.services.gateway.config import GatewayConfig
from messagebus.services.gateway.demand import HOLD_MS
from messagebus.services.gateway.leases import Lease
from messagebus.services.gateway.problems import encoded
from messagebus.services.gateway.pulling import Held, as_json
from messagebus.services.gateway.service import Gateway
from messagebus.services.gateway.testing import MemoryGatewayBus
from messagebus.testing import MemoryBus
from tests.support.eventually import eventually_async
from tests.support.gateway import Served, gateway_on, make_bus, token_entry, write_tokens

BILLING = "orders/billing"
OWN = {"MB-Client": "test"}
AT = datetime(2026, 5, 1, 12, tzinfo=UTC)
SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef01234567").decode()


async def fill(bus: MemoryBus, count: int, **fields: Any) -> None:
    async with bus.async_publisher() as publisher:
        await publisher.send_many(
            "orders",
            [Message(body=b"%d" % n, message_id=f"m{n}", **fields) for n in range(count)],
        )


def owed_nothing(bus: MemoryBus, count: int) -> bool:
    """Return whether so many messages wait at the brokers for anybody."""
    return bus.waiting(BILLING) == count


async def test_what_is_pulled_and_acked_is_gone() -> None:
    bus = make_bus(brokers=3)
    await fill(bus, 50, key="c", headers={"a": [1, b"\xff"]}, content_type="text/plain")
    async with gateway_on(bus) as served:
        found: list[Any] = []
        while len(found) < 50:
            found += (taken := await served.pull(max=20))
            assert (await served.answer("ack", taken)).status_code == 200
        assert await served.pull(wait_s=0) == []
    assert {each["id"] for each in found} == {f"m{n}" for n in range(50)}
    first = next(each for each in found if each["id"] == "m0")
    assert (first["body"], first["key"], first["attempt"]) == ("0", "c", 1)
    assert first["headers"] == {"a": [1, {"base64": "/w=="}]}
    assert (bus.waiting(BILLING), len(bus.assert_answered(BILLING, answer="ack"))) == (0, 50)


async def test_the_first_pull_of_what_waits_finds_it_untouched() -> None:
    bus = make_bus()
    await fill(bus, 8)
    async with gateway_on(bus) as served:
        got: list[Any] = []
        while len(got) < 8:
            got += await served.pull(max=10, wait_s=60)
    assert [each["redelivered"] for each in got] == [False] * 8


async def test_who_answers_nothing_gets_as_many_leases_as_it_may_and_the_others_wait_for_nobody(
    tmp_path: Path,
) -> None:
    """All lies on one broker, which is used up many times over."""
    bus = make_bus(brokers=3)
    await fill(bus, 2_200)
    tokens = [token_entry(name, name, consume=[BILLING]) for name in ("greedy", "shop")]
    file = write_tokens(tmp_path / "tokens.toml", *tokens)
    async with gateway_on(bus, tokens_file=str(file), limits={"leases_max": 2_000}) as served:
        http = served.http
        path, greedy = f"/v1/subscriptions/{BILLING}/pull", {"Authorization": "Bearer greedy"}
        seen = 0
        while (answer := await http.post(path, json={"max": 400}, headers=greedy)).is_success:
            found = answer.json()["deliveries"]
            assert found
            seen += len(found)
        assert seen == 2_000
        assert answer.status_code == 429
        assert "greedy holds all the leases it may" in answer.json()["detail"]
        http.headers["Authorization"] = "Bearer shop"
        while seen < 2_200:
            found = await served.pull(max=400)
            assert found
            await served.answer("ack", found)
            seen += len(found)


async def test_bodies_in_a_principals_hands_have_a_bound_and_large_ones_are_fetched_by_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("messagebus.services.gateway.demand.AHEAD_BYTES", 2 << 20)
    bus = make_bus()
    async with bus.async_publisher() as publisher:
        await publisher.send_many("orders", [b"x" * (64 << 10)] * 200)
    path, how = (
        f"/v1/subscriptions/{BILLING}/pull",
        {"max": 1_000, "bytes_max": 1 << 20, "wait_s": 5},
    )
    async with gateway_on(bus, limits={"leased_bytes_max": 4 << 20}) as served:
        count = 0
        while (answer := await served.http.post(path, json=how)).is_success:
            found = answer.json()["deliveries"]
            assert found
            count += len(found)
            assert served.gateway.pulls.buffered <= pulling.FIRST_MAX + 32
    assert 64 <= count <= 80  # the last pull takes more
    assert answer.status_code == 429


async def test_pulls_that_wait_at_once_do_not_pass_the_bound_together() -> None:
    bus = make_bus(brokers=3)
    async with gateway_on(bus, limits={"leases_max": 50}) as served:
        pulling = [asyncio.create_task(served.pull(max=100, wait_s=20)) for _ in range(20)]
        readers = served.gateway.pulls.readers

        def all_wait() -> bool:
            return sum(each.demand.callers for each in readers.values()) == 20

        await eventually_async(all_wait, within_s=60)
        await fill(bus, 500)
        found = await asyncio.gather(*pulling)
    assert sum(map(len, found)) <= 50 + 20  # one each, at least


async def test_a_partitioned_topic_is_pulled_from_without_its_order_alone() -> None:
    bus = MemoryBus()
    bus.declare(Topic("orders", partitions=4))
    bus.declare(Subscription(Topic("orders"), "search", ordered=False))
    async with gateway_on(bus) as served:
        refused = await served.http.post(f"/v1/subscriptions/{BILLING}/pull", json={})
        assert (refused.status_code, refused.json()["retry"]) == (409, False)
        assert (await served.publish(b"x", MB_Key="k")).status_code == 201
        (found,) = await served.pull("subscriptions/orders/search")
        assert found["body"] == "x"


async def test_a_source_that_keeps_its_order_says_what_it_waits_for() -> None:
    bus = MemoryBus()
    bus.declare(Subscription(Topic("orders"), "billing", single_active=True))
    await fill(bus, 100)
    async with gateway_on(bus) as served:
        first = await served.pull(max=10)
        path, how = f"/v1/subscriptions/{BILLING}/pull", {"max": 10, "wait_s": 0.5}
        while (answer := await served.http.post(path, json=how)).json().get("deliveries"):
            pass
        assert answer.status_code == 429
        assert "orders/billing keeps its order" in answer.json()["detail"]
        await served.answer("release", first)


async def test_a_pull_waits_for_a_message() -> None:
    bus = make_bus()
    async with gateway_on(bus) as served:
        waiting = asyncio.create_task(served.pull(wait_s=30))
        await eventually_async(lambda: bool(served.gateway.pulls.readers), within_s=60)
        await served.publish(b"\xff\x00")
        (found,) = await waiting
    assert base64.b64decode(found["body_base64"]) == b"\xff\x00"


async def test_leases_are_released_retried_parked_and_extended() -> None:
    bus = make_bus()
    await fill(bus, 3)
    async with gateway_on(bus) as served:
        found = await served.pull(max=3)
        while len(found) < 3:
            found += await served.pull(max=3 - len(found))
        one, two, three = found
        assert (await served.answer("extend", [one], lease_s=900)).status_code == 200
        assert (await served.answer("release", [one])).status_code == 200
        (again,) = await served.pull()
        assert (again["id"], again["redelivered"]) == (one["id"], True)
        parked = await served.answer("park", [two, again], reason="no such customer")
        assert parked.json()["done"] == 2
        assert (await served.answer("retry", [three], after_s=5)).status_code == 200
        assert await served.pull(wait_s=0) == []
        bus.advance(10)
        (retried,) = await served.pull(wait_s=10)
        assert (retried["id"], retried["attempt"]) == (three["id"], 2)
        confirmed = await served.http.post(
            "/v1/leases/ack?confirmed=true", json={"leases": [retried["lease"]]}
        )
        assert confirmed.status_code == 200
    assert len(bus.assert_parked(BILLING, count=2)) == 2
    assert bus.waiting(BILLING) == 0


async def test_a_lease_that_ran_out_comes_again_and_is_stale() -> None:
    bus = make_bus()
    await fill(bus, 1)
    async with gateway_on(bus) as served:
        late = await served.pull(lease_s=1)
        (again,) = await served.pull(wait_s=30)
        assert (again["id"], again["redelivered"]) == ("m0", True)
        answer = await served.answer("ack", late)
        assert answer.status_code == 409
        assert answer.json()["leases"][0]["answer"] == "stale"
        assert (await served.answer("ack", [again])).status_code == 200
        text = (await served.http.get(f"{served.gateway.admin_url}/metrics")).text
    assert "messagebus_gateway_leases_expired_total 1.0" in text


async def test_who_may_not_declare_creates_nothing_by_a_pull(tmp_path: Path) -> None:
    path = write_tokens(
        tmp_path / "tokens.toml",
        token_entry("reader", "r", consume=["orders/*"]),
        token_entry("maker", "m", consume=["orders/*"], declare=["orders/*"]),
    )
    bus = make_bus()
    await fill(bus, 1)
    mistyped = Subscription(Topic("orders"), "biling")
    async with gateway_on(bus, tokens_file=str(path)) as served:

        async def pull(token: str, name: str) -> int:
            answer = await served.http.post(
                f"/v1/subscriptions/orders/{name}/pull",
                content=b'{"wait_s": 0.1}',
                headers={"Authorization": f"Bearer {token}"},
            )
            return int(answer.status_code)

        assert await pull("r", "billing") == 200
        assert await pull("r", "biling") == 404
        assert not bus.exists(mistyped)
        assert await pull("m", "biling") == 200
        await eventually_async(lambda: bus.exists(mistyped), within_s=60)


async def test_forged_foreign_and_doubled_leases_change_nothing(tmp_path: Path) -> None:
    path = write_tokens(
        tmp_path / "tokens.toml",
        token_entry("shop", "s", consume=["orders/billing"]),
        token_entry("thief", "t", consume=["orders/*"]),
    )
    bus = make_bus()
    await fill(bus, 1)
    async with gateway_on(bus, tokens_file=str(path)) as served:

        async def ack(lease: str, token: str) -> str:
            answer = await served.http.post(
                "/v1/leases/ack",
                content=json.dumps({"leases": [lease]}),
                headers={"Authorization": f"Bearer {token}"},
            )
            return str(answer.json()["leases"][0]["answer"])

        pulled = await served.http.post(
            "/v1/subscriptions/orders/billing/pull", headers={"Authorization": "Bearer s"}
        )
        (found,) = pulled.json()["deliveries"]
        lease = found["lease"]
        assert await ack(lease, "t") == "unknown"
        assert await ack(lease[:-1] + ("0" if lease[-1] != "0" else "1"), "s") == "unknown"
        for forged in ("gw.1.2.3", "\ud800", f"{lease.rpartition('.')[0]}.\ud800", "é" * 50_000):
            assert await ack(forged, "s") == "unknown"
        assert await ack(lease, "s") == "done"
        assert await ack(lease, "s") == "done"
        assert await ack(lease, "t") == "unknown"
    bus.assert_answered(BILLING, answer="ack", count=1)


async def test_a_forged_lease_among_good_ones_costs_these_nothing() -> None:
    bus = make_bus()
    await fill(bus, 2)
    async with gateway_on(bus) as served:
        good = await served.pull(max=2)
        forged = {"lease": f"{good[0]['lease'].rpartition('.')[0]}.\ud800"}
        leases = {"leases": [each["lease"] for each in (good[0], forged, good[1])]}
        answered = await served.http.post("/v1/leases/ack", content=json.dumps(leases))
        assert answered.status_code == 409
        ends = [each["answer"] for each in answered.json()["leases"]]
        assert ends == ["done", "unknown", "done"]
    bus.assert_answered(BILLING, answer="ack", count=2)


async def test_an_answer_after_the_link_ended_is_stale_and_the_message_comes_again() -> None:
    bus = make_bus()
    await fill(bus, 1)
    async with gateway_on(bus) as served:
        found = await served.pull()
        bus.lose_connection()
        (again,) = await served.pull(wait_s=10)
        assert (await served.answer("ack", found)).status_code == 409
        assert (await served.answer("ack", [again])).status_code == 200
    assert bus.waiting(BILLING) == 0


async def test_leases_of_another_gateway_are_answered_there_by_the_callers_own_login(
    tmp_path: Path,
) -> None:
    path = write_tokens(
        tmp_path / "tokens.toml",
        token_entry("shop", "s", publish=["*"], consume=["*"]),
        token_entry("other", "o", consume=["*"]),
    )
    bus = make_bus()
    shop, other = ({"authorization": f"Bearer {token}"} for token in ("s", "o"))
    async with (
        gateway_on(bus, name="gw1", tokens_file=str(path)) as first,
        gateway_on(
            bus, name="gw2", tokens_file=str(path), peers={"gw1": first.gateway.url}
        ) as second,
    ):
        for served in (first, second):
            served.http.headers.update(shop)
        for body in "abcd":
            await first.publish(body)
        theirs = await first.pull(max=2)
        ours = await second.pull(max=2, wait_s=5)
        both = [theirs[0], *ours, theirs[1]]
        foreign = await second.http.post(
            "/v1/leases/ack", json={"leases": [theirs[0]["lease"]]}, headers=other
        )
        assert foreign.json()["leases"][0]["answer"] == "unknown"
        assert (await second.answer("extend", both, lease_s=30)).json()["done"] == len(both)
        answered = await second.answer("ack", both)
        assert (answered.status_code, answered.json()["done"]) == (200, len(both))
        assert [each["lease"] for each in answered.json()["leases"]] == [e["lease"] for e in both]
        again = await second.answer("ack", theirs)
        assert {each["answer"] for each in again.json()["leases"]} == {"done"}
        await first.gateway.stop(0, 0)
        away = await second.answer("ack", theirs)
        assert {each["answer"] for each in away.json()["leases"]} == {"away"}


async def test_a_client_that_hangs_up_while_it_waits_takes_nothing() -> None:
    bus = make_bus()
    async with gateway_on(bus) as served:
        for _ in range(5):
            with pytest.raises(httpx.ReadTimeout):
                await served.http.post(
                    "/v1/subscriptions/orders/billing/pull", json={"wait_s": 60}, timeout=0.2
                )
        await eventually_async(
            lambda: all(not each.demand.callers for each in served.gateway.pulls.readers.values()),
            within_s=60,
        )
        await served.publish()
        (found,) = await served.pull(wait_s=10)
        assert (await served.answer("ack", [found])).status_code == 200


async def test_nothing_stays_longer_than_a_second_with_a_gateway_that_nobody_asks() -> None:
    """Messages that one gateway fetched ahead are had from another, while leases are out at the first."""
    bus = make_bus(brokers=2)
    await fill(bus, 100)
    async with gateway_on(bus) as one, gateway_on(bus) as two:
        kept = await one.pull(max=50, lease_s=900)
        loop = asyncio.get_running_loop()
        begun_s, found = loop.time(), len(kept)
        while found < 100:
            taken = await two.pull(max=100, wait_s=30)
            found += len(taken)
            await two.answer("ack", taken)
        took_s = loop.time() - begun_s
        assert (await one.answer("ack", kept)).status_code == 200
    assert took_s < 10 * HOLD_MS / 1000
    assert bus.waiting(BILLING) == 0


async def test_what_was_fetched_ahead_goes_back_by_itself() -> None:
    bus = make_bus()
    await fill(bus, 100)
    async with gateway_on(bus) as served:
        kept = await served.pull(max=1)
        await eventually_async(lambda: owed_nothing(bus, 100 - len(kept)), within_s=60)
        assert served.gateway.pulls.buffered == 0


@pytest.mark.parametrize(
    "how",
    [
        {"max": 0},
        {"max": 1001},
        {"max": True},
        {"wait_s": -1},
        {"wait_s": "x"},
        {"lease_s": 901},
        {"bytes_max": 0},
        {"more": 1},
        [],
    ],
)
async def test_a_wrong_pull_is_a_400(how: Any) -> None:
    async with gateway_on(make_bus()) as served:
        answer = await served.http.post("/v1/subscriptions/orders/billing/pull", json=how)
        assert answer.status_code == 400
        wrong = await served.http.post("/v1/leases/ack", content=b"{")
        none = await served.http.post("/v1/leases/ack", json={"leases": []})
    assert (wrong.status_code, none.status_code) == (400, 400)


async def test_a_pull_ends_at_its_bytes() -> None:
    bus = make_bus()
    async with gateway_on(bus) as served:
        for _ in range(4):
            await served.publish(b"x" * 1000)
        await served.pull(max=1)
        await eventually_async(lambda: bus.waiting(BILLING) > 0, within_s=60)
        assert len(await served.pull(max=100, bytes_max=1000)) == 1


async def test_a_queue_is_published_to_and_pulled_from() -> None:
    bus = MemoryBus()
    async with gateway_on(bus) as served:
        made = await served.http.put("/v1/queues/jobs")
        assert (made.status_code, made.json()) == (200, {"name": "queue:jobs", "missing": {}})
        answer = await served.http.post("/v1/queues/jobs/messages", content=b"work")
        assert answer.status_code == 201
        (found,) = await served.pull("queues/jobs")
        assert found["body"] == "work"


async def test_events_come_back_as_events() -> None:
    bus = make_bus()
    sent = {"specversion": "1.0", "id": "e1", "type": "t", "source": "/s", "data": {"a": 1}}
    async with gateway_on(bus) as served:
        await served.publish(json.dumps(sent), content_type="application/cloudevents+json")
        answer = await served.http.post(
            "/v1/subscriptions/orders/billing/pull",
            headers={"Accept": "application/cloudevents+json"},
        )
    (found,) = answer.json()["deliveries"]
    assert found["event"] == sent | {"datacontenttype": "application/json"}


# The end.
async def test_at_the_end_pulls_are_answered_and_leases_are_waited_for() -> None:
    bus = make_bus()
    await fill(bus, 1)
    async with gateway_on(bus) as served:
        held = await served.pull()
        waiting = asyncio.create_task(served.pull("subscriptions/orders/billing", wait_s=60))
        await eventually_async(
            lambda: any(each.demand.callers for each in served.gateway.pulls.readers.values()),
            within_s=60,
        )
        ending = asyncio.create_task(served.gateway.stop(0, 30))
        assert await waiting == []
        ready = await served.http.get(f"{served.gateway.admin_url}/readyz")
        assert (ready.status_code, ready.text) == (503, "this gateway ends\n")
        live = await served.http.get(f"{served.gateway.admin_url}/livez")
        assert live.status_code == 200
        assert (await served.answer("ack", held)).status_code == 200
        assert await ending == ""
    bus.assert_answered(BILLING, answer="ack", count=1)


async def test_leases_that_nobody_answers_go_back_at_the_end() -> None:
    bus = make_bus()
    await fill(bus, 1)
    async with gateway_on(bus) as served:
        await served.pull(lease_s=900)
        assert await served.gateway.stop(0, 0.1) == "1 leases given back"
        await eventually_async(lambda: owed_nothing(bus, 1), within_s=60)


# Streams.
async def read_events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    lease = ""
    async for line in response.aiter_lines():
        if line.startswith("id: "):
            lease = line[4:]
        elif line.startswith("data: "):
            told = json.loads(line[6:])
            assert told["lease"] == lease
            yield told


async def test_a_stream_sends_so_many_unanswered_and_gives_them_back_at_its_end() -> None:
    bus = make_bus()
    await fill(bus, 10)
    path = "/v1/subscriptions/orders/billing/events?in_flight=2"
    async with gateway_on(bus) as served:
        async with served.http.stream("GET", path, headers=OWN) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            events = read_events(response)
            first, second = await anext(events), await anext(events)
            assert len(served.gateway.pulls.leases) == 2
            await served.answer("ack", [first])
            third = await anext(events)
            assert third["id"] not in (first["id"], second["id"])
        await eventually_async(lambda: not len(served.gateway.pulls.leases), within_s=60)
        await eventually_async(lambda: owed_nothing(bus, 9), within_s=60)


async def test_a_stream_may_ack_what_it_has_sent() -> None:
    bus = make_bus()
    await fill(bus, 5)
    path = "/v1/subscriptions/orders/billing/events?ack=sent"
    async with gateway_on(bus) as served, served.http.stream("GET", path, headers=OWN) as response:
        events = read_events(response)
        found = {(await anext(events))["id"] for _ in range(5)}
        assert len(found) == 5
        await eventually_async(
            lambda: len(bus.answers(BILLING)) == 5 and not len(served.gateway.pulls.leases),
            within_s=60,
        )


async def test_a_stream_ends_with_the_gateway() -> None:
    bus = make_bus()
    path = "/v1/subscriptions/orders/billing/events"
    async with gateway_on(bus) as served, served.http.stream("GET", path, headers=OWN) as response:
        lines = response.aiter_lines()
        assert await anext(lines) == ": messagebus"
        assert await served.gateway.stop(0, 0) == ""
        assert [line async for line in lines if line.startswith("data")] == []


# Push.
class Receiver:
    """A server that takes webhooks and gives the answers it is told to."""

    def __init__(self) -> None:
        self.taken: list[tuple[dict[str, str], bytes]] = []
        self.statuses: list[int] = []
        self.endless = b""
        self.url = ""

    async def take(self, request: Request) -> Response:
        self.taken.append((dict(request.headers), await request.body()))
        status = self.statuses.pop(0) if self.statuses else 204
        if self.endless:
            return StreamingResponse(self._without_end(), 200 if status == 204 else status)
        return Response("why" if status >= 400 else b"", status, {"retry-after": "1"})

    async def _without_end(self) -> AsyncIterator[bytes]:
        while True:
            yield self.endless
            await asyncio.sleep(0.1)


@asynccontextmanager
async def pushed(
    bus: MemoryBus, folder: Path, **settings: Any
) -> AsyncIterator[tuple[Served, Receiver]]:
    receiver = Receiver()
    listener = listen("test", "127.0.0.1:0")
    app = Starlette(routes=[Route("/hook", receiver.take, methods=["POST"])])
    server = Server(app, listener, Bounds(connections_max=100))
    serving = asyncio.create_task(server.run())
    await server.begun.wait()
    secret = folder / "secret"
    secret.write_text(SECRET)
    push = {
        "subscription": BILLING,
        "url": f"http://127.0.0.1:{listener.getsockname()[1]}/hook",
        "secret_file": str(secret),
        "private": True,
    }
    try:
        async with gateway_on(bus, push=[push | settings]) as served:
            yield served, receiver
    finally:
        server.stop()
        await serving
        listener.close()


async def test_a_webhook_is_signed_as_standard_webhooks_say_and_a_2xx_acks(tmp_path: Path) -> None:
    bus = make_bus()
    async with pushed(bus, tmp_path) as (served, receiver):
        await served.publish('{"a":1}', content_type="application/json", idempotency_key="k1")
        await eventually_async(lambda: bool(bus.answers(BILLING)), within_s=60)
        text = (await served.http.get(f"{served.gateway.admin_url}/metrics")).text
    ((headers, body),) = receiver.taken
    assert standardwebhooks.Webhook(SECRET).verify(body, headers) == {"a": 1}
    assert (headers["webhook-id"], headers["content-type"]) == ("k1", "application/json")
    assert bus.answers(BILLING) == [("k1", "ack")]
    assert 'pushes_total{status="204",subscription="orders/billing"} 1.0' in text
    assert SECRET not in text


async def test_a_webhook_that_fails_comes_again_and_one_refused_is_parked(tmp_path: Path) -> None:
    bus = make_bus()
    async with pushed(bus, tmp_path, format="cloudevents") as (served, receiver):
        receiver.statuses = [503]
        await served.publish("x", idempotency_key="again")
        await eventually_async(lambda: ("again", "retry") in bus.answers(BILLING), within_s=60)
        bus.advance(5)
        await eventually_async(lambda: ("again", "ack") in bus.answers(BILLING), within_s=60)
        receiver.statuses = [302]
        await served.publish("y", idempotency_key="moved")
        await eventually_async(lambda: len(bus.parked(BILLING)) == 1, within_s=60)
    assert json.loads(receiver.taken[0][1])["id"] == "again"
    assert [each.message_id for each in bus.assert_parked(BILLING, count=1)] == ["moved"]


@pytest.mark.parametrize("chunk", [b"x" * 100_000, b"x"], ids=["fast", "slow"])
async def test_a_webhook_whose_answer_has_no_end_holds_nothing_up(
    tmp_path: Path, chunk: bytes
) -> None:
    bus = make_bus()
    async with pushed(bus, tmp_path, concurrency=1, timeout_s=1) as (served, receiver):
        receiver.endless = chunk
        for number in range(3):
            await served.publish(str(number))
        await eventually_async(lambda: len(bus.answers(BILLING)) == 3, within_s=60)
        receiver.statuses = [400]
        await served.publish("3")
        await eventually_async(lambda: len(bus.parked(BILLING)) == 1, within_s=60)
    assert [answer for _, answer in bus.answers(BILLING)] == ["ack"] * 3 + ["park"]


async def test_a_gateway_that_may_not_start_listens_no_longer(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    push = {"subscription": BILLING, "url": "http://127.0.0.1:1/", "secret_file": str(secret)}
    config = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "anonymous": "all", "push": [push]}
    gateway = Gateway(GatewayConfig.from_mapping(config), MemoryGatewayBus(make_bus()))
    addresses = [httpx.URL(url) for url in (gateway.url, gateway.admin_url)]
    with pytest.raises(ConfigError, match="not public; private = true allows it"):
        await gateway.start()
    for address in addresses:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(address.host, address.port)


async def test_a_secret_that_is_none_is_told_and_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_text("not-base64!")
    with pytest.raises(ConfigError, match="whsec_ and base64 wanted") as caught:
        async with pushed(make_bus(), tmp_path, secret_file=str(path)):
            raise AssertionError
    assert "not-base64" not in str(caught.value)
    assert pulling.LEASE_S_MAX < 1_800


async def test_a_receiver_that_is_gone_ends_the_push_and_its_message_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bus = make_bus()
    async with pushed(bus, tmp_path) as (served, receiver):
        receiver.statuses = [410]
        await served.publish("0")
        await eventually_async(lambda: bool(receiver.taken), within_s=60)
        await eventually_async(lambda: bus.waiting(BILLING) == 1, within_s=60)
        await served.publish("1")
    assert len(receiver.taken) == 1
    assert bus.answers(BILLING) == []
    assert bus.waiting(BILLING) == 2
    assert "push ends subscription=orders/billing reason='410 Gone'" in caplog.text


@pytest.mark.parametrize("confirmed", ["", "?confirmed=true"])
async def test_an_ack_whose_answer_got_lost_is_done_when_it_comes_again(confirmed: str) -> None:
    bus = make_bus()
    await fill(bus, 2)
    async with gateway_on(bus) as served:
        found = await served.pull(max=2)
        path = f"/v1/leases/ack{confirmed}"
        for each, is_heard in zip(found, (True, False), strict=True):
            body = json.dumps({"leases": [each["lease"]]}).encode()
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            _, writer = await served.connect(head.encode() + body)
            if is_heard:
                held = served.gateway.pulls.leases
                await eventually_async(lambda: len(held) == 1, within_s=60)  # noqa: B023
            writer.transport.abort()
            again = await served.http.post(path, content=body)
            assert (again.status_code, again.json()["done"]) == (200, 1)
        released = await served.answer("release", found)
        assert {each["answer"] for each in released.json()["leases"]} == {"answered"}
    bus.assert_answered(BILLING, answer="ack", count=2)
    assert bus.waiting(BILLING) == 0


async def test_what_a_client_did_not_read_to_its_end_comes_again_and_is_not_lost() -> None:
    bus = make_bus()
    async with bus.async_publisher() as publisher:
        await publisher.send_many("orders", [bytes([n]) * 200_000 for n in range(40)])
    body = b'{"max": 40, "lease_s": 1, "bytes_max": 60000000}'
    head = b"POST /v1/subscriptions/orders/billing/pull HTTP/1.1\r\nHost: localhost\r\n"
    async with gateway_on(bus) as served:
        reader, writer = await served.connect(
            b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)
        )
        assert b" 200 OK" in await reader.readuntil(b"\r\n")
        writer.transport.abort()
        got: list[Any] = []
        while len(got) < 40:
            more = await served.pull(max=40, wait_s=60)
            assert more
            got += more
            assert (await served.answer("ack", more)).status_code == 200
    assert len({each["id"] for each in got}) == 40
    assert bus.waiting(BILLING) == 0


async def test_head_takes_nothing_from_a_stream() -> None:
    bus = make_bus()
    await fill(bus, 1)
    async with gateway_on(bus) as served:
        answer = await served.raw("HEAD /v1/subscriptions/orders/billing/events?ack=sent")
        assert " 405 " in answer.splitlines()[0]
        assert len(await served.pull()) == 1


CREDIT = b'{"t":"credit","n":40}'


@pytest.mark.parametrize(
    ("request_line", "body"),
    [
        ("GET /v1/subscriptions/orders/billing/events?in_flight=40", b""),
        ("POST /v1/subscriptions/orders/billing/pull", b'{"max": 100, "wait_s": 2}'),
        # What follows the handshake is a frame, here with a mask of zeros.
        (
            "GET /v1/subscriptions/orders/billing/socket",
            bytes([0x81, 0x80 | len(CREDIT), 0, 0, 0, 0]) + CREDIT,
        ),
    ],
    ids=["events", "pull", "socket"],
)
async def test_a_client_that_reads_nothing_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, request_line: str, body: bytes
) -> None:
    monkeypatch.setattr(listening, "UNREAD_S", 3.0)
    bus = make_bus()
    async with bus.async_publisher() as publisher:
        await publisher.send_many("orders", [b"x" * 200_000] * 40)
    more = f"Content-Length: {len(body)}"
    if request_line.endswith("socket"):
        more = (
            "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
        )
    head = f"{request_line} HTTP/1.1\r\nHost: localhost\r\nMB-Client: test\r\n{more}\r\n\r\n"
    loop = asyncio.get_running_loop()
    async with gateway_on(bus) as served:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            host, _, port = served.gateway.url.removeprefix("http://").partition(":")
            await loop.sock_connect(client, (host, int(port)))
            await loop.sock_sendall(client, head.encode())
            if request_line.endswith("socket"):
                assert b" 101 " in await loop.sock_recv(client, 100)
            await loop.sock_sendall(client, body)
            mine = client.getsockname()

            def is_served() -> bool:
                there = psutil.Process().net_connections("tcp")
                return any(each.raddr == mine and each.laddr.port == int(port) for each in there)

            await eventually_async(is_served, within_s=60)
            await eventually_async(lambda: not is_served(), within_s=60)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (b"\xff", {"base64": base64.b64encode(b"\xff").decode()}),
        (AT, {"time": AT.isoformat()}),
        (Decimal("1.50"), {"decimal": "1.50"}),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        ([AT, {"time": "x"}], [{"time": AT.isoformat()}, {"object": {"time": "x"}}]),
        ({"count": 1, "time": AT}, {"count": 1, "time": {"time": AT.isoformat()}}),
        (None, None),
        (1.5, 1.5),
    ],
)
def test_a_header_of_another_client_spoils_no_answer(value: Any, told: Any) -> None:
    """A broker's own x-death has a time: one message would be 500 to all who pull."""
    delivery = Delivery(Message(body=b"x", message_id="1"), Receipt("b:1", 1, 1), Queue("jobs"))
    object.__setattr__(delivery.message, "headers", {"h": value})
    lease = Lease("token", "shop", Held(None, delivery), 0, 1)  # type: ignore[arg-type]
    assert decode_json(encoded(as_json(lease)))["headers"] == {"h": told}


@pytest.mark.parametrize(
    ("what", "call"), [("ack?confirmed=1", "ack_safe"), ("retry", "retry"), ("park", "park")]
)
@pytest.mark.parametrize("succeeds", [True, False])
async def test_an_answer_that_is_sent_again_before_its_end_is_known_is_told_that_end(
    what: str, call: str, succeeds: bool
) -> None:
    async with gateway_on(make_bus()) as served:
        await served.publish("x")
        found = await served.pull()
        (reader,) = served.gateway.pulls.readers.values()
        asked, go_on = asyncio.Event(), asyncio.Event()

        async def slow(*_: object, **__: object) -> bool:
            asked.set()
            await go_on.wait()
            return succeeds

        setattr(reader.consumer, call, slow)
        first = asyncio.create_task(served.answer(what, found))
        await asked.wait()
        again = [asyncio.create_task(served.answer(what, found * n)) for n in (1, 2)]
        requests = served.gateway.metrics
        try:
            await eventually_async(lambda: requests.in_flight == 3, within_s=60)
        finally:
            go_on.set()
        ends = [each["answer"] for one in (first, *again) for each in (await one).json()["leases"]]
        assert ends == 4 * ["done" if succeeds else "stale"]
