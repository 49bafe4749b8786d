"""The nodes of a cluster: the lists that they serve, and the generations that clients reported there.

All agents are asked in parallel. A node that does not answer is shown as such, and never counted as
anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx

from inventory.inventory import Inventory
from messagebus.broker import BrokerList
from messagebus.errors import ListInvalid, reason_of
from messagebus.tls import TlsFiles

ANSWER_WITHIN_S = 3.0
"""Timeout of one request to one agent."""
PARALLEL = 32
REASON_CHARS_MAX = 200
"""Characters of an error that are told."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node. address: of its broker, ``host:port``. agent: HTTP address ``host:port``.

    list_file: path from which its agent reads the list.
    hosts: hosts that hold the file, as SSH addresses ``[user@]host[:port]``: both of a mirror, since either
        may run the broker; none for this machine. sudo: hosts whose SSH user is not root.
    tls: certificates for requests to the agent; None for plain HTTP.
    """

    name: str
    address: str
    agent: str
    list_file: Path
    hosts: tuple[str, ...] = ()
    sudo: frozenset[str] = frozenset()
    tls: TlsFiles | None = None

    @property
    def agent_url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.agent}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """One cluster. list_file: the operators' copy, under version control. nodes: in the inventory's order."""

    name: str
    list_file: Path
    nodes: tuple[Node, ...]

    @classmethod
    def of(cls, inventory: Inventory) -> Cluster:
        """Return the cluster of an inventory."""
        nodes = (
            Node(
                name=node.name,
                address=str(node.address),
                agent=str(node.agent),
                list_file=node.node_list_file,
                hosts=inventory.ssh_hosts(node),
                sudo=frozenset(host.ssh for host in inventory.hosts if host.sudo),
                tls=inventory.tls.files if inventory.tls else None,
            )
            for node in inventory.brokers
        )
        return cls(name=inventory.cluster, list_file=inventory.list_file, nodes=tuple(nodes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The list that one node serves, or the reason why there is none.

    address: of its broker, ``host:port``. is_down: its agent's port is closed.
    """

    node: str
    address: str = ""
    served: BrokerList | None = None
    fault: str = ""
    is_down: bool = False

    @property
    def generation(self) -> int:
        """The generation of the served list; 0 where nothing is served."""
        return self.served.generation if self.served else 0


@dataclass(frozen=True, slots=True)
class Readiness:
    """Verdict of an agent on its broker: it sends publishers there, or not, with the reason.

    is_ready: None where the agent does not answer.
    """

    is_ready: bool | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """The newest report of one client over all agents. applied: generation that the client works by.

    waits: it has a request open at the agent that reports it.
    """

    id: str
    subscription: str
    applied: int
    age_s: float
    waits: bool = True


def served(nodes: Sequence[Node]) -> list[Served]:
    """Return the lists that the nodes serve now, in the order given."""
    return ask_all(nodes, _served)


def readiness(nodes: Sequence[Node]) -> dict[str, Readiness]:
    """Return address of each node's broker -> whether its agent sends publishers there."""
    answers = ask_all(nodes, _readiness)
    return {node.address: answer for node, answer in zip(nodes, answers, strict=True)}


def clients(nodes: Sequence[Node]) -> tuple[list[Client], dict[str, str]]:
    """Return every living client, and the nodes that could not be asked with the reason.

    A client asks one agent at a time, so the truth is the union, and the newest report wins. Agents tell
    ages at different moments: ages that differ by less than ANSWER_WITHIN_S say nothing, and the higher
    generation is then the newer report. A client that has left one agent has left those that it asked before.
    """
    words: dict[tuple[str, str], list[Client]] = {}
    left_s: dict[tuple[str, str], float] = {}
    silent = {}
    for node, (known, left, fault) in zip(nodes, ask_all(nodes, _clients), strict=True):
        if fault:
            silent[node.name] = fault
        for client in known:
            words.setdefault((client.id, client.subscription), []).append(client)
        for key, age_s in left.items():
            left_s[key] = min(age_s, left_s.get(key, age_s))
    for key, age_s in left_s.items():
        words[key] = [word for word in words.get(key, ()) if word.waits or word.age_s <= age_s]
    newest = [_newest(each) for each in words.values() if each]
    return sorted(newest, key=lambda one: (one.subscription, one.id)), silent


def _newest(words: Sequence[Client]) -> Client:
    youngest_s = min(word.age_s for word in words)
    fresh = [word for word in words if word.age_s <= youngest_s + ANSWER_WITHIN_S]
    return max(fresh, key=lambda word: word.applied)


def ask_all(nodes: Sequence[Node], ask: Callable[[Node], T]) -> list[T]:
    """Call `ask` for every node, ASKED_AT_ONCE at a time. Returns the answers in the order of the nodes."""
    with ThreadPoolExecutor(max_workers=PARALLEL, thread_name_prefix="node") as pool:
        return list(pool.map(ask, nodes))


def _served(node: Node) -> Served:
    try:
        answer = _get(node, "/consumer-list")
        return Served(node=node.name, address=node.address, served=BrokerList.parse(answer.text))
    except (httpx.HTTPError, httpx.InvalidURL) as fault:
        is_down = isinstance(fault, httpx.ConnectError)
        return Served(
            node=node.name,
            address=node.address,
            fault=reason_of(fault, REASON_CHARS_MAX),
            is_down=is_down,
        )
    except ListInvalid as fault:
        return Served(node=node.name, address=node.address, fault=f"no list: {fault}")


def _readiness(node: Node) -> Readiness:
    try:
        answer = _ask(node, "/health").json()
        verdict = str(answer["verdict"])
        is_ready = verdict == "ready"
        return Readiness(is_ready, "" if is_ready else str(answer.get("reason") or verdict))
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, TypeError, LookupError) as fault:
        return Readiness(None, f"its agent does not answer: {reason_of(fault, REASON_CHARS_MAX)}")


def _clients(node: Node) -> tuple[list[Client], dict[tuple[str, str], float], str]:
    try:
        answer = _get(node, "/clients").json()
        return list(_read_clients(answer)), _read_left(answer), ""
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, TypeError, LookupError) as fault:
        return [], {}, reason_of(fault, REASON_CHARS_MAX)


def _read_clients(answer: Any) -> Iterable[Client]:
    for each in answer["clients"]:
        yield Client(
            id=str(each["id"]),
            subscription=str(each["subscription"]),
            applied=int(each["applied"]),
            age_s=float(each["age_s"]),
            waits=bool(each["waits"]),
        )


def _read_left(answer: Any) -> dict[tuple[str, str], float]:
    """Return (id, subscription) -> time in s since a client hung up."""
    return {
        (str(each["id"]), str(each["subscription"])): float(each["age_s"])
        for each in answer["left"]
    }


def _ask(node: Node, path: str) -> httpx.Response:
    return httpx.get(
        f"{node.agent_url}{path}",
        timeout=ANSWER_WITHIN_S,
        trust_env=False,
        verify=(node.tls or TlsFiles()).client_context(),
    )


def _get(node: Node, path: str) -> httpx.Response:
    answer = _ask(node, path)
    if answer.is_error:
        raise httpx.HTTPStatusError(
            f"{answer.status_code} {answer.text}", request=answer.request, response=answer
        )
    return answer
