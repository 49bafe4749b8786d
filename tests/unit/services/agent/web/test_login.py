"""Rights to change the topology."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Collection

import pytest

from messagebus._io.amqp.control import Right
from messagebus.errors import ConfigError, LinkLost
from messagebus.secret import Secret
from messagebus.services.agent.web import login as module
from messagebus.services.agent.web.login import Admission, Login
from messagebus.topology import parse_wanted


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


class Broker:
    """Broker that knows one user and counts logins."""

    def __init__(self) -> None:
        self.asked = 0
        self.is_away = False

        self.rights: set[Right] = set()
        self.answers = asyncio.Event()
        self.answers.set()

    async def try_login(
        self, user: str, password: Secret, rights: Collection[Right]
    ) -> set[Right] | None:
        self.asked += 1
        if self.is_away:
            raise LinkLost("h:1", "refused")
        if (user, password.reveal()) == ("bus", "pw:with:colons"):
            return self.rights.intersection(rights)
        await self.answers.wait()
        return None


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def login(broker: Broker) -> Login:
    return Login(token=lambda: Secret("token"), try_login=broker.try_login)


async def admitted(login: Login, header: str) -> Admission:
    return (await login.admit(header, {})).admission


async def forbidden(login: Login, *names: str) -> tuple[str, ...]:
    judged = await login.admit(
        basic("bus", "pw:with:colons"), {name: parse_wanted(name) for name in names}
    )
    assert (judged.admission, judged.user) == (Admission.YES, "bus")
    return judged.forbidden


async def test_the_token_is_for_operators(login: Login, broker: Broker) -> None:
    assert await admitted(login, "Bearer token") is Admission.YES
    assert await admitted(login, "bearer  token") is Admission.YES
    assert await admitted(login, "Bearer wrong") is Admission.NO
    assert not login.is_operator(basic("bus", "pw:with:colons"))
    assert broker.asked == 0


async def test_an_unreadable_token_admits_nobody(broker: Broker) -> None:
    def unreadable() -> Secret:
        raise ConfigError("token_file: gone")

    login = Login(token=unreadable, try_login=broker.try_login)
    assert not login.is_operator("Bearer ")
    assert await admitted(login, "Bearer x") is Admission.NO


async def test_a_good_login_is_asked_for_once(login: Login, broker: Broker) -> None:
    for _ in range(3):
        assert await admitted(login, basic("bus", "pw:with:colons")) is Admission.YES
    assert broker.asked == 1


async def test_a_remembered_login_expires(
    login: Login, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    await admitted(login, basic("bus", "pw:with:colons"))
    now_s[0] += module.REMEMBERED_S + 1
    await admitted(login, basic("bus", "pw:with:colons"))
    assert broker.asked == 2


async def test_a_bad_login_is_not_remembered(login: Login, broker: Broker) -> None:
    assert await admitted(login, basic("bus", "pw")) is Admission.NO
    assert await admitted(login, basic("bus", "pw")) is Admission.NO
    assert broker.asked == 2


async def test_without_the_broker_nobody_knows(login: Login, broker: Broker) -> None:
    broker.is_away = True
    judged = await login.admit(basic("bus", "pw:with:colons"), {})
    assert (judged.admission, judged.reason) == (Admission.UNKNOWN, "refused")


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Basic",
        "Basic !!",
        "Basic \xe9",
        "Basic " + base64.b64encode(b"nocolon").decode(),
        "X y",
    ],
)
async def test_headers_that_make_no_sense(login: Login, broker: Broker, header: str) -> None:
    assert await admitted(login, header) is Admission.NO
    assert broker.asked == 0


async def test_what_is_remembered_is_bounded_and_shows_no_password(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def anybody(_user: str, _password: Secret, _rights: object) -> set[Right]:
        return set()

    monkeypatch.setattr(module, "REMEMBERED_MAX", 2)
    login = Login(token=lambda: Secret("token"), try_login=anybody)
    for number in range(5):
        await admitted(login, basic("bus", f"geheim{number}"))
    assert len(login._good) <= 2
    assert b"geheim" not in repr(login._good).encode()


async def test_who_may_publish_to_it_or_consume_from_it_may_have_it_made(
    login: Login, broker: Broker
) -> None:
    names = ("orders", "orders/a", "queue:jobs", "queue:other", "delay:1000")
    assert await forbidden(login, *names) == names
    broker.rights = {
        Right("write", "mb.topic/orders"),
        Right("read", "mb.sub/orders/a"),
        Right("read", "mb.queue/jobs"),
        Right("write", "mb.to/other"),
    }
    assert await forbidden(login, *names) == ("delay:1000",)


async def test_a_right_is_remembered_and_what_was_forbidden_is_asked_for_again(
    login: Login, broker: Broker
) -> None:
    broker.rights = {Right("write", "mb.topic/orders")}
    assert await forbidden(login, "orders", "other") == ("other",)
    assert await forbidden(login, "orders") == ()
    assert broker.asked == 1
    broker.rights.add(Right("write", "mb.topic/other"))
    assert await forbidden(login, "other") == ()
    assert broker.asked == 2


@pytest.mark.guarantee("wrong-logins-keep-nobody-out")
async def test_a_flood_of_wrong_logins_keeps_nobody_out(
    login: Login, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A login that was good before has places of its own; a stranger learns at once that there is none."""
    monkeypatch.setattr(module, "REMEMBERED_S", 0.0)
    assert await forbidden(login) == ()
    broker.answers.clear()
    header = basic("bus", "pw:with:colons")
    flood = [asyncio.create_task(admitted(login, basic("bus", f"{n}"))) for n in range(400)]
    flood += [asyncio.create_task(admitted(login, basic(f"u{n}", "x"))) for n in range(400)]
    await asyncio.sleep(0)
    assert await admitted(login, header) is Admission.YES
    told = [task.result() for task in flood if task.done()]
    assert set(told) == {Admission.UNKNOWN}
    assert len(flood) - len(told) == module.WAITING_MAX
    broker.answers.set()
    assert set(await asyncio.gather(*flood)) == {Admission.UNKNOWN, Admission.NO}
    assert not login._waiting
    assert await admitted(login, basic("w", "x")) is Admission.NO


def test_names_of_one_user_are_bounded_and_deleted_ones_make_room(
    login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NAMES_PER_USER_MAX", 3)
    alive = set[str]()

    def make(user: str, *names: str) -> bool:
        if found := login.has_room(user, names, alive.__contains__):
            alive.update(names)
        return found

    assert make("bus", "a", "b", "c")
    assert not make("bus", "d")
    assert make("bus", "a")
    assert make("other", "d")
    assert make("bus", "d")
    assert make("", "e", "f", "g", "h")
    alive.remove("b")
    assert make("bus", "i")


@pytest.mark.guarantee("wrong-logins-keep-nobody-out")
async def test_a_flood_of_one_name_fills_no_row_but_its_own(login: Login, broker: Broker) -> None:
    broker.answers.clear()
    flood = [asyncio.create_task(admitted(login, basic("v", f"{n}"))) for n in range(400)]
    await asyncio.sleep(0)
    assert len([task for task in flood if not task.done()]) == module.WAITING_PER_USER_MAX
    broker.answers.set()
    await asyncio.gather(*flood)
