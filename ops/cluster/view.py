"""A cluster as it reports itself: questions to agents, management APIs and HAProxy, and orders to them.

Every question has a deadline. A part that does not answer is reported by NoAnswer with its name, never left
out in silence.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

import lb.fleet
import lb.hosts
import lb.runtime
from consumer_lists import nodes
from consumer_lists.nodes import Client, Cluster, Served
from consumer_lists.nodes import Node as ListNode
from inventory.inventory import NEXT, Balancer, Inventory, Node, load
from lb.errors import BalancerUnreachable, LbError
from lb.runtime import ServerState
from messagebus.broker import BrokerList
from messagebus.clock import wall_ms
from messagebus.secret import Secret
from messagebus.topology import GATE
from messagebus_tools.observing.snapshot import Answer, read_answer
from messagebus_tools.partitions import Chain, chains_in
from ops.cluster.management import ANSWER_WITHIN_S, DEFAULT_VHOST, Connection, Queue, request
from ops.errors import NoAnswer
from ops.run import shell

# An agent makes a change, and settles it, before it answers.
CHANGE_TIMEOUT_S = 30.0
# An import costs a broker 6.2 ms of CPU for each queue: 31 s for 5,000, on an idle host.
DEFINITIONS_WITHIN_S = 600.0
PROBE_WITHIN_S = 3.0
# Brokers that are asked at the same time.
PARALLEL = 16
# AMQP's answers, in the management API's words, to a basic.get on a queue that is exclusive to a consumer.
NOT_FETCHABLE = ("RESOURCE_LOCKED", "ACCESS_REFUSED")


@dataclass(frozen=True, slots=True)
class Absent:
    """Names of nodes whose broker, or agent, is known to be dead, and of dead balancers.

    Those nodes are never asked. A balancer is asked, because it may come back by itself, and need not
    answer.
    """

    brokers: frozenset[str] = frozenset()
    agents: frozenset[str] = frozenset()
    balancers: frozenset[str] = frozenset()

    @property
    def nodes(self) -> list[str]:
        return sorted(self.brokers | self.agents)

    def in_words(self) -> str:
        """Return each of them in words; "" for none."""
        return ", ".join(self.parts())

    def parts(self) -> list[str]:
        """Return each of them in words."""
        return [
            f"{what} {name}"
            for what, names in (
                ("broker", self.brokers),
                ("agent of", self.agents),
                ("balancer", self.balancers),
            )
            for name in sorted(names)
        ]


NOBODY = Absent()


class View:
    """The cluster of one inventory, which is read anew for every question.

    file: the inventory's. absent: nodes and balancers that are left out of questions to all.
    """

    def __init__(self, file: Path, absent: Absent = NOBODY) -> None:
        self.file = file
        self.absent = absent

    @property
    def inventory(self) -> Inventory:
        return load(self.file)

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.inventory.brokers

    def node(self, name: str) -> Node:
        return self.inventory.find(name)

    def has_forgotten(self, name: str) -> bool:
        """Return whether a local cluster has no such node any more: it forgets the entry before the files."""
        inventory = self.inventory
        return inventory.supervisor == "local" and name not in {
            node.name for node in inventory.brokers
        }

    @property
    def brokers(self) -> tuple[Node, ...]:
        """The brokers that are not absent."""
        return tuple(node for node in self.nodes if node.name not in self.absent.brokers)

    @property
    def listed(self) -> BrokerList:
        """The operators' copy of the consumer list."""
        return BrokerList.parse(self.inventory.list_file.read_text())

    # Agents.

    @property
    def _agents(self) -> list[ListNode]:
        nodes = Cluster.of(self.inventory).nodes
        return [node for node in nodes if node.name not in self.absent.agents]

    def served(self) -> list[Served]:
        """Return the list that each agent serves, or why it serves none."""
        return nodes.served(self._agents)

    def generations(self) -> dict[str, int]:
        """Return the generation that each agent serves, by name of the node. Raises NoAnswer."""
        served = self.served()
        _raise_silent({one.node: one.fault for one in served if one.served is None})
        return {one.node: one.generation for one in served}

    def clients(self) -> list[Client]:
        """Return every live client once, as the agent reports that saw it last. Raises NoAnswer."""
        found, silent = nodes.clients(self._agents)
        _raise_silent(silent)
        return found

    def maps(self) -> dict[str, dict[str, tuple[int, str, bool]]]:
        """Return each agent's topology: wanted name to (number, origin, alive). Raises NoAnswer."""
        return {
            name: {
                str(entry["wanted"]): (entry["number"], entry["origin"], entry["alive"])
                for entry in found["entries"]
            }
            for name, found in self.snapshots().items()
        }

    def snapshots(self) -> dict[str, dict[str, Any]]:
        """Return each agent's whole map, as it reports it. Raises NoAnswer."""
        return {name: answer.json() for name, answer in self._all("/topology")}

    def answering_snapshots(self) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """Return the maps of the agents that answer, and for each other agent the reason why it does not."""
        found, silent = dict[str, dict[str, Any]](), dict[str, str]()
        for node in self.nodes:
            try:
                found[node.name] = self._agent(node, "/topology").json()
            except NoAnswer as fault:
                silent[node.name] = str(fault)
        return found, silent

    def adopt(self, name: str, snapshot: Mapping[str, Any]) -> None:
        """Make an agent take this map on our word, joined with its own. Raises NoAnswer."""
        self._operator(name, "/topology/adopt", dict(snapshot))

    def merge(self, name: str, snapshot: Mapping[str, Any]) -> None:
        """Send an agent another one's map: it keeps the newer entries. Raises NoAnswer when it does not."""
        answer = self._operator(name, "/topology/merge", dict(snapshot)).json()
        if not answer["stored"] and answer["answer"] == "no":
            raise NoAnswer(f"agent of {name}: {answer['reason']}")

    def chains(self) -> dict[str, tuple[Chain, ...]]:
        """Return the segments of every partitioned topic, as the agents that answer know them.

        Raises NoAnswer when none does.
        """
        answered, silent = self.answering_snapshots()
        if not answered:
            _raise_silent(silent)
        return chains_in(entry for found in answered.values() for entry in found["entries"])

    def move_partitions(self, name: str, topic: str, to: Mapping[int, str]) -> dict[int, str]:
        """Begin moves of partitions at home on a broker. Returns the refused ones with the reason.

        Raises NoAnswer.
        """
        body = {"topic": topic, "to": {str(partition): home for partition, home in to.items()}}
        refused = self._operator(name, "/partitions", body).json()["refused"]
        return {int(partition): str(why) for partition, why in refused.items()}

    def mismatch(self, name: str, wanted: list[dict[str, Any]]) -> str:
        """Return which of these exist on its broker with other arguments, in words; "" for none.

        Raises NoAnswer.
        """
        answer = self._operator(name, "/topology/try", {"wanted": wanted})
        return str(answer.json()["mismatch"])

    def want(self, items: list[dict[str, Any]]) -> str:
        """Register these, as an application would. Returns the outcome in words.

        An agent that is not absent must be there. Raises NoAnswer.
        """
        first = next(node for node in self.nodes if node.name not in self.absent.agents)
        answer = self._operator(first.name, "/topology", {"wanted": items}).json()
        missing = ", ".join(f"{name}: {why}" for name, why in answer["missing"].items())
        return "complete" if answer["complete"] else f"incomplete: {missing}"

    def _operator(self, name: str, path: str, body: object) -> httpx.Response:
        """Send an agent a request with the operators' token; its answer may take longer than others."""
        inventory = self.inventory
        return request(
            f"agent of {name}",
            "POST",
            f"{inventory.agent_url(inventory.find(name))}{path}",
            json=body,
            verify=inventory.certificates(),
            auth=inventory.proof_to(inventory.find(name)),
            timeout_s=CHANGE_TIMEOUT_S,
        )

    def settled(self, name: str) -> dict[str, Any]:
        answer: dict[str, Any] = self._agent(self.node(name), "/settled").json()
        return answer

    def health(self, name: str) -> dict[str, Any]:
        answer: dict[str, Any] = self._agent(
            self.node(name), "/health", fine=(200, 404, 503)
        ).json()
        return answer

    def observed(self, name: str) -> Answer:
        """Return what a broker's agent knows of it. Raises NoAnswer."""
        node = self.node(name)
        answer = self._agent(node, "/observe", auth=self.inventory.proof_to(node))
        try:
            return read_answer(answer.json(), received_at_ms=wall_ms())
        except ValueError as fault:
            raise NoAnswer(f"agent of {name}: {fault}") from fault

    def _all(self, path: str) -> list[tuple[str, httpx.Response]]:
        asked = [node for node in self.nodes if node.name not in self.absent.agents]
        with ThreadPoolExecutor(PARALLEL) as pool:
            return list(pool.map(lambda node: (node.name, self._agent(node, path)), asked))

    def _agent(
        self,
        node: Node,
        path: str,
        *,
        fine: tuple[int, ...] = (200,),
        auth: httpx.Auth | None = None,
    ) -> httpx.Response:
        inventory = self.inventory
        return request(
            f"agent of {node.name}",
            "GET",
            f"{inventory.agent_url(node)}{path}",
            fine=fine,
            auth=auth,
            verify=inventory.certificates(),
        )

    # Balancers.

    def sending(self) -> dict[str, frozenset[str]]:
        """Return the names of the brokers that each balancer sends new connections to. Raises NoAnswer.

        Absent balancers are left out, unless they answer by now.
        """
        found, silent = self._balancers_asked()
        for name, fault in silent.items():
            if name not in self.absent.balancers:
                raise NoAnswer(f"balancer {name}: {fault}")
        return {
            name: frozenset(each.name for each in servers.values() if each.verdict == "up")
            for name, servers in found.items()
        }

    def silent_balancers(self) -> list[str]:
        """Return the names of the balancers that do not answer."""
        return list(self._balancers_asked()[1])

    def balancer_has_ended(self, name: str) -> bool:
        """Return whether a balancer's host says that none of its processes is left; false without answer."""
        inventory = self.inventory
        balancer = inventory.find_balancer(name)
        try:
            with lb.hosts.machine_of(shell, inventory, balancer) as machine:
                return not machine.signal_master(balancer, None)
        except LbError:
            return False

    def _balancers_asked(self) -> tuple[dict[str, dict[str, ServerState]], dict[str, str]]:
        """Return the state of each broker at each balancer; and for silent balancers the reason."""
        found = dict[str, dict[str, ServerState]]()
        with lb.fleet.opened(self.inventory, self._admin_socket) as fleet:
            silent = dict(fleet.unreachable)
            for name, socket in fleet.sockets.items():
                try:
                    found[name] = lb.runtime.servers(socket)
                except BalancerUnreachable as fault:
                    silent[name] = str(fault)
        return found, silent

    def _admin_socket(self, balancer: Balancer) -> AbstractContextManager[Path]:
        return lb.hosts.forwarded(shell, self.inventory.host(balancer.host).ssh, balancer)

    # Brokers.

    def is_shut(self, name: str, what: str = "address") -> bool:
        """Return whether nobody listens at an address of a node; false where nothing answers in time.

        what: address, which is AMQP's, management or agent.
        """
        try:
            with socket.create_connection(getattr(self.node(name), what), timeout=PROBE_WITHIN_S):
                return False
        except ConnectionRefusedError:
            return True
        except OSError:
            return False

    def queues(self, name: str) -> list[Queue]:
        """Return the queues of one broker, by its statistics: up to one interval old. Raises NoAnswer.

        Queues that belong to one connection are left out, such as each agent's for events, and so is the
        gate's.
        """
        return [each for each in self.all_queues(name) if each.vhost == DEFAULT_VHOST]

    def all_queues(self, name: str) -> list[Queue]:
        """Return `queues` of every virtual host."""
        columns = (
            "columns=vhost,name,type,arguments,messages,messages_unacknowledged,message_bytes,"
            "consumers,exclusive"
        )
        return [
            Queue.of(found)
            for found in self._manage(name, "GET", f"/api/queues?{columns}").json()
            if not found.get("exclusive") and found["name"] != GATE
        ]

    def bindings(self, name: str) -> list[tuple[str, str, str]]:
        """Return exchange, destination and routing key of every binding of a broker. Raises NoAnswer."""
        found = self._manage(
            name, "GET", "/api/bindings/%2F?columns=source,destination,routing_key"
        )
        return [(each["source"], each["destination"], each["routing_key"]) for each in found.json()]

    def holds_message(self, name: str, queue: Queue) -> bool | None:
        """Return whether a basic.get finds a message; it is put back. Raises NoAnswer.

        None where no message can be fetched: from streams, and where a consumer has the queue for itself.
        """
        if queue.kind == "stream" or queue.single_active:
            return None
        wanted = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "base64", "truncate": 1}
        path = f"/api/queues/{quote(queue.vhost, safe='')}/{quote(queue.name, safe='')}/get"
        answer = self._manage(name, "POST", path, json=wanted, fine=(200, 400))
        if answer.status_code == httpx.codes.OK:
            return bool(answer.json())
        if any(word in answer.text for word in NOT_FETCHABLE):
            return None
        raise NoAnswer(f"management of {name}: HTTP 400 {answer.text.strip()[:200]}")

    def connections(self, name: str) -> list[Connection]:
        """Return the connections of applications to one broker, by its statistics. Raises NoAnswer."""
        inventory = self.inventory
        agents = [user.name for user in inventory.users if user.role == "agent"]
        ours = {inventory.admin_user, inventory.balancer.probe_user, *agents}
        columns = "columns=name,user,client_properties,peer_host,peer_port"
        known = self._manage(name, "GET", f"/api/connections?{columns}").json()
        consumers = self._manage(name, "GET", "/api/consumers").json()
        # Of a consumer whose channel has just ended they are an empty list.
        consuming = {(each["channel_details"] or {}).get("connection_name") for each in consumers}
        held = self._held(name)
        return [
            Connection.of(
                found, consumes=found["name"] in consuming, unacked=held[str(found["name"])]
            )
            for found in known
            if found.get("user") not in ours
        ]

    def _held(self, name: str) -> Counter[str]:
        """Return the number of deliveries without an answer, by connection."""
        columns = "columns=connection_details,messages_unacknowledged"
        held = Counter[str]()
        for found in self._manage(name, "GET", f"/api/channels?{columns}").json():
            details = found.get("connection_details") or {}
            held[str(details.get("name"))] += int(found.get("messages_unacknowledged") or 0)
        return held

    def overview(self, name: str) -> dict[str, Any]:
        """Ask one broker for its version and its own name. Raises NoAnswer."""
        answer: dict[str, Any] = self._manage(name, "GET", "/api/overview").json()
        return answer

    def feature_flags(self, name: str) -> list[dict[str, Any]]:
        """Return the feature flags of one broker: name, state, stability. Raises NoAnswer."""
        flags: list[dict[str, Any]] = self._manage(name, "GET", "/api/feature-flags").json()
        return flags

    def definitions(self, name: str) -> dict[str, Any]:
        """Return all definitions of one broker, with hashes of passwords. Raises NoAnswer."""
        answer = self._manage(name, "GET", "/api/definitions", timeout_s=DEFINITIONS_WITHIN_S)
        found: dict[str, Any] = answer.json()
        return found

    def policed(self, name: str) -> tuple[list[dict[str, Any]], list[str]]:
        """Return a broker's operator policies, which definitions lack, and its plug-ins. Raises NoAnswer."""
        policies = self._manage(name, "GET", "/api/operator-policies/%2F").json()
        nodes = self._manage(name, "GET", "/api/nodes?columns=enabled_plugins").json()
        return policies, [plugin for node in nodes for plugin in node.get("enabled_plugins", ())]

    def define(self, name: str, definitions: Mapping[str, Any]) -> None:
        """Import these definitions into one broker. Raises NoAnswer."""
        self._manage(
            name,
            "POST",
            "/api/definitions",
            json=dict(definitions),
            fine=(200, 201, 204),
            timeout_s=DEFINITIONS_WITHIN_S,
        )

    def user(self, name: str, user: str) -> dict[str, Any]:
        """Return a user as one broker has it, with the hash of its password. Raises NoAnswer."""
        answer: dict[str, Any] = self._manage(name, "GET", _user_path(user)).json()
        return answer

    def put_user(self, name: str, user: str, body: Mapping[str, Any]) -> None:
        """Create a user on one broker, or change it. Raises NoAnswer."""
        self._manage(name, "PUT", _user_path(user), json=dict(body), fine=(201, 204))

    def grant_as(self, name: str, user: str, other: str) -> None:
        """Give a user the rights that another one has on this broker. Raises NoAnswer."""
        found = self._manage(name, "GET", f"{_user_path(other)}/permissions").json()
        for each in found:
            rights = {key: each[key] for key in ("configure", "write", "read")}
            path = f"/api/permissions/{quote(each['vhost'], safe='')}/{quote(user, safe='')}"
            self._manage(name, "PUT", path, json=rights, fine=(201, 204))

    def drop_user(self, name: str, user: str) -> None:
        """Delete a user from one broker; it may not know it. Raises NoAnswer."""
        self._manage(name, "DELETE", _user_path(user), fine=(204, 404))

    def counts(self, name: str) -> tuple[int, int]:
        """Return the numbers of messages published to and acknowledged from one broker since its start."""
        stats = self.overview(name).get("message_stats", {})
        return int(stats.get("publish", 0)), int(stats.get("ack", 0))

    def close_connection(self, name: str, connection: str) -> None:
        """Make a broker close one connection; it may be gone already. Raises NoAnswer."""
        path = f"/api/connections/{quote(connection, safe='')}"
        self._manage(name, "DELETE", path, fine=(204, 404))

    def _manage(
        self,
        name: str,
        method: str,
        path: str,
        *,
        json: object = None,
        fine: tuple[int, ...] = (200,),
        timeout_s: float = ANSWER_WITHIN_S,
    ) -> httpx.Response:
        inventory = self.inventory
        node = inventory.find(name)

        def ask(file: Path, fine: tuple[int, ...]) -> httpx.Response:
            return request(
                f"management of {node.name}",
                method,
                f"{inventory.management_url(node)}{path}",
                json=json,
                auth=(inventory.admin_user, _secret(file).reveal()),
                fine=fine,
                verify=inventory.certificates(),
                timeout_s=timeout_s,
            )

        file, changed = inventory.admin_password_file, next_file(inventory.admin_password_file)
        if not changed.exists():
            return ask(file, fine)
        # During a change, some brokers have the one password and some the other.
        answer = ask(file, (*fine, httpx.codes.UNAUTHORIZED))
        return answer if answer.status_code in fine else ask(changed, fine)


def _user_path(user: str) -> str:
    return f"/api/users/{quote(user, safe='')}"


def _raise_silent(faults: Mapping[str, str]) -> None:
    for name, fault in faults.items():
        raise NoAnswer(f"agent of {name}: {fault}")


def _secret(file: Path) -> Secret:
    return Secret(file.read_text().strip())


def next_file(file: Path) -> Path:
    """Return the path of a new password. The file exists while not all brokers have it."""
    return file.with_name(f"{file.name}{NEXT}")
