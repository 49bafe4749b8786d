"""Requests to an application whose bodies begin and do not end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.support.eventually import eventually_async

Post = Callable[..., Coroutine[Any, Any, httpx.Response]]


@asynccontextmanager
async def held_bodies(
    posts: Collection[Post], part: bytes, *, refused: int
) -> AsyncIterator[list[asyncio.Task[httpx.Response]]]:
    """Begin these requests at once; at the exit the bodies end.

    posts: each takes the body as `content`. part: the beginning of each body. refused: how many are answered
    before, by 429.
    """
    go_on = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield part
        await go_on.wait()

    async with asyncio.TaskGroup() as group:
        held = [group.create_task(post(content=body())) for post in posts]
        await eventually_async(lambda: sum(each.done() for each in held) == refused, within_s=60)
        assert {each.result().status_code for each in held if each.done()} == {429}
        yield held
        go_on.set()
