"""Fields of requests to the agent, read and bounded, and the answers that several of its routes give."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from messagebus.broker import Broker
from messagebus.destination import Topic
from messagebus.errors import NameInvalid
from messagebus.numbers import read_number, read_whole
from messagebus.services.agent.consumer_list import TEXT_MAX
from messagebus.topology import Wanted, options_of, read_item

WAIT_S_MAX = 60.0
# 10,000 consumers on a single agent; one more is refused, and asks another agent.
WAITING_MAX = 12_000
BODY_BYTES_MAX = 4 << 20
# Of generations and versions; of waits, before they are bounded.
WHOLE_MAX, SECONDS_MAX = 10**18 - 1, 1e9
NAMES_MAX = 1_000


class BadRequest(Exception):
    """Raised when a request makes no sense; the text says why."""

    code = 400


class TooLarge(BadRequest):
    """Raised for a body with too many bytes."""

    code = 413


class TooMany(BadRequest):
    """Raised when a request makes sense, but not beside so many others."""

    code = 429


class Waiting:
    """Number of requests that wait for news."""

    def __init__(self) -> None:
        self.count = 0

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Count one more meanwhile."""
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1


def error(code: int, text: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": text}, code, headers=headers)


async def read_body(
    request: Request, take: Callable[[int], None] = lambda _: None, *, most: int = BODY_BYTES_MAX
) -> bytes:
    """Read the body once. most: bytes of it. take: called with the size of each part of it."""
    known = getattr(request.state, "body", None)
    if isinstance(known, bytes):
        return known
    body = bytearray()
    async for chunk in request.stream():
        take(len(chunk))
        body += chunk
        if len(body) > most:
            raise TooLarge(f"more than {most} bytes")
    request.state.body = bytes(body)
    return bytes(body)


def target_of(request: Request) -> str:
    """Return path and query as they were sent."""
    path, query = request.scope.get("raw_path", b""), request.scope["query_string"]
    return bytes(path + (b"?" + query if query else b"")).decode("latin-1")


async def read_json(request: Request) -> dict[str, Any]:
    """Read the body as one JSON object."""
    try:
        value = json.loads(await read_body(request))
    except ValueError as fault:
        raise BadRequest(f"not JSON: {fault}") from fault
    except RecursionError as fault:
        raise BadRequest("not JSON that is read here: too deep") from fault
    if not isinstance(value, dict):
        raise BadRequest("a JSON object wanted")
    return value


def read_wanted(value: Any) -> dict[str, Wanted]:
    """Return the wanted items by name in the one spelling, without doubles, in the order given."""
    if not isinstance(value, list) or not value:
        raise BadRequest('wanted: a list of names such as "orders", "orders/billing", "queue:jobs"')
    if len(value) > NAMES_MAX:
        raise BadRequest(f"wanted: at most {NAMES_MAX} names at once")
    wanted = dict[str, Wanted]()
    try:
        for item in map(read_item, value):
            options = options_of(wanted.setdefault(str(item), item))
            if options != options_of(item):
                raise BadRequest(f"wanted: {item} twice, with different options")
    except NameInvalid as fault:
        raise BadRequest(str(fault)) from fault
    return wanted


def read_id(text: str, key: str) -> str:
    """Check the id of a client or its subscription, which operators read on their terminals."""
    if len(text) > TEXT_MAX or not (text.isascii() and text.isprintable()):
        raise BadRequest(f"{key}: at most {TEXT_MAX} printing ASCII characters")
    return text


def read_home(body: Mapping[str, Any]) -> str:
    try:
        return Broker.parse(str(body.get("home", ""))).name
    except ValueError as fault:
        raise BadRequest(f"home: {fault}") from fault


def read_topic(request: Request) -> str:
    topic = request.query_params.get("topic", "")
    if not isinstance(read_wanted([topic])[topic], Topic):
        raise BadRequest("topic: the name of a topic")
    return topic


def read_version(text: str, key: str) -> int:
    try:
        return read_whole(text, -WHOLE_MAX, WHOLE_MAX)
    except ValueError as fault:
        raise BadRequest(f"{key}: {fault}") from None


def read_wait_s(text: str) -> float:
    try:
        return read_number(text, 0, SECONDS_MAX)
    except ValueError as fault:
        raise BadRequest(f"wait_s: {fault}") from None


async def disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def first_of(*waits: Awaitable[object], timeout_s: float) -> int | None:
    """Return the position of the wait that ended first; None when none did within timeout_s."""
    tasks: Sequence[asyncio.Future[object]] = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return next((number for number, task in enumerate(tasks) if task.done()), None)
    finally:
        for task in tasks:
            task.cancel()
