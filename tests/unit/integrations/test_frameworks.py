"""Web frameworks, and what their handlers depend on."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import flask
import httpx
import litestar
import pydantic
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from messagebus import App, ConfigError, Delivery, Stopped
from messagebus.errors import BindingError
from messagebus.integrations import asyncapi
from messagebus.integrations.asgi import bus_of, lifespan
from messagebus.integrations.depends import Depends, inject
from messagebus.integrations.flask import MessageBus, publisher
from messagebus.integrations.topics import Topic
from messagebus.outbox import Outbox
from messagebus.payloads.binding import bind
from messagebus.testing import MemoryBus
from tests.support.connections import Database, transaction
from tests.support.eventually import eventually_async


@dataclass
class Order:
    number: int


class Invoice(pydantic.BaseModel):
    order: int


def new_bus() -> tuple[MemoryBus, App]:
    memory, app = MemoryBus(), App()
    memory.declare("orders/billing")
    app.use(memory)
    return memory, app


async def posted(application: Any, path: str) -> httpx.Response:
    transport = httpx.ASGITransport(app=application)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
        return await http.post(path)


async def test_a_lifespan_begins_and_ends_the_bus_within_another_one() -> None:
    memory, bus = new_bus()
    seen: list[str] = []

    @asynccontextmanager
    async def around(_application: Any) -> AsyncIterator[dict[str, int]]:
        seen.append(bus.status.value)
        yield {"more": 1}
        seen.append(bus.status.value)

    async def place(request: Request) -> PlainTextResponse:
        assert request.app.state.messagebus is bus_of(request.app) is bus
        await bus.publish("orders", {"number": 1})
        return PlainTextResponse("placed")

    application = Starlette(
        routes=[Route("/", place, methods=["POST"])], lifespan=lifespan(bus, around=around)
    )
    async with application.router.lifespan_context(application) as state:
        assert state == {"more": 1}
        assert (await posted(application, "/")).text == "placed"
    assert seen == ["initialized", "stopped"]
    memory.assert_published("orders", count=1)


async def test_litestar_takes_the_same_lifespan() -> None:
    memory, bus = new_bus()

    @litestar.post("/")
    async def place(request: litestar.Request[Any, Any, Any]) -> str:
        await bus_of(request.app).publish("orders", {"number": 1})
        return "placed"

    application = litestar.Litestar([place], lifespan=[lifespan(bus)], openapi_config=None)
    async with application.lifespan():
        assert (await posted(application, "/")).text == "placed"
    memory.assert_published("orders", count=1)


def test_flask_has_one_publisher_a_process_from_its_first_request_on() -> None:
    memory, _ = new_bus()
    web = flask.Flask("shop")
    MessageBus(web, make=memory.publisher)

    @web.post("/")
    def place() -> str:
        return publisher().send_safe("orders", b"{}").outcome.value

    for _ in range(2):
        assert web.test_client().post("/").text == "confirmed"
    shared = web.extensions["messagebus"]
    first = shared.get()
    child = os.fork()
    if not child:  # a worker of a server that loads the application before
        os._exit(0 if shared._publisher is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert shared.get() is first
    assert shared.stop() == 0
    with pytest.raises(Stopped):
        first.send_safe("orders", b"{}")
    assert memory.assert_published("orders", count=2)


def test_without_settings_the_environment_says_where_the_bus_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MESSAGEBUS_BROKER", "no address")
    web = flask.Flask("shop")
    MessageBus(web)
    with pytest.raises(ConfigError, match="no address"):
        web.extensions["messagebus"].get()
    monkeypatch.setenv("MESSAGEBUS_BROKER", "127.0.0.1:1")
    shared = web.extensions["messagebus"]
    assert shared.get().status.value == "running"
    assert shared.stop() == 0


def test_settings_of_flask_are_those_of_the_bus() -> None:
    web = flask.Flask("shop")
    web.config["MESSAGEBUS"] = {"brokr": "x"}
    with pytest.raises(ConfigError, match="brokr"):
        MessageBus(web)


async def test_django_publishes_on_commit_and_only_then(tmp_path: Path) -> None:
    database = Database("sqlite", tmp_path / "app.db")
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection, connection:
        for statement in Outbox().ddl("sqlite"):
            connection.execute(statement)
    async with transaction("django sqlite", database):
        from messagebus.integrations.django import publish_on_commit

        published = publish_on_commit("orders", {"number": 1}, key="customer-4")
    with contextlib.suppress(ZeroDivisionError):
        async with transaction("django sqlite", database):
            publish_on_commit("orders", {"number": 2})
            raise ZeroDivisionError
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        rows = connection.execute(f"SELECT * FROM {Outbox().table}").fetchall()
    assert len(rows) == 1
    assert published in map(str, rows[0])


async def test_a_typed_topic_carries_its_type_both_ways() -> None:
    _, app = new_bus()
    orders, found = Topic[Order]("orders"), list[Order]()

    @orders.subscriber(app, "typed")
    async def handle(order: Order, delivery: Delivery) -> None:
        found.append(order)

    async with app:
        await orders.publish(app, Order(7), key="k")
        await eventually_async(lambda: found == [Order(7)], within_s=10)


def test_a_handler_of_another_type_is_refused_when_it_is_declared() -> None:
    async def handle(invoice: Invoice) -> None: ...

    with pytest.raises(TypeError, match=r"handle: no parameter of .*Order"):
        Topic[Order]("orders").subscriber(App(), "typed")(handle)
    with pytest.raises(TypeError, match="say the type"):
        _ = Topic("orders").type


def described() -> tuple[App, dict[str, Any]]:
    app = App()

    @app.subscriber("orders", subscription="billing")
    async def bill(order: Order) -> None:
        """Write the bill."""

    @app.subscriber("queue:mails", batch=10)
    async def send(mails: list[Invoice]) -> None: ...

    @app.subscriber("logs", subscription="all")
    @app.subscriber("mails", subscription="all")
    async def keep(delivery: Delivery) -> None: ...

    return app, asyncapi.document(
        app, title="Shop", version="1", publishes=[Topic[Invoice]("invoices")], host="bus:5672"
    )


def test_a_document_names_channels_operations_and_schemas() -> None:
    _, found = described()
    assert found["asyncapi"] == "3.0.0"
    channels = {name: each["address"] for name, each in found["channels"].items()}
    assert channels == {
        **{name: f"mb.topic/{name}" for name in ("orders", "logs", "mails", "invoices")},
        "queue:mails": "mb.queue/mails",
    }
    assert {each["action"] for each in found["operations"].values()} == {"receive", "send"}
    assert found["operations"]["receive_orders_billing"]["description"] == "Write the bill."
    assert found["components"]["schemas"]["Order"]["properties"] == {"number": {"type": "integer"}}
    assert found["components"]["schemas"]["Invoice"]["required"] == ["order"]


def references(value: Any) -> list[str]:
    match value:
        case dict():
            own = [value["$ref"]] if "$ref" in value else []
            return own + [each for inner in value.values() for each in references(inner)]
        case list():
            return [each for inner in value for each in references(inner)]
    return []


def test_every_reference_of_a_document_leads_somewhere() -> None:
    _, found = described()
    assert references(found)
    for each in references(found):
        place: Any = found
        for step in each.removeprefix("#/").split("/"):
            place = place[step]
        assert isinstance(place, dict)


def test_the_command_prints_the_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small_shop.py").write_text("from messagebus import App\napp = App()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert asyncapi.main(["small_shop:app"]) == 0
    assert json.loads(capsys.readouterr().out)["info"]["title"] == "small_shop"
    assert asyncapi.main([]) == 2


seen: list[str] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    seen.clear()


def number() -> int:
    seen.append("number")
    return 7


async def opened(number: Annotated[int, Depends(number)]) -> AsyncIterator[str]:
    seen.append("opened")
    yield f"session {number}"
    seen.append("closed")


def attempt(delivery: Delivery) -> int:
    return delivery.attempt


def lent() -> Iterator[str]:
    yield "lent"
    seen.append("given back")


async def noted(call: Callable[[Any], Any], given: Any) -> object:
    seen.append(f"before {len(given) if isinstance(given, list) else given.attempt}")
    try:
        return await call(given)
    finally:
        seen.append("after")


def plain(call: Callable[[Any], Any], given: Any) -> object:
    seen.append("plain")
    return call(given)


async def run(app: App, *bodies: Any, until: Callable[[], bool]) -> MemoryBus:
    bus = MemoryBus()
    app.use(bus)
    async with app:
        for body in bodies:
            await app.publish("orders", body)
        await eventually_async(until, within_s=10)
    return bus


async def test_dependencies_are_made_once_a_run_and_end_after_it() -> None:
    app = App()

    @app.subscriber("orders", subscription="billing")
    @inject
    async def handle(
        order: dict[str, int],
        first: Annotated[int, Depends(number)],
        session: Annotated[str, Depends(opened)],
        tries: Annotated[int, Depends(attempt)],
        borrowed: str = Depends(lent),  # type: ignore[assignment] # as FastAPI's older form
    ) -> None:
        seen.append(f"{order} {first} {session} {tries} {borrowed}")

    bus = await run(app, {"n": 1}, until=lambda: "closed" in seen)
    assert seen == ["number", "opened", "{'n': 1} 7 session 7 1 lent", "given back", "closed"]
    bus.assert_answered("orders", "billing", answer="ack", count=1)


async def test_a_test_gives_dependencies_by_name() -> None:
    @inject
    async def handle(order: bytes, session: Annotated[str, Depends(opened)]) -> str:
        return session

    assert await handle(b"", session="fake") == "fake"
    assert seen == []


async def test_a_plain_handler_has_plain_dependencies_in_its_thread() -> None:
    app = App()

    @app.subscriber("orders", subscription="billing")
    @inject
    def handle(order: bytes, first: Annotated[int, Depends(number)]) -> None:
        seen.append(f"{order!r} {first}")

    await run(app, b"x", until=lambda: len(seen) == 2)
    assert seen == ["number", "b'x' 7"]


def wants_loop(session: Annotated[str, Depends(opened)], order: bytes) -> None: ...


def needy(what: int) -> int:
    return what


async def incomplete(order: bytes, needed: Annotated[int, Depends(needy)]) -> None: ...


@pytest.mark.parametrize(
    ("handler", "told"), [(wants_loop, "wants a loop"), (incomplete, "'what'")]
)
def test_what_could_never_work_is_told_when_it_is_declared(handler: Any, told: str) -> None:
    with pytest.raises(BindingError, match=told):
        inject(handler)


async def test_middleware_goes_around_each_run_the_apps_outermost() -> None:
    app = App(middleware=[noted])

    async def inner(call: Callable[[Any], Any], given: Any) -> object:
        seen.append("inner")
        return await call(given)

    @app.subscriber("orders", subscription="billing", middleware=[inner])
    async def handle(order: bytes) -> None:
        seen.append(order.decode())

    @app.subscriber("orders", subscription="archive", batch=2, linger_s=0.05)
    async def archive(orders: list[bytes]) -> None:
        seen.append(f"batch of {len(orders)}")

    await run(app, b"a", b"b", until=lambda: seen.count("after") >= 3)
    assert seen.count("inner") == 2
    assert [each for each in seen if each.startswith("batch")] == ["batch of 2"]
    assert "before 2" in seen
    assert seen.count("before 1") == 2


def test_middleware_of_the_other_kind_is_refused() -> None:
    app = App(middleware=[noted])
    with pytest.raises(BindingError, match=r"noted.*wants a plain function"):

        @app.subscriber("orders", subscription="billing")
        def handle(order: bytes) -> None: ...

    @App(middleware=[plain]).subscriber("orders", subscription="billing")
    def other(order: bytes) -> None: ...


def test_handlers_without_middleware_are_called_as_before() -> None:
    async def handle(order: bytes) -> None: ...

    assert bind(handle).__code__ is bind(handle, (), ()).__code__
    assert not isinstance(bind(handle), type(bind(handle, (), (noted,))))
