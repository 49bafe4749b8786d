"""Fixtures of the plug-in for asyncio, registered where pytest-asyncio or anyio runs tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from messagebus.aio import AsyncConsumer, AsyncPublisher
    from messagebus.testing.bus import MemoryBus

try:
    from pytest_asyncio import fixture
except ImportError:
    fixture = pytest.fixture  # type: ignore[assignment]

__all__ = ["messagebus_async_consumer", "messagebus_async_publisher"]


@fixture
async def messagebus_async_publisher(messagebus_bus: MemoryBus) -> AsyncIterator[AsyncPublisher]:
    """A running `AsyncPublisher` on `messagebus_bus`."""
    publisher = messagebus_bus.async_publisher()
    await publisher.start(require="one")
    yield publisher
    messagebus_bus.thaw()
    await publisher.stop(0)


@fixture
async def messagebus_async_consumer(
    messagebus_bus: MemoryBus,
) -> AsyncIterator[Callable[..., Awaitable[AsyncConsumer]]]:
    """Function for `AsyncConsumer`s: ``await messagebus_async_consumer("orders", subscription="b")``.

    They are running. Arguments are those of `MemoryBus.async_consumer`.
    """
    async with AsyncExitStack() as stack:

        async def make(*args: Any, **kwargs: Any) -> AsyncConsumer:
            consumer = messagebus_bus.async_consumer(*args, **kwargs)
            await consumer.start(require="all")
            stack.push_async_callback(consumer.stop, 0)
            return consumer

        yield make
        messagebus_bus.thaw()
