"""Clients of the bus behind a gateway: whose they are, and whether a subscription is there."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from messagebus import (
    BusConfig,
    LoginRefused,
    MessageBusError,
    NotReady,
    PublisherConfig,
    Secret,
    Subscription,
    Topic,
)
from messagebus.errors import ListUnavailable
from messagebus.services.gateway import clients
from messagebus.services.gateway.clients import Publishers, RealBus
from messagebus.services.gateway.config import Limits
from messagebus.services.gateway.people import People, Principal
from messagebus.services.gateway.problems import Problem
from tests.support.eventually import eventually_async

BILLING = Subscription(Topic("orders"), "billing")


async def test_agents_are_counted_once_for_all_who_ask_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clients, "COUNT_EVERY_MS", 100)
    counts: list[BusConfig] = []

    def count(asked: BusConfig) -> object:
        counts.append(asked)
        return SimpleNamespace(counts=[SimpleNamespace(name="orders/billing")], answered=("mb1",))

    monkeypatch.setattr(clients, "count_subscriptions", count)
    bus = RealBus(BusConfig(), PublisherConfig())
    assert await bus.exists(BILLING)
    names = [Subscription(Topic("orders"), f"n{number}") for number in range(100)]
    found = await asyncio.gather(*(bus.exists(each) for each in (BILLING, *names)))
    assert found == [True] + [False] * 100
    assert len(counts) <= 3


class FakePublisher:
    """A publisher whose start ends with this, and which counts its stops."""

    def __init__(self, fault: MessageBusError | None = None) -> None:
        self._fault, self.stops = fault, 0

    async def start(self, **_: object) -> None:
        if self._fault is not None:
            raise self._fault

    async def stop(self, _timeout_s: float) -> int:
        self.stops += 1
        return 1


class Logins:
    """A bus that makes these publishers, the gateway's own first."""

    def __init__(self, *publishers: FakePublisher) -> None:
        self._publishers = list(publishers)
        self.logins: list[Any] = []

    def publisher(self, login: Any) -> FakePublisher:
        self.logins.append(login)
        return self._publishers.pop(0)


def caller(name: str = "ann") -> Principal:
    return Principal(name, login=(name, Secret("pw")))


async def used(publishers: Publishers, who: Principal) -> object:
    async with publishers.of(who) as publisher:
        return publisher


async def test_a_login_has_one_publisher_until_it_was_idle_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, ann = FakePublisher(), FakePublisher()
    bus = Logins(own, ann)
    publishers = Publishers(cast(Any, bus))
    assert await used(publishers, Principal("token")) is own
    found = await asyncio.gather(*(used(publishers, caller()) for _ in range(5)))
    assert found == [ann] * 5
    assert [login and login[0] for login in bus.logins] == [None, "ann"]
    await publishers.close_idle()
    assert ann.stops == 0
    monkeypatch.setattr(clients, "IDLE_S", -1.0)
    async with publishers.of(caller()):
        await publishers.close_idle()
        assert ann.stops == 0, "in use"
    await publishers.close_idle()
    assert (ann.stops, own.stops) == (1, 0)
    assert await publishers.stop() == 1


@pytest.mark.parametrize(
    ("fault", "status"),
    [(LoginRefused("mb1", "ACCESS_REFUSED"), 401), (NotReady("nobody answers"), 503)],
)
async def test_a_login_that_is_refused_leaves_nothing_behind(
    fault: MessageBusError, status: int
) -> None:
    again = FakePublisher()
    publishers = Publishers(cast(Any, Logins(FakePublisher(), FakePublisher(fault), again)))
    with pytest.raises(Problem) as problem:
        await used(publishers, caller())
    assert problem.value.status == status
    assert await used(publishers, caller()) is again


async def test_the_number_of_logins_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "LOGINS_MAX", 1)
    publishers = Publishers(cast(Any, Logins(FakePublisher(), FakePublisher())))
    await used(publishers, caller("ann"))
    with pytest.raises(Problem) as problem:
        await used(publishers, caller("bob"))
    assert problem.value.status == 503


async def test_a_bus_login_is_used_instead_of_the_gateways_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "password"
    path.write_text("own")
    asked: list[BusConfig] = []

    def declared(bus: BusConfig, names: list[str]) -> object:
        asked.append(bus)
        return SimpleNamespace(missing=dict.fromkeys(names, "away"))

    monkeypatch.setattr(clients, "declare", declared)
    bus = RealBus(BusConfig(user="gw", password_file=str(path)), PublisherConfig())
    assert await bus.declare("orders", ("ann", Secret("pw"))) == {"orders": "away"}
    assert await bus.declare("orders", None) == {"orders": "away"}
    assert [(each.current_user(), each.current_password().reveal()) for each in asked] == [
        ("ann", "pw"),
        ("gw", "own"),
    ]


@pytest.mark.parametrize("answered", [None, ()])
async def test_where_nobody_can_say_it_may_be_there(
    monkeypatch: pytest.MonkeyPatch, answered: tuple[str, ...] | None
) -> None:
    def count(_bus: BusConfig) -> object:
        if answered is None:
            raise ListUnavailable("no agent answers")
        return SimpleNamespace(counts=[], answered=answered)

    monkeypatch.setattr(clients, "count_subscriptions", count)
    assert await RealBus(BusConfig(), PublisherConfig()).exists(BILLING)


class Guessed:
    """A bus whose answer to any wrong login is long in coming. at_once: how many it was asked at most."""

    def __init__(self) -> None:
        self.asked = self.at_once = self._now = 0
        self.answers = asyncio.Event()

    def publisher(self, _login: Any) -> FakePublisher:
        return FakePublisher()

    async def takes(self, user: str, _password: Secret) -> bool:
        if user == "ann":
            return True
        self.asked += 1
        self._now += 1
        self.at_once = max(self.at_once, self._now)
        await self.answers.wait()
        self._now -= 1
        return False


@pytest.mark.guarantee("wrong-logins-keep-nobody-out")
async def test_a_flood_of_wrong_logins_is_tried_a_few_at_once_and_holds_up_nobody_who_was_good_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bus = Guessed()
    publishers = Publishers(cast(Any, bus))
    ann = caller()
    await publishers.prove(ann)
    monkeypatch.setattr(clients, "PROVEN_MS", 0)  # so each request is a try
    flood = [
        asyncio.create_task(publishers.prove(caller(f"guess{number}"), f"10.0.0.{number % 2}"))
        for number in range(1_000)
    ]
    async with asyncio.timeout(60):
        await publishers.prove(ann, "10.0.0.1")
        waiting = 2 * clients.WAITING_OF_SOURCE_MAX
        await eventually_async(
            lambda: sum(not each.done() for each in flood) == waiting, within_s=60
        )
        third = asyncio.create_task(publishers.prove(caller("bob"), "10.0.0.2"))
        bus.answers.set()
        with pytest.raises(Problem) as problem:
            await third
        assert problem.value.status == 401, "who calls from elsewhere has a place"
        ends = await asyncio.gather(*flood, return_exceptions=True)
    assert bus.at_once == clients.TRIES_AT_ONCE
    codes = Counter(cast(Problem, each).status for each in ends)
    assert codes == {401: waiting, 503: 1_000 - waiting}


async def test_the_logins_of_strangers_push_out_nobody_who_holds_something() -> None:
    people = People("", bus_login=True, anonymous="", limits=Limits(), now_ms=0)
    publishers = Publishers(cast(Any, Guessed()), people.refuse)

    def login(text: str) -> Principal:
        return people.principal(f"Basic {b64encode(text.encode()).decode()}", 0)

    ann = login("ann:pw")
    ann.sockets.enter()
    await publishers.prove(ann)
    flood = [login(f"guess{number}:x") for number in range(5_000)]
    assert people.by_name()[ann.name] is ann is login("ann:pw")
    assert people.logins_in_use() == [ann]
    del ann, flood
    assert len(people.logins_in_use()) == 1, "kept, since the bus has taken it"
    assert len(people.by_name()) == 1, "strangers leave nothing behind"


async def test_a_publish_whose_body_came_after_its_rights_were_taken_is_refused() -> None:
    publishers = Publishers(cast(Any, Logins(FakePublisher())))
    token = Principal("token")
    token.over.set()
    with pytest.raises(Problem) as problem:
        await used(publishers, token)
    assert problem.value.status == 403
