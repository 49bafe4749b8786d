"""Queues and connections as RabbitMQ's management API reports them, and one request to it or to an agent."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from messagebus.admin.proof import NotProven
from messagebus.errors import reason_of
from messagebus.terminal import plural
from messagebus.tls import certificate_fault
from ops.errors import NoAnswer, NotProved

CONNECT_WITHIN_S = 3.0
"""Time in which a host that lives takes a connection, however busy it is."""
ANSWER_WITHIN_S = 10.0
"""Time for an answer: a broker with 5,000 queues lists them in 1 s, or in several beside busy neighbours."""
DEFAULT_VHOST = "/"
SINGLE_ACTIVE = "x-single-active-consumer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """One queue. messages: ready and unacknowledged; None while the broker has not counted them yet.

    unacked: messages that were delivered and are not answered. body_bytes: sum over all messages.
    kind: classic, quorum or stream. single_active: only one of its consumers is served at a time.
    """

    name: str
    messages: int | None
    consumers: int
    unacked: int = 0
    body_bytes: int = 0
    vhost: str = DEFAULT_VHOST
    kind: str = "quorum"
    single_active: bool = False

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Queue:
        """Read an entry of ``/api/queues``."""
        return cls(
            name=str(entry["name"]),
            messages=entry.get("messages"),
            consumers=int(entry.get("consumers", 0)),
            unacked=int(entry.get("messages_unacknowledged") or 0),
            body_bytes=int(entry.get("message_bytes") or 0),
            vhost=str(entry.get("vhost", DEFAULT_VHOST)),
            kind=str(entry.get("type", "quorum")),
            single_active=bool((entry.get("arguments") or {}).get(SINGLE_ACTIVE)),
        )

    def __str__(self) -> str:
        return self.name if self.vhost == DEFAULT_VHOST else f"{self.name} of vhost {self.vhost}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """A connection of an application. name: the broker's. client: its own name, or its address.

    unacked: deliveries that it holds without an answer.
    """

    name: str
    user: str
    client: str
    consumes: bool = False
    unacked: int = 0

    @classmethod
    def of(cls, entry: Mapping[str, Any], *, consumes: bool, unacked: int) -> Connection:
        """Read an entry of ``/api/connections``."""
        properties = entry.get("client_properties") or {}
        address = f"{entry.get('peer_host', '?')}:{entry.get('peer_port', '?')}"
        named = properties.get("connection_name") or properties.get("product")
        return cls(
            name=str(entry["name"]),
            user=str(entry.get("user", "")),
            client=f"{named} at {address}" if named else address,
            consumes=consumes,
            unacked=unacked,
        )

    def __str__(self) -> str:
        held = f", holds {plural(self.unacked, 'delivery')}" if self.unacked else ""
        return f"{self.client} (user {self.user}{held})"


def request(
    who: str,
    method: str,
    url: str,
    *,
    json: object = None,
    auth: httpx.Auth | tuple[str, str] | None = None,
    fine: tuple[int, ...] = (200,),
    verify: ssl.SSLContext | bool = True,
    timeout_s: float = ANSWER_WITHIN_S,
) -> httpx.Response:
    """Send one request, and return the answer. Raises NoAnswer, or NotProved, which name `who`.

    fine: status codes of an answer that is no fault.
    """

    timeout = httpx.Timeout(timeout_s, connect=CONNECT_WITHIN_S)
    try:
        answer = httpx.request(
            method, url, json=json, auth=auth, timeout=timeout, trust_env=False, verify=verify
        )
    except NotProven as fault:
        raise NotProved(f"{who}: {fault}") from fault
    except httpx.HTTPError as fault:
        reason = certificate_fault(fault) or reason_of(fault)
        raise NoAnswer(f"{who} does not answer: {reason}") from fault
    if answer.status_code not in fine:
        refused = NotProved if answer.status_code == httpx.codes.UNAUTHORIZED else NoAnswer
        raise refused(f"{who}: HTTP {answer.status_code} {answer.text.strip()[:200]}")
    return answer
