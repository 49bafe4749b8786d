"""Requests to the other agents: reading their maps, and sending them changes.

Every request has its own short deadline; an agent that does not answer is left out of the result. So is one
that does not prove that it has the operators' token, unless it is of a version that cannot: until it has
proved it once, which is remembered over restarts.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import httpx

from messagebus.admin.proof import NotProven, TokenProof
from messagebus.broker import ListedBroker
from messagebus.errors import ConfigError
from messagebus.secret import Secret
from messagebus.services.agent.topology.register import Entry, Snapshot
from messagebus.services.agent.topology.store import (
    entry_from_json,
    snapshot_from_json,
    snapshot_to_json,
)
from messagebus.services.agent.web.metrics import Figure
from messagebus.tls import TlsFiles, trusting_nobody

log = logging.getLogger("messagebus.agent")

T = TypeVar("T")

_NODE_NAME = re.compile(r"[\w.-]{1,100}@[\w.:-]{1,255}", re.ASCII)

CONNECT_TIMEOUT_S = 0.5
PULL_TIMEOUT_S = 1.0
# A peer brings the change about before it answers; a slow settle takes 4 s. Callers wait 10 s.
PUSH_TIMEOUT_S = 6.5
# A peer that did not answer a moment ago gets the change too, with a short deadline.
SILENT_TIMEOUT_S = 1.0
# Requests under way at once; the others wait for their turn, and their deadlines begin with it. To read a map
# of 1,000 entries takes 6 ms: those of 1,000 agents can never come within one deadline.
CONNECTIONS_MAX = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerAnswer:
    """A peer's answer to a change.

    answer: held, later or no. stored: it is on its disk, in a map that counts. entries: the peer's current
    ones, to be merged if its map is intact. above: it did not take the change, because its number is not
    above this.
    """

    answer: str
    reason: str
    stored: bool
    intact: bool
    entries: tuple[Entry, ...]
    above: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The Erlang node of a peer's broker, by which its death can be proved."""

    name: str
    epmd_port: int


class Peers:
    """The other agents. me: broker name of this one. transport: a substitute, for tests.

    token: the operators'. tls: they serve https, and require our certificate.
    on_nodes: called when `nodes` changed, to store them.
    """

    def __init__(
        self,
        me: str,
        transport: httpx.AsyncBaseTransport | None = None,
        *,
        token: Callable[[], Secret],
        tls: TlsFiles | None = None,
        on_nodes: Callable[[], None] = lambda: None,
    ) -> None:
        self._me = me
        self._token = token
        self._begin = "https://" if tls else "http://"
        timeout = httpx.Timeout(PULL_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        limits = httpx.Limits(max_connections=CONNECTIONS_MAX)
        self._client = httpx.AsyncClient(
            timeout=timeout,
            limits=limits,
            trust_env=False,
            transport=transport,
            verify=tls.client_context() if tls else trusting_nobody(),
        )
        self._turns = asyncio.Semaphore(CONNECTIONS_MAX)
        self._last: dict[str, tuple[str, Snapshot]] = {}  # url -> ETag and its map
        # By broker name; kept over restarts, since they are needed when a broker is dead.
        self.nodes: dict[str, Node] = {}
        self._proofs: dict[tuple[str, bool], TokenProof] = {}
        self._doubted: dict[str, str] = {}
        self._on_nodes = on_nodes
        self.pulls = 0
        self.pulls_failed = 0

    def figures(self) -> Iterator[Figure]:
        yield Figure("pulls", self.pulls)
        yield Figure("pulls_failed", self.pulls_failed)

    async def pull(self, listed: Iterable[ListedBroker]) -> dict[str, Snapshot]:
        """Return the maps of the agents that answer in PULL_TIMEOUT_S, by broker name.

        An unchanged map is the same object again.
        """
        peers = self._without_me(listed)
        answers = await asyncio.gather(*(self._pull_one(peer) for peer in peers))
        return {
            peer.broker.name: snapshot
            for peer, snapshot in zip(peers, answers, strict=True)
            if snapshot is not None
        }

    async def push(
        self,
        listed: Iterable[ListedBroker],
        entries: Sequence[Entry],
        mine: Snapshot,
        *,
        answering: Iterable[str],
    ) -> dict[str, PeerAnswer]:
        """Send all of them these entries of my map; return their answers by broker name.

        answering: agents that answered the last pull; only they get the long deadline.
        """
        lively = set(answering)
        part = replace(mine, entries=tuple(entries))
        body = {"from": self._me, **snapshot_to_json(part)}
        peers = self._without_me(listed)
        answers = await asyncio.gather(
            *(
                self._push_one(
                    peer,
                    body,
                    PUSH_TIMEOUT_S if peer.broker.name in lively else SILENT_TIMEOUT_S,
                )
                for peer in peers
            )
        )
        return {
            peer.broker.name: told
            for peer, told in zip(peers, answers, strict=True)
            if told is not None
        }

    async def mismatch(
        self, peers: Iterable[ListedBroker], items: Sequence[object]
    ) -> dict[str, str]:
        """Return by broker name how existing parts differ from these items, in words, "" for nothing.

        An agent that does not answer in time is left out.
        """

        def read(answer: httpx.Response) -> str:
            return str(answer.json()["mismatch"])

        return await self._ask_all(
            peers,
            read,
            "POST",
            "/topology/try",
            json={"from": self._me, "wanted": list(items)},
        )

    async def unused(self, peers: Iterable[ListedBroker]) -> dict[str, dict[str, float | None]]:
        """Return the seconds without use of each expiring subscription, as each agent knows it."""

        def read(answer: httpx.Response) -> dict[str, float | None]:
            told: dict[str, Any] = answer.json()["unused_s"]
            return {name: None if s is None else float(s) for name, s in told.items()}

        return await self._ask_all(peers, read, "GET", "/unused")

    async def bound(self, peers: Iterable[ListedBroker], topic: str) -> dict[str, list[str] | None]:
        """Return the segments of a topic that are bound at each of these, None where the gate is shut.

        An agent that does not answer is left out.
        """

        def read(answer: httpx.Response) -> list[str] | None:
            told = answer.json()["bound"]
            return None if told is None else list(map(str, told))

        path = f"/partitions/bound?topic={topic}"
        return await self._ask_all(peers, read, "GET", path)

    async def agree(self, peers: Iterable[ListedBroker], home: str) -> dict[str, str]:
        """Return why each of these does not let this agent decide in place of a lost home, "" if it does."""

        def read(answer: httpx.Response) -> str:
            return str(answer.json()["why_not"])

        asked = {"home": home, "from": self._me}
        return await self._ask_all(peers, read, "POST", "/partitions/agree", json=asked)

    async def _ask_all(
        self,
        peers: Iterable[ListedBroker],
        read: Callable[[httpx.Response], T],
        method: str,
        path: str,
        *,
        json: Any = None,
    ) -> dict[str, T]:
        """Send one request to each; return `read` of the answers with status 200, by broker name."""

        async def ask(peer: ListedBroker) -> tuple[str, T] | None:
            try:
                answer = await self._request(peer, method, path, PULL_TIMEOUT_S, json=json)
                if answer.status_code == httpx.codes.OK:
                    return peer.broker.name, read(answer)
            except (
                *(httpx.HTTPError, ConfigError, TimeoutError),
                *(ValueError, KeyError, TypeError, AttributeError),
            ):
                pass
            return None

        answers = await asyncio.gather(*(ask(peer) for peer in self._without_me(peers)))
        return dict(answer for answer in answers if answer is not None)

    async def close(self) -> None:
        await self._client.aclose()

    def _without_me(self, listed: Iterable[ListedBroker]) -> list[ListedBroker]:
        return [peer for peer in listed if peer.broker.name != self._me]

    async def _request(
        self, peer: ListedBroker, method: str, path: str, timeout_s: float, **more: Any
    ) -> httpx.Response:
        """Send one request in its turn, from which the time counts. Raises TimeoutError.

        An answer without proof of the token is logged once. A POST proves it, too; with a GET only the answer
        does.
        """
        url = f"{self._begin}{peer.agent_address}{path}"
        auth = self._proof(peer, signs=method == "POST")
        try:
            async with self._turns, asyncio.timeout(timeout_s):
                return await self._client.request(method, url, auth=auth, **more)
        except NotProven as fault:
            self._doubt(peer, fault)
            raise

    async def _pull_one(self, peer: ListedBroker) -> Snapshot | None:
        url = f"{self._begin}{peer.agent_address}/topology"
        etag, known = self._last.get(url, ("", None))
        self.pulls += 1
        try:
            headers = {"If-None-Match": etag} if etag else {}
            answer = await self._request(peer, "GET", "/topology", PULL_TIMEOUT_S, headers=headers)
            now = answer.headers.get("ETag", "")
            if answer.status_code != httpx.codes.NOT_MODIFIED or known is None or now != etag:
                known = self._read(peer, answer)
                self._last[url] = (now, known)
        except (httpx.HTTPError, ConfigError, TimeoutError, ValueError):
            self._last.pop(url, None)
            self.pulls_failed += 1
            return None
        return known

    def _read(self, peer: ListedBroker, answer: httpx.Response) -> Snapshot:
        if answer.status_code != httpx.codes.OK:
            raise ValueError(f"HTTP {answer.status_code}")
        value = answer.json()
        who = value.get("broker") if isinstance(value, dict) else None
        if who != peer.broker.name:
            raise ValueError(f"the agent of {who!r} answers for {peer.broker}")
        if (node := _node(value.get("node"))) and node != self.nodes.get(who):
            self.nodes[who] = node
            self._on_nodes()
        return snapshot_from_json(value)

    async def _push_one(
        self, peer: ListedBroker, body: dict[str, Any], timeout_s: float
    ) -> PeerAnswer | None:
        try:
            answer = await self._request(
                peer,
                "POST",
                "/topology/merge",
                timeout_s,
                json=body,
                timeout=httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
            )
            return _peer_answer(answer)
        except (httpx.HTTPError, ConfigError, TimeoutError, ValueError, KeyError, TypeError):
            pass
        return None

    def _proof(self, peer: ListedBroker, *, signs: bool) -> TokenProof:
        """Return the proof for a peer. signs: the request proves the token; else only the answer does."""
        name = peer.broker.name
        if (name, signs) not in self._proofs:

            def proven() -> None:
                if self._doubted.pop(name, ""):
                    log.info("agent believed again broker=%s", name)

            self._proofs[name, signs] = TokenProof(
                self._token,
                to=name,
                on_proven=proven,
                signs=signs,
            )
        return self._proofs[name, signs]

    def _doubt(self, peer: ListedBroker, fault: NotProven) -> None:
        """Log the missing proof once."""
        name, reason = peer.broker.name, str(fault)
        if self._doubted.get(name) != reason:
            self._doubted[name] = reason
            log.warning("agent not believed broker=%s reason=%r", name, reason)


def _peer_answer(answer: httpx.Response) -> PeerAnswer:
    if answer.status_code != httpx.codes.OK:
        reason = f"HTTP {answer.status_code}"
        return PeerAnswer(answer="no", reason=reason, stored=False, intact=False, entries=())
    value = answer.json()
    return PeerAnswer(
        answer=str(value["answer"]),
        reason=str(value.get("reason", "")),
        stored=value.get("stored") is True,
        intact=value.get("intact") is True,
        entries=tuple(entry_from_json(entry) for entry in value["entries"]),
        above=_number(value.get("above", 0)),
    )


def _node(value: Any) -> Node | None:
    match value:
        case {"name": str(name), "epmd_port": int(port)} if 1 <= port <= 65_535:
            return Node(name=name, epmd_port=port) if _NODE_NAME.fullmatch(name) else None
        case _:
            return None


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("above must be a number")
    return value
