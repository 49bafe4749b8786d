"""The gateway's routes: requests to calls, ends to answers. Decides nothing about messages."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, nullcontext
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from messagebus import (
    Destination,
    Message,
    MessageBusError,
    MessageInvalid,
    NameInvalid,
    Queue,
    Source,
    Subscription,
    Topic,
)
from messagebus.clock import monotonic_ms
from messagebus.errors import docs_of
from messagebus.http.allowance import Places
from messagebus.http.connections import NAMES, ROOM, source_of
from messagebus.http.guard import Guard, Sender, has_bearer, has_own_header, host_names
from messagebus.integrations import cloudevents
from messagebus.message import BODY_BYTES_MAX, Options
from messagebus.services.gateway import streaming
from messagebus.services.gateway.clients import Bus, Publishers
from messagebus.services.gateway.config import GatewayConfig
from messagebus.services.gateway.leases import Lease
from messagebus.services.gateway.metrics import Metrics
from messagebus.services.gateway.openapi import document
from messagebus.services.gateway.peers import FORWARDED, Peers
from messagebus.services.gateway.people import People, Principal
from messagebus.services.gateway.problems import (
    Problem,
    encoded,
    json_response,
    problem_of_fault,
    seconds,
)
from messagebus.services.gateway.publishing import (
    BATCH_BYTES_MAX,
    BATCH_MAX,
    LARGE_BYTES,
    TIMEOUT_S,
    TIMEOUT_S_MAX,
    Batch,
    Replays,
    Wanted,
    answer_batch,
    end_as_json,
    outcome_of,
    problem_of,
    read_entry,
    read_line,
    read_wanted,
    submit,
)
from messagebus.services.gateway.pulling import LEASE_S_MAX, LEASE_S_MIN, Held, Pulls, as_json
from messagebus.services.gateway.reading import (
    Arriving,
    LargeTurn,
    read_body,
    read_count,
    read_events,
    read_length,
    read_lines,
    read_object,
    read_seconds,
    read_texts,
    too_large,
)
from messagebus.services.gateway.sockets import PROTOCOL, Socket

log = logging.getLogger("messagebus.gateway")

PULL_MAX, PULL_BYTES, PULL_BYTES_MAX, WAIT_S_MAX = 1_000, 4 << 20, 64 << 20, 60.0
LEASE_S, WAIT_S = 60.0, 20.0
LEASES_MAX = 10_000
NDJSON = "application/x-ndjson"
REASON_CHARS_MAX = 500
CLOSED_REQUEST = 499

_ANSWERS = ("ack", "release", "retry", "park", "extend")
_HOW = {"retry": ("after_s", "reason"), "park": ("reason",), "extend": ("lease_s",)}

Handler = Callable[[Request, Principal], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts that the routes speak for. ending: set when pulls are to end."""

    config: GatewayConfig
    bus: Bus
    people: People
    publishers: Publishers
    pulls: Pulls
    metrics: Metrics
    peers: Peers
    ending: asyncio.Event


def application(parts: Parts) -> ASGIApp:
    """Return the service as an ASGI application."""
    web = _Web(parts)
    routes: list[BaseRoute] = [
        web.route("publish", "/v1/topics/{topic}/messages", web.publish),
        web.route("publish", "/v1/queues/{queue}/messages", web.publish),
        web.route("batch", "/v1/topics/{topic}/messages:batch", web.batch),
        web.route("batch", "/v1/queues/{queue}/messages:batch", web.batch),
    ]
    for place in ("/v1/subscriptions/{topic}/{subscription}", "/v1/queues/{queue}"):
        routes += [
            web.route("pull", f"{place}/pull", web.pull),
            web.route("events", f"{place}/events", web.events, "GET"),
            web.route("declare", place, web.declare, "PUT"),
            WebSocketRoute(f"{place}/socket", web.socket),
        ]
    routes += [
        web.route("declare", "/v1/topics/{topic}", web.declare, "PUT"),
        *(web.route(what, f"/v1/leases/{what}", web.answering(what)) for what in _ANSWERS),
        Route("/v1/openapi.json", _openapi, methods=["GET"]),
    ]
    origins = parts.config.origins
    allowed = ["Authorization", "Content-Type", "Idempotency-Key", "MB-Key"]
    whole = Starlette(
        routes=routes,
        exception_handlers={HTTPException: _not_there},
        middleware=[
            Middleware(
                CORSMiddleware,
                allow_origins=list(origins),
                allow_methods=["GET", "POST", "PUT"],
                allow_headers=allowed,
            )
        ]
        if origins
        else [],
    )
    return whole if origins else _shortcut(whole, web.endpoint("publish", web.publish))


def _shortcut(whole: ASGIApp, publish: Callable[[Request], Awaitable[Response]]) -> ASGIApp:
    """Return the service with a shorter way to publishes: routing costs as much as they do."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            match scope["path"].split("/"):
                case ["", "v1", "topics", topic, "messages"] if topic:
                    scope["path_params"] = {"topic": topic}
                    response = await publish(Request(scope, receive, send))
                    await response(scope, receive, send)
                    return
        await whole(scope, receive, send)

    return application


@functools.cache
def _document() -> bytes:
    """Return the document as it is sent: whoever asks for it has not logged in, so it costs little."""
    return encoded(document())


async def _openapi(_request: Request) -> Response:
    return Response(_document(), media_type="application/json")


async def _not_there(_request: Request, fault: Exception) -> Response:
    assert isinstance(fault, HTTPException)
    return Problem(fault.status_code, fault.detail, headers=fault.headers).response()


class _Web:
    def __init__(self, parts: Parts) -> None:
        self._parts, self._limits = parts, parts.config.limits
        config = parts.config
        self._guard = Guard(
            url=config.url,
            origins=config.origins,
            is_open=bool(config.anonymous),
            names=host_names(config.names),
        )
        self._replays = Replays()
        self._large_turns = asyncio.Semaphore(self._limits.large_turns)

    def route(self, name: str, path: str, handler: Handler, method: str = "POST") -> Route:
        """Return a route whose requests are answered as `endpoint` says."""
        made = Route(path, self.endpoint(name, handler), methods=[method])
        # HEAD of a stream would take deliveries and write them to nobody.
        made.methods = {method}
        return made

    def endpoint(self, name: str, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """Return a handler whose requests have a principal, a place, an answer in any case, and a count."""
        metrics, people = self._parts.metrics, self._parts.people

        async def endpoint(request: Request) -> Response:
            metrics.in_flight += 1
            try:
                login = request.headers.get("authorization", "")
                self._check_sender(request)
                principal = people.principal(login, monotonic_ms(), request.scope.get(NAMES, ()))
                if not principal.requests.enter():
                    detail = f"{principal.name} has {principal.requests.most:,} requests under way"
                    raise Problem(429, detail, outcome="not sent", retry=True, retry_after_s=1)
                try:
                    await self._parts.publishers.prove(principal, _source_address(request))
                    response = await handler(request, principal)
                finally:
                    principal.requests.leave()
            except Problem as problem:
                response = problem.response()
            except ClientDisconnect:
                response = Response(status_code=CLOSED_REQUEST)
            except MessageBusError as fault:
                response = problem_of_fault(fault).response()
            finally:
                metrics.in_flight -= 1
            metrics.ended(name, response.status_code)
            return response

        return endpoint

    def _check_sender(self, request: HTTPConnection) -> None:
        """Raise Problem 403 for a page of another site, and 421 for a name of another host."""
        headers = request.headers
        if has_bearer(headers):
            return
        host, login = headers.get("host"), headers.get("authorization", "").partition(" ")[0]
        # A page of a foreign name has no login; other gateways, which pass logins on, use names of their own.
        if host is not None and not login and not self._guard.is_host(host):
            raise Problem(421, "this name is not one of this gateway", outcome="not sent")
        sender = self._guard.sender(headers, request.scope["scheme"])
        if sender is Sender.FOREIGN:
            raise Problem(403, "pages of this origin may not call", outcome="not sent")
        takes = request.scope["type"] == "http" and request.scope["method"] == "GET"
        # A link in a mail is opened as if its reader had typed it.
        if takes and sender is not Sender.OURS and not has_own_header(headers):
            detail = "without a token a stream needs a header of its own, such as MB-Client: NAME"
            raise Problem(403, detail, outcome="not sent")

    # Publish.
    async def publish(self, request: Request, principal: Principal) -> Response:
        """Publish the body as one message."""
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media in (cloudevents.BATCH, NDJSON):
            return await self.batch(request, principal)
        destination = _destination(request)
        name = str(destination)
        principal.check("publish", name)
        if read_length(request) > LARGE_BYTES:
            async with self._large(principal):
                wanted = read_wanted(read_texts(request), await read_body(request, BODY_BYTES_MAX))
        else:
            wanted = read_wanted(read_texts(request), await self._small(request, principal))
        message_id = wanted.message.message_id
        place = (principal.name, name, message_id)
        async with AsyncExitStack() as turn:
            if message_id:
                await turn.enter_async_context(self._replays.turn(place))
                if end := await self._replays.before(place, wanted):
                    return json_response(
                        end_as_json(end), 201, headers={"Idempotent-Replayed": "true"}
                    )
            principal.charge(1, monotonic_ms())
            async with self._parts.publishers.of(principal) as publisher:
                ending = await submit(publisher, destination, wanted, self._limits.admit_wait_s)
                if message_id:
                    self._replays.began(place, wanted, ending)
                    await turn.aclose()
                if not wanted.waits:
                    return json_response({"id": message_id, "outcome": "accepted"}, 202)
                end = await ending
        found = end_as_json(end)
        self._parts.metrics.outcome(found["outcome"])
        if found["outcome"] != "confirmed":
            raise problem_of(end)
        return json_response(found, 201)

    def _large(self, principal: Principal) -> LargeTurn:
        return LargeTurn(principal.large, self._large_turns, self._limits.request_s)

    async def _small(self, request: Request, principal: Principal) -> bytes:
        """Read a body that says no length, or a small one; a large one takes its turn."""
        chunks, size = [], 0
        stream = request.stream()
        with Arriving(principal.bodies) as held:
            async for chunk in stream:
                held.take(len(chunk))
                size += len(chunk)
                chunks.append(chunk)
                if size > LARGE_BYTES:
                    break
            else:
                return b"".join(chunks)
            async with self._large(principal):
                async for chunk in stream:
                    size += len(chunk)
                    if size > BODY_BYTES_MAX:
                        raise too_large(BODY_BYTES_MAX)
                    chunks.append(chunk)
            return b"".join(chunks)

    async def batch(self, request: Request, principal: Principal) -> Response:
        """Publish many; 201 only if all are confirmed."""
        destination = _destination(request)
        principal.check("publish", str(destination))
        headers = request.headers
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise Problem(400, "Content-Encoding: send the body as it is", outcome="not sent")
        timeout_s = seconds(
            headers.get("mb-timeout-s", str(TIMEOUT_S)), "mb-timeout-s", 0.001, TIMEOUT_S_MAX
        )
        media = headers.get("content-type", "").partition(";")[0].strip().lower()
        async with self._parts.publishers.of(principal) as publisher:
            batch = Batch(publisher, destination, self._limits.admit_wait_s, timeout_s)
            try:
                if media == cloudevents.BATCH:
                    async with self._turn(request, principal):
                        room = principal.bodies if _is_small(request) else None
                        for each in await read_events(request, timeout_s, room):
                            principal.check_lasts()
                            principal.charge(1, monotonic_ms())
                            await batch.add(each)
                elif media in (NDJSON, "application/ndjson", "application/jsonl"):
                    whole = request.query_params.get("whole", "") in ("1", "true")
                    async with self._turn(request, principal) if whole else nullcontext():
                        await self._lines(request, principal, batch, timeout_s, whole)
                else:
                    raise Problem(
                        415, f"Content-Type {NDJSON} or {cloudevents.BATCH}", outcome="not sent"
                    )
            except Problem as problem:
                if not batch:
                    raise
                batch.stopped = problem
            except ClientDisconnect:
                batch.stopped = Problem(400, "the body ended too early", outcome="not sent")
            except Exception:
                if not batch:
                    raise
                # What was published before is known, whatever has failed.
                log.exception("batch stopped")
                batch.stopped = Problem(500, "a fault of this gateway", outcome="not sent")
            ends = await batch.ends()
        for outcome, count in Counter(map(outcome_of, ends)).items():
            self._parts.metrics.outcome(outcome, count)
        status, body = answer_batch(ends, batch.stopped)
        media = "application/json" if status == 201 else "application/problem+json"
        more = {} if batch.stopped is None else batch.stopped.headers
        return Response(body, status, headers=dict(more), media_type=media)

    def _turn(self, request: Request, principal: Principal) -> AbstractAsyncContextManager[object]:
        """Return the turn of a batch that is held whole: none if it is small."""
        return nullcontext() if _is_small(request) else self._large(principal)

    async def _lines(
        self, request: Request, principal: Principal, batch: Batch, timeout_s: float, whole: bool
    ) -> None:
        waiting: list[tuple[int, bytes | Message, Options]] = []
        number = 0
        chunks: AsyncIterator[bytes] = request.stream()
        room = principal.bodies
        # What is held whole has had its turn: a second one could wait for itself.
        large = nullcontext() if whole else self._large(principal)
        if whole and _is_small(request):
            chunks = _once(await read_body(request, LARGE_BYTES, room))
        elif whole:
            room = Places(BATCH_BYTES_MAX)
        async with aclosing(read_lines(chunks, large, room)) as reading:
            async for lines in reading:
                read: list[tuple[int, bytes | Message, Options]] = []
                try:
                    for line in lines:
                        number += 1
                        if line and not line.isspace():
                            read.append((number, *read_line(line)))
                except (MessageInvalid, TypeError) as fault:
                    if not whole:
                        await self._publish_lines(principal, batch, read, timeout_s)
                    detail = f"line {number}: {fault}"
                    raise Problem(400, detail, outcome="not sent", line=number) from None
                if not whole:
                    await self._publish_lines(principal, batch, read, timeout_s)
                    continue
                waiting += read
                if len(waiting) > BATCH_MAX:
                    raise Problem(413, f"more than {BATCH_MAX:,} messages", outcome="not sent")
        await self._publish_lines(principal, batch, waiting, timeout_s)
        if not batch:
            raise Problem(400, "an empty batch", outcome="not sent")

    async def _publish_lines(
        self,
        principal: Principal,
        batch: Batch,
        read: list[tuple[int, bytes | Message, Options]],
        timeout_s: float,
    ) -> None:
        """Publish lines that were read, with their numbers; as many together as have no options."""
        principal.check_lasts()
        together: list[bytes | Message] = []
        has_rate = principal.bucket.rate_per_s > 0
        before = len(batch)
        try:
            for _, payload, options in read:
                try:
                    if has_rate:
                        principal.charge(1, monotonic_ms())
                except Problem:
                    await batch.add_all(together)
                    raise
                if not options:
                    together.append(payload)
                    continue
                await batch.add_all(together)
                together = []
                message = Message(body=payload) if isinstance(payload, bytes) else payload
                await batch.add(Wanted(message, options, timeout_s))
            await batch.add_all(together)
        except Problem as problem:
            problem.body["line"] = read[len(batch) - before][0]
            raise

    # Consume.
    async def pull(self, request: Request, principal: Principal) -> Response:
        """Wait for deliveries and lease them."""
        source = _source(request)
        principal.check("consume", str(source))
        how = await read_object(
            request, {"max", "wait_s", "lease_s", "bytes_max"}, principal.bodies
        )
        most = read_count(how, "max", 1, 1, PULL_MAX)
        wait_s = read_seconds(how, "wait_s", WAIT_S, 0, WAIT_S_MAX)
        lease_s = read_seconds(how, "lease_s", LEASE_S, LEASE_S_MIN, LEASE_S_MAX)
        bytes_max = read_count(how, "bytes_max", PULL_BYTES, 1, PULL_BYTES_MAX)
        pulls = self._parts.pulls
        most = min(most, pulls.leases.room(principal.name))
        if not most:
            detail = f"{principal.name} holds all the leases it may: ack some, or give them back"
            raise Problem(429, detail, retry_after_s=1)
        if self._parts.ending.is_set():
            raise Problem(503, "this gateway ends", retry=True, retry_after_s=1)
        reader = await pulls.reader(principal, source, most)
        pulling = asyncio.create_task(
            pulls.pull(principal, reader, most, wait_s=wait_s, bytes_max=bytes_max, lease_s=lease_s)
        )
        gone = asyncio.create_task(_gone(request))
        ending = asyncio.create_task(self._parts.ending.wait())
        over = asyncio.create_task(principal.over.wait())
        try:
            await asyncio.wait({pulling, gone, ending, over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending.cancel()
            over.cancel()
            if not pulling.done():
                pulling.cancel()
                await asyncio.wait({pulling})
        leases = [] if pulling.cancelled() else pulling.result()
        if gone.done():
            pulls.give_back(leases)
            raise ClientDisconnect
        gone.cancel()
        if principal.over.is_set():
            pulls.give_back(leases)
            raise Problem(403, f"{principal.name} lost its rights meanwhile")
        if not leases and reader.consumer.in_order and (broker := reader.spent):
            detail = (
                f"{source} keeps its order: nothing follows until what {broker} sent is answered"
            )
            raise Problem(429, detail, retry=True, retry_after_s=1)
        self._parts.metrics.deliveries.inc(len(leases))
        as_events = cloudevents.STRUCTURED in request.headers.get("accept", "")
        form = _as_event if as_events else as_json
        return json_response({"deliveries": [form(each) for each in leases]})

    async def events(self, request: Request, principal: Principal) -> Response:
        """Stream deliveries as server-sent events."""
        source = _source(request)
        principal.check("consume", str(source))
        asked = request.query_params
        in_flight = read_count(dict(asked), "in_flight", 100, 1, PULL_MAX)
        lease_s = seconds(asked.get("lease_s", str(LEASE_S)), "lease_s", LEASE_S_MIN, LEASE_S_MAX)
        if asked.get("ack", "") not in ("", "sent"):
            raise Problem(400, "ack: sent, or nothing")
        if self._parts.ending.is_set():
            raise Problem(503, "this gateway ends", retry=True, retry_after_s=1)
        reader = await self._parts.pulls.reader(principal, source, in_flight)
        if not principal.sockets.enter():
            raise Problem(429, f"{principal.name} has all the streams it may", retry_after_s=1)
        stream = streaming.Stream(
            self._parts.pulls,
            reader,
            principal,
            in_flight=in_flight,
            lease_s=lease_s,
            acks_sent=asked.get("ack") == "sent",
            ending=self._parts.ending,
        )
        return stream.response()

    def answering(self, what: str) -> Handler:
        """Return the handler of one answer to leases."""
        known = {"leases", *_HOW.get(what, ())}

        async def answer(request: Request, principal: Principal) -> Response:
            how = await read_object(request, known, principal.bodies)
            body = await self._settle(request, principal, what, how)
            count = len(body["leases"])
            if body["done"] == count:
                return json_response(body)
            detail = f"{count - body['done']} of {count} leases are not good any more"
            raise Problem(409, detail, **body)

        return answer

    async def _settle(
        self, request: HTTPConnection, principal: Principal, what: str, how: dict[str, Any]
    ) -> dict[str, Any]:
        """Answer leases, those of other gateways there. Returns how many did, and each one's end."""
        tokens = how.get("leases")
        if not (isinstance(tokens, list) and all(isinstance(each, str) for each in tokens)):
            raise Problem(400, "leases: a list of texts wanted")
        if not 1 <= len(tokens) <= LEASES_MAX:
            raise Problem(400, f"leases: 1 to {LEASES_MAX:,}")
        given: dict[str, Any] = {}
        if what == "retry":
            given["after_s"] = read_seconds(how, "after_s", 0.0, 0, 7 * 86_400)
        if what == "extend":
            given["lease_s"] = read_seconds(how, "lease_s", LEASE_S, LEASE_S_MIN, LEASE_S_MAX)
        if what in ("retry", "park"):
            reason = how.get("reason", "")
            if not isinstance(reason, str):
                raise Problem(400, "reason: a text wanted")
            given["reason"] = reason[:REASON_CHARS_MAX].encode(errors="replace").decode()
        confirmed = request.query_params.get("confirmed", "") in ("1", "true")
        if what == "ack":
            given["confirmed"] = confirmed
        pulls, peers = self._parts.pulls, self._parts.peers
        places: dict[str, list[int]] = {}
        for place, token in enumerate(tokens):
            peer = "" if FORWARDED in request.headers else peers.of(token)
            places.setdefault(peer, []).append(place)
        path = f"/v1/leases/{what}{'?confirmed=true' if confirmed else ''}"
        login = request.headers.get("authorization", "")

        async def ask(peer: str, some: list[str]) -> list[str]:
            if not peer:
                return await pulls.answer(principal, what, some, **given)
            return await peers.answer(peer, path, some, how, login)

        asked = [ask(peer, [tokens[n] for n in some]) for peer, some in places.items()]
        ends = [""] * len(tokens)
        for some, found in zip(places.values(), await asyncio.gather(*asked), strict=True):
            for place, end in zip(some, found, strict=True):
                ends[place] = end
        rows = [{"lease": token, "answer": end} for token, end in zip(tokens, ends, strict=True)]
        return {"done": ends.count("done"), "leases": rows}

    async def socket(self, socket: WebSocket) -> None:
        """Serve a WebSocket: deliveries, answers and publishes."""
        parts, origin = self._parts, socket.headers.get("origin")
        try:
            # A page of any site may open one to an address that its reader can reach, and names its origin.
            if origin is not None and origin not in parts.config.origins:
                raise Problem(403, "this origin may not open a socket here")
            self._check_sender(socket)
            login = socket.headers.get("authorization", "")
            principal = parts.people.principal(login, monotonic_ms(), socket.scope.get(NAMES, ()))
            source = _source(socket)
            principal.check("consume", str(source))
            await parts.publishers.prove(principal, _source_address(socket))
            said = socket.query_params.get("lease_s", str(LEASE_S))
            lease_s = seconds(said, "lease_s", LEASE_S_MIN, LEASE_S_MAX)
            if parts.ending.is_set():
                raise Problem(503, "this gateway ends", retry=True, retry_after_s=1)
            reader = await parts.pulls.reader(principal, source, 1)
            if not principal.sockets.enter():
                raise Problem(429, f"{principal.name} has all the sockets it may", retry_after_s=1)
        except Problem as problem:
            return await socket.send_denial_response(problem.response())
        except MessageBusError as fault:
            return await socket.send_denial_response(problem_of_fault(fault).response())

        async def answer(what: str, frame: dict[str, Any]) -> dict[str, Any]:
            if what == "publish":
                return await self._publish_frame(principal, frame)
            if what not in _ANSWERS:
                raise Problem(400, f"t: credit, publish, {', '.join(_ANSWERS)}")
            return await self._settle(socket, principal, what, frame)

        if (take_room := socket.scope.get(ROOM)) is not None:
            take_room(principal.bodies)
        try:
            known = PROTOCOL in socket.scope.get("subprotocols", ())
            await socket.accept(PROTOCOL if known else None)
            serving = Socket(
                socket,
                parts.pulls,
                reader,
                principal,
                lease_s=lease_s,
                ending=parts.ending,
                answer=answer,
            )
            await serving.run()
        finally:
            principal.sockets.leave()

    async def _publish_frame(self, principal: Principal, frame: dict[str, Any]) -> dict[str, Any]:
        name = frame.pop("to", None)
        if not isinstance(name, str):
            raise Problem(400, "to: a topic, or queue:NAME", outcome="not sent")
        queue = name.removeprefix("queue:")
        try:
            destination = Topic(name) if queue == name else Queue(queue)
            payload, options = read_entry(frame)
            message = Message(body=payload) if isinstance(payload, bytes) else payload
        except (MessageInvalid, NameInvalid, TypeError) as fault:
            raise Problem(400, str(fault), outcome="not sent", docs=docs_of(fault)) from None
        principal.check("publish", str(destination))
        principal.charge(1, monotonic_ms())
        async with self._parts.publishers.of(principal) as publisher:
            wanted = Wanted(message, options, TIMEOUT_S)
            end = await (await submit(publisher, destination, wanted, self._limits.admit_wait_s))
        found = end_as_json(end)
        self._parts.metrics.outcome(found["outcome"])
        return found

    async def declare(self, request: Request, principal: Principal) -> Response:
        """Make a topic, queue or subscription exist on every broker."""
        given = request.path_params
        wanted = _source(request) if "subscription" in given or "queue" in given else None
        name = str(wanted or Topic(given["topic"]))
        principal.check("declare", name)
        missing = await self._parts.bus.declare(name, principal.login)
        body = {"name": name, "missing": missing}
        return json_response(body, 202 if missing else 200)


def _as_event(lease: Lease[Held]) -> dict[str, Any]:
    event = cloudevents.as_event(lease.item.delivery)
    return {"lease": lease.token, "event": event}


def _destination(request: Request) -> Destination:
    given = request.path_params
    return Topic(given["topic"]) if "topic" in given else Queue(given["queue"])


def _is_small(request: Request) -> bool:
    """Return whether a body says that it is small: it takes of its principal's room, any other a turn."""
    said = request.headers.get("content-length", "")
    return said.isdigit() and int(said) <= LARGE_BYTES


async def _once(chunk: bytes) -> AsyncIterator[bytes]:
    yield chunk


def _source_address(request: HTTPConnection) -> str:
    return source_of(request.client.host) if request.client else ""


def _source(request: HTTPConnection) -> Source:
    given = request.path_params
    if "queue" in given:
        return Queue(given["queue"])
    return Subscription(Topic(given["topic"]), given["subscription"])


async def _gone(request: Request) -> None:
    """Wait until the client has hung up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
