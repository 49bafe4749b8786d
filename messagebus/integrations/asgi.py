"""Start and stop of the bus with an ASGI application: FastAPI, Starlette, Litestar."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from messagebus import App

__all__ = ["bus_of", "lifespan"]

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


def lifespan(
    bus: App, *, around: Lifespan | None = None, require: str | None = None, timeout_s: float = 10.0
) -> Lifespan:
    """Return a lifespan that starts the bus before the first request and stops it after the last one.

    bus: an `App`; its handlers run beside the requests. An app without handlers only publishes. Routes find
    it as ``request.app.state.messagebus``. around: another lifespan, which starts before the bus and ends
    after it. require: as of `App.start`.
    """

    @asynccontextmanager
    async def begin(application: Any) -> AsyncIterator[Any]:
        async with AsyncExitStack() as stack:
            state = None
            if around is not None:
                state = await stack.enter_async_context(around(application))
            await bus.start(require=require, timeout_s=timeout_s)
            stack.push_async_callback(bus.stop)
            application.state.messagebus = bus
            yield state

    return begin


def bus_of(application: Any) -> App:
    """Return the `App` of an application with this lifespan, for dependencies of its framework."""
    bus: App = application.state.messagebus
    return bus
