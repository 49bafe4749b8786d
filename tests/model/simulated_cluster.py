"""A cluster in memory that playbooks are carried out on: their real plans, journals and locks, no process.

Commands are read from their argv. Violation is raised for a command that would erase a confirmed message
that was not consumed, or leave one where nobody consumes.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx

from consumer_lists.nodes import Served
from inventory.errors import CommandFailed
from messagebus.broker import BrokerList
from messagebus.errors import ConfigError
from ops.cluster.brokers import Brokers
from ops.cluster.management import Connection, Queue
from ops.cluster.members import NOBODY, Absent
from ops.errors import NoAnswer
from ops.run.plan import Command
from tests.support.fake_view import OneForAll

SUBSCRIPTION = "mb.sub/orders/billing"
FOREIGN = "legacy"
LOCKED = "locked"


parsed = functools.lru_cache(maxsize=4096)(BrokerList.parse)


@functools.lru_cache(maxsize=4096)
def entries(text: str) -> dict[str, bool]:
    """Return the entries of a list: address -> whether it is draining."""
    return {entry.broker.name: entry.draining for entry in parsed(text)}


class Violation(AssertionError):
    """Raised when a confirmed message is lost, or lies where nobody will read it."""


class Killed(BaseException):
    """Raised where the operator's process is killed."""


@dataclass(slots=True)
class Broker:
    """Node. data: changes with each write to its disk. foreign: messages of another vhost.

    silent: its agent does not answer, and its process is there.
    held: its agent was asked to keep publishers away. gate: its agent has opened it in this life of the
    broker. polite: the agent last told the balancer to send nobody.
    is_dead: its host died, and it was not started since: its data is lost anyway.
    is_locked: it has an empty queue with an exclusive consumer: nobody else may look into it.
    is_shut: its doors are, in this life of it.
    """

    name: str
    running: bool = False
    agent: bool = False
    silent: bool = False
    held: bool = False
    gate: bool = False
    polite: bool = False
    publishers: bool = False
    messages: int = 0
    foreign: int = 0
    data: int = 0
    is_dead: bool = False
    is_locked: bool = False
    is_shut: bool = False
    served: str = ""


@dataclass(slots=True)
class Front:
    """Balancer. state: "up", "frozen", or how it is dead: its process has "ended", its host is "off".

    known: names of the brokers of its configuration, which it keeps when it is frozen or off.
    """

    name: str
    known: set[str]
    state: str = "up"


@dataclass(slots=True)
class SimulatedCluster:
    """Cluster in memory. chance: of everything that happens by itself.

    kill_in: number of looks or commands before Killed is raised. agents_read_lists: whether an agent that the
    list does not name keeps publishers away. ran: every command, in its order.
    swapped: name -> the broker that answers at its management's address. hosts: name -> that on its host.
    dies: name of a broker whose host dies, and the number of looks or commands before.
    dials: name of a broker that a client dials itself right before this command, and publishes to.
    """

    chance: random.Random
    brokers: dict[str, Broker] = field(default_factory=dict)
    inventory_names: list[str] = field(default_factory=list)
    fronts: dict[str, Front] = field(default_factory=dict)
    kill_in: int | None = None
    erased: int = 0
    agents_read_lists: bool = True
    consuming: bool = True
    ran: list[str] = field(default_factory=list)
    listed_text: str = ""
    swapped: dict[str, str] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)
    dials: tuple[str, str] = ("", "")
    dies: tuple[str, int] = ("", 0)

    @classmethod
    def of(cls, chance: random.Random, count: int = 3) -> SimulatedCluster:
        made = cls(chance)
        for number in range(1, count + 1):
            name = f"mb{number}"
            made.brokers[name] = Broker(name, running=True, agent=True, gate=True, data=1)
            made.inventory_names.append(name)
        for front in ("lb1", "lb2"):
            made.fronts[front] = Front(front, set(made.inventory_names))
        lines = "".join(f"{address(name)}\n" for name in made.inventory_names)
        made.listed_text = f"# generation: 1\n{lines}"
        for broker in made.brokers.values():
            broker.served = made.listed_text
        return made

    # Events that happen by themselves.

    def tick(self) -> None:
        """Let the time of a command or look pass: a publish, some consuming."""
        if self.kill_in is not None:
            self.kill_in -= 1
            if self.kill_in < 0:
                self.kill_in = None
                raise Killed
        name, left = self.dies
        if name:
            self.dies = (name, left - 1) if left else ("", 0)
            if not left:
                self.die(name)
        self._agents_look()
        if self.chance.random() < 0.3:
            self.publish()
        if self.consuming and self.chance.random() < 0.5:
            self.consume()

    def _agents_look(self) -> None:
        """Have each agent open its gate, and tell the balancer whether to send publishers."""
        for broker in self.brokers.values():
            if broker.agent:
                drains = entries(broker.served).get(address(broker.name))
                is_named = drains is not None or not self.agents_read_lists
                broker.polite = broker.held or not is_named or bool(drains)
                broker.gate = broker.running and not broker.is_shut

    def publish(self) -> None:
        """Publish to one of the brokers that some balancer sends publishers to."""
        if open_to := self.serving:
            broker = self.brokers[self.chance.choice(open_to)]
            broker.messages += 1
            broker.data += 1
            broker.publishers = True
            if address(broker.name) not in entries(self.listed_text):
                raise Violation(f"{broker.name} is published to, and no list names it")

    def consume(self) -> None:
        for broker in self.brokers.values():
            if self.is_consumed(broker) and broker.messages:
                broker.messages = 0
                broker.data += 1

    def is_consumed(self, broker: Broker) -> bool:
        """Return whether clients consume there: they follow the newest list that an agent serves."""
        if not broker.running or broker.is_shut:
            return False
        texts = {one.served for one in self.brokers.values() if one.served}
        newest = max((parsed(text).generation for text in texts), default=0)
        where = address(broker.name)
        return any(where in entries(text) for text in texts if parsed(text).generation == newest)

    def sends_to(self, name: str) -> bool:
        """Return whether some balancer sends publishers there."""
        return any(self._sends(front, name) for front in self.fronts.values())

    def sent_by_all(self, name: str) -> bool:
        return all(self._sends(front, name) for front in self.fronts.values())

    def sent_by(self, front: str) -> frozenset[str]:
        return frozenset(name for name in self.brokers if self._sends(self.fronts[front], name))

    def _sends(self, front: Front, name: str) -> bool:
        broker = self.brokers.get(name)
        return bool(
            front.state == "up"
            and broker
            and name in front.known
            and broker.running
            and not broker.is_shut
            and broker.gate
            and not broker.polite
        )

    @property
    def listed(self) -> BrokerList:
        return parsed(self.listed_text)

    # Commands.

    def run(self, command: Command) -> str:
        self.tick()
        words = list(command.argv[3:])
        if "--inventory" in words:
            at = words.index("--inventory")
            del words[at : at + 2]
        if command.argv[0] == "find":
            name = command.argv[3].split("/")[-3]
            return self._files(self.hosts.get(name, name))
        if " ".join(words[:3]) == self.dials[1]:
            self.dial(self.dials[0])
        self.ran.append(" ".join(command.argv[2:]))
        served = self.serving
        do = {"consumer_lists": self._lists, "lb": self._lb, "ops": self._ops}[command.argv[2]]
        try:
            return do(words)
        except _Refused as fault:
            raise CommandFailed(command.argv, 1, str(fault)) from None
        finally:
            self._agents_look()
            if served and not self.serving and command.argv[2] != "find":
                raise Violation("a playbook took the last broker out that took publishes")
            self.tick()

    @property
    def serving(self) -> list[str]:
        """The names of the brokers that publishers are sent to."""
        return [name for name in self.brokers if self.sends_to(name)]

    def _files(self, name: str) -> str:
        broker = self.brokers.get(name)
        return f"segment {broker.data}" if broker and broker.data else ""

    def _lists(self, words: list[str]) -> str:
        word, *rest = words
        if word == "push":
            return self._push({name for name in rest if name != "--without"})
        where = rest[0]
        known = dict(entries(self.listed_text))
        is_so = {
            "add": where in known,
            "remove": where not in known,
            "drain": known.get(where, True),
            "ready": not known.get(where, False),
        }[word]
        if word in ("drain", "ready") and where not in known:
            raise _Refused("not on the list")
        if is_so:
            if "--if-needed" in rest:
                return ""
            raise _Refused(f"{word}: it is so already")
        if word == "remove":
            if len(known) == 1:
                raise _Refused("the last broker")
            del known[where]
        else:
            known[where] = word == "drain"
        lines = "".join(f"{name}{' draining' * on}\n" for name, on in known.items())
        self.listed_text = f"# generation: {self.listed.generation + 1}\n{lines}"
        return ""

    def _push(self, without: set[str]) -> str:
        for name in self.inventory_names:
            broker = self.brokers[name]
            if broker.agent:
                broker.served = self.listed_text
        late = [n for n in self.inventory_names if not self.brokers[n].agent and n not in without]
        if late:
            raise _Refused(f"{late[0]} differs")
        return ""

    def _lb(self, words: list[str]) -> str:
        without = {name for say, name in pairwise(words) if say == "--without"}
        if not set(self.fronts) - without:
            raise _Refused("no balancer is left")
        if words[0] == "apply":
            self._apply(without)
            return ""
        word, name = words[:2]
        broker = self._node(name)
        if not broker.agent:
            raise _Refused(f"the agent of {name} does not answer")
        broker.held = word == "drain"
        self._agents_look()
        for front in self.fronts.values():
            if front.name not in without:
                if front.state != "up" or name not in front.known:
                    raise _Refused(f"{front.name} does not show it")
                if word == "ready" and not self._sends(front, name):
                    raise _Refused(f"{front.name} does not send anybody there")
        return ""

    def _apply(self, without: set[str]) -> None:
        """Apply the files to a balancer; one that has ended gets them where its host is there."""
        away = {one.name for one in self.fronts.values() if one.state in ("off", "frozen")}
        if away - without:
            raise _Refused(f"{away} cannot be reached")
        for front in self.fronts.values():
            if front.name not in away:
                front.known = set(self.inventory_names)

    def _ops(self, words: list[str]) -> str:
        word, *rest = words
        if word == "local":
            # The programs of every release are there.
            return "" if rest[0] == "fetch" else self._local(*rest[: rest.index("--dir")])
        if word == "inventory":
            return self._inventory(rest)
        if word == "quota":
            return self._share(rest[1:])
        broker = self._node(rest[0])
        if word == "hold":
            if not broker.agent:
                raise _Refused("its agent does not answer")
            broker.held = True
        elif not broker.running:
            raise _Refused("its management does not answer")
        elif word == "hangup":
            broker.publishers = self.sends_to(broker.name)
        elif word == "move":
            self._move(broker)
        return ""

    def _share(self, words: list[str]) -> str:
        """Compute the shares of quotas anew: a question to each broker and agent that is not left out."""
        left_out: dict[str, set[str]] = {"--without": set(), "--without-agent": set()}
        if (flag := "--in-playbook") not in words:
            raise _Refused("another command is at work: the playbook that runs it")
        words = [word for word in words if word != flag]
        for option, name in zip(words[::2], words[1::2], strict=True):
            left_out[option].add(name)
        dead, silent = left_out.values()
        for name in self.inventory_names:
            if name not in dead and not self._node(name).running:
                raise _Refused(f"the management of {name} does not answer")
            if name not in dead | silent and not self._node(name).agent:
                raise _Refused(f"the agent of {name} does not answer")
        return ""

    def _move(self, source: Broker) -> None:
        targets = [
            self.brokers[name]
            for name in self.inventory_names
            if name != source.name
            and self.brokers[name].running
            and not entries(self.listed_text).get(address(name), True)
        ]
        if not targets:
            raise _Refused("nobody to move to")
        target = self.chance.choice(targets)
        target.messages += source.messages
        target.data += 1
        source.messages = 0
        source.data += 1

    def _inventory(self, rest: list[str]) -> str:
        if rest[0] == "drop":
            if rest[1] in self.inventory_names:
                self.inventory_names.remove(rest[1])
        elif rest[0] == "put":
            name = rest[1].rpartition("replaced-")[2].removesuffix(".toml")
            if name not in self.inventory_names:
                self.inventory_names.append(name)
        return ""

    def dial(self, name: str) -> None:
        """Publish to a broker past list and balancer, and have it confirmed, if its doors are open."""
        broker = self.brokers.get(name)
        if broker and broker.running and not broker.is_shut:
            broker.messages += 1
            broker.data += 1

    def _local(self, word: str, part: str, *called: str) -> str:
        name, _, agent = part.partition("-")
        name = self.hosts.get(name, name)
        broker = self.brokers.get(name)
        if word == "state":
            is_there = broker and (broker.agent or broker.silent if agent else broker.running)
            return "active\n" if is_there else "inactive\n"
        if word == "provision":
            self.brokers.setdefault(name, Broker(name))
            if name not in self.inventory_names:
                self.inventory_names.append(name)
            self.brokers[name].served = self.listed_text
            return ""
        if word == "forget":
            self._forget(name)
            return ""
        if broker is None:
            raise _Refused(f"no part {part}")
        if agent:
            broker.agent = word == "start"
        elif word == "start":
            self.start(broker)
        elif word in ("named", "shut"):
            if not broker.running or address(name) not in called:
                raise _Refused(f"the broker there is {name}")
            if word == "shut":
                if broker.messages or broker.foreign:
                    raise _Refused("messages are left")
                broker.is_shut, broker.publishers, broker.gate = True, False, False
        else:
            broker.running = broker.publishers = broker.gate = broker.is_shut = False
        return ""

    def start(self, broker: Broker) -> None:
        broker.is_shut = False
        if not broker.running:
            broker.running, broker.is_dead = True, False
            broker.data += 1

    def _forget(self, name: str) -> None:
        broker = self.brokers.get(name)
        if broker is None:
            return
        # A local cluster refuses one that runs; on a host it is erased all the same.
        if (broker.messages or broker.foreign) and not broker.is_dead:
            raise Violation(f"{name} is erased with {broker.messages} + {broker.foreign} messages")
        self.erased += 1
        del self.brokers[name]
        if name in self.inventory_names:
            self.inventory_names.remove(name)

    def _node(self, name: str) -> Broker:
        if name not in self.inventory_names or name not in self.brokers:
            raise _Refused(f"no broker {name}")
        return self.brokers[name]

    def by_hand(self, command: str, name: str) -> str:
        """Run a command of `lb` or `consumer_lists` that an operator types. Returns how it ended."""
        kit, word = command.split()
        words = {"ready": [word, address(name) if kit == "lists" else name]}.get(word, [word])
        try:
            (self._lists if kit == "lists" else self._lb)(words)
        except _Refused as fault:
            return str(fault)
        finally:
            self._agents_look()
        return ""

    # Events from outside.

    def die(self, name: str) -> None:
        """Let the host of a broker die."""
        broker = self.brokers[name]
        broker.running = broker.agent = broker.publishers = broker.gate = broker.is_shut = False
        broker.is_dead = True

    def mend(self) -> None:
        """Make everything run again that can."""
        for front in self.fronts.values():
            front.state = "up"
        for name in self.inventory_names:
            if broker := self.brokers.get(name):
                self.start(broker)
                broker.agent = True


class _Refused(Exception):
    """Raised when a command ends with exit code 1."""


@functools.cache
def address(name: str) -> str:
    return f"127.0.0.1{name.removeprefix('mb')}:5672"


@functools.cache
def as_node(name: str) -> Any:
    return SimpleNamespace(
        name=name,
        address=address(name),
        agent=SimpleNamespace(port=8081),
        management=f"{name}:15672",
        host="",
    )


class SimulatedView(OneForAll):
    """View of a simulated cluster, as `ops.cluster.view.View`."""

    def __init__(self, cluster: SimulatedCluster, file: Path, absent: Absent = NOBODY) -> None:
        self._cluster = cluster
        self.file = file
        self.absent = absent

    @property
    def inventory(self) -> Any:
        return SimpleNamespace(
            supervisor="local",
            brokers=self.nodes,
            balancers=tuple(SimpleNamespace(name=name, host="") for name in self._cluster.fronts),
            mirrors=(),
            hosts=(),
            serving_min=1,
        )

    @property
    def nodes(self) -> tuple[Any, ...]:
        return tuple(map(as_node, self._cluster.inventory_names))

    @property
    def present(self) -> tuple[Any, ...]:
        return tuple(node for node in self.nodes if node.name not in self.absent.brokers)

    def node(self, name: str) -> Any:
        if name not in self._cluster.inventory_names:
            raise ConfigError(f"no broker {name!r} in the inventory")
        return as_node(name)

    @property
    def listed(self) -> BrokerList:
        return self._cluster.listed

    def served(self) -> list[Served]:
        return [
            Served(node=broker.name, served=parsed(broker.served))
            if broker.agent
            else Served(node=broker.name, fault="refused")
            for broker in self._agents()
        ]

    def generations(self) -> dict[str, int]:
        return {one.name: parsed(one.served).generation for one in self._answering()}

    def clients(self) -> list[Any]:
        list(self._answering())
        return [SimpleNamespace(applied=self.listed.generation, id="c", subscription="s")]

    def maps(self) -> dict[str, dict[str, Any]]:
        return {one.name: {} for one in self._answering()}

    def chains(self) -> dict[str, Any]:
        answered, silent = self.answering_snapshots()
        if not answered:
            raise NoAnswer("; ".join(f"{name}: {why}" for name, why in silent.items()))
        return {}  # no topic has partitions

    def answering_snapshots(self) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        answering = {one.name: one.agent for one in self._agents()}
        return (
            {name: {"entries": []} for name, answers in answering.items() if answers},
            {name: "refused" for name, answers in answering.items() if not answers},
        )

    def _agents(self) -> Iterator[Broker]:
        self._cluster.tick()
        for name in self._cluster.inventory_names:
            if name in self._cluster.brokers and name not in self.absent.agents:
                yield self._cluster.brokers[name]

    def _answering(self) -> Iterator[Broker]:
        for broker in self._agents():
            if not broker.agent:
                raise NoAnswer(f"agent of {broker.name}")
            yield broker

    def health(self, name: str) -> dict[str, Any]:
        broker = self._broker(name)
        if not broker.agent:
            raise NoAnswer(f"agent of {name}")
        self._cluster.tick()
        verdict = (
            "down"
            if not broker.running or broker.is_shut
            else "drain"
            if broker.polite
            else "ready"
        )
        return {"verdict": verdict, "reason": verdict}

    def settled(self, name: str) -> dict[str, Any]:
        self.health(name)
        broker = self._broker(name)
        is_there = broker.running and not broker.is_shut
        return {"settled": is_there, "gate": is_there, "queues": []}

    def sending(self) -> dict[str, frozenset[str]]:
        silent = self.silent_balancers()
        if missed := set(silent) - self.absent.balancers:
            raise NoAnswer(f"balancer {missed}")
        return {
            name: self._cluster.sent_by(name) for name in self._cluster.fronts if name not in silent
        }

    def silent_balancers(self) -> list[str]:
        return [one.name for one in self._cluster.fronts.values() if one.state != "up"]

    def balancer_has_ended(self, name: str) -> bool:
        return self._cluster.fronts[name].state == "ended"

    def queues(self, name: str) -> list[Queue]:
        return self.queues_of_the_bus(name)

    def queues_of_the_bus(self, name: str) -> list[Queue]:
        self._cluster.tick()
        broker = self._running(name)
        consumers = int(self._cluster.is_consumed(broker))
        return [Queue(name=SUBSCRIPTION, messages=broker.messages, consumers=consumers)]

    def all_queues(self, name: str) -> list[Queue]:
        found, broker = self.queues_of_the_bus(name), self._running(name)
        if broker.foreign:
            found.append(Queue(name=FOREIGN, messages=broker.foreign, consumers=0, vhost="other"))
        if broker.is_locked:
            found.append(Queue(name=LOCKED, messages=0, consumers=0))
        return found

    def holds_message(self, name: str, queue: Queue) -> bool | None:
        return Brokers.holds_message(cast(Brokers, self), name, queue)

    def _manage(self, name: str, _method: str, path: str, **_more: object) -> httpx.Response:
        """Answer a basic.get on one queue, the only such request."""
        broker = self._running(name)
        queue = path.split("/")[-2]
        if queue == LOCKED:
            return httpx.Response(400, text="403 ACCESS_REFUSED - queue 'locked' in exclusive use")
        return httpx.Response(
            200, json=[{}] * bool(broker.foreign if queue == FOREIGN else broker.messages)
        )

    def connections(self, name: str) -> list[Connection]:
        broker = self._running(name)
        broker.publishers = broker.publishers and self._cluster.sends_to(name)
        found = [Connection(name="p", user="bus", client="p")] if broker.publishers else []
        if self._cluster.is_consumed(broker):
            found.append(Connection(name="c", user="bus", client="c", consumes=True))
        return found

    def counts(self, name: str) -> tuple[int, int]:
        return (self._running(name).data, 0)

    def overview(self, name: str) -> dict[str, Any]:
        return {"cluster_name": address(self._running(name).name)}

    def observed(self, name: str) -> Any:
        if not self._broker(name).agent:
            raise NoAnswer(f"agent of {name}")
        return SimpleNamespace(broker=address(name))

    def has_forgotten(self, _name: str) -> bool:
        return False  # its nodes are hosts: the inventory has a step of its own

    def is_shut(self, name: str, what: str = "address") -> bool:
        self._cluster.tick()
        if what == "management":
            name = self._cluster.swapped.get(name, name)
        if not (broker := self._cluster.brokers.get(name)):
            return True
        return not broker.agent if what == "agent" else not broker.running or broker.is_shut

    def _running(self, name: str) -> Broker:
        """Return the broker that answers at the management's address of a node."""
        broker = self._broker(self._cluster.swapped.get(name, name))
        if not broker.running or broker.is_shut:
            raise NoAnswer(f"management of {name}")
        return broker

    def _broker(self, name: str) -> Broker:
        self.node(name)
        if name not in self._cluster.brokers:
            raise NoAnswer(name)
        return self._cluster.brokers[name]
