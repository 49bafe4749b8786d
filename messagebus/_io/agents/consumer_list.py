"""Client of the consumer list: a waiting fetch that never ends, and the last good list on disk.

Runs on one asyncio loop. `core.membership.ListKeeper` decides which answers are accepted.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx

from messagebus._io.agents.http import http_client
from messagebus._io.loop import Tasks
from messagebus.broker import LIST_BYTES_MAX, BrokerList, ListedBroker
from messagebus.clock import LogLimit, monotonic_ms
from messagebus.config import BusConfig
from messagebus.core.membership import Judgement, ListKeeper
from messagebus.core.route import backoff_ms
from messagebus.errors import (
    ConfigError,
    ListError,
    ListInvalid,
    ListUnavailable,
    MessageBusError,
    reason_of,
)
from messagebus.files import replace_file

log = logging.getLogger("messagebus.list")

CONNECT_TIMEOUT_S = 2.0
# Above the time for which an agent keeps a waiting fetch.
ANSWER_GRACE_S = 5.0
RETRY_FIRST_MS, RETRY_MAX_MS = 100, 5_000
# An agent keeps the request; a server that answers "nothing new" at once is not asked more often.
ASK_EVERY_MS = 1_000
# Of faults one in this time is logged.
WARN_EVERY_MS = 60_000
# What a web page, a login page or another service answers; a list is any other text.
NO_LISTS = ("text/html", "application/json", "application/xhtml+xml", "application/xml")
NOT_MODIFIED = 304


async def fetch_list(
    http: httpx.AsyncClient,
    url: str,
    *,
    wait_s: float = 0,
    generation: int = -1,
    login: httpx.BasicAuth | None = None,
    **who: str,
) -> BrokerList | None:
    """Fetch the list that consumers connect to; any agent may answer.

    wait_s: time in s for which the agent may keep the request until it has a newer list than `generation`.
    login: user and password in the bus; without them an agent does not count who asks.
    who: client, subscription, applied: told to the agent.
    Returns None when there is nothing newer. Raises ListUnavailable (keep the last list) or
    ListInvalid (an answer that is not a list: keep the last list and report it).
    """
    query: dict[str, str] = dict(who)
    if generation >= 0:
        query |= {"generation": str(generation), "wait_s": f"{wait_s:g}"}
    timeout = httpx.Timeout(CONNECT_TIMEOUT_S, read=wait_s + ANSWER_GRACE_S)
    try:
        async with asyncio.timeout(wait_s + CONNECT_TIMEOUT_S + ANSWER_GRACE_S):
            async with http.stream("GET", url, params=query, timeout=timeout, auth=login) as answer:
                return await _read_list(answer)
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as fault:
        raise ListUnavailable(f"{url}: {reason_of(fault)}") from fault


async def _read_list(answer: httpx.Response) -> BrokerList | None:
    if answer.status_code == NOT_MODIFIED:
        return None
    if answer.status_code != httpx.codes.OK:
        raise ListUnavailable(f"{answer.url}: HTTP {answer.status_code}")
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in NO_LISTS:
        raise ListInvalid(f"{answer.url.copy_with(query=None)} answers {kind}: no consumer list")
    text = b""
    async for part in answer.aiter_bytes():
        text += part
        if len(text) > LIST_BYTES_MAX:
            raise ListInvalid(f"more than {LIST_BYTES_MAX} bytes")
    declared, arrived = answer.headers.get("content-length"), answer.num_bytes_downloaded
    if declared is not None and declared.isdigit() and int(declared) != arrived:
        raise ListInvalid(f"{arrived} of {declared} bytes arrived")
    try:
        found = BrokerList.parse(text.decode())
    except UnicodeDecodeError as fault:
        raise ListInvalid(f"not UTF-8: {fault}") from fault
    # A login page of some network answers anything with one word, and any word is a host's name.
    says_nothing = not (found.generation or found.cluster)
    if says_nothing and any(name.encode() not in text for name in found.names):
        raise ListInvalid("without cluster and generation each broker is named with its port")
    return found


class ListFollower:
    """A follower of the consumer list: calls `on_list` for each newer one, and first for a cached one.

    Without list addresses the configured broker is the whole list, once.
    """

    def __init__(
        self,
        bus: BusConfig,
        *,
        subscription: str,
        interval_s: int,
        on_list: Callable[[BrokerList], None],
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._transport = transport
        self._bus, self._subscription, self._interval_s = bus, subscription, interval_s
        self._on_list = on_list
        self.keeper = ListKeeper(cluster=bus.cluster, hosts_allowed=bus.broker_hosts_allowed)
        self.brokers: BrokerList | None = None
        self.until_tried: Callable[[], Awaitable[object]] | None = None
        """Called after `on_list`; ends when the brokers were dialled. Then the list is told as applied."""
        self._applied = -1
        self._warnings = LogLimit(WARN_EVERY_MS)
        self._tasks = Tasks()

    def start(self) -> None:
        """Begin. `on_list` may be called before this returns."""
        if not self._bus.list_urls:
            self._apply(BrokerList(listed=(ListedBroker(broker=self._bus.address),)))
            return
        self._read_cache()
        self._tasks.keep_running(self._follow, ASK_EVERY_MS / 1000)

    async def stop(self) -> None:
        await self._tasks.cancel()

    async def _follow(self) -> None:
        turn = 0
        while True:
            url = self._bus.list_urls[turn % len(self._bus.list_urls)]
            try:
                # A new client after each fault, because certificates rotate.
                async with http_client(self._bus, transport=self._transport) as http:
                    while True:
                        await self._fetch(http, url)
            except (ListError, ConfigError) as fault:
                turn += 1
                await self._wait_after(fault)

    async def _fetch(self, http: httpx.AsyncClient, url: str) -> None:
        keeper, asked_ms = self.keeper, monotonic_ms()
        found = await fetch_list(
            http,
            url,
            wait_s=self._interval_s,
            generation=keeper.generation if self.brokers else -1,
            login=self._login(),
            client=self._bus.client_id,
            subscription=self._subscription,
            applied=str(max(self._applied, 0)),
        )
        if found is None:
            keeper.unchanged(monotonic_ms())
            await asyncio.sleep(max(0, asked_ms + ASK_EVERY_MS - monotonic_ms()) / 1000)
            return
        judgement, reason = keeper.judge(
            generation=found.generation,
            cluster=found.cluster,
            hosts=(entry.broker.host for entry in found),
            now_ms=monotonic_ms(),
        )
        if judgement is Judgement.REFUSED:
            raise ListInvalid(reason)
        if judgement is Judgement.NEWER and found != self.brokers:
            self._write_cache(found)
            self._apply(found)
            if self.until_tried is not None:
                await self.until_tried()
            if found.generation:
                return
        # A list without generation cannot be waited for: ask again after the interval.
        await asyncio.sleep(self._interval_s)

    def _login(self) -> httpx.BasicAuth | None:
        try:
            return httpx.BasicAuth(self._bus.current_user(), self._bus.current_password().reveal())
        except ConfigError:
            return None  # a password's file that cannot be read now holds up no list

    def _apply(self, current: BrokerList) -> None:
        self.brokers = current
        log.info("list applied generation=%d brokers=%d", current.generation, len(current.listed))
        self._on_list(current)
        self._applied = current.generation

    async def _wait_after(self, fault: MessageBusError) -> None:
        keeper = self.keeper
        keeper.failed()
        if self._warnings.allows():
            log.warning(
                "list fault count=%d reason=%r docs=%s", keeper.faults, str(fault), fault.docs
            )
        wait_ms = backoff_ms(
            keeper.faults_in_a_row,
            first_ms=RETRY_FIRST_MS,
            max_ms=RETRY_MAX_MS,
            share=random.random(),
        )
        await asyncio.sleep(wait_ms / 1000)

    def _read_cache(self) -> None:
        """Apply the cached list, if valid, so that a consumer can start while the balancer is down."""
        if not self._bus.list_cache:
            return
        try:
            found = BrokerList.parse(Path(self._bus.list_cache).read_text())
        except FileNotFoundError:
            return
        except (OSError, UnicodeDecodeError, ListInvalid) as fault:
            log.warning("list cache ignored file=%s reason=%r", self._bus.list_cache, str(fault))
            return
        hosts = (entry.broker.host for entry in found)
        judgement, reason = self.keeper.judge(
            generation=found.generation, cluster=found.cluster, hosts=hosts, now_ms=monotonic_ms()
        )
        self.keeper.good_ms = None
        if judgement is Judgement.REFUSED:
            log.warning("list cache ignored file=%s reason=%r", self._bus.list_cache, reason)
            return
        self._apply(found)

    def _write_cache(self, current: BrokerList) -> None:
        if not self._bus.list_cache:
            return
        path = Path(self._bus.list_cache)
        try:
            replace_file(path, current.render())
        except OSError as fault:
            log.warning("list cache not written file=%s reason=%r", path, str(fault))
