"""Addresses of the monitor: pages, their live parts, logins, exports.

Every route names the role that it needs. Every answer carries the headers that keep a page from running or
loading what is not ours. Every request that changes something comes from our own page, with its form's token.
"""

from __future__ import annotations

import asyncio
import csv
import hmac
import io
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, quote

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Scope

from messagebus import MessageBusError
from messagebus.clock import wall_ms, whole_ms
from messagebus.http.allowance import Allowances
from messagebus.http.connections import source_of
from messagebus.http.guard import Guard
from messagebus.services.monitor import acting, api
from messagebus.services.monitor.actions import Actions
from messagebus.services.monitor.config import MonitorConfig
from messagebus.services.monitor.guard import Guarded
from messagebus.services.monitor.live import (
    QUERY_CHARS_MAX,
    PageRequest,
    named,
    page_request,
    settings,
)
from messagebus.services.monitor.pages import matrix, shared, traced
from messagebus.services.monitor.parked import ParkedReader
from messagebus.services.monitor.parts import (
    FOLDER,
    UNKNOWN_VERSION,
    Feed,
    Feeds,
    Renderer,
    Rendering,
)
from messagebus.services.monitor.people import BURST, NOBODY, RATE_PER_S, Logins, Principal, Role
from messagebus.services.monitor.plans import KINDS
from messagebus.services.monitor.playbooks import Playbooks
from messagebus.services.monitor.tracing import Tracing
from messagebus.services.monitor.watch import Watch
from messagebus.tools.find import ID_CHARS_MIN

SESSION_COOKIE = "__Host-monitor"
# Browsers take the prefix over TLS only.
SESSION_COOKIE_PLAIN = "monitor"
STREAMS_MAX = 100
# A browser has six connections for one address: the others are for pages, and for polls of its other tabs.
STREAMS_OF_BROWSER_MAX = 4
BEAT_S = 10.0
FIELDS_MAX = 50
# Makes the 123 KB of 64 brokers' overview 11 KB in 1 ms; 9, the default, 10 KB in 3 ms.
GZIP_LEVEL = 6
# In the pages' body; what a caller wrote has its quotation marks escaped.
AT_VERSION = 'data-version="{}"'
LEFT = "people are applied; the other changes require a restart"
SPANS_S = (600, 3_600, 21_600, 86_400)
# A page that is rendered takes 10 to 20 ms of a core, a request that is refused 2: so much more it counts.
RENDERED = 10
NAV = (
    ("Overview", "/"),
    ("Subscriptions", "/subscriptions"),
    ("Brokers", "/brokers"),
    ("Parked", "/parked"),
    ("Clients", "/clients"),
    ("Trace", "/trace"),
    ("Journal", "/journal"),
)
Endpoint = Callable[["Monitor", Request, Principal], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Address:
    """One route. role: needed at least; Role.NOBODY: anybody. cost: in requests of a client's allowance."""

    path: str
    role: Role
    endpoint: Endpoint
    methods: tuple[str, ...] = ("GET",)
    cost: int = 1


class Monitor:
    """The page of one bus."""

    def __init__(self, config: MonitorConfig, watch: Watch, *, clock: Any = time.monotonic) -> None:
        self.config, self.watch = config, watch
        self.logins = Logins(config.people, config.tokens, config.proxy, clock=clock)
        self.parked = ParkedReader(config.bus, watch.events)
        self.actions = Actions(config, watch)
        self.tracing = Tracing(config.bus, config.recording)
        self._renderer, self._feeds = Renderer(), Feeds()
        self._clock = clock
        self._requests = Allowances(burst=BURST, rate_per_s=RATE_PER_S)
        self._streams = Counter[str]()
        self.playbooks = Playbooks(config.journal)

    @property
    def has_tls(self) -> bool:
        """True when browsers speak TLS, to the proxy before us."""
        return self.config.url.startswith("https:")

    @property
    def cookie(self) -> str:
        """The name of the session's cookie; over plain HTTP it cannot have the prefix."""
        return SESSION_COOKIE if self.has_tls else SESSION_COOKIE_PLAIN

    @property
    def streams(self) -> int:
        """The number of streams that are open."""
        return self._streams.total()

    def application(self) -> ASGIApp:
        """Return the ASGI application."""
        routes: list[Any] = [
            Route(each.path, self._guarded(each), methods=list(each.methods)) for each in ADDRESSES
        ]
        routes.append(Mount("/static", _Static(directory=FOLDER / "static")))
        made = Starlette(
            routes=routes,
            middleware=[Middleware(GZipMiddleware, minimum_size=1_000, compresslevel=GZIP_LEVEL)],
            exception_handlers={404: self._not_found},
        )
        return Guarded(made, lambda: Guard(url=self.config.url, is_open=not self.config.has_logins))

    def take(self, settings: MonitorConfig) -> str:
        """Take the people, tokens and proxy of other settings; sessions of those who are gone end.

        Returns what it did not take, and why; "" when it took all. All other settings want a restart.
        """
        if self.config.has_logins and not settings.has_logins:
            return "people kept: opening the page to everybody requires a restart"
        mine = replace(
            self.config, people=settings.people, tokens=settings.tokens, proxy=settings.proxy
        )
        left = "" if mine == replace(settings, listen=mine.listen) else LEFT
        self.config = mine
        self.logins.change(mine.people, mine.tokens, mine.proxy)
        return left

    # Who asks.

    def who(self, request: Request) -> Principal:
        """Return who sent a request; NOBODY who may see nothing."""
        authorization = request.headers.get("authorization", "")
        if authorization.lower().startswith("bearer "):
            return self.logins.by_token(authorization[7:].strip()) or NOBODY
        address = _peer(request)
        found = self.logins.by_session(request.cookies.get(self.cookie, ""))
        proxied = self.logins.by_proxy(address, request.headers.getlist)
        return found or proxied or self.logins.anybody()

    def address(self, request: Request) -> str:
        """Return the address that a request comes from, before the proxies that the settings name."""
        peer, proxy = _peer(request), self.config.proxy
        return proxy.client_of(peer, request.headers.getlist("x-forwarded-for")) if proxy else peer

    def _guarded(self, address: Address) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            who = self.who(request)
            is_refused = who.role < address.role
            if too_many := self._charge(request, who, 1 if is_refused else address.cost):
                return too_many
            if is_refused:
                return self._refused(request, who)
            return await address.endpoint(self, request, who)

        return endpoint

    def _charge(self, request: Request, who: Principal, cost: int) -> Response | None:
        """Take of a client's allowance; or return the refusal."""
        # The name is one that was proved.
        client = f"{source_of(self.address(request))} {who.name}"
        if self._requests.take(client, whole_ms(self._clock()), cost):
            return None
        return PlainTextResponse("too many requests\n", 429, {"Retry-After": "1"})

    def _refused(self, request: Request, who: Principal) -> Response:
        wants_page = "text/html" in request.headers.get("accept", "")
        if who.role is Role.NOBODY and self.config.people and wants_page:
            target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
            return RedirectResponse(f"/login?to={quote(target, safe='')}", 303)
        status = 401 if who.role is Role.NOBODY else 403
        return self.tell(request, who, "Not allowed", "Your role may not do that.", status)

    async def form(self, request: Request, who: Principal) -> dict[str, str] | None:
        """Return a form's fields; None unless it carries the token of this session."""
        fields = await fields_of(request)
        said = fields.get("form_token", "")
        right = bool(who.form_token) and hmac.compare_digest(
            said.encode("utf-8", "replace"), who.form_token.encode()
        )
        return fields if right else None

    # Pages.

    def tell(
        self, request: Request, who: Principal, title: str, text: str, status: int, back: str = "/"
    ) -> Response:
        """Return a page with one sentence. back: the address that its button leads to."""
        values = {"title": title, "text": text, "back": back}
        return self.still(request, who, "notice.html", values, status)

    def still(
        self,
        request: Request,
        who: Principal,
        template: str,
        values: dict[str, Any],
        status: int = 200,
    ) -> Response:
        """Return a page that is not live."""
        shown = {**self._common(request, who), **values, "is_live": False}
        return _html(self._renderer.render(template, shown).html, status)

    async def _not_found(self, request: Request, _fault: Exception) -> Response:
        who = self.who(request)
        text = "There is no such page."
        return self._charge(request, who, 1) or self.tell(request, who, "Not there", text, 404)

    def login_page(self, request: Request, to: str, complaint: str, status: int) -> Response:
        """Return the page that asks who somebody is."""
        values = {"title": "Log in", "to": to, "complaint": complaint}
        return self.still(request, NOBODY, "login.html", values, status)

    def _common(self, request: Request, who: Principal) -> dict[str, Any]:
        theme = request.cookies.get("theme", "")
        return {
            "theme": theme if theme in ("dark", "light") else "",
            "who": who if who.role is not Role.NOBODY else None,
            "has_session": bool(request.cookies.get(self.cookie)) and bool(who.name),
            "nav": NAV,
            "here": "",
            "kinds": KINDS,
            "actions_off": self.actions.off,
            **shared.chrome(self.watch.board, settings(self)),
        }

    def page(self, request: Request, of: str, wanted: PageRequest) -> Response:
        """Return a live page whole."""
        self._request_observation(wanted)
        shown, who = wanted.values(), wanted.who
        if shown is None:
            return self.tell(
                request,
                who,
                "Not there",
                "The bus has no topic, subscription or queue of that name.",
                404,
            )
        # Parts are the same for all with one role; the bar has a name and a token in it. Where nobody looks
        # at this page yet it is rendered once, not a second time for those who will.
        feed = self._feed(of, wanted)
        known = feed.newest(self.watch.number)
        values = {
            **self._common(request, who),
            **shown,
            **{"is_live": True, "of": of, "here": wanted.page.here},
            "version": known.version if known else UNKNOWN_VERSION,
        }
        made = self._renderer.render(wanted.page.template, values, known)
        if known is None:
            feed.keep(made)
        return _html(
            made.html.replace(AT_VERSION.format(UNKNOWN_VERSION), AT_VERSION.format(made.version))
        )

    def _feed(self, of: str, wanted: PageRequest) -> Feed:
        def make() -> Rendering:
            values = {
                **shared.chrome(self.watch.board, settings(self)),
                **(wanted.values() or page_request(self, "/", wanted.who).values() or {}),
                **{"is_live": True, "of": of, "who": NOBODY, "nav": NAV, "version": ""},
                **{"kinds": KINDS, "actions_off": ""},
            }
            return self._renderer.render(wanted.page.template, values)

        return self._feeds.of((of, wanted.who.role.name), make)

    def _request_observation(self, wanted: PageRequest) -> None:
        self.watch.looking(wanted.names(), all_clients=wanted.page.all_clients)

    async def parts(self, request: Request, who: Principal) -> Response:
        """Return what changed of a page since a version."""
        of = request.query_params.get("of", "/")[:QUERY_CHARS_MAX]
        asked = page_request(self, of, who)
        self._request_observation(asked)
        since = request.query_params.get("since", "")
        body = self._feed(of, asked).since(since, self.watch.number, wall_ms())
        return Response(body, media_type="application/json")

    async def stream(self, request: Request, who: Principal) -> Response:
        """Return what changes of a page, at most once a second, until the browser hangs up."""
        browser = " ".join((self.address(request), request.headers.get("user-agent", ""), who.name))
        if self._streams.total() >= STREAMS_MAX or self._streams[browser] >= STREAMS_OF_BROWSER_MAX:
            return PlainTextResponse("too many streams\n", 503, {"Retry-After": "5"})
        of = request.query_params.get("of", "/")[:QUERY_CHARS_MAX]
        since = request.headers.get("last-event-id") or request.query_params.get("since", "")
        headers = {"X-Accel-Buffering": "no"}
        return StreamingResponse(
            self._events(request, who, of, since, browser),
            media_type="text/event-stream",
            headers=headers,
        )

    async def _events(
        self, request: Request, who: Principal, of: str, version: str, browser: str
    ) -> AsyncIterator[bytes]:
        asked = page_request(self, of, who)
        self._streams[browser] += 1
        feed, number = self._feed(of, asked), -1
        try:
            yield b"retry: 2000\n\n"
            while self.who(request).role >= who.role:
                self._request_observation(asked)
                if self.watch.number != number:
                    number = self.watch.number
                    body = feed.since(version, number, wall_ms())
                    version = feed.at(number).version
                    yield b"event: part\nid: %s\ndata: %s\n\n" % (version.encode(), body)
                elif not await self.watch.next(number, within_s=BEAT_S):
                    yield b"event: beat\ndata: {}\n\n"
        finally:
            self._streams[browser] -= 1
            self._streams = +self._streams  # without browsers that have none


def _peer(request: Request) -> str:
    return request.client.host if request.client else ""


# Endpoints.


async def _live(monitor: Monitor, request: Request, who: Principal) -> Response:
    path = request.scope["raw_path"].decode("ascii", "replace")
    of = path + (f"?{request.url.query}" if request.url.query else "")
    if request.query_params.get("parked") and (name := named(path)[1]):
        await monitor.parked.read(name, who)
    return monitor.page(request, of[:QUERY_CHARS_MAX], page_request(monitor, of, who))


async def _series(monitor: Monitor, request: Request, who: Principal) -> Response:
    path = request.scope["raw_path"].decode("ascii", "replace").removesuffix("/series")
    (_, name), span = named(path), request.query_params.get("span", "")
    span_s = int(span) if span in map(str, SPANS_S) else SPANS_S[1]
    series = monitor.watch.history.of(f"source:{name}")
    if series is None:
        return Response("{}", 404, media_type="application/json")
    now_s = wall_ms() / 1_000
    courses = [series.read(figure, now_s, span_s) for figure in range(4)]
    begin, step = courses[0].begin_s, courses[0].step_s
    told: dict[str, Any] = {"at": [begin + i * step for i in range(len(courses[0].values))]}
    for key, course in zip(("oldest_s", "waiting", "in_per_s", "out_per_s"), courses, strict=True):
        told[key] = [None if value is None else round(value, 2) for value in course.values]
    return Response(json.dumps(told), media_type="application/json")


async def _trace(monitor: Monitor, request: Request, who: Principal) -> Response:
    query = {key: text.strip() for key, text in request.query_params.items()}
    board, found, fault = monitor.watch.board, None, ""
    ago = query.get("ago", "")
    if id := query.get("id", "")[:QUERY_CHARS_MAX]:
        monitor.watch.looking()
        ago_s = int(ago) if ago in dict(traced.AGO_S) and ago else 0
        topic = query.get("topic", "")
        try:
            found = await monitor.tracing.find(id, board.view.bus, who, topic=topic, ago_s=ago_s)
        except (MessageBusError, ValueError) as trouble:
            fault = str(trouble)
    values = traced.traced(board, found, query, settings(monitor), fault=fault)
    return monitor.still(request, who, "trace.html", {**values, "here": "/trace"})


async def _find(monitor: Monitor, request: Request, who: Principal) -> Response:
    text, board = request.query_params.get("q", "").strip()[:300], monitor.watch.board
    if text in board.sources:
        return RedirectResponse(shared.source_href(text), 303)
    labels = settings(monitor).labels
    if len(text) == 32 and not text.strip("0123456789abcdef"):
        return RedirectResponse(f"/trace?id={text}", 303)
    for name, label in labels.items():
        if text in (name, label):
            return RedirectResponse(shared.broker_href(name), 303)
    if any(text.lower() in name.lower() for name in board.sources):
        return RedirectResponse(f"/subscriptions?q={quote(text, safe='')}", 303)
    known = (each.id for a in board.view.bus.answers.values() for each in a.clients)
    is_client = "@" in text or any(text.lower() in each.lower() for each in known)
    # Applications choose ids of any form.
    to = "/clients?q=" if is_client or len(text) < ID_CHARS_MIN else "/trace?id="
    return RedirectResponse(f"{to}{quote(text, safe='')}", 303)


async def _export(monitor: Monitor, request: Request, who: Principal) -> Response:
    chosen = matrix.chosen(monitor.watch.board, dict(request.query_params))
    rows = [api.source_row(each) for each in chosen]
    if request.query_params.get("form") == "ndjson":
        text = "".join(json.dumps(row) + "\n" for row in rows)
        return Response(text, media_type="application/x-ndjson")
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]) if rows else ["name"])
    writer.writeheader()
    for row in rows:
        # A spreadsheet would run a name that begins like a formula.
        name = str(row["name"])
        writer.writerow({**row, "name": f"'{name}" if name[:1] in "=+-@\t\r" else name})
    disposition = {"Content-Disposition": 'attachment; filename="subscriptions.csv"'}
    # Half a surrogate pair has no place in UTF-8.
    body = out.getvalue().encode(errors="backslashreplace")
    return Response(body, media_type="text/csv; charset=utf-8", headers=disposition)


async def _login(monitor: Monitor, request: Request, who: Principal) -> Response:
    if request.method != "POST":
        return monitor.login_page(request, request.query_params.get("to", "/"), "", 200)
    fields = await fields_of(request)
    name, to = fields.get("name", "")[:100], fields.get("to", "/")
    address = monitor.address(request)
    if not monitor.logins.may_try(address):
        return monitor.login_page(request, to, "Too many tries: wait a minute.", 429)
    password = fields.get("password", "")
    right = await asyncio.to_thread(monitor.logins.check, name, password)
    if not right or not (session := monitor.logins.begin(name)):
        return monitor.login_page(request, to, "Name or password is wrong.", 401)
    monitor.logins.was_right(address)
    # Only a path of ours: "//elsewhere" is an address of another host.
    is_ours = to.startswith("/") and not to.startswith(("//", "/\\")) and to.isprintable()
    answer = RedirectResponse(to if is_ours else "/", 303)
    answer.set_cookie(
        monitor.cookie,
        session,
        max_age=12 * 3_600,
        httponly=True,
        samesite="strict",
        secure=monitor.has_tls,
        path="/",
    )
    return answer


async def _logout(monitor: Monitor, request: Request, who: Principal) -> Response:
    if await monitor.form(request, who) is None:
        return monitor.tell(
            request,
            who,
            "Not done",
            "The form belongs to another session: load the page again.",
            403,
        )
    monitor.logins.end(request.cookies.get(monitor.cookie, ""))
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(monitor.cookie, path="/", secure=monitor.has_tls)
    return answer


async def _healthz(monitor: Monitor, request: Request, who: Principal) -> Response:
    return PlainTextResponse("ok\n")


PAGES = (
    *("/", "/subscriptions", "/subscriptions/{name:path}", "/queues/{name}", "/brokers"),
    *("/brokers/{name}", "/parked", "/clients", "/topology", "/journal", "/rules"),
)
ADDRESSES = (
    Address("/healthz", Role.NOBODY, _healthz),
    Address("/login", Role.NOBODY, _login, ("GET", "POST")),
    Address("/logout", Role.VIEWER, _logout, ("POST",)),
    Address("/stream", Role.VIEWER, Monitor.stream, cost=RENDERED),
    Address("/parts", Role.VIEWER, Monitor.parts, cost=RENDERED // 2),
    Address("/find", Role.VIEWER, _find),
    Address("/export", Role.VIEWER, _export, cost=RENDERED),
    Address("/trace", Role.VIEWER, _trace, cost=RENDERED),
    Address("/metrics", Role.VIEWER, api.metrics),
    Address("/api/v1/trace/{id}", Role.VIEWER, api.trace, cost=RENDERED),
    Address("/api/v1/depth", Role.VIEWER, api.depth),
    Address("/api/v1/{what}", Role.VIEWER, api.answer_part, cost=RENDERED),
    Address("/subscriptions/{name:path}/series", Role.VIEWER, _series),
    Address("/queues/{name}/series", Role.VIEWER, _series),
    *(Address(path, Role.VIEWER, _live, cost=RENDERED) for path in PAGES),
    Address("/plans", Role.OPERATOR, acting.plan, ("POST",)),
    Address("/plans/{id}", Role.OPERATOR, _live, cost=RENDERED),
    Address("/plans/{id}/run", Role.OPERATOR, acting.run, ("POST",)),
    Address("/plans/{id}/cancel", Role.OPERATOR, acting.cancel, ("POST",)),
)


async def fields_of(request: Request) -> dict[str, str]:
    """Read a form, {} for one of too many fields; what is no text of UTF-8 has replacement characters."""
    body = (await request.body()).decode("utf-8", "replace")
    try:
        return dict(parse_qsl(body, keep_blank_values=True, max_num_fields=FIELDS_MAX))
    except ValueError:
        return {}


def _html(text: str, status: int = 200) -> Response:
    return Response(text.encode("utf-8", "replace"), status, media_type="text/html; charset=utf-8")


class _Static(StaticFiles):
    """Static files; their addresses change with their content."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        if b"v=" in scope.get("query_string", b""):
            answer.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return answer
