"""Headers, bodies and members of requests, read within bounds. Each raises Problem for what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from starlette.requests import Request

from messagebus import MessageInvalid, WrongPayload
from messagebus.http.allowance import Places
from messagebus.message import decode_json
from messagebus.numbers import read_number, read_whole
from messagebus_gateway.problems import Problem
from messagebus_gateway.publishing import BATCH_MAX, BODY_BYTES_MAX, Wanted
from messagebus_integrations import cloudevents

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
    with arriving(room or Places(most)) as take_room:
        async for chunk in request.stream():
            size += len(chunk)
            if size > most:
                raise too_large(most)
            take_room(len(chunk))
            chunks.append(chunk)
    return b"".join(chunks)


@contextmanager
def arriving(room: Places) -> Iterator[Callable[[int], None]]:
    """Yield a function that takes room for a part of a body, by its size; all is given back at the end.

    The function raises Problem 429.
    """
    taken = 0

    def take(size: int) -> None:
        nonlocal taken
        if not room.enter(size):
            detail = (
                f"{room.most:,} bytes of bodies arrive at once: send fewer requests side by side"
            )
            raise Problem(429, detail, outcome="not sent", retry=True, retry_after_s=1)
        taken += size

    try:
        yield take
    finally:
        room.leave(taken)


async def read_events(request: Request, timeout_s: float) -> list[Wanted]:
    """Read a batch of CloudEvents; all of it is checked before anything is sent."""
    try:
        found = decode_json(await read_body(request, BODY_BYTES_MAX))
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
