"""Headers, bodies and members of requests, read within bounds. Each raises Problem for what it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Self

from starlette.requests import Request

from messagebus import MessageInvalid, WrongPayload
from messagebus.bodies import decode_json
from messagebus.http.allowance import Places
from messagebus.integrations import cloudevents
from messagebus.message import BODY_BYTES_MAX
from messagebus.numbers import read_number, read_whole
from messagebus.services.gateway.problems import Problem
from messagebus.services.gateway.publishing import (
    BATCH_BYTES_MAX,
    BATCH_MAX,
    LARGE_BYTES,
    LINE_BYTES_MAX,
    Wanted,
)

JSON_BYTES_MAX = 4 << 20


def read_texts(request: Request) -> list[tuple[str, str]]:
    """Return the headers as texts. Raises Problem 400 for one that is not UTF-8."""
    try:
        return [(name.decode(), value.decode()) for name, value in request.headers.raw]
    except UnicodeDecodeError:
        raise Problem(400, "a header that is not UTF-8", outcome="not sent") from None


def read_length(request: Request) -> int:
    said = request.headers.get("content-length", "0")
    length = int(said) if said.isdigit() else 0
    if length > BODY_BYTES_MAX:
        raise too_large(BODY_BYTES_MAX)
    return length


def too_large(most: int) -> Problem:
    return Problem(413, f"a body of more than {most:,} bytes", outcome="not sent")


async def read_body(request: Request, most: int, room: Places | None = None) -> bytes:
    """Read a whole body. room: of all bodies of its principal that arrive. Raises Problem 413 and 429."""
    chunks, size = [], 0
    with Arriving(room or Places(most)) as held:
        async for chunk in request.stream():
            size += len(chunk)
            if size > most:
                raise too_large(most)
            held.take(len(chunk))
            chunks.append(chunk)
    return b"".join(chunks)


class Arriving:
    """Room that the held parts of one body take; it is given back at the end."""

    def __init__(self, room: Places) -> None:
        self._room, self._taken = room, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()

    def take(self, size: int) -> None:
        """Take room for so many bytes. Raises Problem 429."""
        if not self._room.enter(size):
            detail = f"{self._room.most:,} bytes of bodies arrive at once: send fewer requests in parallel"
            raise Problem(429, detail, outcome="not sent", retry=True, retry_after_s=1)
        self._taken += size

    def give_back(self) -> None:
        """Give all room back: nothing of the body is held any more."""
        self._room.leave(self._taken)
        self._taken = 0


class LargeTurn:
    """Turn of a large body, by turns of its principal and of the process; the first wait is for its own.

    request_s: time for the whole request to arrive. Half of it may pass before its turn, so that the answer
    comes before the connection is closed.
    """

    def __init__(self, own: asyncio.Semaphore, every: asyncio.Semaphore, request_s: float) -> None:
        self._own, self._every, self._wait_s = own, every, request_s / 2

    async def __aenter__(self) -> None:
        """Wait for the turn. Raises Problem 503 when others have all turns for too long."""
        try:
            async with asyncio.timeout(self._wait_s):
                await self._own.acquire()
                try:
                    await self._every.acquire()
                except BaseException:
                    self._own.release()
                    raise
        except TimeoutError:
            detail = f"other bodies above {LARGE_BYTES:,} bytes arrive; no turn within {self._wait_s:g} s"
            raise Problem(
                503, detail, outcome="not sent", retry=True, retry_after_s=self._wait_s
            ) from None

    async def __aexit__(self, *_: object) -> None:
        self._every.release()
        self._own.release()


async def read_events(request: Request, timeout_s: float, room: Places | None) -> list[Wanted]:
    """Read a batch of CloudEvents; all of it is checked before anything is sent. room: as of `read_body`."""
    try:
        found = decode_json(await read_body(request, BODY_BYTES_MAX, room))
    except WrongPayload as fault:
        raise Problem(400, str(fault), outcome="not sent") from None
    if not isinstance(found, list) or not found:
        raise Problem(400, "a list of CloudEvents wanted", outcome="not sent")
    if len(found) > BATCH_MAX:
        raise Problem(413, f"more than {BATCH_MAX:,} messages in a batch", outcome="not sent")
    wanted = []
    for place, each in enumerate(found, start=1):
        try:
            wanted.append(Wanted(cloudevents.of_json(each), {}, timeout_s))
        except MessageInvalid as fault:
            raise Problem(400, f"event {place}: {fault}", outcome="not sent", line=place) from None
    return wanted


async def read_lines(
    chunks: AsyncIterator[bytes], large: AbstractAsyncContextManager[object], room: Places
) -> AsyncGenerator[list[bytes], None]:
    """Yield the lines that each chunk completes, without their ends; empty ones too. Raises Problem 413, 429.

    large: the turn of a line above LARGE_BYTES, until it is complete. room: of lines that are not complete.
    """
    async with AsyncExitStack() as turn:
        with Arriving(room) as held:
            async for lines in _read_lines(chunks, large, turn, held):
                yield lines


async def _read_lines(
    chunks: AsyncIterator[bytes],
    large: AbstractAsyncContextManager[object],
    turn: AsyncExitStack,
    held: Arriving,
) -> AsyncIterator[list[bytes]]:
    rest: list[bytes] = []
    size = line_size = 0
    is_large = False
    async for chunk in chunks:
        size += len(chunk)
        head, end, tail = chunk.partition(b"\n")
        line_size += len(head)
        if size > BATCH_BYTES_MAX or line_size > LINE_BYTES_MAX:
            most, what = (
                (BATCH_BYTES_MAX, "batch") if size > BATCH_BYTES_MAX else (LINE_BYTES_MAX, "line")
            )
            raise Problem(413, f"more than {most:,} bytes in a {what}", outcome="not sent")
        rest.append(head)
        if not end:
            if not is_large:
                held.take(len(head))
            if line_size > LARGE_BYTES and not is_large:
                await turn.enter_async_context(large)
                is_large = True
            continue
        first = b"".join(rest)
        *lines, last = tail.split(b"\n")
        rest, line_size = [last], len(last)
        held.give_back()
        held.take(len(last))
        yield [first, *lines]
        await turn.aclose()
        is_large = False
    if last := b"".join(rest):
        yield [last]


async def read_object(request: Request, known: set[str], room: Places) -> dict[str, Any]:
    """Read a JSON object; nothing is an empty one. Raises Problem 400, 413 and 429."""
    body = await read_body(request, JSON_BYTES_MAX, room)
    try:
        found = decode_json(body) if body.strip() else {}
    except WrongPayload as fault:
        raise Problem(400, str(fault)) from None
    if not isinstance(found, dict):
        raise Problem(400, "an object wanted")
    if unknown := sorted(set(found) - known):
        raise Problem(400, f"{unknown[0][:40]!r}: no such member; {', '.join(sorted(known))}")
    return found


def read_count(given: Mapping[str, Any], name: str, default: int, low: int, high: int) -> int:
    try:
        return read_whole(given.get(name, default), low, high)
    except ValueError:
        raise Problem(400, f"{name}: {low:,} to {high:,}") from None


def read_seconds(
    given: Mapping[str, Any], name: str, default: float, low: float, high: float
) -> float:
    value = given.get(name, default)
    try:
        return read_number(None if isinstance(value, str) else value, low, high)
    except ValueError:
        raise Problem(400, f"{name}: {low:g} to {high:g} seconds") from None
