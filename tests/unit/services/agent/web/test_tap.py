"""Taps and the trail of messages, for those who may read them."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from messagebus._io.amqp.link import Credentials, Link, dial
from messagebus._io.amqp.properties import encode
from messagebus.broker import Broker
from messagebus.envelope import read_envelope
from messagebus.errors import LinkLost
from messagebus.message import Message
from messagebus.secret import Secret
from messagebus.services.agent.topology.register import Entry
from messagebus.services.agent.web import tap, trail
from messagebus.services.agent.web.login import Admission, Judged
from messagebus.services.agent.web.requests import BadRequest, read_body
from messagebus.services.agent.web.routes import _bad_request
from messagebus.services.agent.web.tap import Taps
from messagebus.services.agent.web.trail import BODY_BYTES_MAX, BYTES_BURST, FILES, KEPT_S, Trail
from messagebus.topology import Wanted
from tests.support.eventually import FACTOR, eventually_async
from tests.support.fake_amqp import FakeRabbit, serve


def entry(wanted: str, *, alive: bool = True) -> Entry:
    return Entry(wanted=wanted, number=1, origin="a:5672", alive=alive, tomb=0)


@dataclass
class Rig:
    rabbit: FakeRabbit
    taps: Taps
    http: httpx.AsyncClient
    entries: dict[str, Entry]
    judge: Any
    forbidden: tuple[str, ...] = ()
    refusal: Response | None = None
    away: bool = False
    asked: list[set[str]] = field(default_factory=list)


@pytest.fixture(name="rig")
async def make_rig() -> AsyncIterator[Rig]:
    rabbit = FakeRabbit()

    async def dialled() -> Link:
        if rig.away:
            raise LinkLost(rabbit.name, "refused")
        login = Credentials(user="agent", password=Secret("pw"))
        return await dial(Broker.parse(rabbit.name), login, timeout_ms=5_000)

    async def judge(_request: Request, wanted: Mapping[str, Wanted]) -> Judged | Response:
        rig.asked.append(set(wanted))
        if rig.refusal is not None:
            return rig.refusal
        return Judged(admission=Admission.YES, user="shop", forbidden=rig.forbidden)

    taps = Taps("mb1:5672", dialled)
    application = Starlette(routes=[taps.route(judge, lambda: rig.entries)])
    async with serve(rabbit):
        rabbit.hold("orders/billing")
        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url="http://agent") as http:
            known = {name: entry(name) for name in ("orders", "orders/billing", "orders/audit")}
            rig = Rig(rabbit, taps, http, known, judge)
            yield rig


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("", "destination|name"),
        ("destination=queue:jobs", "a tap is of a topic"),
        ("destination=orders/billing", "a tap is of a topic"),
        ("destination=orders&rate_max=0", "a whole number from 1 to"),
        ("destination=orders&length_max=10001", "a whole number from 1 to"),
        ("destination=orders&length_max=-1", "a whole number from 1 to"),
        ("destination=orders&rate_max=%D9%A3", "a whole number from 1 to"),
    ],
)
async def test_a_request_that_makes_no_sense_is_refused(rig: Rig, query: str, told: str) -> None:
    answer = await rig.http.get(f"/tap?{query}")
    assert answer.status_code == 400
    assert any(each in answer.json()["error"] for each in told.split("|"))


async def test_who_may_read_no_subscription_of_a_topic_may_not_look(rig: Rig) -> None:
    rig.forbidden = ("orders/billing", "orders/audit")
    assert (await rig.http.get("/tap?destination=orders")).status_code == 403
    assert rig.asked == [{"orders/billing", "orders/audit"}]
    rig.refusal = JSONResponse({"error": "login refused"}, 401)
    assert (await rig.http.get("/tap?destination=orders")).status_code == 401
    assert rig.rabbit.logins == 0


async def test_a_topic_that_nobody_may_read_is_not_there(rig: Rig) -> None:
    rig.entries["gone/billing"] = entry("gone/billing", alive=False)
    for topic in ("other", "gone"):
        assert (await rig.http.get(f"/tap?destination={topic}")).status_code == 404


async def test_a_broker_that_is_away_is_told_and_takes_no_place(rig: Rig) -> None:
    rig.away = True
    assert (await rig.http.get("/tap?destination=orders")).status_code == 503
    assert rig.taps.open == {}


async def test_so_many_taps_are_open_at_once_and_no_more(rig: Rig) -> None:
    rig.taps.open.update(dict.fromkeys(range(-tap.TAPS_MAX, 0), "orders"))
    assert (await rig.http.get("/tap?destination=orders")).status_code == 429
    assert rig.rabbit.logins == 0


async def test_one_user_leaves_taps_to_others(rig: Rig) -> None:
    rig.taps._users["shop"] = tap.TAPS_OF_USER_MAX
    assert "user 'shop' has 4 taps" in (await rig.http.get("/tap?destination=orders")).text


async def stuck_tap(rig: Rig) -> None:
    """Open a tap whose reader reads nothing: no write of it ends."""
    route = rig.taps.route(rig.judge, lambda: rig.entries)
    scope = {
        **{"type": "http", "method": "GET", "path": "/tap", "query_string": b"destination=orders"},
        **{"headers": [], "http_version": "1.1", "asgi": {"spec_version": "2.3"}},
    }

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    await Starlette(routes=[route])(scope, receive, send)


@pytest.mark.guarantee("slow-connections-are-bounded")
async def test_a_tap_ends_in_time_whatever_its_reader_does(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tap, "TAP_S_MAX", 0.2)
    monkeypatch.setattr(tap, "END_S_MAX", 0.1)
    await asyncio.wait_for(stuck_tap(rig), 60)
    assert rig.taps.open == {}
    assert not rig.taps._users


@pytest.mark.guarantee("rights-end-when-taken")
async def test_a_tap_ends_when_its_user_may_not_read_any_more(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tap, "REMEMBERED_S", 0.05)
    tapping = asyncio.create_task(stuck_tap(rig))
    await eventually_async(lambda: len(rig.asked) >= 3, within_s=60)
    assert len(rig.taps.open) == 1
    rig.forbidden = ("orders/billing", "orders/audit")
    await asyncio.wait_for(tapping, 60)
    assert rig.taps.open == {}


async def test_a_tap_passes_on_envelopes_until_its_time_is_over(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ASGITransport gives an answer when it has ended, so the tap's time is short here."""
    monkeypatch.setattr(tap, "QUIET_S", 0.02)
    monkeypatch.setattr(tap, "TAP_S_MAX", 1)
    asked = asyncio.ensure_future(rig.http.get("/tap?destination=orders"))
    sent = [Message(body=b"\xff", key="k", headers={"b": b"x"}), Message.text("a\nb", type="t")]
    await eventually_async(
        lambda: any(queue.consumers for queue in rig.rabbit.queues.values()), within_s=10
    )
    (queue,) = (each for each in rig.rabbit.queues.values() if each.consumers)
    assert list(rig.taps.open.values()) == ["orders"]
    for number, message in enumerate(sent):
        rig.rabbit.put(queue.name, message.body, encode(message, f"m{number}", 1_000))
    first, *lines, last = filter(None, (await asked).content.split(b"\n"))
    assert json.loads(first) == {"tap": "orders", "broker": "mb1:5672"}
    assert json.loads(last) == {"ended": "after 1 s"}
    read = [read_envelope(line).message for line in lines]
    assert [(e.body, e.key, e.headers, e.type) for e in read] == [
        (e.body, e.key, e.headers, e.type) for e in sent
    ]
    assert [e.message_id for e in read] == ["m0", "m1"]
    assert rig.taps.open == {}


@pytest.mark.parametrize(("length", "rate"), [(100, 1_000), (10_000, 150)])
async def test_a_queue_that_fills_is_unbound_until_it_was_read_and_misses_are_told(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, length: int, rate: int
) -> None:
    """It fills at its bound, and with more than is read in a second."""
    monkeypatch.setattr(tap, "TAP_S_MAX", 4 * FACTOR)
    monkeypatch.setattr(tap, "LOOK_EVERY_S", 0.02)
    url = f"/tap?destination=orders&length_max={length}&rate_max={rate}"
    asked = asyncio.ensure_future(rig.http.get(url))
    await eventually_async(
        lambda: any(queue.consumers for queue in rig.rabbit.queues.values()), within_s=60
    )
    (queue,) = (each for each in rig.rabbit.queues.values() if each.consumers)
    bound = [each for each in rig.rabbit.bindings if each[2] == queue.name]
    for number in range(300):
        rig.rabbit.put(queue.name, b"x", encode(Message(body=b"x"), f"m{number}", 1_000))
    await eventually_async(lambda: not rig.rabbit.bindings.issuperset(bound), within_s=60)
    await eventually_async(lambda: rig.rabbit.bindings.issuperset(bound), within_s=60)
    lines = (await asked).content.split(b"\n")
    assert lines.count(b'{"missed":true}') == 1
    assert sum(line.startswith(b'{"id":') for line in lines) == 300


ID = "5f0c2a9be1d04773a1b20000000000c4"


@dataclass
class TrailRig:
    trail: Trail
    folder: Path
    http: httpx.AsyncClient
    now_s: float = 1_800_000_000.0
    refusal: Response | None = None
    readable: Mapping[str, Any] | None = None

    async def add(self, *rows: Any) -> httpx.Response:
        lines = (each if isinstance(each, str) else json.dumps(each) for each in rows)
        return await self.http.post("/trail", content="\n".join(lines))

    async def found(self, id: str) -> list[dict[str, Any]]:
        return list((await self.http.get(f"/trail/{id}")).json()["rows"])


@pytest.fixture(name="trail_rig")
async def make_trail_rig(tmp_path: Path) -> AsyncIterator[TrailRig]:
    async def judge(_request: Request, _wanted: Mapping[str, Wanted]) -> Judged | Response:
        return rig.refusal or Judged(admission=Admission.YES, user="shop")

    async def readable(_request: Request) -> Mapping[str, Any] | Response | None:
        return rig.refusal or rig.readable

    made = Trail(tmp_path / "trail", 1_600_000, clock=lambda: rig.now_s)

    async def read(request: Request, _judged: Judged, most: int) -> bytes:
        return await read_body(request, most=most)

    served = Starlette(
        routes=made.routes(judge, readable, read), exception_handlers={BadRequest: _bad_request}
    )
    transport = httpx.ASGITransport(served)
    async with httpx.AsyncClient(transport=transport, base_url="http://agent") as http:
        rig = TrailRig(made, tmp_path / "trail", http)
        yield rig


def row(id: Any = ID, **more: Any) -> dict[str, Any]:
    return {"message_id": id, "name": "orders/billing", "what": "handled: park", "at_ms": 5, **more}


async def test_rows_are_found_by_their_id_and_its_beginning_in_the_order_of_time(
    trail_rig: TrailRig,
) -> None:
    await trail_rig.add(row(at_ms=9), row("other-id"), row(at_ms=3, error="KeyError: 'x'\n\"y\""))
    for id in (ID, ID[:8]):
        assert [each["at_ms"] for each in await trail_rig.found(id)] == [3, 9]
    assert (await trail_rig.found(ID))[0]["error"] == "KeyError: 'x'\n\"y\""
    assert await trail_rig.found("nobody") == []


async def test_a_text_that_looks_like_a_row_is_no_row(trail_rig: TrailRig) -> None:
    fake = '{"message_id":"hostile-id","name":"orders/billing"}'
    await trail_rig.add(row(error=fake, what=f"\n{fake}\n"))
    assert await trail_rig.found("hostile-id") == []


@pytest.mark.parametrize(
    "said",
    ["no JSON", "[]", "[" * 100_000, "{}", row(body="secret"), row(at_ms=-1), row(at_ms="1"),
     row(at_ms=True), row(name=None), row(""), row("x" * 256), row(7)],
)  # fmt: skip
async def test_what_is_no_row_is_refused_with_all_that_came_with_it(
    trail_rig: TrailRig, said: Any
) -> None:
    assert (await trail_rig.add(row(), said)).status_code == 400
    assert await trail_rig.found(ID) == []


async def test_who_may_not_log_in_neither_writes_nor_reads(trail_rig: TrailRig) -> None:
    await trail_rig.add(row())
    trail_rig.refusal = JSONResponse({"error": "login refused"}, 401)
    assert (await trail_rig.add(row())).status_code == 401
    assert (await trail_rig.http.get(f"/trail/{ID}")).status_code == 401


async def test_a_caller_sees_rows_of_what_it_may_read_alone(trail_rig: TrailRig) -> None:
    await trail_rig.add(row(), row(name="orders"), row(name="payments"), row(name="payments/fraud"))
    assert len(await trail_rig.found(ID)) == 4
    trail_rig.readable = {"payments/fraud": None}
    assert [each["name"] for each in await trail_rig.found(ID)] == ["payments", "payments/fraud"]


async def test_more_than_the_rate_is_refused_until_time_has_passed(trail_rig: TrailRig) -> None:
    chunk = [row(error="x" * 290)] * 2_000
    codes = [(await trail_rig.add(*chunk)).status_code for _ in range(BYTES_BURST // 700_000 + 2)]
    assert codes[0] == 200
    assert codes[-1] == 429
    trail_rig.now_s += 10
    assert (await trail_rig.add(row())).status_code == 200
    body = b" " * (BODY_BYTES_MAX + 1)
    assert (await trail_rig.http.post("/trail", content=body)).status_code == 413


async def test_the_files_are_bounded_and_the_oldest_go_first(trail_rig: TrailRig) -> None:
    for number in range(60):
        trail_rig.now_s += 60
        await trail_rig.add(row(f"first-id-{number:03}"), *[row(error="x" * 290)] * 200)
    sizes = [each.stat().st_size for each in trail_rig.folder.iterdir()]
    assert sum(sizes) < 1_600_000 + 2 * 1_600_000 / FILES
    assert await trail_rig.found("first-id-000") == []
    assert len(await trail_rig.found("first-id-059")) == 1
    trail_rig.now_s += 2 * KEPT_S
    for path in trail_rig.folder.iterdir():
        os.utime(path, (1, 1))
    await trail_rig.add(row("newest-id"))
    assert len(await trail_rig.found("first-id-")) <= 4


async def test_of_many_rows_a_hundred_are_told_and_a_cut_one_hides_no_other(
    trail_rig: TrailRig,
) -> None:
    await trail_rig.add(*[row(at_ms=n) for n in range(300)])
    assert len(await trail_rig.found(ID)) == 100
    (path,) = trail_rig.folder.iterdir()
    path.write_bytes(b'{"message_id":"cut-by-a-kill","name":"ord')
    await trail_rig.add(row("cut-by-a-kill", at_ms=1), row("cut-by-a-kill", at_ms=2))
    assert [each["at_ms"] for each in await trail_rig.found("cut-by-a-kill")] == [2]


async def test_a_disk_that_takes_nothing_is_told_and_harms_nobody(
    trail_rig: TrailRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trail, "owner_only", full)
    answer = await trail_rig.add(row())
    assert answer.status_code == 507
    assert "No space left" in answer.text


@pytest.mark.parametrize("id", ["short", "x" * 256])
async def test_what_is_no_id_is_not_looked_for(trail_rig: TrailRig, id: str) -> None:
    assert (await trail_rig.http.get(f"/trail/{id}")).status_code == 400
