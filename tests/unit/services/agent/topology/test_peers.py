"""Peers of an agent: pulls, two of them at once, and the map on disk."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.figures.reach.virtual_time import VirtualLoop
from messagebus.broker import Broker, ListedBroker
from messagebus.errors import ConfigError, NameInvalid
from messagebus.secret import Secret
from messagebus.services.agent.topology.agreement import resolve
from messagebus.services.agent.topology.peers import Node, Peers
from messagebus.services.agent.topology.register import Entry, Snapshot
from messagebus.services.agent.topology.store import (
    Store,
    entry_from_json,
    entry_to_json,
    genesis,
    snapshot_from_json,
    snapshot_to_json,
)
from messagebus.topology import Options
from tests.support.proving import proven

ENTRY = Entry(wanted="orders", number=1, origin="b:5672", alive=True, tomb=0)
MAP = Snapshot(intact=True, floor=3, entries=(ENTRY,))
LISTED = [ListedBroker(broker=Broker(host), agent_port=8081) for host in "abc"]

Answer = Callable[[httpx.Request], httpx.Response]


def peers(answer: Answer) -> Peers:
    """Return peers that have the token."""

    def prove(request: httpx.Request) -> httpx.Response:
        return proven(request, answer(request), broker=f"{request.url.host}:5672")

    return Peers("a:5672", httpx.MockTransport(prove), token=lambda: Secret("operators"))


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


def test_a_thousand_peers_all_answer_although_one_agent_cannot_ask_them_in_one_deadline() -> None:
    async def ask() -> int:
        processor = asyncio.Lock()

        async def answer(request: httpx.Request) -> httpx.Response:
            async with processor:
                await asyncio.sleep(0.002)
            answered = whole_map(request.url.host)
            return proven(request, answered, broker=f"{request.url.host}:5672")

        listed = [ListedBroker(broker=Broker(f"mb{n}"), agent_port=8081) for n in range(1_000)]
        ours = Peers("a:5672", httpx.MockTransport(answer), token=lambda: Secret("operators"))
        return len(await ours.pull(listed))

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(ask()) == 1_000


async def test_an_unchanged_map_is_not_sent_again() -> None:
    conditions: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        conditions.append(request.headers.get("If-None-Match"))
        if request.headers.get("If-None-Match") == '"1"':
            return httpx.Response(304, headers={"ETag": '"1"'})
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
    return await ours.push(LISTED, [ENTRY], MAP, answering=["b:5672"])


async def test_a_change_is_told_with_what_is_mine() -> None:
    bodies: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
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
    ours._on_nodes = lambda: changes.append(1)
    wrong = [None, {}, {"name": "no node", "epmd_port": 1}, {"name": "a@b", "epmd_port": 0}]
    for node in (nodes[0], *wrong):
        nodes.append(node)
        assert await ours.pull(LISTED[:2])
        assert ours.nodes == {"b:5672": Node(name="rabbit@b", epmd_port=4369)}
    assert changes == [1]


class Forger:
    """Peers that answer for b and c as wanted; without the token, with no proof or with one of another."""

    def __init__(self, token: str = "", etag: str = "") -> None:
        self.token, self.etag = token, etag
        self.told: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.told.append(request.headers.get("Authorization", ""))
        host = request.url.host
        if self.etag:
            answer = httpx.Response(304, headers={"ETag": self.etag})
        elif request.method == "POST":
            answer = httpx.Response(200, json=told())
        else:
            answer = whole_map(host, ETag='"1"')
        if self.token:
            return proven(request, answer, broker=f"{host}:5672", token=self.token)
        return answer


@pytest.mark.guarantee("token-is-proved-not-sent")
@pytest.mark.parametrize("token", ["", "another"])
async def test_who_has_not_the_token_is_not_believed_and_told_nothing_of_it(
    token: str, caplog: pytest.LogCaptureFixture
) -> None:
    forger = Forger(token)
    ours = Peers("a:5672", httpx.MockTransport(forger), token=lambda: Secret("operators"))
    for _ in range(2):
        assert await ours.pull(LISTED) == {}
        assert await push(ours) == {}
    assert "operators" not in " ".join(forger.told)
    assert len([r for r in caplog.records if "not believed" in r.message]) == 2  # b and c, once


async def test_what_is_said_to_be_unchanged_is_what_we_have() -> None:
    forger = Forger("operators")
    ours = Peers("a:5672", httpx.MockTransport(forger), token=lambda: Secret("operators"))
    assert await ours.pull(LISTED)
    forger.etag = '"2"'
    assert await ours.pull(LISTED) == {}


WEAK: Options = {"durability": "page-cache"}


def there(alive: bool = True, /, **options: Any) -> dict[str, Entry]:
    return {
        name: Entry(
            wanted=name,
            number=1,
            origin="A",
            alive=alive,
            tomb=0,
            options=tuple(sorted(asked.items())),
        )
        for name, asked in options.items()
    }


def test_a_new_name_gets_what_is_asked() -> None:
    asked: dict[str, Options] = {"orders": {}, "queue:jobs": WEAK, "delay:1000": {}}
    assert resolve({}, asked) == (asked, {})


def test_what_is_dead_binds_nobody() -> None:
    taken, against = resolve(there(False, **{"queue:jobs": WEAK}), {"queue:jobs": {}})
    assert (taken, against) == ({"queue:jobs": {}}, {})


def test_what_lives_keeps_its_options() -> None:
    entries = there(**{"orders/a": {"single_active": True, "durability": "none"}})
    asked: dict[str, Options] = {"orders/a": {}}
    assert resolve(entries, asked)[0]["orders/a"] == {"single_active": True, "durability": "none"}


def test_another_level_is_told_with_both() -> None:
    taken, against = resolve(there(**{"queue:jobs": WEAK}), {"queue:jobs": {}, "orders": {}})
    assert taken == {"orders": {}}
    assert against == {"queue:jobs": "queue:jobs: durability is wanted fsync and exists page-cache"}


@pytest.mark.parametrize("at_once", [True, False])
def test_a_subscription_takes_its_topics_level(at_once: bool) -> None:
    asked: dict[str, Options] = {"orders/a": {"expires_s": 5}}
    entries = {} if at_once else there(orders=WEAK)
    if at_once:
        asked["orders"] = WEAK
    taken, against = resolve(entries, asked)
    assert taken["orders/a"] == {"expires_s": 5, "durability": "page-cache"}
    assert not against


def test_no_subscription_may_be_weaker_than_its_topic() -> None:
    _, against = resolve(there(orders={}), {"orders/a": WEAK})
    assert against == {
        "orders/a": "orders/a: durability is wanted page-cache and its topic exists fsync"
    }
    _, against = resolve(there(**{"orders/a": WEAK}), {"orders": {}})
    assert against == {
        "orders": "orders: durability is wanted fsync and its subscription orders/a exists page-cache"
    }
    assert resolve(there(**{"orders/a": {}}), {"orders": WEAK})[1] == {}
    assert resolve(there(**{"orders/a": WEAK}), {"order": {}})[1] == {}


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(NameInvalid):
        resolve({}, {"orders": {"expires_s": 5}})


def test_a_delivery_limit_needs_quorum_queues_and_so_does_its_topic() -> None:
    taken, against = resolve(there(orders=WEAK), {"orders/a": {"delivery_limit": 3}})
    assert taken == {}
    assert against == {
        "orders/a": "orders/a: delivery_limit needs durability fsync and its topic exists page-cache"
    }
    assert resolve(there(orders={}), {"orders/a": {"delivery_limit": 3}})[1] == {}


DELETED = Entry(wanted="orders/a", number=4, origin="h:1", alive=False, tomb=4)
STORED = Snapshot(intact=True, floor=2, entries=(DELETED,))


def test_a_map_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    store = Store(tmp_path / "state")
    store.prepare()
    assert store.load_map() is None
    store.save_map(STORED)
    assert Store(tmp_path / "state").load_map() == STORED


def test_a_map_is_synced_before_it_replaces_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        order.append("sync")
        fsync(descriptor)

    def replaced(self: Path, target: Path) -> Path:
        order.append("replace")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    Store(tmp_path).save_map(STORED)
    assert order == ["sync", "replace", "sync"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"intact": 1, "entries": []}'])
def test_a_damaged_map_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "topology.json").write_text(text)
    assert Store(tmp_path).load_map() is None


def test_genesis_writes_an_intact_empty_map_once(tmp_path: Path) -> None:
    assert genesis(tmp_path / "state")
    first = Store(tmp_path / "state").load_map()
    assert first is not None
    assert first.intact
    assert first.entries == ()
    assert not first.entries
    Store(tmp_path / "state").save_map(STORED)
    assert not genesis(tmp_path / "state")
    assert Store(tmp_path / "state").load_map() == STORED


def test_the_drain_is_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert not store.load_draining()
    for draining in (True, True, False, False):
        store.save_draining(draining)
        assert Store(tmp_path).load_draining() == draining


def test_a_report_is_read_back_or_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.load_report() == {}
    store.save_report({"held": {"a": 1}})
    assert store.load_report() == {"held": {"a": 1}}
    (tmp_path / "report.json").write_text("[")
    assert store.load_report() == {}


def test_a_folder_that_cannot_be_had_is_a_wrong_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="state_dir"):
        Store(tmp_path / "file" / "state").prepare()


def test_maps_and_entries_are_read_back_from_json() -> None:
    assert snapshot_from_json(snapshot_to_json(STORED)) == STORED
    assert entry_from_json(entry_to_json(DELETED)) == DELETED


@pytest.mark.parametrize(
    "changed",
    [{"number": "4"}, {"alive": 1}, {"wanted": "a b"}, {"tomb": None}, {"number": True}],
)
def test_an_entry_that_is_none_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"entry|name"):
        entry_from_json(entry_to_json(DELETED) | changed)


@pytest.mark.parametrize(
    "value", [None, [], {}, {"entries": {}}, {"entries": [], "intact": True, "floor": "x"}]
)
def test_a_map_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"map|floor"):
        snapshot_from_json(value)


def test_a_map_of_an_earlier_version_is_read() -> None:
    """It had times beside the numbers, which decide nothing any more."""
    old = snapshot_to_json(STORED) | {"current_at_ms": 5}
    del old["dropped"]
    old["entries"][0]["changed_at_ms"] = 9
    assert snapshot_from_json(old) == replace(STORED, dropped=STORED.floor)
