"""Questions to the agents of a cluster, and orders to them."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import httpx

from consumer_lists import nodes
from consumer_lists.nodes import Client, Cluster, Served
from consumer_lists.nodes import Node as ListNode
from inventory.inventory import Inventory, Node
from messagebus.clock import wall_ms
from messagebus.observing.snapshot import Answer, Chain, chains_in, read_answer
from ops.cluster.management import request
from ops.cluster.members import Absent, Members
from ops.errors import NoAnswer

# An agent makes a change, and settles it, before it answers.
CHANGE_TIMEOUT_S = 30.0
# Agents that are asked at the same time.
PARALLEL = 16


class Agents:
    """The agents of every node; those that are absent are left out of questions to all."""

    def __init__(self, members: Members) -> None:
        self._members = members

    def served(self) -> list[Served]:
        """Return the list that each agent serves, or why it serves none."""
        return nodes.served(self._list_nodes())

    def generations(self) -> dict[str, int]:
        """Return the generation that each agent serves, by name of the node. Raises NoAnswer."""
        served = self.served()
        _raise_silent({one.node: one.fault for one in served if one.served is None})
        return {one.node: one.generation for one in served}

    def clients(self) -> list[Client]:
        """Return every live client once, as the agent reports that saw it last. Raises NoAnswer."""
        found, silent = nodes.clients(self._list_nodes())
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
        answers = self._ask_agents("/topology")
        _raise_first(answers.values())
        return _read(answers)

    def answering_snapshots(self) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """Return the maps of the agents that answer, and for each other agent the reason why it does not.

        Absent agents are in neither.
        """
        answers = self._ask_agents("/topology")
        silent = {name: str(each) for name, each in answers.items() if isinstance(each, NoAnswer)}
        return _read(answers), silent

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
        answers = self._ask_agents("/topology")
        answered = _read(answers)
        if not answered:
            _raise_first(answers.values())
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
        nodes = self._members.nodes
        first = next(node for node in nodes if node.name not in self._absent.agents)
        answer = self._operator(first.name, "/topology", {"wanted": items}).json()
        missing = ", ".join(f"{name}: {why}" for name, why in answer["missing"].items())
        return "complete" if answer["complete"] else f"incomplete: {missing}"

    def settled(self, name: str) -> dict[str, Any]:
        """Return which queues of a broker are settled, as its agent reports it. Raises NoAnswer."""
        return self._get(name, "/settled")

    def health(self, name: str) -> dict[str, Any]:
        """Return the verdict of a broker's agent, also a bad one. Raises NoAnswer."""
        return self._get(name, "/health", fine=(200, 404, 503))

    def observed(self, name: str) -> Answer:
        """Return what a broker's agent knows of it. Raises NoAnswer."""
        inventory = self._members.inventory
        node = inventory.find(name)
        answer = self._ask(inventory, node, "/observe", auth=inventory.proof_to(node))
        try:
            return read_answer(answer.json(), received_at_ms=wall_ms())
        except ValueError as fault:
            raise NoAnswer(f"agent of {name}: {fault}") from fault

    @property
    def _absent(self) -> Absent:
        return self._members.absent

    def _list_nodes(self) -> list[ListNode]:
        nodes = Cluster.of(self._members.inventory).nodes
        return [node for node in nodes if node.name not in self._absent.agents]

    def _get(self, name: str, path: str, *, fine: tuple[int, ...] = (200,)) -> dict[str, Any]:
        inventory = self._members.inventory
        answer = self._ask(inventory, inventory.find(name), path, fine=fine)
        return cast(dict[str, Any], answer.json())

    def _operator(self, name: str, path: str, body: object) -> httpx.Response:
        """Send an agent a request with the operators' token; its answer may take longer than others."""
        inventory = self._members.inventory
        return request(
            f"agent of {name}",
            "POST",
            f"{inventory.agent_url(inventory.find(name))}{path}",
            json=body,
            verify=inventory.certificates(),
            auth=inventory.proof_to(inventory.find(name)),
            timeout_s=CHANGE_TIMEOUT_S,
        )

    def _ask_agents(self, path: str) -> dict[str, httpx.Response | NoAnswer]:
        """Ask every agent that is not absent, PARALLEL of them at a time; by name, in their order."""
        inventory = self._members.inventory
        asked = [node for node in inventory.brokers if node.name not in self._absent.agents]
        verify = inventory.certificates()  # once: a context reads all certificates of the system

        def ask(node: Node) -> httpx.Response | NoAnswer:
            try:
                return self._ask(inventory, node, path, verify=verify)
            except NoAnswer as fault:
                return fault

        with ThreadPoolExecutor(PARALLEL) as pool:
            return dict(zip((node.name for node in asked), pool.map(ask, asked), strict=True))

    def _ask(
        self,
        inventory: Inventory,
        node: Node,
        path: str,
        *,
        fine: tuple[int, ...] = (200,),
        auth: httpx.Auth | None = None,
        verify: ssl.SSLContext | None = None,
    ) -> httpx.Response:
        """Ask the agent of a node. Raises NoAnswer."""
        return request(
            f"agent of {node.name}",
            "GET",
            f"{inventory.agent_url(node)}{path}",
            fine=fine,
            auth=auth,
            verify=verify or inventory.certificates(),
        )


def _read(answers: Mapping[str, httpx.Response | NoAnswer]) -> dict[str, dict[str, Any]]:
    """Return what the agents that answered sent, by name."""
    return {name: each.json() for name, each in answers.items() if not isinstance(each, NoAnswer)}


def _raise_first(answers: Iterable[httpx.Response | NoAnswer]) -> None:
    for each in answers:
        if isinstance(each, NoAnswer):
            raise each


def _raise_silent(faults: Mapping[str, str]) -> None:
    for name, fault in faults.items():
        raise NoAnswer(f"agent of {name}: {fault}")
