"""Addresses of the monitor: who may see them, what changes nothing from elsewhere, hostile texts."""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import json
import re
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from functools import partial
from urllib.parse import urlencode

import httpx
import pytest

from messagebus import Secret
from messagebus.errors import ListUnavailable
from messagebus.observing.snapshot import Bus, Client
from messagebus.services.monitor import hash_password
from messagebus.services.monitor.config import MonitorConfig
from messagebus.services.monitor.eventlog import Event, EventLog
from messagebus.services.monitor.guard import BODIES_BYTES_MAX, BODY_BYTES_MAX, HEADERS
from messagebus.services.monitor.people import Person, Proxy, Role, Token
from messagebus.services.monitor.watch import Watch
from messagebus.services.monitor.web import ADDRESSES, Monitor
from tests.support.held_bodies import held_bodies
from tests.support.watched import PROXIED, MadeUp

BASE = "http://127.0.0.1:8085"
OURS = {"Sec-Fetch-Site": "same-origin"}
PASSWORD = "correct horse"
KEPT = hash_password(PASSWORD)
HOSTILE = (
    "<script>alert(1)</script>",
    "</td></tr></table><img src=x onerror=alert(1)>",
    "\N{RIGHT-TO-LEFT OVERRIDE}gnp.exe",
    "a\0b",
    '" onmouseover="alert(1)',
    "{{ 7 * 7 }}{% for x in y %}",
    "x" * 4_000,
    "\ud800",
)
NAMED = tuple(f"{role}-1" for role in ("viewer", "reader", "operator", "admin"))
# Path of a route -> (an address of it, the lowest role that it answers).
TABLE = {
    "/healthz": ("/healthz", Role.NOBODY),
    "/login": ("/login", Role.NOBODY),
    "/logout": ("/logout", Role.VIEWER),
    "/stream": (None, Role.VIEWER),
    "/parts": ("/parts?of=/", Role.VIEWER),
    "/find": ("/find?q=orders/billing", Role.VIEWER),
    "/export": ("/export", Role.VIEWER),
    "/subscriptions/{name:path}/series": ("/subscriptions/orders/billing/series", Role.VIEWER),
    "/queues/{name}/series": ("/queues/thumbnails/series", Role.VIEWER),
    "/": ("/", Role.VIEWER),
    "/subscriptions": ("/subscriptions?sort=name&page=1&problem=1", Role.VIEWER),
    "/subscriptions/{name:path}": ("/subscriptions/orders/billing?table=1", Role.VIEWER),
    "/queues/{name}": ("/queues/thumbnails", Role.VIEWER),
    "/brokers": ("/brokers", Role.VIEWER),
    "/brokers/{name}": ("/brokers/mb1.example%3A5672", Role.VIEWER),
    "/parked": ("/parked", Role.VIEWER),
    "/clients": ("/clients?behind=1", Role.VIEWER),
    "/topology": ("/topology", Role.VIEWER),
    "/journal": ("/journal?kind=rule", Role.VIEWER),
    "/rules": ("/rules", Role.VIEWER),
    "/trace": ("/trace", Role.VIEWER),
    "/metrics": ("/metrics", Role.VIEWER),
    "/api/v1/trace/{id}": (None, Role.VIEWER),
    "/api/v1/depth": (None, Role.VIEWER),
    "/api/v1/{what}": ("/api/v1/overview", Role.VIEWER),
    "/plans": ("/plans", Role.OPERATOR),
    "/plans/{id}": ("/plans/none", Role.OPERATOR),
    "/plans/{id}/run": ("/plans/none/run", Role.OPERATOR),
    "/plans/{id}/cancel": ("/plans/none/cancel", Role.OPERATOR),
}


def token_of(name: str) -> str:
    return f"secret-of-{name}"


def configured(**more: object) -> MonitorConfig:
    return MonitorConfig(
        bus=PROXIED,
        tokens=tuple(
            Token(
                name,
                hashlib.sha256(token_of(name).encode()).digest(),
                Role[name.partition("-")[0].upper()],
            )
            for name in NAMED
        ),
        people=(Person("m.keller", Secret(KEPT), Role.OPERATOR),),
        **more,  # type: ignore[arg-type]
    )


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


async def monitor_of(config: MonitorConfig, asker: MadeUp | None = None) -> tuple[Monitor, Clock]:
    clock, watch = Clock(), Watch(asker or MadeUp(), EventLog())
    await watch.once()
    return Monitor(config, watch, clock=clock), clock


def client_of(monitor: Monitor, **more: object) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=monitor.application(), **more)  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=transport, base_url=BASE)


@pytest.fixture
async def open_page() -> AsyncIterator[httpx.AsyncClient]:
    monitor, _ = await monitor_of(MonitorConfig(bus=PROXIED))
    async with client_of(monitor) as client:
        yield client


def test_every_route_has_a_row_in_the_table_of_rights() -> None:
    assert {each.path: each.role for each in ADDRESSES} == {
        path: role for path, (_, role) in TABLE.items()
    }


async def test_each_role_sees_what_the_table_says_and_nobody_sees_nothing() -> None:
    monitor, _ = await monitor_of(configured())
    async with client_of(monitor) as client:
        for path, (address, role) in TABLE.items():
            if address is None:
                continue
            methods = next(each.methods for each in ADDRESSES if each.path == path)
            for name in ("nobody", *NAMED):
                has = Role.NOBODY if name == "nobody" else Role[name.partition("-")[0].upper()]
                bearer = {} if name == "nobody" else {"Authorization": f"Bearer {token_of(name)}"}
                answer = await client.request(methods[0], address, headers={**bearer, **OURS})
                if has >= role:
                    # A program has no form of ours: it does not log out, and has nothing done.
                    wanted = (403, 404) if "/plans" in path or path == "/logout" else (200, 303)
                    assert answer.status_code in wanted, (path, name)
                else:
                    refused = 401 if has is Role.NOBODY else 403
                    assert answer.status_code == refused, (path, name)
                    assert "orders" not in answer.text


async def test_a_wrong_token_is_nobody_even_where_everybody_is_a_viewer(
    open_page: httpx.AsyncClient,
) -> None:
    answer = await open_page.get("/", headers={"Authorization": "Bearer guessed"})
    assert answer.status_code == 401


async def test_every_answer_has_the_headers_that_keep_foreign_code_out(
    open_page: httpx.AsyncClient,
) -> None:
    for address in ("/", "/nowhere", "/export", "/healthz", "/parts?of=/"):
        answer = await open_page.get(address)
        for name, value in HEADERS.items():
            assert answer.headers[name] == value, (address, name)
    script = await open_page.get("/static/monitor.js?v=1")
    assert "immutable" in script.headers["Cache-Control"]
    assert script.headers["X-Content-Type-Options"] == "nosniff"


async def test_no_page_has_a_script_or_style_of_its_own(open_page: httpx.AsyncClient) -> None:
    for address, _ in TABLE.values():
        if address is not None and "logout" not in address:
            text = (await open_page.get(address)).text
            assert not re.search(r"<script(?![^>]* src=)|<style| style=| on[a-z]+=", text), address


@pytest.mark.guarantee("pages-of-others-do-nothing")
@pytest.mark.parametrize(
    "host", ["evil.example", "127.evil.example:8085", "127.0.0.1.evil.example"]
)
async def test_a_foreign_name_for_this_host_is_refused_while_everybody_may_look(
    open_page: httpx.AsyncClient, host: str
) -> None:
    answer = await open_page.get("/", headers={"Host": host})
    assert answer.status_code == 421


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {},
    ],
    ids=str,
)
async def test_a_form_of_another_page_is_refused(headers: dict[str, str]) -> None:
    monitor, _ = await monitor_of(configured())
    async with client_of(monitor) as client:
        fields = {"name": "m.keller", "password": PASSWORD}
        answer = await client.post("/login", data=fields, headers=headers)
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers


async def test_a_session_begins_with_the_password_and_ends_with_the_form_of_its_own() -> None:
    monitor, clock = await monitor_of(configured())
    async with client_of(monitor) as client:
        first = await client.get("/brokers", headers={"Accept": "text/html"})
        assert first.headers["location"] == "/login?to=%2Fbrokers"
        fields = {"name": "m.keller", "password": PASSWORD, "to": "/brokers"}
        answer = await client.post("/login", data=fields, headers=OURS)
        assert answer.headers["location"] == "/brokers"
        flags = answer.headers["set-cookie"].lower()
        assert "httponly" in flags
        assert "samesite=strict" in flags
        page = await client.get("/brokers")
        assert "m.keller" in page.text
        found = re.search(r'name="form_token" value="([^"]+)"', page.text)
        assert found is not None
        without = await client.post("/logout", data={"form_token": "x"}, headers=OURS)
        assert without.status_code == 403
        assert (await client.get("/brokers")).status_code == 200
        done = await client.post("/logout", data={"form_token": found[1]}, headers=OURS)
        assert done.status_code == 303
        assert (await client.get("/brokers")).status_code == 401
        again = await client.post("/login", data=fields, headers=OURS)
        assert again.status_code == 303
        clock.now_s += 12 * 3_600 + 1
        assert (await client.get("/brokers")).status_code == 401


async def test_a_form_of_too_many_fields_logs_nobody_in() -> None:
    monitor, _ = await monitor_of(configured())
    async with client_of(monitor) as client:
        fields = {"name": "m.keller", "password": PASSWORD} | {f"a{n}": "" for n in range(50)}
        answer = await client.post("/login", data=fields, headers=OURS)
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers


async def test_people_change_with_their_file_and_who_is_gone_is_logged_out() -> None:
    config = configured()
    monitor, _ = await monitor_of(config)
    async with client_of(monitor) as client:
        fields = {"name": "m.keller", "password": PASSWORD, "to": "/"}
        assert (await client.post("/login", data=fields, headers=OURS)).status_code == 303
        assert (await client.get("/")).status_code == 200
        assert monitor.take(config) == ""
        assert (await client.get("/")).status_code == 200
        assert "requires a restart" in monitor.take(MonitorConfig(bus=PROXIED))
        assert (await client.get("/")).status_code == 200
        other = replace(config, people=(), manual="http://elsewhere/")
        assert "the other changes require a restart" in monitor.take(other)
        assert monitor.config.manual == config.manual
        assert (await client.get("/")).status_code == 401
        assert (await client.post("/login", data=fields, headers=OURS)).status_code == 401


async def test_behind_a_proxy_that_ends_tls_the_cookie_is_of_this_host_and_tls_alone() -> None:
    """The proxy speaks plain HTTP to us, with the host that the browser has said."""
    monitor, _ = await monitor_of(configured(url="https://mb.example"))
    async with client_of(monitor) as client:
        client.headers["Host"] = "mb.example"
        fields = {"name": "m.keller", "password": PASSWORD}
        ours, theirs = {"Origin": "https://mb.example"}, {"Origin": "http://mb.example"}
        assert (await client.post("/login", data=fields, headers=theirs)).status_code == 403
        answer = await client.post("/login", data=fields, headers=ours)
        assert answer.status_code == 303
        assert answer.headers["set-cookie"].startswith("__Host-monitor=")
        assert "secure" in answer.headers["set-cookie"].lower()
        session = answer.headers["set-cookie"].partition(";")[0]
        assert (await client.get("/", headers={"Cookie": session})).status_code == 200


@pytest.mark.guarantee("pages-of-others-do-nothing")
async def test_an_image_or_frame_of_another_site_shows_nothing_and_a_link_leads_here() -> None:
    monitor, _ = await monitor_of(configured())
    async with client_of(monitor) as client:
        client.headers["Cookie"] = f"monitor={monitor.logins.begin('m.keller')}"
        for site in ("cross-site", "same-site"):
            for mode, dest in (("no-cors", "image"), ("navigate", "iframe"), ("cors", "empty")):
                said = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": dest}
                assert (await client.get("/", headers=said)).status_code == 403, said
            said = {
                "Sec-Fetch-Site": site,
                "Sec-Fetch-Mode": "navigate",
                "Sec-Fetch-Dest": "document",
            }
            assert (await client.get("/", headers=said)).status_code == 200


@pytest.mark.parametrize("to", ["//evil.example", "/\\evil.example", "https://evil.example", "x"])
async def test_a_login_never_leads_to_another_host(to: str) -> None:
    monitor, _ = await monitor_of(configured())
    async with client_of(monitor) as client:
        fields = {"name": "m.keller", "password": PASSWORD, "to": to}
        answer = await client.post("/login", data=fields, headers=OURS)
        assert answer.headers["location"] == "/"


async def test_the_sixth_try_in_a_minute_is_not_looked_at() -> None:
    monitor, clock = await monitor_of(configured())
    async with client_of(monitor) as client:
        fields = {"name": "m.keller", "password": "guess"}
        for _ in range(5):
            answer = await client.post("/login", data=fields, headers=OURS)
            assert answer.status_code == 401
        right = {"name": "m.keller", "password": PASSWORD}
        answer = await client.post("/login", data=right, headers=OURS)
        assert answer.status_code == 429
        clock.now_s += 60
        answer = await client.post("/login", data=right, headers=OURS)
        assert answer.status_code == 303


@pytest.mark.guarantee("nobody-locks-others-out")
async def test_a_stranger_keeps_nobody_from_logging_in_neither_by_name_nor_behind_one_proxy() -> (
    None
):
    """A stranger tries one name, and many; both come by the proxy that ends TLS."""
    proxy = Proxy("", (ipaddress.ip_network("10.0.0.5/32"),), {}, None)
    monitor, clock = await monitor_of(configured(proxy=proxy))
    async with client_of(monitor, client=("10.0.0.5", 4_000)) as client:

        async def logs_in(name: str, password: str, address: str) -> int:
            headers = {**OURS, "X-Forwarded-For": f"203.0.113.9, {address}"}
            fields = {"name": name, "password": password}
            return (await client.post("/login", data=fields, headers=headers)).status_code

        stranger, office = "192.0.2.1", "192.0.2.2"
        for number in range(7):
            await logs_in("m.keller", "guess", stranger)
            await logs_in(f"made up {number}", "guess", stranger)
            clock.now_s += 3
        assert await logs_in("m.keller", PASSWORD, stranger) == 429
        # A company of many has one address, too: right logins do not count.
        codes = [await logs_in("m.keller", PASSWORD, office) for _ in range(12)]
        assert codes == [303] * 12


async def test_a_proxy_names_people_only_from_its_own_address() -> None:
    network = ipaddress.ip_network("10.0.0.5/32")
    proxy = Proxy("x-forwarded-user", (network,), {"a.lund": Role.ADMIN}, None)
    monitor, _ = await monitor_of(configured(proxy=proxy))
    for peer, name, status in (
        ("10.0.0.5", "a.lund", 200),
        ("10.0.0.6", "a.lund", 401),
        ("10.0.0.5", "nobody", 401),
    ):
        async with client_of(monitor, client=(peer, 4_000)) as client:
            answer = await client.get("/brokers", headers={"X-Forwarded-User": name})
            assert answer.status_code == status, (peer, name)
            # A proxy that adds its own header passes on what the caller has sent.
            twice = [("X-Forwarded-User", name), ("X-Forwarded-User", "m.keller")]
            assert (await client.get("/brokers", headers=twice)).status_code == 401


async def test_a_body_beyond_its_bound_is_refused() -> None:
    monitor, _ = await monitor_of(configured())
    async with client_of(monitor) as client:
        answer = await client.post("/login", content=b"x" * 70_000, headers=OURS)
        assert answer.status_code == 413


@pytest.mark.guarantee("slow-connections-are-bounded")
async def test_bodies_that_hold_back_their_end_are_bounded_together() -> None:
    monitor, _ = await monitor_of(configured())
    part = b"x" * (BODY_BYTES_MAX - 1)
    of_address = BODIES_BYTES_MAX // 2 // len(part)
    async with client_of(monitor) as client:
        posts = [partial(client.post, "/login", headers=OURS)] * (of_address + 2)
        async with held_bodies(posts, part, refused=2):
            async with client_of(monitor, client=("127.0.0.2", 4_000)) as other:
                answer = await other.post("/login", data={"name": "olga"}, headers=OURS)
            assert answer.status_code == 401, "of another address"


async def test_somebody_who_asks_too_often_is_told_to_wait(open_page: httpx.AsyncClient) -> None:
    codes = [(await open_page.get("/healthz")).status_code for _ in range(210)]
    assert codes.count(429) == 10


@pytest.mark.guarantee("slow-connections-are-bounded")
@pytest.mark.parametrize(
    ("path", "most"),
    [("/", 20), ("/subscriptions", 20), ("/api/v1/subscriptions", 20), ("/parts?of=/{}", 40)],
)
async def test_one_client_has_as_many_pages_rendered_as_leave_time_for_others(
    path: str, most: int
) -> None:
    monitor, _ = await monitor_of(MonitorConfig(bus=PROXIED))
    async with client_of(monitor) as client:
        codes = [(await client.get(path.format(n))).status_code for n in range(most + 10)]
        assert (codes.count(200), codes.count(429)) == (most, 10)
    async with client_of(monitor, client=("127.0.0.2", 4_000)) as other:
        assert (await other.get("/")).status_code == 200


@pytest.mark.guarantee("slow-connections-are-bounded")
@pytest.mark.parametrize("path", ["/nothing", "/static/nothing.js"])
async def test_requests_for_what_is_not_there_count_as_all_others(
    path: str, open_page: httpx.AsyncClient
) -> None:
    codes = [(await open_page.get(path)).status_code for _ in range(210)]
    assert (codes.count(404), codes.count(429)) == (200, 10)


class Hostile(MadeUp):
    """A bus in which everything that others name is hostile."""

    def __init__(self, text: str) -> None:
        super().__init__(3, (f"orders/{text}", f"queue:{text}"), silent=False)
        self._text = text

    def bus(self) -> Bus:
        bus, text = super().bus(), self._text
        seens = []
        for seen in bus.brokers:
            assert seen.last is not None
            state = replace(seen.last.state, reason=text, alarm=text, rabbitmq=text, agent=text)
            clients = (Client(id=text, subscription=text, applied=1, age_ms=1),)
            consumers = tuple(
                replace(e, client=text, name=f"orders/{text}") for e in seen.last.consumers
            )
            last = replace(seen.last, state=state, clients=clients, consumers=consumers)
            seens.append(replace(seen, last=last))
        seens[0] = replace(seens[0], fault=text)
        balancers = tuple(replace(each, fault=text) for each in bus.balancers)
        return replace(
            bus, brokers=tuple(seens), cluster=text, list_fault=text, balancers=balancers
        )


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_hostile_texts_of_clients_and_brokers_are_shown_and_never_run(text: str) -> None:
    asker = Hostile(text)
    monitor, _ = await monitor_of(MonitorConfig(bus=PROXIED), asker)
    monitor.watch.events.add([Event(1, "action", text, text, text)])
    async with client_of(monitor) as client:
        quoted = urlencode({"q": text}, errors="surrogatepass")
        for address in (
            *("/", "/brokers", "/clients", "/topology", "/journal", "/rules", "/parked", "/export"),
            *("/brokers/mb1.example%3A5672", "/brokers/mb2.example%3A5672"),
            *(
                f"/subscriptions?{quoted}",
                f"/clients?{quoted}",
                f"/journal?{quoted.replace('q=', 'about=')}",
            ),
            f"/parts?of=/subscriptions?{quoted}",
        ):
            answer = await client.get(address)
            assert answer.status_code == 200, address
            told = answer.text
            if "json" in answer.headers["content-type"]:
                told = " ".join(html for _, html in json.loads(told)["parts"])
            if "csv" not in answer.headers["content-type"]:
                assert "<script>alert" not in told
                assert "<img" not in told
                assert ' onmouseover="' not in told
                assert "49" not in text or "{{ 7 * 7 }}" in told


async def test_a_page_that_names_nothing_is_an_honest_404(open_page: httpx.AsyncClient) -> None:
    for address in ("/nowhere", "/subscriptions/no/such", "/queues/none", "/brokers/none"):
        assert (await open_page.get(address)).status_code == 404, address


@pytest.mark.parametrize(
    "query",
    [
        "sort=%00",
        "page=-1",
        "page=99999999",
        "page=²",
        "q=" + "x" * 5_000,
        "problem=%ff",
        "sort=--",
        "&".join(f"a{number}=1" for number in range(50)),
        "of=//[",
    ],
)
async def test_a_query_of_nonsense_is_harmless(open_page: httpx.AsyncClient, query: str) -> None:
    for path in ("/", "/subscriptions", "/export", "/parts"):
        assert (await open_page.get(f"{path}?{query}")).status_code == 200


async def test_a_formula_in_a_name_is_no_formula_in_the_export() -> None:
    monitor, _ = await monitor_of(MonitorConfig(bus=PROXIED), MadeUp(2, ("=1+2/x",), silent=False))
    async with client_of(monitor) as client:
        assert "\n'=1+2/x," in (await client.get("/export")).text.replace("\r", "")


# Live parts.


async def test_parts_since_a_page_are_only_those_that_changed(open_page: httpx.AsyncClient) -> None:
    page = (await open_page.get("/brokers")).text
    version = re.search(r'data-version="(\w+)"', page)
    assert version is not None
    same = (await open_page.get(f"/parts?of=/brokers&since={version[1]}")).json()
    assert same["parts"] == []
    assert same["version"] == version[1]
    every = (await open_page.get("/parts?of=/brokers&since=unknown")).json()
    assert {"pulse", "broker.mb1.example%3A5672"} <= {id for id, _ in every["parts"]}
    assert [id for id, _ in every["orders"]] == ["brokers.body"]


async def test_every_part_has_its_id_once_in_its_page(open_page: httpx.AsyncClient) -> None:
    for address, _ in TABLE.values():
        if address is None or address.startswith(
            ("/login", "/logout", "/healthz", "/find", "/export")
        ):
            continue
        text = (await open_page.get(address)).text
        ids = re.findall(r"""\bid=["']([^"']+)["']""", text)
        assert len(ids) == len(set(ids)), (address, [i for i in ids if ids.count(i) > 1])


async def test_a_stream_sends_what_changed_and_ends_with_its_session() -> None:
    monitor, clock = await monitor_of(configured())
    secret = monitor.logins.begin("m.keller")
    sent: list[bytes] = []
    done = asyncio.Event()

    async def receive() -> dict[str, object]:
        await done.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, object]) -> None:
        if message["type"] == "http.response.body":
            body = message["body"]
            assert isinstance(body, bytes)
            sent.append(body)
            if b"event: part" in body:
                clock.now_s += 13 * 3_600
                await monitor.watch.once()

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/stream",
        "raw_path": b"/stream",
        "query_string": b"of=/",
        "headers": [(b"host", b"127.0.0.1"), (b"cookie", f"monitor={secret}".encode())],
        "scheme": "http",
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 4_000),
        "root_path": "",
        "http_version": "1.1",
    }
    first = {"type": "http.request", "body": b"", "more_body": False}
    messages = [first]

    async def receive_all() -> dict[str, object]:
        return messages.pop() if messages else await receive()

    application = monitor.application()
    async with asyncio.timeout(60):
        await application(scope, receive_all, send)  # type: ignore[arg-type]
    assert sum(b"event: part" in each for each in sent) == 1


class Away(MadeUp):
    """A bus whose list nobody can fetch."""

    async def look(self, *, names: Iterable[str] = (), all_clients: bool = False) -> Bus:
        raise ListUnavailable("http://lb1:8081/list: no answer")

    def bus(self) -> Bus:
        return Bus(at_ms=1, brokers=())


async def test_a_bus_of_which_nothing_is_known_is_never_called_well() -> None:
    monitor, _ = await monitor_of(MonitorConfig(bus=PROXIED), Away())
    async with client_of(monitor) as client:
        text = (await client.get("/")).text
        assert "Not known: http://lb1:8081/list: no answer" in text
        assert "All clear" not in text


class Unlinked(MadeUp):
    """A bus that is well, but for one broker, which its agent has just lost."""

    def bus(self) -> Bus:
        found = super().bus()
        first, *others = found.brokers
        assert first.last
        state = replace(first.last.state, linked=False)
        return replace(
            found, brokers=(replace(first, last=replace(first.last, state=state)), *others)
        )


async def test_a_broker_that_was_just_lost_is_named_before_its_rule_holds() -> None:
    asker = Unlinked(2, ("users/crm",), silent=False)
    monitor, _ = await monitor_of(MonitorConfig(bus=PROXIED), asker)
    async with client_of(monitor) as client:
        text = (await client.get("/")).text
        assert "No alert is firing yet; look at mb1." in text
        assert "All clear" not in text
