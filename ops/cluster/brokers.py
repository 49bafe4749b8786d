"""Questions to the brokers of a cluster through their management APIs, and orders to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from inventory.inventory import NEXT, Node
from messagebus.topology import GATE
from ops.cluster.management import ANSWER_WITHIN_S, DEFAULT_VHOST, Connection, Queue, request
from ops.cluster.members import Members
from ops.errors import NoAnswer
from ops.local.secrets import read

# An import costs a broker 6.2 ms of CPU for each queue: 31 s for 5,000, on an idle host.
DEFINITIONS_WITHIN_S = 600.0
# AMQP's answers, in the management API's words, to a basic.get on a queue that is exclusive to a consumer.
NOT_FETCHABLE = ("RESOURCE_LOCKED", "ACCESS_REFUSED")


class Brokers:
    """The brokers by name; each question is to one of them."""

    def __init__(self, members: Members) -> None:
        self._members = members

    @property
    def present(self) -> tuple[Node, ...]:
        """The brokers that are not absent."""
        absent = self._members.absent.brokers
        return tuple(node for node in self._members.nodes if node.name not in absent)

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
        inventory = self._members.inventory
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

    def policies(self, name: str) -> list[dict[str, Any]]:
        """Return the policies of the bus's virtual host on one broker. Raises NoAnswer."""
        found: list[dict[str, Any]] = self._manage(name, "GET", "/api/policies/%2F").json()
        return found

    def put_policy(self, name: str, policy: str, body: Mapping[str, Any]) -> None:
        """Create a policy on one broker, or change it. Raises NoAnswer."""
        self._manage(name, "PUT", _policy_path(policy), json=dict(body), fine=(201, 204))

    def drop_policy(self, name: str, policy: str) -> None:
        """Delete a policy from one broker; it may not know it. Raises NoAnswer."""
        self._manage(name, "DELETE", _policy_path(policy), fine=(204, 404))

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
        inventory = self._members.inventory
        node = inventory.find(name)

        def ask(file: Path, fine: tuple[int, ...]) -> httpx.Response:
            return request(
                f"management of {node.name}",
                method,
                f"{inventory.management_url(node)}{path}",
                json=json,
                auth=(inventory.admin_user, read(file).reveal()),
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


def _policy_path(policy: str) -> str:
    return f"/api/policies/%2F/{quote(policy, safe='')}"


def _user_path(user: str) -> str:
    return f"/api/users/{quote(user, safe='')}"


def next_file(file: Path) -> Path:
    """Return the path of a new password. The file exists while not all brokers have it."""
    return file.with_name(f"{file.name}{NEXT}")
