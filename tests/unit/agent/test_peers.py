"""Asking and telling the other agents."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from messagebus.agent.peers import Node, Peers
from messagebus.agent.store import entry_to_json, snapshot_to_json
from messagebus.broker import Broker, ListedBroker
from messagebus.core.register import Entry, Snapshot
from messagebus.secret import Secret

ENTRY = Entry(wanted="orders", number=1, origin="b:5672", alive=True, tomb=0)
MAP = Snapshot(intact=True, floor=3, entries=(ENTRY,))
LISTED = [ListedBroker(broker=Broker(host), agent_port=8081) for host in "abc"]

Answer = Callable[[httpx.Request], httpx.Response]


def peers(answer: Answer) -> Peers:
    return Peers("a:5672", httpx.MockTransport(answer))


def whole_map(host: str, **headers: str) -> httpx.Response:
    value = {"broker": f"{host}:5672", **snapshot_to_json(MAP)}
    return httpx.Response(200, json=value, headers=headers)


async def test_maps_come_by_broker_name_and_nobody_asks_itself() -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return whole_map(request.url.host)

    heard = await peers(answer).pull(LISTED)
    assert sorted(asked) == ["http://b:8081/topology", "http://c:8081/topology"]
    assert heard == {"b:5672": MAP, "c:5672": MAP}


@pytest.mark.parametrize(
    "bad",
    [
        httpx.Response(503),
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json=[]),
        httpx.Response(200, json={"broker": "x:5672", **snapshot_to_json(MAP)}),
        httpx.Response(200, json={"broker": "b:5672"}),
    ],
)
async def test_an_answer_that_is_no_map_of_that_broker_is_left_out(bad: httpx.Response) -> None:
    ours = peers(lambda request: bad if request.url.host == "b" else whole_map("c"))
    assert set(await ours.pull(LISTED)) == {"c:5672"}
    assert (ours.pulls, ours.pulls_failed) == (2, 1)


async def test_whoever_does_not_answer_is_left_out() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host == "b":
            raise httpx.ConnectError("refused")
        return whole_map("c")

    assert set(await peers(answer).pull(LISTED)) == {"c:5672"}


async def test_an_unchanged_map_is_not_sent_again() -> None:
    conditions: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        conditions.append(request.headers.get("If-None-Match"))
        if request.headers.get("If-None-Match") == '"1"':
            return httpx.Response(304)
        return whole_map("b", ETag='"1"')

    ours = peers(answer)
    for _ in range(3):
        heard = await ours.pull(LISTED[:2])
        assert heard["b:5672"] == MAP
    assert conditions == [None, '"1"', '"1"']


def told(**changed: Any) -> dict[str, Any]:
    value: dict[str, Any] = {
        "answer": "held",
        "reason": "",
        "stored": True,
        "intact": True,
        "version": 4,
        "entries": [entry_to_json(ENTRY)],
    }
    return value | changed


async def push(ours: Peers) -> Any:
    return await ours.push(LISTED, [ENTRY], MAP, token=Secret("t"), answering=["b:5672"])


async def test_a_change_is_told_with_the_token_and_what_is_mine() -> None:
    bodies: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["Authorization"] == "Bearer t"
        bodies.append(json.loads(request.content))
        return httpx.Response(200, json=told())

    answers = await push(peers(answer))
    assert set(answers) == {"b:5672", "c:5672"}
    assert answers["b:5672"].answer == "held"
    assert answers["b:5672"].stored
    assert answers["b:5672"].entries == (ENTRY,)
    assert bodies[0]["from"] == "a:5672"
    assert bodies[0]["intact"] is True
    assert bodies[0]["entries"] == [entry_to_json(ENTRY)]


async def test_a_refusal_is_an_answer_and_silence_is_none() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host == "b":
            return httpx.Response(401)
        raise httpx.ReadTimeout("late")

    answers = await push(peers(answer))
    assert set(answers) == {"b:5672"}
    assert (answers["b:5672"].answer, answers["b:5672"].stored) == ("no", False)


@pytest.mark.parametrize("value", [[], {}, told(entries=[{}]), told(entries=None)])
async def test_an_answer_that_makes_no_sense_is_silence(value: Any) -> None:
    assert await push(peers(lambda _request: httpx.Response(200, json=value))) == {}


async def test_the_nodes_of_the_peers_brokers_are_remembered() -> None:
    nodes: list[Any] = [{"name": "rabbit@b", "epmd_port": 4369}]

    def answer(_request: httpx.Request) -> httpx.Response:
        value = {"broker": "b:5672", **snapshot_to_json(MAP), "node": nodes[-1]}
        return httpx.Response(200, json=value)

    ours, changes = peers(answer), list[int]()
    ours.on_nodes = lambda: changes.append(1)
    wrong = [None, {}, {"name": "no node", "epmd_port": 1}, {"name": "a@b", "epmd_port": 0}]
    for node in (nodes[0], *wrong):
        nodes.append(node)
        assert await ours.pull(LISTED[:2])
        assert ours.nodes == {"b:5672": Node(name="rabbit@b", epmd_port=4369)}
    assert changes == [1]
