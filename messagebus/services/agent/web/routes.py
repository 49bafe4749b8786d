"""The agent's HTTP interface: translates requests to calls and answers to JSON.

Decides nothing. Errors are one line of text, or `{"error": ...}` where JSON is spoken.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from messagebus._io.loop import Tasks
from messagebus.admin.proof import ASK, PROOF, Challenges, answer_proof, is_nonce
from messagebus.broker import WIRE_VERSION, Broker
from messagebus.clock import monotonic_ms
from messagebus.destination import Topic
from messagebus.errors import (
    ConfigError,
    LinkError,
    NameInvalid,
    TopologyError,
    TopologyMismatch,
)
from messagebus.http.allowance import SharedPlaces
from messagebus.http.connections import source_of
from messagebus.http.guard import Guard, ProgramsOnly
from messagebus.numbers import read_number, read_whole
from messagebus.services.agent.broker.loads import Count, Counting
from messagebus.services.agent.broker.plan import expires_s_of
from messagebus.services.agent.broker.upkeep import Upkeep
from messagebus.services.agent.consumer_list import TEXT_MAX, Clients, ListFile
from messagebus.services.agent.gate import Verdict, VerdictKind
from messagebus.services.agent.topology.agreement import NoMajority, Topology
from messagebus.services.agent.topology.homes import HOMES, PARTITIONS
from messagebus.services.agent.topology.moves import Moves
from messagebus.services.agent.topology.register import Entry
from messagebus.services.agent.topology.store import (
    entry_to_json,
    snapshot_from_json,
    snapshot_to_json,
)
from messagebus.services.agent.web.login import NAMES_PER_USER_MAX, Admission, Judged, Login
from messagebus.services.agent.web.metrics import Metrics
from messagebus.services.agent.web.observe import Observer
from messagebus.services.agent.web.tap import Taps
from messagebus.services.agent.web.trail import Trail
from messagebus.topology import Wanted, options_of, parse_wanted, read_item, topic_of

log = logging.getLogger("messagebus.agent")

WAIT_S_MAX = 60.0
# 10,000 consumers on a single agent; one more is refused, and asks another agent.
WAITING_MAX = 12_000
BODY_BYTES_MAX = 4 << 20
# Of all bodies together whose proof of the token is not looked at before they have come; of one source half.
UNPROVEN_BYTES_MAX = 64 << 20
# Of generations and versions; of waits, before they are bounded.
WHOLE_MAX, SECONDS_MAX = 10**18 - 1, 1e9
# Generations that a client may be ahead of the list here, which was restored from an old backup.
APPLIED_AHEAD_MAX = 1_000
# Wait for the proof of a login, 25 ms commonly, so that a client is counted when it has its answer.
PROOF_WAIT_S = 0.2
NAMES_MAX = 1_000
# A page of a monitor.
OBSERVED_NAMES_MAX = 200
# A monitor waits once at each agent; each waiting request looks ten times a second.
OBSERVING_MAX = 64
FORBIDDEN_TOLD = 5
# The rows of 500 queues are 50 KB, and 9 KB squeezed, which takes 0.6 ms.
SQUEEZED_BYTES_MIN = 1_000

_HEALTH_CODES = {VerdictKind.READY: 200, VerdictKind.DRAIN: 404, VerdictKind.DOWN: 503}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of the agent that the interface speaks for.

    verdict: on the broker, now. is_draining: operators' wish; set_draining stores it.
    unused_s: seconds without use of each expiring subscription. started: marks this process in ETags.
    node: name and epmd_port of the broker's Erlang node, None when it is not configured. names: hosts by
    which the agent is called, in lower case, beside addresses and names without a dot.
    """

    broker: str
    lists: ListFile
    clients: Clients
    topology: Topology
    upkeep: Upkeep
    login: Login
    counting: Counting
    observer: Observer
    unused_s: Callable[[], Mapping[str, float | None]]
    metrics: Metrics
    verdict: Callable[[], Verdict]
    is_draining: Callable[[], bool]
    set_draining: Callable[[bool], Awaitable[None]]
    started: str
    node: Mapping[str, str | int] | None = None
    names: Collection[str] = ()
    moves: Moves | None = None
    taps: Taps | None = None
    trail: Trail | None = None


class BadRequest(Exception):
    """Raised when a request makes no sense; the text says why."""

    code = 400


class TooMany(BadRequest):
    """Raised when a request makes sense, but not beside so many others."""

    code = 429


def application(parts: Parts) -> Starlette:
    """Return the ASGI application of one agent."""
    web = _Web(parts)
    answers = [
        ("/consumer-list", web.consumer_list, "GET"),
        ("/clients", web.clients, "GET"),
        ("/topology", web.topology, "GET"),
        ("/topology", web.change, "POST"),
        ("/topology/merge", web.merge, "POST"),
        ("/topology/adopt", web.adopt, "POST"),
        ("/topology/try", web.try_out, "POST"),
        ("/unused", web.unused, "GET"),
        ("/subscriptions", web.subscriptions, "GET"),
        ("/observe", web.observe, "GET"),
        ("/subscriptions/purge", web.purge, "POST"),
        ("/settled", web.settled, "GET"),
        ("/health", web.health, "GET"),
        ("/live", web.live, "GET"),
        ("/metrics", web.metrics, "GET"),
        ("/drain", web.drain, "POST"),
    ]
    if parts.moves is not None:
        answers += [
            ("/partitions", web.partitions, "GET"),
            ("/partitions", web.move, "POST"),
            ("/partitions/bound", web.bound, "GET"),
            ("/partitions/abandon", web.abandon, "POST"),
            ("/partitions/agree", web.agree, "POST"),
        ]
    squeezed = [Middleware(GZipMiddleware, minimum_size=SQUEEZED_BYTES_MIN, compresslevel=1)]
    routes = [
        Route(
            path,
            web.proving(answer),
            methods=[how],
            middleware=squeezed if path == "/observe" else None,
        )
        for path, answer, how in answers
    ]
    if parts.taps is not None:
        routes.append(parts.taps.route(web._judged, lambda: parts.topology.register.entries))
    if parts.trail is not None:
        routes += parts.trail.routes(web._judged, web._readable_part)
    return Starlette(
        routes=routes,
        middleware=[Middleware(ProgramsOnly, Guard(names=parts.names))],
        exception_handlers={BadRequest: _bad_request, ClientDisconnect: _gone},
    )


@dataclass(slots=True)
class _Reader:
    """Client that asks for the list. who: its id and subscription. login: its header `Authorization`.

    is_counted: its login was good.
    """

    who: tuple[str, str]
    applied: int
    login: str
    is_counted: bool = False


class _Web:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._challenges = Challenges(parts.login.token)
        self._unproven = SharedPlaces(UNPROVEN_BYTES_MAX)
        self._waiting = self._observing = 0
        self._waiting_as = Counter[tuple[str, str]]()
        self._counting = Tasks()
        names = (f"{parts.started}/{parts.started}", f"queue:{parts.started}")
        self._anything = {name: parse_wanted(name) for name in names}

    # The list and its readers.

    async def consumer_list(self, request: Request) -> Response:
        lists, query = self._parts.lists, request.query_params
        generation = _whole(query.get("generation", "-1"), "generation")
        wait_s = min(_seconds(query.get("wait_s", "0")), WAIT_S_MAX)
        reader = self._reader(request)
        if lists.current is None:
            return PlainTextResponse(f"no consumer list: {lists.fault}\n", 503)
        if "generation" in query and lists.current.generation <= generation:
            return await self._wait_for_list(request, reader, generation, wait_s)
        if reader is not None:
            await asyncio.wait({self._counting.spawn(self._count(reader))}, timeout=PROOF_WAIT_S)
        return self._list(request)

    async def _wait_for_list(
        self, request: Request, reader: _Reader | None, generation: int, wait_s: float
    ) -> Response:
        if self._waiting >= WAITING_MAX:
            return PlainTextResponse("too many clients wait here\n", 503)
        self._waiting += 1
        counting = self._counting.spawn(self._count_waiting(reader)) if reader is not None else None
        try:
            ended = await _first_of(
                self._parts.lists.newer_than(generation), _disconnected(request), timeout_s=wait_s
            )
            if ended != 1 and counting is not None:
                await asyncio.wait({counting}, timeout=PROOF_WAIT_S)
        finally:
            self._waiting -= 1
            if counting is not None:
                counting.cancel()
            is_last = reader is not None and self._waits_no_more(reader)
        if ended == 1:
            # Clients may share an id: one that still waits here is not dropped.
            if reader is not None and is_last:
                self._parts.clients.left(*reader.who, monotonic_ms())
            return Response(status_code=499)
        if reader is not None and reader.is_counted:
            self._seen(reader)
            self._parts.clients.answered(*reader.who, monotonic_ms())
        current = self._parts.lists.current
        if current is not None and current.generation > generation:
            return self._list(request)
        return Response(status_code=304, headers=self._list_headers())

    def _list(self, request: Request) -> Response:
        headers = self._list_headers()
        if request.headers.get("If-None-Match") == headers["ETag"] and not request.query_params.get(
            "wait_s"
        ):
            return Response(status_code=304, headers=headers)
        return PlainTextResponse(self._parts.lists.text, headers=headers)

    def _list_headers(self) -> dict[str, str]:
        current = self._parts.lists.current
        assert current is not None
        return {
            "ETag": self._parts.lists.etag,
            "MB-Generation": str(current.generation),
            "MB-Cluster": current.cluster,
            "MB-Wire": WIRE_VERSION,
            "Cache-Control": "no-cache",
        }

    def _reader(self, request: Request) -> _Reader | None:
        """Return who asks, None for one that says no id or has no list yet. Raises BadRequest."""
        query = request.query_params
        client_id = _id(query.get("client", ""), "client")
        if not client_id:
            return None
        subscription = _id(query.get("subscription", ""), "subscription")
        applied = _whole(query.get("applied", "0"), "applied")
        if not applied and "generation" not in query:
            return None  # It has no list that is old; where it ends now, nobody would hear of it.
        header = request.headers.get("Authorization", "")
        return _Reader((client_id, subscription), applied, header)

    async def _count(self, reader: _Reader) -> None:
        """Count a client once its login is proved. While the broker is away nobody can prove one."""
        login = self._parts.login
        if self._parts.upkeep.condition.linked and not await login.is_user(reader.login):
            return
        self._seen(reader)
        reader.is_counted = True

    async def _count_waiting(self, reader: _Reader) -> None:
        await self._count(reader)
        if reader.is_counted:
            self._waiting_as[reader.who] += 1

    def _waits_no_more(self, reader: _Reader) -> bool:
        """Return whether nobody else that is counted waits under this id."""
        if not reader.is_counted:
            return False
        self._waiting_as[reader.who] -= 1
        if self._waiting_as[reader.who]:
            return False
        del self._waiting_as[reader.who]
        return True

    def _seen(self, reader: _Reader) -> None:
        current = self._parts.lists.current
        # A generation that no client can have applied must not hold up a push.
        if current is not None and reader.applied > current.generation + APPLIED_AHEAD_MAX:
            return
        self._parts.clients.seen(*reader.who, reader.applied, monotonic_ms())

    async def clients(self, _request: Request) -> Response:
        now_ms = monotonic_ms()
        return JSONResponse(
            {
                "clients": [
                    {
                        "id": client.id,
                        "subscription": client.subscription,
                        "applied": client.applied,
                        "age_s": round(client.age_ms / 1000, 3),
                        "waits": bool(self._waiting_as[client.id, client.subscription]),
                    }
                    for client in self._parts.clients.living(now_ms)
                ],
                "left": [
                    {
                        "id": client.id,
                        "subscription": client.subscription,
                        "age_s": round(client.age_ms / 1000, 3),
                    }
                    for client in self._parts.clients.gone(now_ms)
                ],
            }
        )

    # The topology.

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
        if isinstance(judged := await self._judged(request, {}), Response):
            return judged
        body = await _json(request)
        wanted, alive = _wanted(body.get("wanted")), body.get("alive", True)
        if type(alive) is not bool:
            raise BadRequest("alive: true or false")
        judged = await self._judged(request, wanted)
        if isinstance(judged, Response):
            return judged
        if judged.forbidden:
            return _forbidden(judged)
        if not alive and (refusal := await self._may_not_delete(request, wanted)):
            return refusal
        if alive and not self._parts.login.has_room(judged.user, wanted, self._is_alive):
            return _error(429, f"user {judged.user!r} has made {NAMES_PER_USER_MAX} names here")
        options = {name: options_of(each) for name, each in wanted.items()}
        try:
            changed = await self._parts.topology.change(list(wanted), alive=alive, options=options)
        except NoMajority as refused:
            return _error(409, str(refused))
        except TopologyMismatch as refused:
            return JSONResponse({"error": str(refused), "mismatch": True}, 409)
        except TopologyError as fault:
            return _error(503, str(fault))
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
        return await self._operators_only(request)

    async def try_out(self, request: Request) -> Response:
        """Describe what of these exists on the broker with other options; create nothing."""
        if refusal := await self._operators_only(request):
            return refusal
        body = await _json(request)
        wanted, origin = _wanted(body.get("wanted")), str(body.get("from", ""))
        return JSONResponse({"mismatch": await self._parts.topology.in_the_way(origin, wanted)})

    # Partitions.

    async def partitions(self, request: Request) -> Response:
        """Return the homes of a topic: with `known`, the mark of some, when they are others."""
        topic, query = _topic(request), request.query_params
        moves = self._parts.moves
        assert moves is not None
        if "known" in query:
            if self._waiting >= WAITING_MAX:
                return PlainTextResponse("too many clients wait here\n", 503)
            wait_s = _seconds(query.get("wait_s", "0"))
            self._waiting += 1
            try:
                waits = moves.news(topic, query["known"], wait_s), _disconnected(request)
                await _first_of(*waits, timeout_s=WAIT_S_MAX)
            finally:
                self._waiting -= 1
        return JSONResponse({"broker": self._parts.broker, HOMES: moves.homes(topic)})

    async def move(self, request: Request) -> Response:
        """Begin moves of partitions whose home is here: partition -> its next home."""
        if refusal := await self._operators_only(request):
            return refusal
        body = await _json(request)
        topic, wanted = str(body.get("topic", "")), body.get("to")
        if not isinstance(wanted, dict) or not all(
            key.isascii() and key.isdigit() and len(key) < 5 and isinstance(to, str)
            for key, to in wanted.items()
        ):
            raise BadRequest('to: an object such as {"7": "mb2:5672"}')
        assert self._parts.moves is not None
        told = await self._parts.moves.begin(topic, {int(key): to for key, to in wanted.items()})
        return JSONResponse(
            {"broker": self._parts.broker, "refused": {k: v for k, v in told.items() if v}}
        )

    async def abandon(self, request: Request) -> Response:
        """Decide in place of a home whose disk is lost: partition -> what it waits for, to be asked again."""
        if refusal := await self._operators_only(request):
            return refusal
        body, moves = await _json(request), self._parts.moves
        assert moves is not None
        try:
            told = await moves.abandon(str(body.get("topic", "")), _home(body))
        except TopologyError as why:
            return _error(409, str(why))
        return JSONResponse({"broker": self._parts.broker, "waits": told})

    async def agree(self, request: Request) -> Response:
        """Say why another agent may not decide in place of a home, "" when it may."""
        if refusal := await self._operators_only(request):
            return refusal
        body, moves = await _json(request), self._parts.moves
        assert moves is not None
        why = await moves.why_not_abandoned(_home(body), str(body.get("from")))
        return JSONResponse({"why_not": why})

    async def bound(self, request: Request) -> Response:
        """Return the segments of a topic that are bound here, for agents of other homes; null: gate shut."""
        topic = _topic(request)
        upkeep = self._parts.upkeep
        return JSONResponse(
            {"bound": upkeep.partitions.bound(topic) if upkeep.condition.gate_open else None}
        )

    async def unused(self, _request: Request) -> Response:
        return JSONResponse({"unused_s": self._parts.unused_s()})

    # Subscriptions and queues of the own broker.

    async def observe(self, request: Request) -> Response:
        """Return what is known of the broker: with `state_after`, when its state is another one."""
        query, observer = request.query_params, self._parts.observer
        names = [name for name in query.get("names", "").split(",") if name]
        if len(names) > OBSERVED_NAMES_MAX:
            raise BadRequest(f"names: at most {OBSERVED_NAMES_MAX}")
        entries = await self._readable(request)
        if isinstance(entries, Response):
            return entries
        if is_state := "state_after" in query:
            version = _whole(query["state_after"], "state_after")
            wait_s = min(_seconds(query.get("wait_s", "0")), WAIT_S_MAX)
            if self._observing >= OBSERVING_MAX:
                return PlainTextResponse("too many wait here\n", 503)
            self._observing += 1
            try:
                waits = (observer.changed(version), _disconnected(request))
                ended = await _first_of(*waits, timeout_s=wait_s)
            finally:
                self._observing -= 1
            if ended == 1:
                return Response(status_code=499)
            if observer.version == version:
                return Response(status_code=304)
        body = await observer.answer(
            None if self._is_all(entries) else entries.keys(),
            names=names,
            since=query.get("since", ""),
            state_only=is_state,
            all_clients=query.get("clients") == "all",
        )
        return JSONResponse(body)

    async def subscriptions(self, request: Request) -> Response:
        """Return the subscriptions and queues that the caller's rights cover."""
        entries = await self._readable(request)
        if isinstance(entries, Response):
            return entries
        try:
            counts = await self._parts.counting.counts(entries)
        except LinkError as fault:
            return _error(503, str(fault))
        return JSONResponse(
            {
                "broker": self._parts.broker,
                "subscriptions": {
                    name: {**_told(count), **dict(entries[name].options)}
                    for name, count in counts.items()
                },
            }
        )

    async def _readable(self, request: Request) -> dict[str, Entry] | Response:
        """Return the living entries that the caller's rights cover, or the refusal."""
        entries = self._parts.topology.register.entries
        known = {name: parse_wanted(name) for name, entry in entries.items() if entry.alive}
        # A user who may read any name need not be checked for each of thousands.
        judged = await self._judged(request, self._anything)
        if not isinstance(judged, Response) and judged.forbidden:
            judged = await self._judged(request, known)
        if isinstance(judged, Response):
            return judged
        if known and len(judged.forbidden) == len(known):
            return _forbidden(judged)
        return {name: entries[name] for name in known.keys() - set(judged.forbidden)}

    async def _readable_part(self, request: Request) -> dict[str, Entry] | Response | None:
        """Return as `_readable`, but None when the caller's rights cover all entries."""
        entries = await self._readable(request)
        is_all = not isinstance(entries, Response) and self._is_all(entries)
        return None if is_all else entries

    def _is_all(self, entries: Mapping[str, Entry]) -> bool:
        known = self._parts.topology.register.entries
        return len(entries) == sum(entry.alive for entry in known.values())

    async def purge(self, request: Request) -> Response:
        if refusal := await self._operators_only(request):
            return refusal
        wanted = _wanted((await _json(request)).get("wanted"))
        entries = self._parts.topology.register.entries
        try:
            purged = await self._parts.counting.purge(entries, wanted)
        except LinkError as fault:
            return _error(503, str(fault))
        log.info("purged broker=%s purged=%s", self._parts.broker, purged)
        return JSONResponse({"broker": self._parts.broker, "purged": purged})

    async def merge(self, request: Request) -> Response:
        if refusal := await self._operators_only(request):
            return refusal
        try:
            snapshot = snapshot_from_json(await _json(request))
        except ValueError as fault:
            raise BadRequest(str(fault)) from fault
        try:
            reply = await self._parts.topology.told(snapshot)
        except TopologyError as fault:
            return _error(503, str(fault))
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
        if refusal := await self._operators_only(request):
            return refusal
        try:
            snapshot = snapshot_from_json(await _json(request))
            await self._parts.topology.adopt(snapshot)
        except ValueError as fault:
            raise BadRequest(str(fault)) from fault
        except TopologyError as fault:
            return _error(503, str(fault))
        return JSONResponse({"intact": self._parts.topology.register.intact})

    async def settled(self, _request: Request) -> Response:
        upkeep = self._parts.upkeep
        return JSONResponse(
            {
                "settled": upkeep.is_settled,
                "gate": upkeep.condition.linked and upkeep.condition.gate_open,
                "queues": upkeep.settled_queues(),
            }
        )

    # Health.

    async def health(self, _request: Request) -> Response:
        verdict = self._parts.verdict()
        body: dict[str, Any] = {"verdict": verdict.kind.value}
        if verdict.reason:
            body["reason"] = verdict.reason
        body["draining"] = self._parts.is_draining()
        return JSONResponse(body, _HEALTH_CODES[verdict.kind])

    async def live(self, _request: Request) -> Response:
        return PlainTextResponse("live\n")

    async def metrics(self, _request: Request) -> Response:
        text = self._parts.metrics.text()
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def drain(self, request: Request) -> Response:
        if refusal := await self._operators_only(request):
            return refusal
        draining = (await _json(request)).get("draining")
        if type(draining) is not bool:
            raise BadRequest("draining: true or false")
        try:
            await self._parts.set_draining(draining)
        except OSError as fault:
            return _error(503, f"not stored: {fault}")
        return JSONResponse({"draining": draining})

    # Authorization.

    async def _operators_only(self, request: Request) -> Response | None:
        if await self._is_operator(request):
            return None
        told = {"WWW-Authenticate": f"{self._challenges.header}, Bearer"}
        return _error(401, "operators' token wanted", told)

    async def _is_operator(self, request: Request) -> bool:
        """Return whether the caller has the token: it proves it, or sends it."""
        known = getattr(request.state, "is_operator", None)
        if known is None:
            header = request.headers.get("Authorization", "")
            known = self._parts.login.is_operator(header)
            if not known and Challenges.is_proof(header):
                body = await self._unproven_body(request)
                with contextlib.suppress(ConfigError):
                    known = self._challenges.proves(
                        header,
                        me=self._parts.broker,
                        method=request.method,
                        target=_target(request),
                        body=body,
                    )
            request.state.is_operator = known  # a proof is good for one request
        return bool(known)

    async def _unproven_body(self, request: Request) -> bytes:
        source = source_of(request.client.host) if request.client else ""
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            if not self._unproven.enter(source, size):
                raise TooMany("too many bodies arrive at once whose proof is not known to be right")
            taken += size

        try:
            return await _body(request, take)
        finally:
            self._unproven.leave(source, taken)

    def proving(
        self, answer: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Wrap an endpoint so that it proves the token to callers that want it."""

        async def proven(request: Request) -> Response:
            ask = request.headers.get(ASK, "")
            if ask and not is_nonce(ask):
                raise BadRequest(f"{ASK}: 16 to 64 hexadecimal digits")
            response = await answer(request)
            if ask:
                with contextlib.suppress(ConfigError):
                    response.headers[PROOF] = answer_proof(
                        self._parts.login.token(),
                        ask=ask,
                        method=request.method,
                        target=_target(request),
                        broker=self._parts.broker,
                        status=response.status_code,
                        etag=response.headers.get("ETag", ""),
                        body=bytes(response.body),
                    )
            return response

        return proven

    async def _judged(self, request: Request, wanted: Mapping[str, Wanted]) -> Judged | Response:
        """Judge the caller and its rights on all of these; or return the refusal of an unknown caller."""
        if await self._is_operator(request):
            return Judged(admission=Admission.YES)
        judged = await self._parts.login.admit(request.headers.get("Authorization", ""), wanted)
        match judged.admission:
            case Admission.YES:
                return judged
            case Admission.NO:
                told = f'{self._challenges.header}, Basic realm="messagebus"'
                return _error(401, "login refused", {"WWW-Authenticate": told})
            case Admission.UNKNOWN:
                told = f" ({judged.reason})" if judged.reason else ""
                why = f"the broker here cannot check the login{told}: ask another agent"
                linked = self._parts.upkeep.condition.linked
                return JSONResponse({"error": why, "linked": linked}, 503)


def _told(count: Count) -> dict[str, Any]:
    """Return a count as clients read it; those without partitions have no segments."""
    told = asdict(count)
    if count.segments is None:
        del told["segments"]
    return told


def _forbidden(judged: Judged) -> Response:
    names = ", ".join(judged.forbidden[:FORBIDDEN_TOLD])
    more = len(judged.forbidden) - FORBIDDEN_TOLD
    more_told = f" and {more} more" if more > 0 else ""
    told = f"the rights of user {judged.user!r} do not cover {names}{more_told}"
    return JSONResponse({"error": told, "forbidden": True}, 403)


def _error(code: int, text: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": text}, code, headers=headers)


async def _bad_request(_request: Request, fault: Exception) -> Response:
    assert isinstance(fault, BadRequest)
    return _error(fault.code, str(fault))


async def _gone(_request: Request, _fault: Exception) -> Response:
    """Answer a client that hung up in the middle of a request: no error of ours."""
    return Response(status_code=499)


async def _body(request: Request, take: Callable[[int], None] = lambda _: None) -> bytes:
    """Read the body once, BODY_BYTES_MAX at most. take: called with the size of each part of it."""
    known = getattr(request.state, "body", None)
    if isinstance(known, bytes):
        return known
    body = bytearray()
    async for chunk in request.stream():
        take(len(chunk))
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            raise BadRequest(f"more than {BODY_BYTES_MAX} bytes")
    request.state.body = bytes(body)
    return bytes(body)


def _target(request: Request) -> str:
    """Return path and query as they were sent."""
    path, query = request.scope.get("raw_path", b""), request.scope["query_string"]
    return bytes(path + (b"?" + query if query else b"")).decode("latin-1")


async def _json(request: Request) -> dict[str, Any]:
    """Read the body as one JSON object."""
    try:
        value = json.loads(await _body(request))
    except ValueError as fault:
        raise BadRequest(f"not JSON: {fault}") from fault
    except RecursionError as fault:
        raise BadRequest("not JSON that is read here: too deep") from fault
    if not isinstance(value, dict):
        raise BadRequest("a JSON object wanted")
    return value


def _wanted(value: Any) -> dict[str, Wanted]:
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


def _id(text: str, key: str) -> str:
    """Check the id of a client or its subscription, which operators read on their terminals."""
    if len(text) > TEXT_MAX or not (text.isascii() and text.isprintable()):
        raise BadRequest(f"{key}: at most {TEXT_MAX} printing ASCII characters")
    return text


def _home(body: Mapping[str, Any]) -> str:
    try:
        return Broker.parse(str(body.get("home", ""))).name
    except ValueError as fault:
        raise BadRequest(f"home: {fault}") from fault


def _topic(request: Request) -> str:
    topic = request.query_params.get("topic", "")
    if not isinstance(_wanted([topic])[topic], Topic):
        raise BadRequest("topic: the name of a topic")
    return topic


def _whole(text: str, key: str) -> int:
    try:
        return read_whole(text, -WHOLE_MAX, WHOLE_MAX)
    except ValueError as fault:
        raise BadRequest(f"{key}: {fault}") from None


def _seconds(text: str) -> float:
    try:
        return read_number(text, 0, SECONDS_MAX)
    except ValueError as fault:
        raise BadRequest(f"wait_s: {fault}") from None


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _first_of(*waits: Awaitable[object], timeout_s: float) -> int | None:
    """Return the position of the wait that ended first; None when none did within timeout_s."""
    tasks: Sequence[asyncio.Future[object]] = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return next((number for number, task in enumerate(tasks) if task.done()), None)
    finally:
        for task in tasks:
            task.cancel()
