"""Taps: who may look, how many at once, and that the end of either side is the end of the tap."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

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
from messagebus.topology import Wanted
from messagebus_agent.topology.register import Entry
from messagebus_agent.web import tap
from messagebus_agent.web.login import Admission, Judged
from messagebus_agent.web.tap import Taps
from tests.support.eventually import eventually_async
from tests.support.fake_amqp import FakeRabbit, serve


def entry(wanted: str, *, alive: bool = True) -> Entry:
    return Entry(wanted=wanted, number=1, origin="a:5672", alive=alive, tomb=0)


@dataclass
class Rig:
    rabbit: FakeRabbit
    taps: Taps
    http: httpx.AsyncClient
    entries: dict[str, Entry]
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
            rig = Rig(rabbit, taps, http, known)
            yield rig


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("", "destination|name"),
        ("destination=queue:jobs", "a tap is of a topic"),
        ("destination=orders/billing", "a tap is of a topic"),
        ("destination=orders&rate_max=0", "whole numbers"),
        ("destination=orders&length_max=10001", "whole numbers"),
        ("destination=orders&length_max=-1", "whole numbers"),
        ("destination=orders&rate_max=%D9%A3", "whole numbers"),
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
    monkeypatch.setattr(tap, "TAP_S_MAX", 4)
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
