"""The HTTP interface, without sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from messagebus._io.amqp.control import Right
from messagebus.admin.proof import NotProven, TokenProof
from messagebus.broker import Broker, BrokerList, ListedBroker
from messagebus.destination import NAME_BYTES_MAX, Queue, Subscription, Topic
from messagebus.errors import LinkLost, TopologyError, TopologyMismatch
from messagebus.observing.snapshot import read_answer
from messagebus.secret import Secret
from messagebus.services.agent.broker.loads import Count, Loads
from messagebus.services.agent.broker.losses import Losses
from messagebus.services.agent.consumer_list import EXPIRY_MS, LEFT_MS, Clients, ListFile
from messagebus.services.agent.gate import Condition, Verdict, VerdictKind
from messagebus.services.agent.topology.agreement import NoMajority
from messagebus.services.agent.topology.register import (
    Answer,
    Completion,
    Entry,
    Register,
    Reply,
    Snapshot,
)
from messagebus.services.agent.topology.store import entry_to_json, snapshot_to_json
from messagebus.services.agent.web import list_routes, login, observe, requests, rights, routes
from messagebus.services.agent.web.login import Login
from messagebus.services.agent.web.metrics import Figure, Metrics
from messagebus.services.agent.web.observe import Observer
from messagebus.services.agent.web.parts import Parts
from messagebus.services.agent.web.routes import application
from messagebus.services.agent.web.trail import Trail
from messagebus.topology import Wanted
from tests.support.held_bodies import held_bodies

ENTRY = Entry(wanted="orders", number=1, origin="a:5672", alive=True, tomb=0)
USER = httpx.BasicAuth("bus", "pw")
OPERATOR = {"Authorization": "Bearer token"}
DONE = Completion(complete=True, held=("a:5672",), later=(), missing={}, created=("orders/a",))


def brokers(generation: int) -> BrokerList:
    listed = (ListedBroker(broker=Broker("a")),)
    return BrokerList(cluster="c", generation=generation, listed=listed)


class FakeTopology:
    def __init__(self) -> None:
        self.register = Register("a:5672", Snapshot(intact=True, entries=(ENTRY,)))
        self.changed: list[tuple[list[str], bool]] = []
        self.options: dict[str, Any] = {}
        self.outcome: Completion | Exception = DONE
        self.heard: list[Snapshot] = []

    async def change(self, names: list[str], *, alive: bool, options: dict[str, Any]) -> Completion:
        self.changed.append((names, alive))
        self.options = options
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    async def in_the_way(self, origin: str, wanted: dict[str, Any]) -> str:
        self.asked_by = origin
        return f"{', '.join(wanted)} exists otherwise"

    async def adopt(self, snapshot: Snapshot) -> None:
        self.register.adopt(snapshot)

    async def receive(self, snapshot: Snapshot) -> Reply:
        self.heard.append(snapshot)
        return Reply(answer=Answer.HELD, stored=True)

    def entries_of(self, snapshot: Snapshot) -> list[Entry]:
        return list(snapshot.entries)


class FakeUpkeep:
    is_settled = True
    condition = Condition(linked=True, gate_open=True)

    def __init__(self) -> None:
        self.losses = Losses("mb1:5672", lambda: None)

    @property
    def link(self) -> FakeUpkeep:
        return self

    @property
    def is_open(self) -> bool:
        return self.condition.linked

    async def counts(self, queues: Iterable[str]) -> dict[str, tuple[int, int] | None]:
        return {queue: (3, 1) if queue.startswith("mb.sub") else None for queue in queues}

    def missing(self) -> list[str]:
        return []

    def settled_queues(self) -> dict[str, bool]:
        return {"mb.queue/jobs": True}

    async def mismatch(self, wanted: Iterable[Wanted]) -> str:
        return f"{', '.join(map(str, wanted))} exists otherwise"


class FakeCounting:
    is_down = False

    async def counts(self, entries: Mapping[str, Entry]) -> dict[str, Count]:
        if self.is_down:
            raise LinkLost("a:5672", "no link to the broker")
        return {name: Count(ready=3, consumers=1, unacked=None) for name in entries}

    async def purge(self, _entries: object, names: Iterable[str]) -> dict[str, int]:
        if self.is_down:
            raise LinkLost("a:5672", "no link to the broker")
        return dict.fromkeys(names, 7)


def observer_of(
    lists: ListFile,
    topology: FakeTopology,
    upkeep: FakeUpkeep,
    verdict: Callable[[], Verdict],
) -> Observer:
    return Observer(
        observe.Parts(
            broker="a:5672",
            started="s",
            register=topology.register,
            upkeep=upkeep,  # type: ignore[arg-type]
            lists=lists,
            clients=Clients(),
            loads=Loads(SimpleNamespace(is_there=False)),  # type: ignore[arg-type]
            condition=lambda: upkeep.condition,
            verdict=verdict,
            mirror=lambda: None,
            certificate_s=lambda: 0.0,
        )
    )


@dataclass
class Rig:
    lists: ListFile
    topology: FakeTopology
    upkeep: FakeUpkeep
    application: Starlette
    http: httpx.AsyncClient
    counting: FakeCounting
    said: list[Verdict] = field(default_factory=lambda: [Verdict(kind=VerdictKind.READY)])
    drains: list[bool] = field(default_factory=list)
    broker_away: bool = False

    def serve(self, generation: int) -> None:
        self.lists.current = brokers(generation)
        self.lists.text = self.lists.current.render()
        self.lists.wake()


@pytest.fixture(name="rig")
async def make_rig(tmp_path: Path) -> AsyncIterator[Rig]:
    lists, topology, upkeep = ListFile("-"), FakeTopology(), FakeUpkeep()
    counting = FakeCounting()

    async def try_login(
        user: str, password: Secret, rights: Collection[Right]
    ) -> set[Right] | None:
        if rig.broker_away:
            raise LinkLost("a:5672", "refused")
        if password.reveal() != "pw":
            return None
        return set(rights) if user == "bus" else {r for r in rights if "/mine" in r.name}

    async def set_draining(draining: bool) -> None:
        rig.drains.append(draining)

    parts = Parts(
        broker="a:5672",
        lists=lists,
        clients=Clients(),
        topology=topology,  # type: ignore[arg-type]
        upkeep=upkeep,  # type: ignore[arg-type]
        login=Login(token=lambda: Secret("token"), try_login=try_login),
        counting=counting,  # type: ignore[arg-type]
        observer=observer_of(lists, topology, upkeep, lambda: rig.said[-1]),
        unused_s=lambda: {"orders/e": 2.5, "orders/f": None},
        metrics=Metrics("a:5672", lambda: [Figure("ready", 1)]),
        verdict=lambda: rig.said[-1],
        is_draining=lambda: bool(rig.drains and rig.drains[-1]),
        set_draining=set_draining,
        started="s",
        trail=Trail(tmp_path / "trail", 1_600_000),
    )
    served = application(parts)
    transport = httpx.ASGITransport(served)
    async with httpx.AsyncClient(transport=transport, base_url="http://agent") as http:
        rig = Rig(lists, topology, upkeep, served, http, counting)
        yield rig


async def test_without_a_good_list_there_is_one_line_and_503(rig: Rig) -> None:
    answer = await rig.http.get("/consumer-list")
    assert answer.status_code == 503
    assert answer.text.count("\n") == 1


async def test_the_list_comes_with_its_headers(rig: Rig) -> None:
    rig.serve(17)
    answer = await rig.http.get("/consumer-list")
    assert BrokerList.parse(answer.text) == brokers(17)
    wanted = {"etag": '"17"', "mb-generation": "17", "mb-cluster": "c"}
    assert wanted.items() <= dict(answer.headers).items()
    again = await rig.http.get("/consumer-list", headers={"If-None-Match": '"17"'})
    assert (again.status_code, again.text) == (304, "")


async def test_a_newer_list_than_asked_for_comes_at_once(rig: Rig) -> None:
    rig.serve(17)
    answer = await rig.http.get("/consumer-list?generation=16&wait_s=60")
    assert answer.status_code == 200
    unchanged = await rig.http.get("/consumer-list?generation=17&wait_s=0")
    assert unchanged.status_code == 304


async def test_a_waiting_fetch_ends_with_the_new_list(rig: Rig) -> None:
    rig.serve(17)
    path = "/consumer-list?generation=17&wait_s=30&client=me&subscription=a/b&applied=17"
    waiting = asyncio.ensure_future(rig.http.get(path, auth=USER))

    await asyncio.sleep(0)
    clients: list[Any] = []
    while not clients:
        await asyncio.sleep(0)
        clients = (await rig.http.get("/clients")).json()["clients"]
    assert (clients[0]["id"], clients[0]["subscription"], clients[0]["applied"]) == (
        "me",
        "a/b",
        17,
    )
    assert not waiting.done()
    rig.serve(18)
    answer = await waiting
    assert answer.headers["MB-Generation"] == "18"
    assert answer.headers["MB-Wire"] == "1.0"


async def test_a_waiting_fetch_ends_with_nothing_new_when_the_agent_stops(rig: Rig) -> None:
    rig.serve(17)
    path = "/consumer-list?generation=17&wait_s=30&client=me&subscription=a/b&applied=17"
    waiting = asyncio.ensure_future(rig.http.get(path, auth=USER))
    await asyncio.sleep(0)  # it waits from here on
    assert not waiting.done()
    rig.lists.end()
    assert (await waiting).status_code == 304


async def hang_up(rig: Rig, query: str, *, login: bytes = b"Basic YnVzOnB3") -> list[Any]:
    """Return the events sent to a client that disconnects while it waits for a list."""
    sent: list[Any] = []
    events = iter([{"type": "http.request", "body": b""}, {"type": "http.disconnect"}])

    async def receive() -> Any:
        for _ in range(10):
            await asyncio.sleep(0)  # its login is proved meanwhile
        return next(events)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/consumer-list",
        "query_string": query.encode(),
        "headers": [(b"authorization", login)],
    }
    transport = rig.http._transport
    assert isinstance(transport, httpx.ASGITransport)
    await transport.app(scope, receive, send)
    return sent


async def test_whoever_hangs_up_is_not_waited_for(rig: Rig) -> None:
    rig.serve(17)
    began_s = time.monotonic()
    sent = await hang_up(rig, "generation=17&wait_s=60")
    assert sent[0]["status"] == 499
    assert time.monotonic() - began_s < 30


async def test_who_waits_under_the_id_of_one_who_hung_up_is_not_forgotten(rig: Rig) -> None:
    async def age_s() -> float:
        (client,) = (await rig.http.get("/clients")).json()["clients"]
        return float(client["age_s"])

    rig.serve(17)
    query = "generation=17&wait_s=60&client=me&subscription=a/b&applied=17"
    other = asyncio.ensure_future(rig.http.get(f"/consumer-list?{query}", auth=USER))
    known: list[Any] = []
    while not known:
        await asyncio.sleep(0)
        known = (await rig.http.get("/clients")).json()["clients"]
    await hang_up(rig, query)
    forgotten_s = (EXPIRY_MS - LEFT_MS) / 1000
    assert await age_s() < forgotten_s
    rig.serve(18)
    await other
    await hang_up(rig, query.replace("17", "18"))
    assert await age_s() >= forgotten_s


async def test_ids_of_clients_count_with_a_login_only(rig: Rig) -> None:
    async def ids() -> set[str]:
        return {each["id"] for each in (await rig.http.get("/clients")).json()["clients"]}

    async def ask(name: str, **how: Any) -> int:
        query = f"generation=16&client={name}&subscription=a/b&applied=16"
        return (await rig.http.get(f"/consumer-list?{query}", **how)).status_code

    rig.serve(17)
    for number in range(50):
        assert await ask(f"stranger-{number}") == 200, "the list is for everybody"
        assert await ask(f"junk-{number}", auth=httpx.BasicAuth("bus", f"{number}")) == 200
    assert await ids() == set()
    assert await ask("mine", auth=USER) == 200
    assert await ask("operators", headers=OPERATOR) == 200
    assert await ids() == {"mine", "operators"}
    rig.upkeep.condition = Condition(linked=False, gate_open=False)
    assert await ask("while-the-broker-is-away") == 200
    assert "while-the-broker-is-away" in await ids(), "a playbook must not overlook a client"


async def test_a_stranger_who_hangs_up_under_an_id_drops_nobody(rig: Rig) -> None:
    rig.serve(17)
    query = "generation=17&wait_s=0&client=me&subscription=a/b&applied=17"
    assert (await rig.http.get(f"/consumer-list?{query}", auth=USER)).status_code == 304
    for shown in (b"", b"Basic YnVzOndyb25n"):
        await hang_up(rig, query.replace("wait_s=0", "wait_s=60"), login=shown)
    (client,) = (await rig.http.get("/clients")).json()["clients"]
    assert client["age_s"] < (EXPIRY_MS - LEFT_MS) / 1000


async def test_who_hangs_up_in_the_middle_of_a_request_is_no_error(rig: Rig) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    headers = [(b"authorization", OPERATOR["Authorization"].encode())]
    scope = {"type": "http", "method": "POST", "path": "/topology", "headers": headers}
    transport = rig.http._transport
    assert isinstance(transport, httpx.ASGITransport)
    await transport.app({**scope, "query_string": b""}, receive, send)
    assert sent[0]["status"] == 499


@pytest.mark.parametrize(
    "query",
    ["generation=x", "generation=1&wait_s=-1", "generation=1&wait_s=nan", "client=a&applied="],
)
async def test_queries_that_make_no_sense_are_refused(rig: Rig, query: str) -> None:
    rig.serve(17)
    assert (await rig.http.get(f"/consumer-list?{query}")).status_code == 400


async def test_the_map_is_conditional_and_tells_losses(rig: Rig) -> None:
    first = await rig.http.get("/topology")
    assert first.json()["entries"] == [entry_to_json(ENTRY)]
    assert first.json()["intact"] is True
    condition = {"If-None-Match": first.headers["ETag"]}
    assert (await rig.http.get("/topology", headers=condition)).status_code == 304
    rig.upkeep.losses.noticed("orders/a", "queue", "q", how="event", now_ms=5)
    second = await rig.http.get("/topology", headers=condition)
    assert second.json()["lost"][0]["name"] == "q"


async def test_a_change_by_login_or_token(rig: Rig) -> None:
    body = {"wanted": ["topic:orders", "orders", "orders/a"], "alive": True}
    for who in ({"auth": ("bus", "pw")}, {"headers": OPERATOR}):
        answer = await rig.http.post("/topology", json=body, **who)
        assert answer.json() == {
            "complete": True,
            "held": ["a:5672"],
            "later": [],
            "missing": {},
            "options": {ENTRY.wanted: dict(ENTRY.options)},
            "created": ["orders/a"],
        }
    assert rig.topology.changed == [(["orders", "orders/a"], True)] * 2
    assert (await rig.http.post("/topology", json=body)).status_code == 401
    assert (await rig.http.post("/topology", json=body, auth=("bus", "x"))).status_code == 401
    rig.broker_away = True
    refused = await rig.http.post("/topology", json=body, auth=("bus", "y"))
    assert refused.status_code == 503
    # Who asks can tell a broker that is down from an agent that is.
    assert refused.json()["linked"] is rig.upkeep.condition.linked


@pytest.mark.parametrize(
    ("outcome", "code"), [(NoMajority("no majority"), 409), (TopologyError("disk full"), 503)]
)
async def test_a_change_that_failed_says_why(rig: Rig, outcome: Exception, code: int) -> None:
    rig.topology.outcome = outcome
    answer = await rig.http.post("/topology", json={"wanted": ["a"]}, headers=OPERATOR)
    assert (answer.status_code, answer.json()) == (code, {"error": str(outcome)})


@pytest.mark.parametrize(
    "body",
    [
        *("", "{", "[]", "{}", '{"wanted":[1]}', '{"wanted":["a b"]}'),
        '{"wanted":[{"name":"queue:jobs","durability":"paper"}]}',
        '{"wanted":[{"durability":"none"}]}',
        '{"wanted":["queue:jobs",{"name":"queue:jobs","durability":"none"}]}',
    ],
)
async def test_bodies_that_make_no_sense_are_refused(rig: Rig, body: str) -> None:
    answer = await rig.http.post("/topology", content=body, headers=OPERATOR)
    assert answer.status_code == 400
    assert not rig.topology.changed


async def test_a_body_has_a_bound(rig: Rig) -> None:
    answer = await rig.http.post("/topology", content=b" " * (5 << 20), headers=OPERATOR)
    assert answer.status_code == 413


async def test_a_merge_is_for_agents_only(rig: Rig) -> None:
    body = {"from": "b:5672", "intact": True, "entries": [entry_to_json(ENTRY)]}
    assert (
        await rig.http.post("/topology/merge", json=body, auth=("bus", "pw"))
    ).status_code == 401
    answer = await rig.http.post("/topology/merge", json=body, headers=OPERATOR)
    assert answer.json() == {
        "answer": "held",
        "reason": "",
        "stored": True,
        "version": 1,
        "intact": True,
        "above": 0,
        "entries": [entry_to_json(ENTRY)],
    }
    bad = await rig.http.post("/topology/merge", json={"entries": 1}, headers=OPERATOR)
    assert bad.status_code == 400


@pytest.mark.parametrize(
    ("kind", "code"), [(VerdictKind.READY, 200), (VerdictKind.DRAIN, 404), (VerdictKind.DOWN, 503)]
)
async def test_health_speaks_in_codes(rig: Rig, kind: VerdictKind, code: int) -> None:
    rig.said.append(Verdict(kind=kind, reason="" if code == 200 else "because"))
    answer = await rig.http.get("/health")
    assert answer.status_code == code
    assert answer.json()["verdict"] == kind.value
    assert answer.json().get("reason", "") == ("" if code == 200 else "because")


async def test_operators_drain(rig: Rig) -> None:
    assert (await rig.http.post("/drain", json={"draining": True})).status_code == 401
    assert (await rig.http.post("/drain", json={}, headers=OPERATOR)).status_code == 400
    answer = await rig.http.post("/drain", json={"draining": True}, headers=OPERATOR)
    assert answer.json() == {"draining": True}
    assert (await rig.http.get("/health")).json()["draining"] is True


async def test_the_rest(rig: Rig) -> None:
    assert (await rig.http.get("/live")).status_code == 200
    settled = (await rig.http.get("/settled")).json()
    assert settled == {"settled": True, "gate": True, "queues": {"mb.queue/jobs": True}}
    assert "messagebus_agent_ready" in (await rig.http.get("/metrics")).text
    assert (await rig.http.get("/nothing")).status_code == 404


EXPIRING = Entry(
    wanted="orders/e",
    number=2,
    origin="a:5672",
    alive=True,
    tomb=0,
    options=(("expires_s", 5),),
)


async def test_an_item_may_ask_for_more_than_its_name(rig: Rig) -> None:
    items = ["orders", {"name": "queue:jobs", "durability": "page-cache"}]
    answer = await rig.http.post("/topology", headers=OPERATOR, json={"wanted": items})
    assert answer.status_code == 200
    assert rig.topology.changed == [(["orders", "queue:jobs"], True)]
    assert rig.topology.options == {"orders": {}, "queue:jobs": {"durability": "page-cache"}}


async def test_a_mismatch_says_that_asking_again_does_not_help(rig: Rig) -> None:
    rig.topology.outcome = TopologyMismatch("two values")
    answer = await rig.http.post("/topology", headers=OPERATOR, json={"wanted": ["orders"]})
    assert answer.status_code == 409
    assert answer.json() == {"error": "two values", "mismatch": True}


async def test_applications_delete_only_what_would_expire(rig: Rig) -> None:
    rig.topology.register.receive(Snapshot(intact=True, entries=(EXPIRING,)))

    async def delete(*names: str, **request: Any) -> int:
        body = {"wanted": list(names), "alive": False}
        return (await rig.http.post("/topology", json=body, **request)).status_code

    app: dict[str, Any] = {"auth": ("bus", "pw")}
    assert await delete("orders/e", **app) == 200
    assert await delete("orders", **app) == 401
    assert await delete("orders/e", "orders", **app) == 401
    assert await delete("orders/unknown", **app) == 401
    assert await delete("orders/e") == 401
    assert await delete("orders", "orders/unknown", headers=OPERATOR) == 200


async def test_operators_alone_vouch_for_a_map(rig: Rig) -> None:
    body = snapshot_to_json(Snapshot(intact=False, floor=3))
    login = {"auth": ("bus", "pw")}
    assert (await rig.http.post("/topology/adopt", json=body, **login)).status_code == 401  # type: ignore[arg-type]
    assert (await rig.http.post("/topology/adopt", json={}, headers=OPERATOR)).status_code == 400
    answer = await rig.http.post("/topology/adopt", json=body, headers=OPERATOR)
    assert answer.json() == {"intact": True}
    assert rig.topology.register.floor == 3


async def test_a_peer_is_told_what_exists_otherwise(rig: Rig) -> None:
    body = {"wanted": ["queue:jobs"]}
    assert (await rig.http.post("/topology/try", json=body, auth=("bus", "pw"))).status_code == 401
    for origin in ("", "b:5672"):
        answer = await rig.http.post("/topology/try", json=body, headers=OPERATOR)
        assert answer.json() == {"mismatch": "queue:jobs exists otherwise"}
        assert rig.topology.asked_by == origin
        body["from"] = "b:5672"  # type: ignore[assignment]


async def test_a_peer_is_told_how_long_nobody_used_what_expires(rig: Rig) -> None:
    answer = await rig.http.get("/unused")
    assert answer.json() == {"unused_s": {"orders/e": 2.5, "orders/f": None}}


async def test_a_login_may_have_made_and_see_what_its_rights_cover(rig: Rig) -> None:
    async def ask(user: str, *names: str, alive: bool = True) -> httpx.Response:
        body = {"wanted": list(names), "alive": alive}
        return await rig.http.post("/topology", json=body, auth=(user, "pw"))

    assert (await ask("shop", "mine", "mine/a")).status_code == 200
    refused = await ask("shop", "mine", "orders", "orders/spy")
    assert (refused.status_code, refused.json()) == (
        403,
        {"error": "the rights of user 'shop' do not cover orders, orders/spy", "forbidden": True},
    )
    assert (await ask("shop", "orders/e", alive=False)).status_code == 403
    assert [names for names, _alive in rig.topology.changed] == [["mine", "mine/a"]]
    assert (await rig.http.get("/subscriptions", auth=("shop", "pw"))).status_code == 403
    mine = Entry(wanted="mine/a", number=2, origin="a:5672", alive=True, tomb=0)
    rig.topology.register = Register("a:5672", Snapshot(intact=True, entries=(ENTRY, mine)))
    told = (await rig.http.get("/subscriptions", auth=("shop", "pw"))).json()
    assert list(told["subscriptions"]) == ["mine/a"]


async def test_a_user_makes_only_so_many_names(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "NAMES_PER_USER_MAX", 2)
    rig.topology.register = Register("a:5672", Snapshot(intact=True, entries=()))
    body = {"wanted": ["a", "b", "c"]}
    refused = await rig.http.post("/topology", json=body, auth=("bus", "pw"))
    assert refused.status_code == 429
    assert "'bus'" in refused.json()["error"]
    assert (await rig.http.post("/topology", json=body, headers=OPERATOR)).status_code == 200


async def test_subscriptions_are_counted_for_whoever_may_log_in(rig: Rig) -> None:
    rig.topology.register.receive(Snapshot(intact=True, entries=(EXPIRING,)))
    assert (await rig.http.get("/subscriptions")).status_code == 401
    answer = await rig.http.get("/subscriptions", auth=("bus", "pw"))
    assert answer.json()["broker"] == "a:5672"
    found = answer.json()["subscriptions"]["orders/e"]
    assert found == {"ready": 3, "consumers": 1, "unacked": None, "expires_s": 5}
    rig.counting.is_down = True
    assert (await rig.http.get("/subscriptions", headers=OPERATOR)).status_code == 503


async def test_only_operators_purge(rig: Rig) -> None:
    body = {"wanted": ["orders/billing"]}
    path = "/subscriptions/purge"
    assert (await rig.http.post(path, json=body, auth=("bus", "pw"))).status_code == 401
    answer = await rig.http.post(path, json=body, headers=OPERATOR)
    assert answer.json() == {"broker": "a:5672", "purged": {"orders/billing": 7}}
    rig.counting.is_down = True
    assert (await rig.http.post(path, json=body, headers=OPERATOR)).status_code == 503


@pytest.mark.parametrize("key", ["client", "subscription"])
@pytest.mark.parametrize("text", ["x\x1b[2J", "a\nb", "\x9b2J", "büro", "x" * 256])
async def test_an_id_that_does_not_print_is_refused(rig: Rig, key: str, text: str) -> None:
    rig.serve(17)
    refused = await rig.http.get("/consumer-list", params={"client": "me", key: text})
    assert refused.status_code == 400
    assert refused.json() == {"error": f"{key}: at most 255 printing ASCII characters"}
    assert (await rig.http.get("/clients")).json() == {"clients": [], "left": []}


@pytest.mark.parametrize(
    "source",
    [
        Subscription(Topic("t" * NAME_BYTES_MAX), "s" * NAME_BYTES_MAX),
        Queue("q" * NAME_BYTES_MAX),
    ],
)
async def test_who_has_a_list_is_known_to_it_by_the_longest_name_too(
    rig: Rig, source: Subscription | Queue
) -> None:
    rig.serve(17)
    params = {"client": "me", "subscription": str(source)}
    assert (await rig.http.get("/consumer-list", params=params, auth=USER)).status_code == 200
    # Who has no list yet has no old one, and may end before it asks again.
    assert (await rig.http.get("/clients")).json()["clients"] == []
    params |= {"generation": "17", "applied": "17"}
    assert (await rig.http.get("/consumer-list", params=params, auth=USER)).status_code == 304
    (client,) = (await rig.http.get("/clients")).json()["clients"]
    assert client["subscription"] == str(source)


async def test_a_generation_that_nobody_can_have_applied_is_not_believed(rig: Rig) -> None:
    rig.serve(17)
    margin = list_routes.APPLIED_AHEAD_MAX
    for client, applied in (("real", 17 + margin), ("forged", 18 + margin), ("evil", 10**17)):
        params: dict[str, str | int] = {"client": client, "applied": applied}
        served = await rig.http.get("/consumer-list", params=params, auth=USER)
        assert served.status_code == 200
    told = (await rig.http.get("/clients")).json()["clients"]
    assert [(one["id"], one["applied"]) for one in told] == [("real", 17 + margin)]


@pytest.mark.parametrize("path", ["/topology", "/topology/merge", "/topology/try", "/drain"])
async def test_deep_json_is_a_bad_request(rig: Rig, path: str) -> None:
    deep = await rig.http.post(path, content=b"[" * 200_000, headers=OPERATOR)
    assert deep.status_code == 400
    assert "too deep" in deep.json()["error"]


def client_of(rig: Rig, source: str) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(rig.application, client=(source, 1))
    return httpx.AsyncClient(transport=transport, base_url="http://agent")


@pytest.mark.guarantee("slow-connections-are-bounded")
@pytest.mark.parametrize("path", ["/topology", "/trail"])
async def test_bodies_of_users_that_hold_back_their_end_are_bounded_together(
    rig: Rig, path: str
) -> None:
    part = b"x" * ((1 << 20) - 1)
    of_user = rights.USERS_BYTES_MAX // 2 // len(part)
    posts = [partial(rig.http.post, path, auth=USER)] * (of_user + 2)
    async with held_bodies(posts, part, refused=2):
        done = await rig.http.post("/drain", json={"draining": True}, headers=OPERATOR)
        assert done.status_code == 200, "of the operators"


def proof(to: str = "a:5672", token: str = "token") -> TokenProof:
    return TokenProof(lambda: Secret(token), to=to)


@pytest.mark.guarantee("slow-connections-are-bounded")
@pytest.mark.parametrize("sources", [1, 2])
async def test_bodies_of_made_up_proofs_that_hold_back_their_end_are_bounded(
    rig: Rig, sources: int
) -> None:
    part = b"x" * (requests.BODY_BYTES_MAX - 1)
    made_up = {"Authorization": 'MB-Proof nonce="0", ask="0", to="", proof="0"'}
    of_source = rights.UNPROVEN_BYTES_MAX // 2 // len(part)
    strangers = [client_of(rig, f"10.0.1.{number}") for number in range(sources)]
    posts = [partial(each.post, "/drain", headers=made_up) for each in strangers]
    async with held_bodies(posts * (of_source + 2), part, refused=2 * sources) as held:
        other = client_of(rig, "10.0.0.2")
        done = await other.post("/drain", json={"draining": True}, auth=proof())
        assert done.status_code == 200, "of another source"
    assert {each.result().status_code for each in held} == {401, 429}
    assert (
        await rig.http.post("/drain", json={"draining": False}, auth=proof())
    ).status_code == 200


@pytest.mark.guarantee("token-is-proved-not-sent")
async def test_who_proves_the_token_is_an_operator_and_never_sends_it(rig: Rig) -> None:
    sent: list[str] = []

    async def note(request: httpx.Request) -> None:
        sent.append(str(request.headers))

    rig.http.event_hooks = {"request": [note], "response": []}
    auth, body = proof(), {"draining": True}
    for _ in range(2):
        assert (await rig.http.post("/drain", json=body, auth=auth)).status_code == 200
    assert rig.drains == [True, True]
    assert len(sent) == 3, "the second time by the nonce of the first"
    assert "Bearer" not in str(sent)
    for wrong in (proof(token="wrong"), proof(to="b:5672")):
        assert (await rig.http.post("/drain", json=body, auth=wrong)).status_code == 401
    assert (await rig.http.post("/topology", json={"wanted": ["a"]}, auth=auth)).status_code == 200
    assert len(rig.drains) == 2


@pytest.mark.guarantee("token-is-proved-not-sent")
async def test_a_proof_is_good_for_one_request_and_no_other(rig: Rig) -> None:
    seen: list[httpx.Request] = []

    async def note(request: httpx.Request) -> None:
        seen.append(request)

    rig.http.event_hooks = {"request": [note], "response": []}
    await rig.http.post("/drain", json={"draining": True}, auth=proof())
    rig.http.event_hooks = {"request": [], "response": []}
    taken = dict(seen[-1].headers)
    for path, body in (
        ("/drain", seen[-1].content),
        ("/drain", b'{"draining":false}'),
        ("/subscriptions/purge", seen[-1].content),
    ):
        headers = {"Authorization": taken["authorization"]}
        assert (await rig.http.post(path, content=body, headers=headers)).status_code == 401
    assert rig.drains == [True]


async def test_who_has_no_token_or_another_one_cannot_answer_in_its_place(rig: Rig) -> None:
    for path in ("/topology", "/unused", "/health"):
        await rig.http.get(path, auth=proof())
        for other in (proof(to="b:5672"), proof(token="wrong")):
            with pytest.raises(NotProven):
                await rig.http.get(path, auth=other)
    junk = await rig.http.get("/live", headers={"MB-Ask": "x y"})
    assert junk.status_code == 400


async def test_whoever_may_log_in_observes_what_its_rights_cover(rig: Rig) -> None:
    entries = tuple(
        Entry(wanted=name, number=2, origin="a:5672", alive=True, tomb=0)
        for name in ("mine/a", "orders/b")
    )
    rig.topology.register.receive(Snapshot(intact=True, entries=entries))
    assert (await rig.http.get("/observe")).status_code == 401
    told = read_answer(
        (await rig.http.get("/observe", auth=("bus", "pw"))).json(), received_at_ms=0
    )
    assert {name for name, _ in told.rows} == {"mine/a", "orders/b"}
    told = read_answer(
        (await rig.http.get("/observe", auth=("shop", "pw"))).json(), received_at_ms=0
    )
    assert {name for name, _ in told.rows} == {"mine/a"}


async def test_an_answer_about_many_queues_is_squeezed_and_proves_the_token(rig: Rig) -> None:
    entries = tuple(
        Entry(wanted=f"orders/s{number}", number=2, origin="a:5672", alive=True, tomb=0)
        for number in range(50)
    )
    rig.topology.register.receive(Snapshot(intact=True, entries=entries))
    proof = TokenProof(lambda: Secret("token"), to="a:5672")
    answer = await rig.http.get("/observe", auth=proof)
    assert answer.headers["Content-Encoding"] == "gzip"
    assert len(read_answer(answer.json(), received_at_ms=0).rows) == 50


@pytest.mark.parametrize(
    "query",
    [
        "names=" + ",".join(map(str, range(201))),
        "state_after=-",
        "state_after=1&wait_s=-1",
    ],
)
async def test_a_question_that_makes_no_sense_is_a_bad_request(rig: Rig, query: str) -> None:
    assert (await rig.http.get(f"/observe?{query}", headers=OPERATOR)).status_code == 400


async def test_a_changed_state_is_told_to_whoever_waits_for_it(rig: Rig) -> None:
    version = (await rig.http.get("/observe", headers=OPERATOR)).json()["state"]["version"]
    same = await rig.http.get(f"/observe?state_after={version}", headers=OPERATOR)
    assert same.status_code == 304
    path = f"/observe?state_after={version}&wait_s=60"
    waiting = asyncio.ensure_future(rig.http.get(path, headers=OPERATOR))
    await asyncio.sleep(0)
    rig.said.append(Verdict(kind=VerdictKind.DRAIN, reason="operators drain it"))
    told = read_answer((await waiting).json(), received_at_ms=0)
    assert (told.state.verdict, told.state.reason) == ("drain", "operators drain it")
    assert told.state.version != version
    assert not told.rows
    assert not told.whole


async def test_only_so_many_wait_for_a_change_of_the_state(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "OBSERVING_MAX", 0)
    assert (await rig.http.get("/observe?state_after=1", headers=OPERATOR)).status_code == 503
