"""Faults around the brokers: clocks, liars, operators. Each checks its promise at its end."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

from bench.errors import BenchError
from bench.faults import Fault, erl_call
from bench.processes import wait_until
from messagebus import (
    BusConfig,
    Consumer,
    Publisher,
    PublisherConfig,
    Queue,
    RegistrationIncomplete,
    Subscription,
    Topic,
    TopologyMismatch,
    declare,
)
from messagebus.stats import Durability, Published
from ops.errors import LocalFault
from ops.local.cluster import LocalCluster

# The limit for every promise: a busy machine with two clusters takes its time.
WITHIN_S = 120.0
TOLD_WITHIN_S = 30.0
HTTP_TIMEOUT_S = 30.0
MISMATCH, INCOMPLETE = "mismatch", "incomplete"
YEAR_S = 365 * 86_400
# Messages of a trial.
SENT = 40
_numbers = itertools.count(1)

# An agent's clock with an offset from its host's; the file may change while it runs.
OTHER_CLOCK = """\
import os, time

real, real_ns = time.time, time.time_ns

def off_s():
    try:
        with open(os.path.join(os.path.dirname(__file__), "off_s")) as file:
            return int(file.read() or 0)
    except OSError:
        return 0

time.time = lambda: real() + off_s()
time.time_ns = lambda: real_ns() + off_s() * 1_000_000_000
"""


class Trial:
    """A change to a cluster, and the promise that must hold afterwards."""

    name: str
    lasts_s = 0.0
    cuts = ""

    def __init__(self, cluster: LocalCluster, target: str) -> None:
        self.cluster, self.target = cluster, target
        self.topic = f"{self.name}-{os.getpid()}-{next(_numbers)}"
        self.known = set[str]()

    @classmethod
    def fault(cls, cluster: LocalCluster, target: str) -> Fault:
        trial = cls(cluster, target)
        return Fault(cls.name, target, cls.lasts_s, cls.cuts, trial.begin, trial.finish)

    def begin(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """Undo the change, and check the promise. Raises BenchError."""
        raise NotImplementedError

    def finish(self) -> None:
        self.end()
        self._forget_own()

    @property
    def bus(self) -> BusConfig:
        return BusConfig.from_env(self.cluster.client_env())

    # -- agents

    def snapshot(self, name: str) -> dict[str, Any]:
        """Return the map of an agent; empty while it does not answer."""
        with suppress(httpx.HTTPError):
            answer = self._ask(name, "GET", "/topology")
            found: dict[str, Any] = answer.raise_for_status().json()
            return found
        return {}

    def remember(self) -> None:
        """Record all names that any agent knows now; none of them may be forgotten."""
        self.known = set[str]().union(*(self._alive(name) for name in self.cluster.names))

    def nothing_is_forgotten(self, agents: Sequence[str] = ()) -> None:
        for name in agents or self.cluster.names:
            wait_until(
                lambda name=name: self._is_whole(name),  # type: ignore[misc]
                within_s=WITHIN_S,
                what=f"after {self.name} at {self.target}, the agent of {name} knows all it knew",
            )

    def _is_whole(self, name: str) -> bool:
        found = self.snapshot(name)
        return bool(found.get("intact") and found["informed"] and self.known <= self._alive(name))

    def _alive(self, name: str) -> set[str]:
        entries = self.snapshot(name).get("entries", ())
        return {each["wanted"] for each in entries if each["alive"]}

    def delete(self, *wanted: str) -> None:
        self._ask(
            self.cluster.names[0], "POST", "/topology", json={"wanted": wanted, "alive": False}
        ).raise_for_status()

    def _forget_own(self) -> None:
        names = sorted(set().union(*(self._alive(name) for name in self.cluster.names)))
        if own := [each for each in names if self.topic in each]:
            self.delete(*own)

    def _ask(self, name: str, method: str, path: str, **request: Any) -> httpx.Response:
        return httpx.request(
            method,
            f"{self.cluster.layout.scheme}://{self.cluster.node(name).agent}{path}",
            headers={"Authorization": f"Bearer {self.cluster.token.reveal()}"},
            timeout=HTTP_TIMEOUT_S,
            trust_env=False,
            **request,
        )

    # -- applications

    def declared(self, *wanted: Queue | Subscription | Topic) -> None:
        declare(self.bus, wanted, timeout_s=WITHIN_S)

    def all_come(self, source: str, wanted: Sequence[bytes]) -> None:
        """Wait until each of these bodies comes from the source. Raises BenchError after a timeout."""
        topic, _, subscription = source.partition("/")  # of a queue there is none
        left = set(wanted)
        with Consumer(self.bus, topic, subscription=subscription) as consumer:
            until_s = time.monotonic() + WITHIN_S
            while left and time.monotonic() < until_s:
                if delivery := consumer.receive(timeout_s=1):
                    left.discard(delivery.body)
                    consumer.ack(delivery)
        if left:
            raise BenchError(f"{self.name}: {len(left)} of {len(wanted)} never came to {source}")

    def a_new_subscription_works(self) -> None:
        """Check that a new subscription is registered completely and gets everything confirmed after that."""
        topic = f"{self.topic}-new"
        self.declared(Subscription(Topic(topic), "all"))
        bodies = [b"%d" % number for number in range(SENT)]
        with Publisher(self.bus) as publisher:
            ends = publisher.send_many(topic, bodies, timeout_s=WITHIN_S)
        self.all_confirmed(ends)
        self.all_come(f"{topic}/all", bodies)

    def all_confirmed(self, ends: Sequence[Published]) -> None:
        """Check that all publishes were confirmed. Raises BenchError."""
        if other := [each for each in ends if each.outcome.value != "confirmed"]:
            raise BenchError(
                f"{self.name}: {len(other)} of {len(ends)} not confirmed: {other[0].reason}"
            )


class _Clock(Trial):
    """A start of the target's agent with another clock."""

    ahead_s = 0
    stays = False
    lasts_s = 3.0

    def begin(self) -> None:
        self.remember()
        self._set(self.ahead_s)
        self.cluster.kill(self.target, agent=True)
        self.cluster.start(self.target, agent=True)

    def end(self) -> None:
        if not self.stays:
            self._set(0)
        self.nothing_is_forgotten()
        self.a_new_subscription_works()

    def _set(self, off_s: int) -> None:
        folder = self.cluster.node(self.target).python_dir
        folder.mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text(OTHER_CLOCK)
        (folder / "off_s").write_text(str(off_s))


class _ClockAhead(_Clock):
    """A clock ahead for a moment, corrected without a restart."""

    name = "clock-ahead"
    ahead_s = 10 * YEAR_S


class _ClockBehind(_Clock):
    """A clock that stays behind, until this agent's clock is ahead for a moment."""

    name = "clock-behind"
    ahead_s = -10 * YEAR_S
    stays = True


class _Maintenance(Trial):
    """``rabbitmq-upgrade drain`` and ``revive``; a subscription made in between gets everything.

    Its registration is complete only when the broker is back, because the broker keeps its old gate.
    """

    name = "maintenance"
    lasts_s = 3.0
    cuts = "cut"

    def begin(self) -> None:
        self.remember()
        erl_call(self.cluster, self.target, "rabbit_maintenance drain []")
        with suppress(RegistrationIncomplete):
            declare(self.bus, [f"{self.topic}/all"], timeout_s=self.lasts_s)
            raise BenchError(f"complete although {self.target} serves again with the gate it has")

    def end(self) -> None:
        erl_call(self.cluster, self.target, "rabbit_maintenance revive []")
        declare(self.bus, [f"{self.topic}/all"], timeout_s=WITHIN_S)
        with Publisher(self.bus) as publisher:
            bodies, ends = list[bytes](), list[Published]()
            while not bodies or self._is_away():
                bodies.append(b"%d" % len(bodies))
                ends.append(publisher.send_safe(self.topic, bodies[-1], timeout_s=WITHIN_S))
                publisher.refresh_connection()
            self.all_confirmed(ends)
        self.all_come(f"{self.topic}/all", bodies)
        self.nothing_is_forgotten()

    def _is_away(self) -> bool:
        try:
            self.cluster.wait_ready([self.target], within_s=0)
        except LocalFault:
            return True
        return False


class _Declarations(Trial):
    """Declarations of one name with different options at all agents at the same moment, several times."""

    name = "declarations"
    rounds = 3

    def begin(self) -> None:
        self.remember()
        with ThreadPoolExecutor() as pool:
            for number in range(self.rounds):
                kinds = itertools.cycle((Durability.FSYNC, Durability.PAGE_CACHE))
                name = f"{self.topic}-{number}"
                told = list(
                    pool.map(
                        lambda each, name=name: self._declare(each[0], name, each[1]),
                        zip(self.cluster.names, kinds, strict=False),
                    )
                )
                has = set(told) - {MISMATCH, INCOMPLETE}
                if len(has) > 1 or not (has or INCOMPLETE in told):
                    raise BenchError(f"declarations: {name}: told {told}")

    def _declare(self, agent: str, name: str, durability: Durability) -> str:
        """Declare it at one agent. Returns the durability of the queue, or MISMATCH or INCOMPLETE.

        Two agents that lost each other's requests may both have stored it; it is complete for neither then.
        """
        layout = self.cluster.layout
        url = f"{layout.scheme}://{self.cluster.node(agent).agent}/consumer-list"
        bus = dataclasses.replace(self.bus, list_urls=(url,))
        try:
            declare(bus, [Queue(name, durability=durability)], timeout_s=TOLD_WITHIN_S)
        except TopologyMismatch:
            return MISMATCH
        except RegistrationIncomplete:
            return INCOMPLETE
        return durability.value

    def end(self) -> None:
        self.nothing_is_forgotten()
        self._forget_own()
        for name in self.cluster.names:
            wait_until(
                lambda name=name: self._ask(name, "GET", "/settled").json()["settled"],  # type: ignore[misc]
                within_s=WITHIN_S,
                what=f"after declarations, {name} has all brought about",
            )


class _Deleted(Trial):
    """The deletion of a topic, a subscription and a queue under load; the publisher's other topic goes on."""

    name = "deleted"
    lasts_s = 3.0

    def begin(self) -> None:
        stays, gone, queue = self._names()
        self.declared(
            Subscription(Topic(stays), "all"), Subscription(Topic(gone), "all"), Queue(queue)
        )
        self._stop = threading.Event()
        self._bodies = list[bytes]()
        self._pool = ThreadPoolExecutor(1)
        self._load: Future[list[list[Published]]] = self._pool.submit(self._publish)
        wait_until(lambda: len(self._bodies) > 5 or self._load.done(), within_s=WITHIN_S, what="")
        self.delete(f"{gone}/all", gone, f"queue:{queue}")

    def _names(self) -> tuple[str, str, str]:
        return f"{self.topic}-stays", f"{self.topic}-gone", f"{self.topic}-queue"

    def _publish(self) -> list[list[Published]]:
        """Return the ends of publishes to the remaining topic and to the deleted ones."""
        stays, gone, queue = self._names()
        ends = [list[Future[Published]](), list[Future[Published]]()]
        config = PublisherConfig(connection_lifetime_s=1, deadline_ms=int(WITHIN_S * 500))
        with Publisher(self.bus, config) as publisher:
            while not self._stop.wait(0.02):
                self._bodies.append(b"%d" % len(self._bodies))
                ends[0].append(publisher.submit(stays, self._bodies[-1]))
                ends[1] += [publisher.submit(name, b"") for name in (gone, f"queue:{queue}")]
            return [[each.result(timeout=WITHIN_S) for each in some] for some in ends]

    def end(self) -> None:
        self._stop.set()
        try:
            kept, _ = self._load.result()
        except TimeoutError as fault:
            raise BenchError("deleted: a publish has no end in its time") from fault
        finally:
            self._pool.shutdown(wait=False)
        self.all_confirmed(kept)
        self.all_come(f"{self._names()[0]}/all", self._bodies)


class _Liar(Trial):
    """A server at the address of the target's agent that forges maps and lists."""

    name = "liar"
    lasts_s = 4.0

    def begin(self) -> None:
        self.remember()
        node = self.cluster.node(self.target)
        self.cluster.kill(self.target, agent=True)
        self._server = lying(node.host, node.agent_port, node.broker, self.cluster.layout.cluster)
        self._ends = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._ends.start()

    def end(self) -> None:
        others = [name for name in self.cluster.names if name != self.target]
        self.nothing_is_forgotten(others)
        self._server.shutdown()
        self._server.server_close()
        self._ends.join()
        self.cluster.start(self.target, agent=True)
        self.nothing_is_forgotten()
        self.a_new_subscription_works()


def lying(host: str, port: int, broker: str, cluster: str) -> ThreadingHTTPServer:
    forged_map = {
        "broker": broker,
        "intact": True,
        "informed": True,
        "entries": [],
        "floor": 2**60,
        "dropped": 2**60,
        "complete": True,
        "gate": True,
        "settled": True,
    }
    lists = itertools.cycle((("another", host), (cluster, "192.0.2.1")))

    class Liar(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = json.dumps(forged_map)
            if self.path.startswith("/consumer-list"):
                name, other = next(lists)
                text = f"# cluster: {name}\n# generation: {2**40}\n{other}:5672\n"
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            with suppress(OSError):  # the client may have gone
                self.wfile.write(text.encode())

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    return ThreadingHTTPServer((host, port), Liar)


OUTER_FAULTS: dict[str, Callable[[LocalCluster, str], Fault]] = {
    each.name: each.fault
    for each in (_ClockAhead, _ClockBehind, _Maintenance, _Declarations, _Deleted, _Liar)
}
