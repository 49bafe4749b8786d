"""The broker's management API, the only source of the births of queues and of alarms.

`connection.blocked` would tell alarms too, but only to a connection that publishes, and such a
connection stands still during the alarm: the agent's link must go on declaring.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from messagebus.errors import ConfigError, reason_of
from messagebus.services.agent.broker.definitions import (
    BINDING_COLUMNS,
    EXCHANGE_COLUMNS,
    QUEUE_COLUMNS,
    Definitions,
    born_of,
    read_definitions,
)
from messagebus.services.agent.broker.policies import losing
from messagebus.services.agent.config import AgentConfig
from messagebus.tls import trusting_nobody
from messagebus.topology import GATE

# 100 queues were listed in 11 to 13 ms.
TIMEOUT_S = 3.0
# Of what clients call themselves.
TEXT_MAX = 200
# Counters of messages that left a queue to its consumers.
DEPARTED = ("ack", "deliver_no_ack", "get_no_ack")


class ManagementUnavailable(Exception):
    """Raised when the management API gives no usable answer; ask again later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One queue. messages: ready or unacknowledged. departed: acknowledged since the broker's start."""

    queue: str
    messages: int
    consumers: int
    departed: int
    unacked: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """One consumer of a queue. client: its connection's name. owed: unanswered deliveries of its channel.

    Another consumer of the same channel owes None: nobody tells the shares. version: of the library that its
    client runs, with its name unless it is this one.
    """

    queue: str
    client: str
    peer: str
    prefetch: int
    owed: int | None
    active: bool
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The broker as a whole. totals: its counters since its start, by the broker's names."""

    version: str
    connections: int
    totals: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The free disk and used memory of a broker, with its limits.

    An alarm is raised below disk_limit_bytes of free disk, and above memory_limit_bytes of memory.
    """

    disk_free_bytes: int
    disk_limit_bytes: int
    memory_used_bytes: int
    memory_limit_bytes: int


class Management:
    """The management API of one broker.

    is_there: False when none is configured. transport: a substitute, for tests.
    """

    def __init__(
        self, config: AgentConfig, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._config = config
        self.is_there = bool(config.management)
        self._client = httpx.AsyncClient(
            base_url=f"{'https' if config.tls else 'http'}://{config.management or 'localhost'}",
            timeout=TIMEOUT_S,
            trust_env=False,
            transport=transport,
            verify=config.tls_files.client_context() if config.tls else trusting_nobody(),
        )

    async def births(self) -> dict[str, int | None]:
        """Return all queues of the broker -> their `mb-born`. Never cached (disable_stats)."""
        answer = await self._get("/api/queues/%2F?columns=name,arguments&disable_stats=true")
        try:
            return {queue["name"]: born_of(queue.get("arguments")) for queue in answer.json()}
        except (ValueError, KeyError, TypeError) as fault:
            raise ManagementUnavailable(f"not a list of queues: {fault!r}") from fault

    async def definitions(self) -> Definitions:
        """Return all queues, exchanges and bindings of the broker. Never cached (disable_stats)."""
        answers = await asyncio.gather(
            self._list("queues", QUEUE_COLUMNS),
            self._list("exchanges", EXCHANGE_COLUMNS),
            self._list("bindings", BINDING_COLUMNS),
        )
        # Of 1,000 subscriptions it is a megabyte: the loop goes on meanwhile.
        return await asyncio.to_thread(_definitions, *answers)

    async def _list(self, what: str, columns: Iterable[str]) -> httpx.Response:
        return await self._get(f"/api/{what}/%2F?columns={','.join(columns)}&disable_stats=true")

    async def arguments(self, queue: str) -> dict[str, Any]:
        """Return the arguments of an existing queue, and `durable`."""
        answer = await self._get(f"/api/queues/%2F/{quote(queue, safe='')}?disable_stats=true")
        try:
            found = answer.json()
            return {"durable": found["durable"], **found["arguments"]}
        except (ValueError, KeyError, TypeError) as fault:
            raise ManagementUnavailable(f"not a queue: {fault!r}") from fault

    async def unacked(self) -> dict[str, int]:
        """Return the number of unanswered deliveries by queue; up to a statistics interval (5 s) old."""
        answer = await self._get("/api/queues/%2F?columns=name,messages_unacknowledged")
        try:
            return {
                queue["name"]: int(queue["messages_unacknowledged"])
                for queue in answer.json()
                if "messages_unacknowledged" in queue
            }
        except (ValueError, KeyError, TypeError) as fault:
            raise ManagementUnavailable(f"not a list of queues: {fault!r}") from fault

    async def losing_policies(self) -> str:
        """Return the policies that lose messages of our queues, in words; "" for none."""
        columns = "name,arguments,policy,operator_policy,effective_policy_definition"
        answer = await self._get(f"/api/queues/%2F?columns={columns}")
        try:
            return losing(answer.json())
        except (ValueError, KeyError, TypeError, AttributeError) as fault:
            raise ManagementUnavailable(f"not a list of queues: {fault!r}") from fault

    async def loads(self) -> list[Load]:
        """Return the loads of durable shared queues; statistics are up to an interval (5 s) old."""
        own = ("name", "durable", "exclusive", "messages", "messages_unacknowledged", "consumers")
        columns = ",".join((*own, *(f"message_stats.{key}" for key in DEPARTED)))
        answer = await self._get(f"/api/queues/%2F?columns={columns}")
        try:
            return [_load(queue) for queue in answer.json() if _is_shared(queue)]
        except (ValueError, KeyError, TypeError, AttributeError) as fault:
            raise ManagementUnavailable(f"not a list of queues: {fault!r}") from fault

    async def attached(self) -> list[Attached]:
        """Return the consumers of durable shared queues; statistics are up to an interval (5 s) old."""
        columns = "queue.name,channel_details,prefetch_count,active,exclusive"
        consumers = await self._get(f"/api/consumers/%2F?columns={columns}")
        channels = await self._get("/api/channels?columns=name,messages_unacknowledged")
        columns = "name,client_properties.connection_name,client_properties.product"
        connections = await self._get(
            f"/api/connections?columns={columns},client_properties.version"
        )
        try:
            owed = {each["name"]: each.get("messages_unacknowledged") for each in channels.json()}
            says = {each["name"]: each.get("client_properties") for each in connections.json()}
            shared = [each for each in consumers.json() if not each["exclusive"]]
            return [_attached(each, owed, says) for each in shared if each["channel_details"]]
        except (ValueError, KeyError, TypeError, AttributeError) as fault:
            raise ManagementUnavailable(f"not lists of consumers: {fault!r}") from fault

    async def overview(self) -> Overview:
        """Return the broker's version, connections and counters."""
        answer = await self._get(
            "/api/overview?columns=rabbitmq_version,object_totals,message_stats"
        )
        try:
            found = answer.json()
            totals = (found.get("message_stats") or {}).items()
            return Overview(
                version=str(found["rabbitmq_version"]),
                connections=int(found["object_totals"]["connections"]),
                totals={key: value for key, value in totals if type(value) is int},
            )
        except (ValueError, KeyError, TypeError, AttributeError) as fault:
            raise ManagementUnavailable(f"not an overview: {fault!r}") from fault

    async def room(self) -> Room:
        """Return the broker's free disk and memory use, with its own limits."""
        columns = "disk_free,disk_free_limit,mem_used,mem_limit"
        answer = await self._get(f"/api/nodes?columns={columns}")
        try:
            (node,) = answer.json()
            return Room(
                disk_free_bytes=int(node["disk_free"]),
                disk_limit_bytes=int(node["disk_free_limit"]),
                memory_used_bytes=int(node["mem_used"]),
                memory_limit_bytes=int(node["mem_limit"]),
            )
        except (ValueError, KeyError, TypeError) as fault:
            raise ManagementUnavailable(f"not one node: {fault!r}") from fault

    async def alarm(self) -> str:
        """Return the alarm of this broker in words, "" for none."""
        answer = await self._get("/api/health/checks/local-alarms", may_be=503)
        if answer.status_code == httpx.codes.OK:
            return ""
        try:
            alarms = answer.json().get("alarms", [])
            kinds = sorted({str(alarm.get("resource", "")) for alarm in alarms})
        except (ValueError, AttributeError):
            kinds = []
        return f"alarm: {', '.join(kinds)}".rstrip(": ")

    async def close(self) -> None:
        await self._client.aclose()

    async def _get(self, path: str, *, may_be: int = 200) -> httpx.Response:
        try:
            auth = httpx.BasicAuth(self._config.user, self._config.password.reveal())
            answer = await self._client.get(path, auth=auth)
        except (httpx.HTTPError, ConfigError) as fault:
            raise ManagementUnavailable(reason_of(fault)) from fault
        if answer.status_code not in (200, may_be):
            raise ManagementUnavailable(f"HTTP {answer.status_code}")
        return answer


def _definitions(*lists: httpx.Response) -> Definitions:
    try:
        queues, exchanges, bindings = (each.json() for each in lists)
        return read_definitions(queues, exchanges, bindings)
    except (ValueError, KeyError, TypeError, AttributeError) as fault:
        raise ManagementUnavailable(f"not lists of definitions: {fault!r}") from fault


def _is_shared(queue: dict[str, Any]) -> bool:
    """Return whether a queue is durable, shared and counted; not the gate.

    A queue that was just made has no counts yet. The gate's message is for no consumer.
    """
    is_listed = queue["durable"] and not queue.get("exclusive") and queue["name"] != GATE
    return bool(is_listed and "messages" in queue)


def _load(queue: dict[str, Any]) -> Load:
    # RabbitMQ writes an empty object as [], here where it has none of the counters that were asked for.
    stats = queue.get("message_stats") or {}
    return Load(
        queue=queue["name"],
        messages=int(queue["messages"]),
        consumers=int(queue.get("consumers", 0)),
        departed=sum(int(stats.get(key, 0)) for key in DEPARTED),
        unacked=int(queue.get("messages_unacknowledged", 0)),
    )


def _attached(consumer: Any, owed: dict[str, Any], says: dict[str, Any]) -> Attached:
    """Read a consumer. owed: by channel, taken out by the first consumer of it. says: by connection."""
    channel = consumer["channel_details"]
    unanswered, said = owed.pop(channel["name"], None), says.get(channel["connection_name"]) or {}
    version = " ".join(str(said.get(key) or "") for key in ("product", "version")).strip()
    return Attached(
        queue=str(consumer["queue"]["name"]),
        client=str(said.get("connection_name") or "")[:TEXT_MAX],
        peer=f"{channel['peer_host']}:{channel['peer_port']}",
        prefetch=int(consumer["prefetch_count"]),
        owed=unanswered if type(unanswered) is int else None,
        active=consumer.get("active") is not False,
        version=version.removeprefix("messagebus ")[:TEXT_MAX],
    )
