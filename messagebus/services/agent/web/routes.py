"""The agent's HTTP interface: translates requests to calls and answers to JSON.

Decides nothing. Errors are one line of text, or `{"error": ...}` where JSON is spoken.
"""

# application ─┬─ ListRoutes       the consumer list; who waits for it, under which id
#              ├─ TopologyRoutes   the map: registrations, merges of agents
#              ├─ PartitionRoutes  homes and their moves
#              ├─ BrokerRoutes     what the own broker has; who waits for another state of it
#              └─ Taps, Trail      as configured
# All but the list ask `Rights` first; `requests` reads and bounds what is asked. `Waiting` counts the clients
# that wait at the list or at a partition, so that one bound holds for both.

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from messagebus.errors import LinkError
from messagebus.http.guard import Guard, ProgramsOnly
from messagebus.services.agent.broker.loads import Count
from messagebus.services.agent.gate import VerdictKind
from messagebus.services.agent.web.list_routes import ListRoutes
from messagebus.services.agent.web.parts import Parts
from messagebus.services.agent.web.requests import (
    WAIT_S_MAX,
    BadRequest,
    Waiting,
    disconnected,
    error,
    first_of,
    read_json,
    read_version,
    read_wait_s,
    read_wanted,
)
from messagebus.services.agent.web.rights import Rights
from messagebus.services.agent.web.topology_routes import PartitionRoutes, TopologyRoutes

log = logging.getLogger("messagebus.agent")

# A page of a monitor.
OBSERVED_NAMES_MAX = 200
# A monitor waits once at each agent; each waiting request looks ten times a second.
OBSERVING_MAX = 64
# The rows of 500 queues are 50 KB, and 9 KB squeezed, which takes 0.6 ms.
SQUEEZED_BYTES_MIN = 1_000

_HEALTH_CODES = {VerdictKind.READY: 200, VerdictKind.DRAIN: 404, VerdictKind.DOWN: 503}


def application(parts: Parts) -> Starlette:
    """Return the ASGI application of one agent."""
    rights, waiting = Rights(parts), Waiting()
    lists, topology = ListRoutes(parts, waiting), TopologyRoutes(parts, rights)
    broker = BrokerRoutes(parts, rights)
    answers = [
        ("/consumer-list", lists.consumer_list, "GET"),
        ("/clients", lists.clients, "GET"),
        ("/topology", topology.topology, "GET"),
        ("/topology", topology.change, "POST"),
        ("/topology/merge", topology.merge, "POST"),
        ("/topology/adopt", topology.adopt, "POST"),
        ("/topology/try", topology.try_out, "POST"),
        ("/unused", topology.unused, "GET"),
        ("/subscriptions", broker.subscriptions, "GET"),
        ("/observe", broker.observe, "GET"),
        ("/subscriptions/purge", broker.purge, "POST"),
        ("/settled", broker.settled, "GET"),
        ("/health", broker.health, "GET"),
        ("/live", broker.live, "GET"),
        ("/metrics", broker.metrics, "GET"),
        ("/drain", broker.drain, "POST"),
    ]
    if parts.moves is not None:
        partitions = PartitionRoutes(parts, rights, parts.moves, waiting)
        answers += [
            ("/partitions", partitions.partitions, "GET"),
            ("/partitions", partitions.move, "POST"),
            ("/partitions/bound", partitions.bound, "GET"),
            ("/partitions/abandon", partitions.abandon, "POST"),
            ("/partitions/agree", partitions.agree, "POST"),
        ]
    squeezed = [Middleware(GZipMiddleware, minimum_size=SQUEEZED_BYTES_MIN, compresslevel=1)]
    routes = [
        Route(
            path,
            rights.proving(answer),
            methods=[how],
            middleware=squeezed if path == "/observe" else None,
        )
        for path, answer, how in answers
    ]
    if parts.taps is not None:
        routes.append(parts.taps.route(rights.judged, lambda: parts.topology.register.entries))
    if parts.trail is not None:
        routes += parts.trail.routes(rights.judged, rights.readable_part, rights.body)
    return Starlette(
        routes=routes,
        middleware=[Middleware(ProgramsOnly, Guard(names=parts.names))],
        exception_handlers={BadRequest: _bad_request, ClientDisconnect: _gone},
    )


class BrokerRoutes:
    """The own broker: its subscriptions and queues, its health, and the operators' drain."""

    def __init__(self, parts: Parts, rights: Rights) -> None:
        self._parts, self._rights = parts, rights
        self._observing = Waiting()

    async def observe(self, request: Request) -> Response:
        """Return what is known of the broker: with `state_after`, when its state is another one."""
        query, observer = request.query_params, self._parts.observer
        names = [name for name in query.get("names", "").split(",") if name]
        if len(names) > OBSERVED_NAMES_MAX:
            raise BadRequest(f"names: at most {OBSERVED_NAMES_MAX}")
        entries = await self._rights.readable(request)
        if isinstance(entries, Response):
            return entries
        if is_state := "state_after" in query:
            version = read_version(query["state_after"], "state_after")
            wait_s = min(read_wait_s(query.get("wait_s", "0")), WAIT_S_MAX)
            if self._observing.count >= OBSERVING_MAX:
                return PlainTextResponse("too many wait here\n", 503)
            with self._observing.one():
                waits = (observer.changed(version), disconnected(request))
                ended = await first_of(*waits, timeout_s=wait_s)
            if ended == 1:
                return Response(status_code=499)
            if observer.version == version:
                return Response(status_code=304)
        body = await observer.answer(
            None if self._rights.is_all(entries) else entries.keys(),
            names=names,
            since=query.get("since", ""),
            state_only=is_state,
            all_clients=query.get("clients") == "all",
        )
        return JSONResponse(body)

    async def subscriptions(self, request: Request) -> Response:
        """Return the subscriptions and queues that the caller's rights cover."""
        entries = await self._rights.readable(request)
        if isinstance(entries, Response):
            return entries
        try:
            counts = await self._parts.counting.counts(entries)
        except LinkError as fault:
            return error(503, str(fault))
        return JSONResponse(
            {
                "broker": self._parts.broker,
                "subscriptions": {
                    name: {**_count(count), **dict(entries[name].options)}
                    for name, count in counts.items()
                },
            }
        )

    async def purge(self, request: Request) -> Response:
        if refusal := await self._rights.operators_only(request):
            return refusal
        wanted = read_wanted((await read_json(request)).get("wanted"))
        entries = self._parts.topology.register.entries
        try:
            purged = await self._parts.counting.purge(entries, wanted)
        except LinkError as fault:
            return error(503, str(fault))
        log.info("purged broker=%s purged=%s", self._parts.broker, purged)
        return JSONResponse({"broker": self._parts.broker, "purged": purged})

    async def settled(self, _request: Request) -> Response:
        upkeep = self._parts.upkeep
        condition = upkeep.condition
        return JSONResponse(
            {
                "settled": upkeep.is_settled,
                "gate": condition.linked and condition.gate_open,
                "queues": upkeep.settled_queues(),
            }
        )

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
        if refusal := await self._rights.operators_only(request):
            return refusal
        draining = (await read_json(request)).get("draining")
        if type(draining) is not bool:
            raise BadRequest("draining: true or false")
        try:
            await self._parts.set_draining(draining)
        except OSError as fault:
            return error(503, f"not stored: {fault}")
        return JSONResponse({"draining": draining})


def _count(count: Count) -> dict[str, Any]:
    """Return a count as clients read it; those without partitions have no segments."""
    body = asdict(count)
    if count.segments is None:
        del body["segments"]
    return body


async def _bad_request(_request: Request, fault: Exception) -> Response:
    assert isinstance(fault, BadRequest)
    return error(fault.code, str(fault))


async def _gone(_request: Request, _fault: Exception) -> Response:
    """Answer a client that hung up in the middle of a request: no error of ours."""
    return Response(status_code=499)
