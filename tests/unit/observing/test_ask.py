"""Questions to a fleet of agents without sockets: silent, slow, lying and changed ones."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest

from messagebus import BusConfig, ConfigError, LoginRefused
from messagebus.errors import ListUnavailable
from messagebus.observing import ask
from messagebus.observing.ask import Asker, read_stats
from messagebus.observing.snapshot import answer_to_json
from messagebus.observing.totals import total
from tests.support.fleet import Fleet
from tests.support.observed import NOW_MS

STATS = """# pxname,svname,qcur,scur,slim,status,lastchg,check_status,last_chk,agent_status,last_agt,
mb_stats,FRONTEND,,1,64,OPEN,,,,,,
mb_brokers,mb1,0,5,100,UP,12,L7OK,AMQP gate,L7OK,ready,
mb_brokers,mb2,0,0,,DOWN,3,L4CON,Connection refused,,,
mb_brokers,BACKEND,0,5,200,UP,12,,,,,
"""


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(3, 20)


@pytest.fixture
async def asker(fleet: Fleet) -> AsyncIterator[Asker]:
    made = Asker(fleet.bus, transport=fleet.transport)
    yield made
    await made.close()


def first(fleet: Fleet) -> str:
    return next(iter(fleet.ports))


async def test_all_agents_are_asked_and_their_rows_are_one_bus(fleet: Fleet, asker: Asker) -> None:
    bus = await asker.look()
    assert (bus.cluster, bus.generation, bus.silent) == ("fleet", 1, ())
    assert len(bus.sources) == 20
    assert total(bus).ready == sum(r.ready for rows in fleet.rows.values() for r in rows.values())


async def test_from_then_on_only_what_has_changed_is_asked_for(fleet: Fleet, asker: Asker) -> None:
    for _ in range(4):
        bus = await asker.look()
        assert total(bus).ready == sum(
            r.ready for rows in fleet.rows.values() for r in rows.values()
        )
        fleet.step()
    asked = [url for url in fleet.asked if url.path == "/observe"]
    assert sum("since" in url.params for url in asked) == len(asked) - 3


async def test_names_are_counted_now_without_losing_what_has_changed(
    fleet: Fleet, asker: Asker
) -> None:
    await asker.look()
    fleet.step()
    await asker.look(names=["topic0/sub1"])
    fleet.step(0)
    bus = await asker.look(names=["topic0/sub1"])
    assert total(bus).ready == sum(r.ready for rows in fleet.rows.values() for r in rows.values())


def hangs(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectTimeout("hangs", request=request)


def of_another(request: httpx.Request) -> httpx.Response:
    other = Fleet(1, 1, first_port=9)
    return httpx.Response(200, json=answer_to_json(other.answer(first(other)), NOW_MS))


def zipped(encoding: str, content: bytes) -> Callable[[httpx.Request], httpx.Response]:
    def answer(_: httpx.Request) -> httpx.Response:
        headers = {"Content-Encoding": encoding}
        return httpx.Response(200, headers=headers, stream=httpx.ByteStream(content))

    return answer


BOMB = gzip.compress(b" " * (64 << 20))


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (zipped("gzip", BOMB), "bytes"),
        (zipped("gzip, gzip", gzip.compress(BOMB)), "encoded as"),
        (zipped("gzip", b"{}"), "incorrect header"),
        (zipped("gzip", BOMB[:1_000]), "not an agent's answer"),
        (hangs, "hangs"),
        (of_another, "the agent of '127.0.0.1:9' answers there"),
        (lambda _: httpx.Response(404), "HTTP 404"),
        (lambda _: httpx.Response(401), "login refused"),
        (lambda _: httpx.Response(503, text="x"), "HTTP 503"),
        (lambda _: httpx.Response(200, text="<html>"), "not an agent's answer"),
        (lambda _: httpx.Response(200, json=[1]), "not an agent's answer"),
        (lambda _: httpx.Response(200, text="[" * 100_000), "not an agent's answer"),
        (lambda _: httpx.Response(200, text=json.dumps({"broker": "x"})), "not an agent's answer"),
        (lambda _: httpx.Response(200, content=b" " * (ask.ANSWER_BYTES_MAX + 1)), "bytes"),
    ],
)
async def test_an_agent_without_a_good_answer_is_named_and_not_counted(
    fleet: Fleet, asker: Asker, answer: Callable[[httpx.Request], httpx.Response], why: str
) -> None:
    before = await asker.look()
    bad = first(fleet)
    fleet.answers[bad] = answer
    bus = await asker.look()
    seen = bus.find(bad)
    assert seen
    assert why in seen.fault
    assert seen.silent_since_ms
    assert seen.last is not None
    assert bus.silent == (bad,)
    good = [rows for name, rows in fleet.rows.items() if name != bad]
    assert total(bus).ready == sum(r.ready for rows in good for r in rows.values())
    assert total(before).ready != total(bus).ready
    del fleet.answers[bad]
    assert (await asker.look()).silent == ()


async def test_an_agent_whose_broker_is_down_is_not_silent(fleet: Fleet, asker: Asker) -> None:
    """Logins are checked by the broker: its agent refuses them, and says why."""
    await asker.look()
    down = first(fleet)
    told = {"error": "the broker here cannot check the login", "linked": False}
    fleet.answers[down] = lambda _: httpx.Response(503, json=told)
    seen = (await asker.look()).find(down)
    assert seen
    assert (seen.is_away, seen.answer) == (True, None)
    assert seen.fault == "no AMQP link to the broker"
    fleet.answers[down] = lambda _: httpx.Response(503, json={**told, "linked": True})
    seen = (await asker.look()).find(down)
    assert seen
    assert not seen.is_away
    assert seen.fault == "HTTP 503"


async def test_what_an_agent_has_squeezed_takes_no_more_memory_than_the_largest_answer(
    fleet: Fleet, asker: Asker
) -> None:
    await asker.look()
    fleet.answers[first(fleet)] = zipped("gzip", BOMB)
    tracemalloc.start()
    await asker.look()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2.5 * ask.ANSWER_BYTES_MAX


async def test_an_agent_that_is_late_holds_nobody_up(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ask, "ANSWER_WITHIN_S", 0.05)

    async def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/observe" and f"{request.url.host}:{request.url.port}" == first(
            fleet
        ):
            await asyncio.Event().wait()
        return await fleet.transport.handle_async_request(request)

    asker = Asker(fleet.bus, transport=httpx.MockTransport(handle))
    bus = await asker.look()
    assert bus.silent == (first(fleet),)
    assert bus.brokers[0].fault == "no answer within 0.05 s"
    await asker.close()


async def test_a_change_of_a_state_ends_the_wait_for_it(fleet: Fleet, asker: Asker) -> None:
    await asker.look()
    assert not await asker.changed(within_s=0.05)
    waiting = asyncio.ensure_future(asker.changed(within_s=60))
    await asyncio.sleep(0)
    name = first(fleet)
    fleet.states[name] = replace(fleet.states[name], version=2, verdict="drain", draining="x")
    assert await waiting
    seen = asker.bus().find(name)
    assert seen
    assert seen.answer
    assert (seen.answer.state.verdict, len(seen.answer.rows)) == ("drain", 20)


async def test_an_agent_that_falls_silent_ends_the_wait_too(fleet: Fleet, asker: Asker) -> None:
    await asker.look()
    for name in fleet.ports:
        fleet.answers[name] = hangs
    assert await asker.changed(within_s=60)
    assert asker.bus().silent


async def test_when_nobody_can_be_waited_for_the_time_passes(fleet: Fleet, asker: Asker) -> None:
    assert not await asker.changed(within_s=0.01)


async def test_a_login_that_every_agent_refuses_is_an_error(fleet: Fleet, asker: Asker) -> None:
    fleet.answers = dict.fromkeys(fleet.ports, lambda _: httpx.Response(401))
    with pytest.raises(LoginRefused):
        await asker.look()


async def test_the_last_list_is_kept_and_says_its_age(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ask, "LIST_EVERY_MS", -1)
    is_away = False

    async def handle(request: httpx.Request) -> httpx.Response:
        if is_away and request.url.path == "/consumer-list":
            raise httpx.ConnectError("refused")
        return await fleet.transport.handle_async_request(request)

    asker = Asker(fleet.bus, transport=httpx.MockTransport(handle))
    await asker.look()
    is_away = True
    bus = await asker.look()
    assert "refused" in bus.list_fault
    assert len(bus.brokers) == 3
    other = Asker(fleet.bus, transport=httpx.MockTransport(handle))
    with pytest.raises(ListUnavailable):
        await other.look()
    await asker.close()
    await other.close()


async def test_a_broker_that_leaves_the_list_is_forgotten(
    fleet: Fleet, asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ask, "LIST_EVERY_MS", -1)
    await asker.look()
    left = list(fleet.ports)[-1]
    del fleet.ports[left]
    bus = await asker.look()
    assert bus.find(left) is None
    assert len(bus.brokers) == 2


def test_without_a_list_nobody_can_be_asked() -> None:
    with pytest.raises(ConfigError):
        Asker(BusConfig())


def test_haproxys_statistics_are_read_for_its_brokers_alone() -> None:
    up, down = read_stats(STATS)
    assert (up.name, up.status, up.check, up.agent) == ("mb1", "UP", "L7OK AMQP gate", "L7OK ready")
    assert (up.sessions, up.limit, up.changed_s) == (5, 100, 12)
    assert (down.status, down.limit) == ("DOWN", 0)
    with pytest.raises(ValueError, match="not HAProxy"):
        read_stats("<html>")


async def test_a_balancer_without_statistics_keeps_its_last_ones(fleet: Fleet) -> None:
    said: list[Any] = [httpx.Response(200, text=STATS)]

    async def handle(request: httpx.Request) -> httpx.Response:
        if request.url.host == "lb1":
            assert request.url.path == "/;csv"
            if isinstance(said[-1], Exception):
                raise said[-1]
            return httpx.Response(said[-1].status_code, content=said[-1].content)
        return await fleet.transport.handle_async_request(request)

    asker = Asker(fleet.bus, balancers=["http://lb1:8404/"], transport=httpx.MockTransport(handle))
    (well,) = (await asker.look()).balancers
    assert ([each.name for each in well.servers], well.fault) == (["mb1", "mb2"], "")
    for wrong in (
        httpx.Response(503),
        httpx.Response(200, text="?"),
        httpx.ConnectError("refused"),
    ):
        said.append(wrong)
        (ill,) = (await asker.look()).balancers
        assert ill.fault
        assert ill.silent_since_ms
        assert ill.servers == well.servers
    await asker.close()


async def test_64_agents_with_500_subscriptions_each_are_one_bus() -> None:
    fleet = Fleet(64, 500, seed=18)
    asker = Asker(fleet.bus, transport=fleet.transport)
    gone = first(fleet)
    for turn in range(3):
        bus = await asker.look()
        told = total(bus)
        counted = [rows for name, rows in fleet.rows.items() if name not in fleet.answers]
        assert told.ready == sum(row.ready for rows in counted for row in rows.values())
        assert told.consumers == sum(row.consumers for rows in counted for row in rows.values())
        assert len(bus.sources) == 500
        fleet.step()
        if not turn:
            fleet.answers[gone] = hangs
    assert told.coverage == f"on 63 of 64 brokers, without {gone}"
    await asker.close()


def rows_of(request: httpx.Request) -> httpx.Response:
    assert request.url.path == "/trail/id-1234"
    rows = [{"message_id": "id-1234", "what": "handled: park", "at_ms": 7, "strange": {"a": 1}}]
    return httpx.Response(200, json={"rows": rows})


async def test_trails_are_asked_of_all_agents_and_who_has_none_is_no_fault(
    fleet: Fleet, asker: Asker
) -> None:
    one, two, three = fleet.ports
    fleet.answers = {one: rows_of, two: lambda _: httpx.Response(404), three: hangs}
    rows, faults = await asker.trail("id-1234")
    expected = {"message_id": "id-1234", "what": "handled: park", "at_ms": 7, "agent": one}
    assert rows == [expected]
    assert list(faults) == [f"the trail at {three}"]


@pytest.mark.parametrize(
    "body",
    [b"[" * 90_000, b"{}", b'{"rows":[1]}', b'{"rows":[{"at_ms":"1"}]}', b"\xff",
     json.dumps({"rows": [{"at_ms": 1}] * 101}).encode()],
)  # fmt: skip
async def test_an_agent_that_lies_about_its_trail_is_named(
    fleet: Fleet, asker: Asker, body: bytes
) -> None:
    fleet.answers = dict.fromkeys(fleet.ports, lambda _: httpx.Response(200, content=body))
    rows, faults = await asker.trail("id-1234")
    assert rows == []
    assert len(faults) == 3


PROMETHEUS = "http://127.0.0.1:9"
SERIES = {"metric": {"client": "shop", "instance": "web-1"}, "value": [1.5, "3.2"]}


@pytest.mark.parametrize(
    ("body", "unknown", "fault"),
    [
        ({"data": {"result": [SERIES]}}, (("shop on web-1", 4),), ""),
        ({"data": {"result": []}}, (), ""),
        ({"data": {"result": [{**SERIES, "value": [1, "NaN"]}]}}, (), "NaN"),
        ({"data": {"result": [{**SERIES, "value": [1, "Inf"]}]}}, (), "not an answer of"),
        ({"data": {"result": {"a": 1}}}, (), "not an answer of Prometheus"),
        ([], (), "not an answer of Prometheus"),
    ],
)
async def test_unknown_outcomes_are_what_prometheus_tells_or_they_are_not_known(
    fleet: Fleet, body: Any, unknown: Any, fault: str
) -> None:
    fleet.answers = {"127.0.0.1:9": lambda _: httpx.Response(200, json=body)}
    asker = Asker(fleet.bus, prometheus=PROMETHEUS, transport=fleet.transport)
    for _ in range(2):
        told = (await asker.look()).outcomes
        assert told is not None
        assert told.unknown == unknown
        assert fault in told.fault
    assert sum(url.port == 9 for url in fleet.asked) == 1
    await asker.close()


TOO_LARGE = 10**400
LIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "ready": lambda told: told["queues"][0].__setitem__(2, TOO_LARGE),
    "arrived": lambda told: told["queues"][0].__setitem__(5, TOO_LARGE),
    "oldest": lambda told: told["queues"][0].__setitem__(7, TOO_LARGE),
    "disk": lambda told: told["room"].__setitem__("disk_limit", TOO_LARGE),
    "client": lambda told: told.__setitem__(
        "clients", [{"id": "a", "subscription": "", "applied": 1, "age_ms": TOO_LARGE}]
    ),
    "generation": lambda told: told["state"].__setitem__("generation", TOO_LARGE),
    "missing": lambda told: told["state"].__setitem__("missing_count", -TOO_LARGE),
}


@pytest.mark.parametrize("lie", LIES)
async def test_an_agent_that_tells_numbers_beyond_all_bounds_is_silent_and_harms_no_other(
    fleet: Fleet, asker: Asker, lie: str
) -> None:
    liar = list(fleet.ports)[1]
    told = answer_to_json(fleet.answer(liar), fleet.now_ms)
    LIES[lie](told)
    fleet.answers = {liar: lambda _: httpx.Response(200, content=json.dumps(told).encode())}
    bus = await asker.look()
    assert bus.silent == (liar,)
    assert len(bus.answers) == 2


async def test_what_an_agent_tells_twice_counts_once(fleet: Fleet, asker: Asker) -> None:
    true = total(await asker.look())
    told = answer_to_json(fleet.answer(first(fleet)), NOW_MS)
    twice = {**told, "queues": told["queues"] * 2, "columns": [*told["columns"]] * 2}
    fleet.answers[first(fleet)] = lambda _: httpx.Response(200, json=twice)
    found = await asker.look()
    assert found.silent == ()
    assert total(found).ready == true.ready


async def test_half_a_character_of_an_agent_is_shown_as_none(fleet: Fleet, asker: Asker) -> None:
    one = first(fleet)
    told = answer_to_json(fleet.answer(one), fleet.now_ms)
    told["state"]["reason"], told["queues"][0][0] = "\ud800", "orders/\udfff"
    fleet.answers = {one: lambda _: httpx.Response(200, content=json.dumps(told).encode())}
    bus = await asker.look()
    assert bus.answers[one].state.reason == "?"
    assert "orders/?" in bus.sources
