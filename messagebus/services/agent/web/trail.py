"""The trail: rows that clients send about some of their messages, kept on disk for a day.

It is off unless `trail_bytes` is set. It helps people to find a message; it proves nothing. Rows say what a
client says of itself, they are not synced to disk, and what comes too fast is refused.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from messagebus.files import owner_only
from messagebus.services.agent.web.login import Judged
from messagebus.services.agent.web.requests import error
from messagebus.topology import Wanted

BODY_BYTES_MAX = 1 << 20
# Of all clients together: 5,000 rows of 200 bytes a second.
BYTES_PER_S, BYTES_BURST = 1 << 20, 4 << 20
KEPT_S = 86_400
# A file is searched at about 1 GB/s, so the whole of 1 GiB takes a second without any index.
FILES = 16
ROWS_SHOWN_MAX = 100
TEXT_CHARS_MAX = 300
ID_CHARS_MIN, ID_CHARS_MAX = 6, 255
TEXTS = ("name", "what", "broker", "client", "error")
NUMBERS = ("at_ms", "attempt")
# As a time in ms it is in the year 6429.
NUMBER_MAX = 1 << 47

Judge = Callable[[Request, Mapping[str, Wanted]], Awaitable[Judged | Response]]
Readable = Callable[[Request], Awaitable[Mapping[str, Any] | Response | None]]
Read = Callable[[Request, Judged, int], Awaitable[bytes]]


class Trail:
    """The trail at one agent. folder: of its files. bytes_max: of all of them; the oldest are deleted."""

    def __init__(
        self, folder: Path, bytes_max: int, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._folder, self._bytes_max, self._clock = folder, bytes_max, clock
        self._left, self._since_s = float(BYTES_BURST), 0.0
        self._turn = asyncio.Lock()

    def routes(self, judge: Judge, readable: Readable, read: Read) -> list[Route]:
        """Return ``POST /trail``, lines of JSON, and ``GET /trail/{id}``, an id or its beginning.

        readable: names that a caller may read; None for everything. read: the body of a caller, up to so many
        bytes.
        """

        async def add(request: Request) -> Response:
            judged = await judge(request, {})
            if isinstance(judged, Response):
                return judged
            return await self._add(await read(request, judged, BODY_BYTES_MAX))

        async def find(request: Request) -> Response:
            names = await readable(request)
            if isinstance(names, Response):
                return names
            id = request.path_params["id"]
            if not ID_CHARS_MIN <= len(id) <= ID_CHARS_MAX:
                return error(400, f"id: {ID_CHARS_MIN} to {ID_CHARS_MAX} characters")
            async with self._turn:  # one search at a time: each reads all files
                return JSONResponse({"rows": await asyncio.to_thread(self.find, id, names)})

        return [
            Route("/trail", add, methods=["POST"]),
            Route("/trail/{id:path}", find, methods=["GET"]),
        ]

    async def _add(self, body: bytes) -> Response:
        if not self._has_room(len(body)):
            return error(429, f"more than {BYTES_PER_S} bytes a second", {"Retry-After": "5"})
        try:
            lines = [_line(each) for each in body.splitlines() if each]
        except ValueError as fault:
            return error(400, str(fault))
        try:
            await asyncio.to_thread(self.add, lines)
        except OSError as fault:
            return error(507, f"the trail cannot be written: {fault.strerror}")
        return JSONResponse({"rows": len(lines)})

    def _has_room(self, size: int) -> bool:
        now_s = self._clock()
        passed_s = max(0.0, now_s - self._since_s)
        self._left, self._since_s = min(BYTES_BURST, self._left + passed_s * BYTES_PER_S), now_s
        if size > self._left:
            return False
        self._left -= size
        return True

    def add(self, lines: list[bytes]) -> None:
        """Append rows to the newest file; delete what is too old or too much. Raises OSError. Any thread."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        files, now_ms = self._files(), int(self._clock() * 1_000)
        newest = files[0] if files else None
        if newest is None or newest.stat().st_size >= self._bytes_max // FILES:
            newest = self._folder / f"trail-{now_ms:014}.ndjson"
        with open(newest, "ab", opener=owner_only) as file:
            file.write(b"".join(lines))
        kept = 0
        for path in self._files():
            found = path.stat()
            kept += found.st_size
            is_old = found.st_mtime < self._clock() - KEPT_S
            if path != newest and (is_old or kept > self._bytes_max):
                path.unlink(missing_ok=True)

    def find(self, id: str, names: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Return rows about an id, or its beginning, at most 100, the earliest first. Any thread.

        names: that the caller may read; None for all.
        """
        needle = b'{"message_id":' + json.dumps(id).encode()[:-1]
        rows = list[dict[str, Any]]()
        for path in self._files():
            if len(rows) >= ROWS_SHOWN_MAX:
                break
            try:
                seen = (row for row in _rows_in(path, needle) if _may_see(row, names))
                rows += islice(seen, ROWS_SHOWN_MAX - len(rows))
            except (OSError, ValueError):  # deleted just now, or empty
                continue
        return sorted(rows, key=lambda row: row["at_ms"])

    def _files(self) -> list[Path]:
        """Return the files, the newest first."""
        return sorted(self._folder.glob("trail-*.ndjson"), reverse=True)


def _rows_in(path: Path, needle: bytes) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        at = text.find(needle)
        while at >= 0:
            end = text.find(b"\n", at)
            if end < 0:
                return
            with suppress(ValueError):  # cut by a kill, and another row behind it
                yield json.loads(text[at:end])
            at = text.find(needle, end)


def _line(raw: bytes) -> bytes:
    """Read a client's row, and write it in our own form. Raises ValueError for anything else."""
    try:
        said = json.loads(raw)
    except (ValueError, RecursionError):
        raise ValueError("a row is no JSON") from None
    if not isinstance(said, dict) or said.keys() - {"message_id", *TEXTS, *NUMBERS}:
        raise ValueError(f"a row has message_id, {', '.join((*TEXTS, *NUMBERS))}")
    id = said.get("message_id")
    if not (isinstance(id, str) and 0 < len(id) <= ID_CHARS_MAX):
        raise ValueError(f"message_id: 1 to {ID_CHARS_MAX} characters")
    made: dict[str, Any] = {"message_id": id}
    for key in TEXTS:
        if not isinstance(text := said.get(key, ""), str):
            raise ValueError(f"{key}: a text wanted")
        made[key] = text[:TEXT_CHARS_MAX]
    for key in NUMBERS:
        if type(number := said.get(key, 0)) is not int or not 0 <= number < NUMBER_MAX:
            raise ValueError(f"{key}: a whole number wanted")
        made[key] = number
    return json.dumps(made, separators=(",", ":")).encode() + b"\n"


def _may_see(row: Mapping[str, Any], readable: Mapping[str, Any] | None) -> bool:
    """Return whether a row is about a name that the caller may read, or about the topic of one."""
    name = row["name"]
    return (
        readable is None
        or name in readable
        or any(each.partition("/")[0] == name for each in readable)
    )
