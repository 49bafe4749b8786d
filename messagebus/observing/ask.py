"""Questions to all agents and balancers, side by side, each within a deadline of its own.

A part that does not answer is named with the reason, and keeps its last answer. Only what has changed since
is asked for. The one module of `observing` with I/O.
"""

from __future__ import annotations

import asyncio
import csv
import json
import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import httpx

from messagebus._io.agents.consumer_list import fetch_list
from messagebus._io.agents.http import http_client
from messagebus.broker import BrokerList, ListedBroker
from messagebus.clock import wall_ms
from messagebus.config import BusConfig, with_agents
from messagebus.errors import ConfigError, ListError, ListUnavailable, LoginRefused, reason_of
from messagebus.observing.rules import UNKNOWN_QUERY
from messagebus.observing.snapshot import (
    NO_LINK,
    Answer,
    Balancer,
    Bus,
    ObservedBroker,
    Outcomes,
    Server,
    merged,
    read_answer,
)

ANSWER_WITHIN_S = 1.5
LIST_WITHIN_S = 3.0
TRAIL_WITHIN_S = 3.0
TRAIL_ROWS_MAX = 100
# In the year 6429.
AT_MS_MAX = 1 << 47
LIST_EVERY_MS = 10_000
OUTCOMES_EVERY_MS = 15_000
SERIES_MAX = 1_000
# A waiting request is answered after this time, when nothing has changed.
STATE_WAIT_S = 20
# 100,000 rows; a larger answer is none.
ANSWER_BYTES_MAX = 16 << 20
# zlib's word for a gzip header.
GZIP = 31
# HAProxy's name for the brokers, as `lb` writes it.
BROKERS_PROXY = "mb_brokers"
REFUSED = "login refused"


@dataclass(slots=True)
class _Agent:
    """The knowledge of one agent. silent_since_ms, fault: as of `ObservedBroker`."""

    last: Answer | None = None
    fault: str = "not asked yet"
    silent_since_ms: int | None = None
    skew_ms: int | None = None
    is_refused_for_broker: bool = False


class Asker:
    """Questions to the agents of one bus. Runs on one loop; `close` it in the end.

    balancers: addresses of HAProxy's statistics, ``http://lb1:8404``. transport: a substitute, for tests.
    prometheus: address of one that has the publishers' figures, ``http://prometheus:9090``; "" for none.
    Raises ConfigError without list addresses, or for unusable certificates.
    """

    def __init__(
        self,
        bus: BusConfig,
        *,
        balancers: Sequence[str] = (),
        prometheus: str = "",
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._bus = with_agents(bus)
        limits = httpx.Limits(max_connections=None, keepalive_expiry=2.0 * STATE_WAIT_S)
        self._http = http_client(bus, transport=transport, limits=limits, apart=True)
        self._agents: dict[str, _Agent] = {}
        self._balancers = {url.rstrip("/"): Balancer(url=url, fault="") for url in balancers}
        self._outcomes = Outcomes(url=prometheus.rstrip("/")) if prometheus else None
        self._outcomes_at_ms = -OUTCOMES_EVERY_MS
        self._list: BrokerList | None = None
        self._list_at_ms, self._list_tried_ms, self._list_fault = 0, -LIST_EVERY_MS, ""
        self._waits: dict[asyncio.Task[bool], str] = {}

    async def close(self) -> None:
        for task in self._waits:
            task.cancel()
        await asyncio.gather(*self._waits, return_exceptions=True)
        await self._http.aclose()

    async def look(self, *, names: Iterable[str] = (), all_clients: bool = False) -> Bus:
        """Ask all agents and balancers, and return the bus as it is then, in ANSWER_WITHIN_S.

        names: have these counted now, beside what has changed; at most 200. all_clients: not only those that
        are behind. Raises ListError without any list yet, LoginRefused when every agent refuses.
        """
        listed = await self._current_list()
        query = {"clients": "all"} if all_clients else {}
        await asyncio.gather(
            *(self._look_at(each, query) for each in listed),
            *(self._balancer(url) for url in self._balancers),
            self._unknown_outcomes(),
        )
        if names := sorted(set(names)):
            query = {"names": ",".join(names)}
            answering = [each for each in listed if not self._agents[each.broker.name].fault]
            await asyncio.gather(*(self._look_at(each, query) for each in answering))
        agents = self._agents.values()
        if agents and all(each.fault.startswith(REFUSED) for each in agents):
            raise LoginRefused(self._bus.list_urls[0], next(iter(agents)).fault)
        return self.bus()

    async def trail(self, id: str) -> tuple[list[dict[str, Any]], dict[str, str]]:
        """Return the rows of all agents' trails about an id, or its beginning, and who could not tell.

        An agent without a trail tells nothing, and that is no fault. Raises ListError without any list.
        """
        rows, faults = list[dict[str, Any]](), dict[str, str]()

        async def of(listed: ListedBroker) -> None:
            try:
                async with asyncio.timeout(TRAIL_WITHIN_S):
                    path = f"/trail/{quote(id, safe='')}"
                    status, body = await self._get(self._url(listed, path), self._auth())
                if status == httpx.codes.OK:
                    rows.extend({**each, "agent": listed.broker.name} for each in _trail(body))
                elif status not in (httpx.codes.NOT_FOUND, httpx.codes.METHOD_NOT_ALLOWED):
                    raise ValueError(_fault_of(status))
            except TimeoutError:
                faults[f"the trail at {listed.broker.name}"] = f"not in {TRAIL_WITHIN_S:g} s"
            except (ValueError, RecursionError, zlib.error, httpx.HTTPError, ConfigError) as fault:
                told = reason_of(fault)
                faults[f"the trail at {listed.broker.name}"] = told

        await asyncio.gather(*(of(each) for each in await self._current_list()))
        return sorted(rows, key=lambda row: row["at_ms"]), faults

    async def changed(self, *, within_s: float) -> bool:
        """Wait until an agent tells another state or falls silent. Returns False when none did in time.

        `bus` has it then. One request waits at each agent that answered the last question.
        """
        waiting = set(self._waits.values())
        for each in self._list or ():
            agent = self._agents.get(each.broker.name)
            if agent and agent.last and not agent.fault and each.broker.name not in waiting:
                task = asyncio.ensure_future(self._state_of(each, agent))
                self._waits[task] = each.broker.name
        if not self._waits:
            await asyncio.sleep(within_s)
            return False
        done, _ = await asyncio.wait(
            self._waits, timeout=within_s, return_when=asyncio.FIRST_COMPLETED
        )
        for task in done:
            self._waits.pop(task, None)
        return any(task.result() for task in done)

    def bus(self) -> Bus:
        """Return the bus by the last answers."""
        now_ms, listed = wall_ms(), self._list
        return Bus(
            at_ms=now_ms,
            brokers=tuple(self._observed(each) for each in listed or ()),
            cluster=listed.cluster if listed else "",
            generation=listed.generation if listed else 0,
            list_age_ms=max(0, now_ms - self._list_at_ms),
            list_fault=self._list_fault,
            balancers=tuple(self._balancers.values()),
            outcomes=self._outcomes,
        )

    def _observed(self, listed: ListedBroker) -> ObservedBroker:
        agent = self._agents.get(listed.broker.name) or _Agent()
        return ObservedBroker(
            broker=listed.broker.name,
            fault=agent.fault,
            last=agent.last,
            draining=listed.draining,
            silent_since_ms=agent.silent_since_ms,
            skew_ms=agent.skew_ms,
            is_refused_for_broker=agent.is_refused_for_broker,
        )

    async def _current_list(self) -> BrokerList:
        if wall_ms() - self._list_tried_ms < LIST_EVERY_MS and self._list:
            return self._list
        fault: ListError = ListUnavailable("no answer in time")
        for url in self._bus.list_urls:
            try:
                async with asyncio.timeout(LIST_WITHIN_S):
                    found = await fetch_list(self._http, url)
            except ListError as trouble:
                fault = trouble
            except TimeoutError:
                continue
            else:
                assert found is not None, "only a waiting fetch is answered with nothing newer"
                self._list, self._list_at_ms, self._list_fault = found, wall_ms(), ""
                self._agents = {
                    name: self._agents.get(name) or _Agent()
                    for name in (each.broker.name for each in found)
                }
                break
        else:
            if self._list is None:
                raise fault
            self._list_fault = str(fault)
        self._list_tried_ms = wall_ms()
        return self._list

    # One agent.

    async def _look_at(self, listed: ListedBroker, query: dict[str, str]) -> None:
        agent = self._agents[listed.broker.name]
        if agent.last and "names" not in query:
            query = {**query, "since": agent.last.mark}
        began_ms = wall_ms()
        new = await self._ask(listed, agent, query, within_s=ANSWER_WITHIN_S)
        if new is None:
            return
        agent.skew_ms = new.at_ms - (began_ms + new.received_at_ms) // 2
        old = agent.last
        if "names" in query and old:
            # Its clients are of these names; the mark stays that of the last question for all.
            clients = sorted({*old.clients, *new.clients}, key=lambda c: c.id)
            consumers = {(e.name, e.client, e.peer): e for e in (*old.consumers, *new.consumers)}
            new = replace(
                new, clients=tuple(clients), consumers=tuple(consumers.values()), mark=old.mark
            )
        agent.last = merged(old, new)

    async def _state_of(self, listed: ListedBroker, agent: _Agent) -> bool:
        """Wait for another state of one agent. Returns whether anything is different."""
        assert agent.last, "only asked after an answer"
        query = {"state_after": str(agent.last.state.version), "wait_s": str(STATE_WAIT_S)}
        new = await self._ask(listed, agent, query, within_s=STATE_WAIT_S + ANSWER_WITHIN_S)
        if new is None or not agent.last:
            return bool(agent.fault)
        agent.last = replace(agent.last, state=new.state)
        return True

    async def _ask(
        self, listed: ListedBroker, agent: _Agent, query: dict[str, str], *, within_s: float
    ) -> Answer | None:
        """Return an answer, None for no other state or for a fault, which is noted."""
        url = self._url(listed, f"/observe?{urlencode(query)}")
        answer: Answer | None = None
        fault, is_refused_for_broker = "", False
        try:
            async with asyncio.timeout(within_s):
                status, body = await self._get(url, self._auth())
            if status == httpx.codes.OK:
                answer = read_answer(json.loads(body), received_at_ms=wall_ms())
                if answer.broker != listed.broker.name:
                    fault, answer = f"the agent of {answer.broker!r} answers there", None
            elif status == httpx.codes.SERVICE_UNAVAILABLE and _has_no_link(body):
                fault, is_refused_for_broker = NO_LINK, True
            elif status != httpx.codes.NOT_MODIFIED:
                fault = _fault_of(status)
        except TimeoutError:
            fault = f"no answer within {within_s:g} s"
        except (ValueError, RecursionError, zlib.error) as trouble:
            fault = f"not an agent's answer: {trouble}"
        except (httpx.HTTPError, ConfigError) as trouble:
            fault = reason_of(trouble)
        if fault and not agent.silent_since_ms:
            agent.silent_since_ms = wall_ms()
        elif not fault:
            agent.silent_since_ms = None
        agent.fault, agent.is_refused_for_broker = fault, is_refused_for_broker
        return answer

    def _url(self, listed: ListedBroker, path: str) -> str:
        return f"{urlsplit(self._bus.list_urls[0]).scheme}://{listed.agent_address}{path}"

    def _auth(self) -> httpx.Auth:
        return httpx.BasicAuth(self._bus.current_user(), self._bus.current_password().reveal())

    async def _get(self, url: str, auth: httpx.Auth | None = None) -> tuple[int, bytes]:
        body = bytearray()
        timeout = httpx.Timeout(None)  # each question has a deadline for the whole
        headers = {"Accept-Encoding": "gzip"}
        asked = self._http.stream("GET", _parsed(url), auth=auth, timeout=timeout, headers=headers)
        async with asked as answer:
            # httpx decodes without a bound, also "gzip, gzip": 64 KB may become 64 GB.
            encoding = answer.headers.get("content-encoding", "identity")
            if encoding not in ("gzip", "identity"):
                raise ValueError(f"encoded as {encoding[:40]!r}")
            unzipping = zlib.decompressobj(GZIP) if encoding == "gzip" else None
            assert isinstance(answer.stream, httpx.AsyncByteStream)
            async for part in answer.stream:
                left = ANSWER_BYTES_MAX + 1 - len(body)
                body += unzipping.decompress(part, left) if unzipping else part
                if len(body) > ANSWER_BYTES_MAX:
                    raise ValueError(f"more than {ANSWER_BYTES_MAX} bytes")
            return answer.status_code, bytes(body)

    async def _balancer(self, url: str) -> None:
        known, fault = self._balancers[url], ""
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                status, body = await self._get(f"{url}/;csv")
            if status != httpx.codes.OK:
                raise ValueError(f"HTTP {status}")
            servers = read_stats(body.decode())
        except TimeoutError:
            fault = f"no answer within {ANSWER_WITHIN_S:g} s"
        except (httpx.HTTPError, ValueError, zlib.error, csv.Error) as trouble:
            fault = reason_of(trouble)
        if fault:
            since_ms = known.silent_since_ms or wall_ms()
            self._balancers[url] = replace(known, fault=fault, silent_since_ms=since_ms)
        else:
            self._balancers[url] = Balancer(url=known.url, servers=servers)

    async def _unknown_outcomes(self) -> None:
        """Ask Prometheus, which looks at clients every some seconds, not more often than that."""
        if self._outcomes is None or wall_ms() - self._outcomes_at_ms < OUTCOMES_EVERY_MS:
            return
        self._outcomes_at_ms, fault = wall_ms(), ""
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                query = urlencode({"query": UNKNOWN_QUERY})
                status, body = await self._get(f"{self._outcomes.url}/api/v1/query?{query}")
            if status != httpx.codes.OK:
                raise ValueError(f"HTTP {status}")
            unknown = read_series(json.loads(body))
            self._outcomes = Outcomes(url=self._outcomes.url, fault="", unknown=unknown)
        except TimeoutError:
            fault = f"no answer within {ANSWER_WITHIN_S:g} s"
        except (httpx.HTTPError, ValueError, RecursionError, zlib.error) as trouble:
            fault = reason_of(trouble)
        if fault:
            self._outcomes = replace(self._outcomes, fault=fault)


def read_series(answer: Any) -> tuple[tuple[str, int], ...]:
    """Read Prometheus' answer to UNKNOWN_QUERY. Raises ValueError for anything else."""
    try:
        found = [
            (" on ".join(str(each["metric"].get(key, "?"))[:200] for key in ("client", "instance")),
             math.ceil(float(each["value"][1])))
            for each in answer["data"]["result"][:SERIES_MAX]
        ]  # fmt: skip
    except (KeyError, TypeError, IndexError, AttributeError, OverflowError):
        raise ValueError("not an answer of Prometheus") from None
    return tuple(sorted(found, key=lambda each: (-each[1], each[0])))


def read_stats(text: str) -> tuple[Server, ...]:
    """Read HAProxy's statistics in CSV: its brokers. Raises ValueError when they are none."""
    if not text.startswith("# pxname,svname,"):
        raise ValueError("not HAProxy's statistics")
    rows = csv.DictReader(text.removeprefix("# ").splitlines())
    return tuple(
        _server(row)
        for row in rows
        if row["pxname"] == BROKERS_PROXY and row["svname"] not in ("FRONTEND", "BACKEND")
    )


def _server(row: dict[str, Any]) -> Server:
    return Server(
        name=row["svname"],
        status=row["status"],
        check=" ".join(filter(None, (row.get("check_status"), row.get("last_chk")))),
        agent=" ".join(filter(None, (row.get("agent_status"), row.get("last_agt")))),
        sessions=int(row.get("scur") or 0),
        limit=int(row.get("slim") or 0),
        changed_s=int(row.get("lastchg") or 0),
    )


def _has_no_link(body: bytes) -> bool:
    """Return whether an agent says that it cannot check a login because its broker is down."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(said, dict) and said.get("linked") is False


def _fault_of(status: int) -> str:
    if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        return f"{REFUSED}: HTTP {status}"
    return f"HTTP {status}"


def _trail(body: bytes) -> list[dict[str, Any]]:
    """Read an agent's rows. Raises ValueError for anything else; keys that are no texts are left out."""
    said = json.loads(body)
    rows = said.get("rows") if isinstance(said, dict) else None
    if not isinstance(rows, list) or len(rows) > TRAIL_ROWS_MAX:
        raise ValueError(f"at most {TRAIL_ROWS_MAX} rows wanted")
    made = []
    for row in rows:
        if (
            not isinstance(row, dict)
            or type(row.get("at_ms")) is not int
            or abs(row["at_ms"]) > AT_MS_MAX
        ):
            raise ValueError("rows with at_ms wanted")
        made.append({key: each for key, each in row.items() if isinstance(each, str)})
        made[-1] |= {key: row[key] for key in ("at_ms", "attempt") if type(row.get(key)) is int}
    return made


# Most questions repeat earlier ones: to read an address with 50 names takes 0.1 ms.
@lru_cache(maxsize=512)
def _parsed(url: str) -> httpx.URL:
    return httpx.URL(url)
