"""Registration of a client's topology: through an agent, or by itself where there is none.

`Agents` asks any agent, which answers for all brokers. `Alone` declares on the one configured broker.
Both run on one asyncio loop, and both are idempotent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import urljoin

import httpx

from messagebus._io.agents.http import http_client, json_object
from messagebus._io.amqp.control import mismatch_text
from messagebus._io.amqp.link import Credentials, Link, dial
from messagebus._io.wire import Registration, Topology
from messagebus.clock import monotonic_ms, whole_ms
from messagebus.config import NO_AGENTS, BusConfig
from messagebus.core.homes import mark_of
from messagebus.core.route import backoff_ms
from messagebus.destination import UNDELIVERED_QUEUE, Delay, Destination, Queue, Subscription, Topic
from messagebus.errors import (
    ACCESS_REFUSED,
    NOT_FOUND,
    PRECONDITION_FAILED,
    CertificateRefused,
    ChannelRefused,
    LinkError,
    LinkLost,
    LoginRefused,
    MessageBusError,
    NameInvalid,
    RegistrationIncomplete,
    TopologyError,
    TopologyMismatch,
    reason_of,
)
from messagebus.stats import Durability
from messagebus.tls import certificate_fault
from messagebus.topology import (
    LADDER,
    Binding,
    Declarations,
    Exchange,
    QueueSpec,
    Wanted,
    declarations,
    to_item,
    topic_of,
)

log = logging.getLogger("messagebus.topology")

# An agent asks all others before it answers; each of those has a deadline of its own below this.
ANSWER_TIMEOUT_S = 10.0
# A start waits for so long to learn of subscriptions that take no batches.
PLAIN_TIMEOUT_S = 2.0
RETRY_FIRST_MS, RETRY_MAX_MS = 50, 1_000
# An agent that has just started knows nothing yet, and any agent may be behind one address. Each agent whose
# broker takes publishes knows what was declared.
ABSENT_SURE = 3
# One agent with an unknown certificate is no reason to give up: the next try may reach another agent.
# STRANGERS_MAX in a row (within half a second) mean that our own authority is wrong.
STRANGERS_MAX = 4
# RabbitMQ 3.10 keeps the name of a new quorum queue in memory for up to 3 s: docs/explanation/internals.md.
SETTLE_MS = 4_000
# Concurrent looks at destinations of one link: thousands fit into a dial's time.
CALLS_AT_ONCE = 256

T = TypeVar("T")


def topology_for(bus: BusConfig) -> Topology:
    return Agents(bus) if bus.list_urls else Alone(bus)


def credentials(bus: BusConfig) -> Credentials:
    """Return the current credentials: user, password and certificates may rotate. Raises ConfigError."""
    return Credentials(
        user=bus.current_user(),
        password=bus.current_password(),
        vhost=bus.vhost,
        heartbeat_s=bus.heartbeat_s,
        client_id=bus.client_id or "messagebus",
        tls=bus.tls_files.client_context() if bus.tls else None,
        tls_names={bus.address: bus.tls_server_name} if bus.tls_server_name else {},
    )


class Agents:
    """The topology as owned by the agents; one of them is asked through the balancer's list address."""

    def __init__(self, bus: BusConfig, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._bus, self._transport = bus, transport

    async def register(
        self,
        wanted: Sequence[Wanted],
        *,
        timeout_ms: int,
        enough: bool = False,
        on_answer: Callable[[Registration], None] | None = None,
    ) -> Registration:
        until_ms, failures, strangers = monotonic_ms() + timeout_ms, 0, 0
        missing: Mapping[str, str] = {}
        created: tuple[str, ...] = ()
        async with http_client(
            self._bus, timeout=ANSWER_TIMEOUT_S, transport=self._transport
        ) as http:
            while True:
                url = self._bus.list_urls[failures % len(self._bus.list_urls)]
                try:
                    found = await self._ask(http, urljoin(url, "topology"), wanted)
                    if on_answer is not None:
                        on_answer(found)
                    created += found.created
                    if found.complete or (enough and found.held):
                        return replace(found, created=created)
                    missing, strangers = found.missing, 0
                except (httpx.HTTPError, LinkLost) as fault:
                    reason = certificate_fault(fault)
                    strangers = strangers + 1 if reason else 0
                    if strangers == STRANGERS_MAX:
                        raise CertificateRefused(url, reason) from fault
                    missing = missing or {url: reason_of(fault)}
                failures += 1
                wait_ms = backoff_ms(
                    failures, first_ms=RETRY_FIRST_MS, max_ms=RETRY_MAX_MS, share=random.random()
                )
                if monotonic_ms() + wait_ms >= until_ms:
                    raise RegistrationIncomplete(", ".join(map(str, wanted)), missing)
                await asyncio.sleep(wait_ms / 1000)

    async def _ask(
        self, http: httpx.AsyncClient, url: str, wanted: Sequence[Wanted], *, alive: bool = True
    ) -> Registration:
        who = httpx.BasicAuth(self._bus.current_user(), self._bus.current_password().reveal())
        answer = await http.post(
            url, json={"wanted": [to_item(each) for each in wanted], "alive": alive}, auth=who
        )
        match answer.status_code:
            case 200:
                return read_registration(url, answer)
            case 403 if told := _reason_if("forbidden", answer):
                raise ChannelRefused(url, ACCESS_REFUSED, f"ACCESS_REFUSED (403) {told}")
            case 401 | 403:
                raise LoginRefused(url, "user or password refused by the agent")
            case 429:
                raise TopologyError(answer.text.strip()[:300])
            case 409 if told := _reason_if("mismatch", answer):
                raise TopologyMismatch(told)
            case 400:
                raise NameInvalid(answer.text.strip()[:300])
            case _:
                raise LinkLost(url, f"HTTP {answer.status_code} {answer.text.strip()[:200]}")

    async def exists(self, queue: Queue, *, timeout_ms: int) -> bool:
        until_ms, failures, absent = monotonic_ms() + timeout_ms, 0, 0
        async with http_client(
            self._bus, timeout=ANSWER_TIMEOUT_S, transport=self._transport
        ) as http:
            while True:
                url = self._bus.list_urls[failures % len(self._bus.list_urls)]
                try:
                    if str(queue) in await self._alive(http, urljoin(url, "topology")):
                        return True
                    absent += 1
                    if absent == ABSENT_SURE:
                        return False
                    missing = {url: "does not know it"}
                except (httpx.HTTPError, LinkLost) as fault:
                    missing = {url: reason_of(fault)}
                failures += 1
                wait_ms = backoff_ms(
                    failures, first_ms=RETRY_FIRST_MS, max_ms=RETRY_MAX_MS, share=random.random()
                )
                if monotonic_ms() + wait_ms >= until_ms:
                    raise RegistrationIncomplete(str(queue), missing)
                await asyncio.sleep(wait_ms / 1000)

    async def plain_sources(self, destinations: Collection[str]) -> list[str]:
        """Ask each list address once: publishers start without a bus, too."""
        async with http_client(
            self._bus, timeout=PLAIN_TIMEOUT_S, transport=self._transport
        ) as http:
            for url in self._bus.list_urls:
                with contextlib.suppress(httpx.HTTPError, MessageBusError):
                    found = await self._alive(http, urljoin(url, "topology"))
                    return sorted(
                        name
                        for name, entry in found.items()
                        if entry.get("plain") and topic_of(name) in destinations
                    )
        return []

    async def homes(self, topic: str, known: str, *, wait_s: int) -> str:
        url = random.choice(self._bus.list_urls)
        asked = {"topic": topic, "known": mark_of(known), "wait_s": str(wait_s)}
        timeout = wait_s + ANSWER_TIMEOUT_S
        async with http_client(self._bus, timeout=timeout, transport=self._transport) as http:
            try:
                answer = await http.get(urljoin(url, "partitions"), params=asked)
                return str(answer.raise_for_status().json()["homes"])
            except (httpx.HTTPError, ValueError, TypeError, KeyError) as fault:
                raise LinkLost(url, reason_of(fault)) from fault

    async def _alive(self, http: httpx.AsyncClient, url: str) -> dict[str, dict[str, Any]]:
        """Return the living entries of an agent's map, by name."""
        who = httpx.BasicAuth(self._bus.current_user(), self._bus.current_password().reveal())
        answer = await http.get(url, auth=who)
        if answer.status_code in (401, 403):
            raise LoginRefused(url, "user or password refused by the agent")
        try:
            told = answer.raise_for_status().json()
            return {each["wanted"]: each for each in told["entries"] if each["alive"]}
        except (ValueError, TypeError, KeyError) as fault:
            raise LinkLost(url, "not an agent's answer") from fault

    async def verify(
        self, link: Link, destinations: Iterable[Destination | Delay]
    ) -> dict[Destination | Delay, MessageBusError]:
        exchanges = {each: each.exchange for each in destinations}
        refused = await link.refusals(list(dict.fromkeys(exchanges.values())))
        return {each: refused[name] for each, name in exchanges.items() if name in refused}

    async def delete(self, source: Subscription, *, timeout_ms: int) -> None:
        fault: Exception | None = None
        async with http_client(
            self._bus, timeout=timeout_ms / 1000, transport=self._transport
        ) as http:
            for url in self._bus.list_urls:
                try:
                    await self._ask(http, urljoin(url, "topology"), [source], alive=False)
                except (httpx.HTTPError, LinkLost) as trouble:
                    fault = trouble
                else:
                    return
        raise TopologyError(f"no agent deleted {source}: {fault}")


def _reason_if(mark: str, answer: httpx.Response) -> str:
    """Return why asking again does not help, "" when it may. mark: the key that says so."""
    told = json_object(answer)
    return str(told.get("error", "")) if told.get(mark) is True else ""


def read_registration(url: str, answer: httpx.Response) -> Registration:
    """Read an agent's answer to a registration. Raises LinkLost unless it is one."""
    try:
        told = answer.json()
        return Registration(
            bool(told["complete"]),
            tuple(told["held"]),
            tuple(told["later"]),
            dict(told["missing"]),
            {name: dict(options) for name, options in told.get("options", {}).items()},
            tuple(told.get("created", ())),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as fault:
        raise LinkLost(url, f"not an agent's answer: {answer.text.strip()[:200]!r}") from fault


class Alone:
    """The topology of one RabbitMQ without agents: this client declares, settles and binds by itself.

    The broker remembers that a queue is settled: an auto-delete exchange bound to the queue is
    declared when it is. It vanishes with the queue, and spares the wait at the next start.
    """

    def __init__(self, bus: BusConfig) -> None:
        self._bus = bus

    async def register(
        self,
        wanted: Sequence[Wanted],
        *,
        timeout_ms: int,
        enough: bool = False,
        on_answer: Callable[[Registration], None] | None = None,
    ) -> Registration:
        if any(isinstance(each, Topic) and each.partitions for each in wanted):
            raise NameInvalid(f"partitions: {NO_AGENTS}")
        link = await dial(
            self._bus.address,
            credentials(self._bus),
            timeout_ms=min(timeout_ms, whole_ms(self._bus.dial_timeout_max_s)),
        )
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                created = await self._bring_about(link, wanted)
        except TimeoutError:
            why = f"not settled within {timeout_ms / 1000:g} s; a new queue takes {SETTLE_MS / 1000:g} s"
            missing = {self._bus.broker: why}
            raise RegistrationIncomplete(", ".join(map(str, wanted)), missing) from None
        except ChannelRefused as fault:
            raise TopologyError(str(fault)) from fault
        finally:
            await link.close()
        found = Registration(True, held=(link.broker or link.address.name,), created=created)
        if on_answer is not None:
            on_answer(found)
        return found

    async def exists(self, queue: Queue, *, timeout_ms: int) -> bool:
        link = await dial(
            self._bus.address,
            credentials(self._bus),
            timeout_ms=min(timeout_ms, whole_ms(self._bus.dial_timeout_max_s)),
        )
        try:
            await link.try_call("queue_declare", queue=queue.amqp_queue, passive=True)
        except ChannelRefused as fault:
            # A user who may not look gets the error when publishing.
            return fault.code != NOT_FOUND
        finally:
            await link.close()
        return True

    async def plain_sources(self, destinations: Collection[str]) -> list[str]:
        return []  # a broker alone remembers no options

    async def homes(self, topic: str, known: str, *, wait_s: int) -> str:
        raise LinkLost(self._bus.broker, "a broker alone has no partitions")

    async def _bring_about(self, link: Link, wanted: Sequence[Wanted]) -> tuple[str, ...]:
        """Declare, settle and bind these. Returns the names of those with a queue that was not settled."""
        try:
            for each in wanted:
                await _claim_level(link, each)
            return await self._declare_settled(link, wanted)
        except ChannelRefused as fault:
            if fault.code == PRECONDITION_FAILED:
                told = f"on {self._bus.broker}: {mismatch_text(fault.reason)}"
                raise TopologyMismatch(told) from fault
            raise

    async def _declare_settled(self, link: Link, wanted: Sequence[Wanted]) -> tuple[str, ...]:
        for exchange in LADDER.exchanges:
            await _declare_exchange(link, exchange)
        parts = [declarations(each) for each in wanted]
        # Only registrations of a delay wait until the undelivered queue is settled; then all bind it.
        if any(isinstance(each, Delay) for each in wanted) or await _is_settled(link, _LAST):
            parts.append(_LAST)
        for part in parts:
            await _declare(link, part)
        unsettled = [p for p in parts if p.needs_settling and not await _is_settled(link, p)]
        if unsettled:
            # One more declaration makes the broker write the names of the earlier ones.
            await _declare_queue(
                link, QueueSpec(name="mb.settle", arguments={"x-queue-type": "quorum"})
            )
            await asyncio.sleep(SETTLE_MS / 1000)
        for part in parts:
            await _bind(link, part.bindings)
        for part in unsettled:
            await _mark_settled(link, part)
        parts_of = zip(map(str, wanted), parts, strict=False)  # the last part is nobody's
        return tuple(name for name, part in parts_of if part in unsettled)

    async def verify(
        self, link: Link, destinations: Iterable[Destination | Delay]
    ) -> dict[Destination | Delay, MessageBusError]:
        async def look(destination: Destination | Delay) -> None:
            try:
                await self._bring_about(link, [destination])
            except ChannelRefused as fault:
                # A user without the right to configure: another client declared it.
                if fault.code != ACCESS_REFUSED:
                    raise
                await link.try_call("exchange_declare", exchange=destination.exchange, passive=True)

        destinations = list(destinations)
        try:
            await self._bring_about(link, destinations)
        except (ChannelRefused, TopologyMismatch):
            return await _side_by_side(look, destinations)
        return {}

    async def delete(self, source: Subscription, *, timeout_ms: int) -> None:
        link = await dial(self._bus.address, credentials(self._bus), timeout_ms=timeout_ms)
        try:
            await link.try_call("queue_delete", queue=source.amqp_queue)
        finally:
            await link.close()


# Bound last, so that no message counts as undelivered whose queue is just being bound.
_LAST = Declarations(queues=LADDER.queues, bindings=LADDER.bindings)


async def _side_by_side(
    look: Callable[[T], Awaitable[None]], every: Iterable[T]
) -> dict[T, MessageBusError]:
    """Look at each of these, CALLS_AT_ONCE at the same time. Returns failures. Raises LinkLost."""
    free, faults = asyncio.Semaphore(CALLS_AT_ONCE), dict[T, MessageBusError]()

    async def one(item: T) -> None:
        async with free:
            try:
                await look(item)
            except (ChannelRefused, TopologyError) as fault:
                faults[item] = fault

    try:
        async with asyncio.TaskGroup() as group:
            for each in every:
                group.create_task(one(each))
    except* LinkError as lost:
        raise lost.exceptions[0] from None
    return faults


async def _claim_level(link: Link, wanted: Wanted) -> None:
    """Make the broker remember a topic's durability, by the type of an exchange that nobody uses.

    A topic itself leaves no trace of it, and a subscription may not be weaker than its topic.
    """
    topic = wanted.topic if isinstance(wanted, Subscription) else wanted
    if not isinstance(topic, Topic):
        return
    is_weak = topic.durability is not Durability.FSYNC
    if isinstance(wanted, Subscription) and not is_weak:
        return
    kind = "direct" if is_weak else "fanout"
    try:
        await _declare_exchange(link, Exchange(name=f"mb.durability/{topic}", type=kind))
    except ChannelRefused as fault:
        if fault.code != PRECONDITION_FAILED:
            raise
        exists = "fsync" if is_weak else "less than fsync"
        told = f"{wanted}: durability is wanted {topic.durability.value} and exists {exists}"
        raise TopologyMismatch(told) from fault


async def _declare(link: Link, part: Declarations) -> None:
    for exchange in part.exchanges:
        await _declare_exchange(link, exchange)
    for queue in part.queues:
        ready = await _declare_queue(link, queue)
        if ready and queue.name == UNDELIVERED_QUEUE:
            log.warning(
                "delayed messages found no queue broker=%s messages=%d"
                " (messagebus parked list undelivered)",
                link.address.name,
                ready,
            )


async def _declare_exchange(link: Link, exchange: Exchange) -> None:
    await link.try_call(
        "exchange_declare",
        exchange=exchange.name,
        exchange_type=exchange.type,
        durable=exchange.durable,
        arguments=exchange.arguments,
    )


async def _declare_queue(link: Link, queue: QueueSpec) -> int:
    """Declare a queue; return how many messages are ready in it."""
    answer = await link.try_call(
        "queue_declare", queue=queue.name, durable=True, arguments=dict(queue.arguments)
    )
    return int(answer.message_count)


async def _bind(link: Link, bindings: Iterable[Binding]) -> None:
    for binding in bindings:
        method, arguments = binding.call()
        await link.try_call(method, **arguments)


def _mark(part: Declarations) -> Exchange:
    return Exchange(name=f"mb.settled/{part.queues[-1].name}")


async def _is_settled(link: Link, part: Declarations) -> bool:
    try:
        await link.try_call("exchange_declare", exchange=_mark(part).name, passive=True)
    except ChannelRefused as fault:
        if fault.code != NOT_FOUND:
            raise
        return False
    return True


async def _mark_settled(link: Link, part: Declarations) -> None:
    mark = _mark(part)
    await link.try_call(
        "exchange_declare",
        exchange=mark.name,
        exchange_type=mark.type,
        durable=True,
        auto_delete=True,
    )
    await _bind(link, [Binding(exchange=mark.name, queue=part.queues[-1].name)])
