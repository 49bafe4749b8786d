"""Middleware of an app, and dependencies of its handlers, over brokers in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any

import pytest

from messagebus import App, BindingError, Delivery
from messagebus.payloads.binding import bind
from messagebus.testing import MemoryBus
from messagebus_integrations.depends import Depends, inject
from tests.support.eventually import eventually_async

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
