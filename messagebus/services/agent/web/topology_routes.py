"""Routes of the map: for applications that register, agents that agree, and operators who move partitions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from messagebus.errors import TopologyError, TopologyMismatch
from messagebus.services.agent.broker.plan import expires_s_of
from messagebus.services.agent.topology.agreement import NoMajority
from messagebus.services.agent.topology.homes import HOMES, PARTITIONS
from messagebus.services.agent.topology.moves import Moves
from messagebus.services.agent.topology.store import (
    entry_to_json,
    snapshot_from_json,
    snapshot_to_json,
)
from messagebus.services.agent.web.login import NAMES_PER_USER_MAX
from messagebus.services.agent.web.parts import Parts
from messagebus.services.agent.web.requests import (
    WAIT_S_MAX,
    WAITING_MAX,
    BadRequest,
    Waiting,
    disconnected,
    error,
    first_of,
    read_home,
    read_json,
    read_topic,
    read_wait_s,
    read_wanted,
)
from messagebus.services.agent.web.rights import Rights, forbidden
from messagebus.topology import options_of, topic_of


class TopologyRoutes:
    """The map, its changes, and the names that are not used."""

    def __init__(self, parts: Parts, rights: Rights) -> None:
        self._parts, self._rights = parts, rights

    async def topology(self, request: Request) -> Response:
        register, upkeep = self._parts.topology.register, self._parts.upkeep
        marks = (self._parts.started, register.version, register.informed, upkeep.losses.mark)
        headers = {"ETag": f'"{"-".join(map(str, marks))}"'}
        if request.headers.get("If-None-Match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        snapshot = register.snapshot
        return JSONResponse(
            {
                "broker": self._parts.broker,
                "informed": register.informed,
                "node": self._parts.node,
                "version": register.version,
                **snapshot_to_json(snapshot),
                "lost": [asdict(loss) for loss in upkeep.losses.kept],
            },
            headers=headers,
        )

    async def change(self, request: Request) -> Response:
        if isinstance(judged := await self._rights.judged(request, {}), Response):
            return judged
        await self._rights.body(request, judged)
        body = await read_json(request)
        wanted, alive = read_wanted(body.get("wanted")), body.get("alive", True)
        if type(alive) is not bool:
            raise BadRequest("alive: true or false")
        judged = await self._rights.judged(request, wanted)
        if isinstance(judged, Response):
            return judged
        if judged.forbidden:
            return forbidden(judged)
        if not alive and (refusal := await self._may_not_delete(request, wanted)):
            return refusal
        if alive and not self._parts.login.has_room(judged.user, wanted, self._is_alive):
            return error(429, f"user {judged.user!r} has made {NAMES_PER_USER_MAX} names here")
        options = {name: options_of(each) for name, each in wanted.items()}
        try:
            changed = await self._parts.topology.change(list(wanted), alive=alive, options=options)
        except NoMajority as refused:
            return error(409, str(refused))
        except TopologyMismatch as refused:
            return JSONResponse({"error": str(refused), "mismatch": True}, 409)
        except TopologyError as fault:
            return error(503, str(fault))
        return JSONResponse(
            {
                "complete": changed.complete,
                "held": list(changed.held),
                "later": list(changed.later),
                "missing": dict(changed.missing),
                "options": self._options_of(wanted) if alive else {},
                "created": list(changed.created),
            }
        )

    async def try_out(self, request: Request) -> Response:
        """Describe what of these exists on the broker with other options; create nothing."""
        if refusal := await self._rights.operators_only(request):
            return refusal
        body = await read_json(request)
        wanted, origin = read_wanted(body.get("wanted")), str(body.get("from", ""))
        return JSONResponse({"mismatch": await self._parts.topology.in_the_way(origin, wanted)})

    async def merge(self, request: Request) -> Response:
        if refusal := await self._rights.operators_only(request):
            return refusal
        try:
            snapshot = snapshot_from_json(await read_json(request))
        except ValueError as fault:
            raise BadRequest(str(fault)) from fault
        try:
            reply = await self._parts.topology.receive(snapshot)
        except TopologyError as fault:
            return error(503, str(fault))
        register = self._parts.topology.register
        return JSONResponse(
            {
                "answer": reply.answer.value,
                "reason": reply.reason,
                "stored": reply.stored,
                "version": register.version,
                "intact": register.intact,
                "above": reply.above,
                "entries": [
                    entry_to_json(entry) for entry in self._parts.topology.entries_of(snapshot)
                ],
            }
        )

    async def adopt(self, request: Request) -> Response:
        if refusal := await self._rights.operators_only(request):
            return refusal
        try:
            snapshot = snapshot_from_json(await read_json(request))
            await self._parts.topology.adopt(snapshot)
        except ValueError as fault:
            raise BadRequest(str(fault)) from fault
        except TopologyError as fault:
            return error(503, str(fault))
        return JSONResponse({"intact": self._parts.topology.register.intact})

    async def unused(self, _request: Request) -> Response:
        return JSONResponse({"unused_s": self._parts.unused_s()})

    def _is_alive(self, name: str) -> bool:
        entry = self._parts.topology.register.entries.get(name)
        return entry is not None and entry.alive

    def _options_of(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return the options of these names: a caller that asks for fewer takes them and has to know them."""
        entries, told = self._parts.topology.register.entries, {}
        for name in names:
            if name in entries:
                told[name] = dict(entries[name].options)
                topic = entries.get(topic_of(name))
                if PARTITIONS in told[name] and topic is not None:
                    told[name][HOMES] = dict(topic.options).get(HOMES, "")
        return told

    async def _may_not_delete(self, request: Request, names: Iterable[str]) -> Response | None:
        """Let an application delete expiring names; return a refusal of all others to all but operators."""
        entries = self._parts.topology.register.entries
        if all(name in entries and expires_s_of(entries[name]) for name in names):
            return None
        return await self._rights.operators_only(request)


class PartitionRoutes:
    """The homes of partitions. waiting: shared with the other routes for clients."""

    def __init__(self, parts: Parts, rights: Rights, moves: Moves, waiting: Waiting) -> None:
        self._parts, self._rights, self._moves = parts, rights, moves
        self._waiting = waiting

    async def partitions(self, request: Request) -> Response:
        """Return the homes of a topic: with `known`, the mark of some, when they are others."""
        topic, query = read_topic(request), request.query_params
        moves = self._moves
        if "known" in query:
            if self._waiting.count >= WAITING_MAX:
                return PlainTextResponse("too many clients wait here\n", 503)
            wait_s = read_wait_s(query.get("wait_s", "0"))
            with self._waiting.one():
                waits = moves.news(topic, query["known"], wait_s), disconnected(request)
                await first_of(*waits, timeout_s=WAIT_S_MAX)
        return JSONResponse({"broker": self._parts.broker, HOMES: moves.homes(topic)})

    async def move(self, request: Request) -> Response:
        """Begin moves of partitions whose home is here: partition -> its next home."""
        if refusal := await self._rights.operators_only(request):
            return refusal
        body = await read_json(request)
        topic, wanted = str(body.get("topic", "")), body.get("to")
        if not isinstance(wanted, dict) or not all(
            key.isascii() and key.isdigit() and len(key) < 5 and isinstance(to, str)
            for key, to in wanted.items()
        ):
            raise BadRequest('to: an object such as {"7": "mb2:5672"}')
        told = await self._moves.begin(topic, {int(key): to for key, to in wanted.items()})
        return JSONResponse(
            {"broker": self._parts.broker, "refused": {k: v for k, v in told.items() if v}}
        )

    async def abandon(self, request: Request) -> Response:
        """Decide in place of a home whose disk is lost: partition -> what it waits for, to be asked again."""
        if refusal := await self._rights.operators_only(request):
            return refusal
        body = await read_json(request)
        try:
            told = await self._moves.abandon(str(body.get("topic", "")), read_home(body))
        except TopologyError as why:
            return error(409, str(why))
        return JSONResponse({"broker": self._parts.broker, "waits": told})

    async def agree(self, request: Request) -> Response:
        """Say why another agent may not decide in place of a home, "" when it may."""
        if refusal := await self._rights.operators_only(request):
            return refusal
        body = await read_json(request)
        why = await self._moves.why_not_abandoned(read_home(body), str(body.get("from")))
        return JSONResponse({"why_not": why})

    async def bound(self, request: Request) -> Response:
        """Return the segments of a topic that are bound here, for agents of other homes; null: gate shut."""
        topic = read_topic(request)
        upkeep = self._parts.upkeep
        return JSONResponse(
            {"bound": upkeep.partitions.bound(topic) if upkeep.condition.gate_open else None}
        )
