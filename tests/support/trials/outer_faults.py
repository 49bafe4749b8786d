"""Faults around the brokers: clocks, liars, operators. Each checks its promise at its end."""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from bench.errors import BenchError
from bench.faults import Fault, call
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
    declare,
)
from messagebus.stats import Published
from ops.errors import LocalFault
from ops.local.cluster import LocalCluster
from tests.support.faults import ask_agent

# The limit for every promise: a busy machine with two clusters takes its time.
WITHIN_S = 300.0
YEAR_S = 365 * 86_400
# Messages to a new subscription.
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


def set_clock(folder: Path, off_s: int) -> None:
    """Set the clock of Python programs that have this folder in their path, and keep it set."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(OTHER_CLOCK)
    (folder / "off_s").write_text(str(off_s))


class Checked:
    """A cluster during a fault: names that no agent may forget, and promises to applications.

    topic: of this fault alone; all that is declared below it is deleted at the end.
    """

    def __init__(self, name: str, cluster: LocalCluster, target: str) -> None:
        self.name, self.cluster, self.target = name, cluster, target
        self.topic = f"{name}-{os.getpid()}-{next(_numbers)}"
        self.bus = BusConfig.from_env(cluster.client_env())
        self._known = set[str]().union(*map(self._alive, cluster.names))

    def nothing_is_forgotten(self, agents: Sequence[str] = ()) -> None:
        """Wait until agents know all names that any of them knew at the beginning. Raises BenchError."""
        for name in agents or self.cluster.names:
            self.wait(partial(self._knows_all, name), f"the agent of {name} knows all it knew")

    def _knows_all(self, name: str) -> bool:
        found = self._snapshot(name)
        return bool(found.get("intact") and found["informed"] and self._known <= self._alive(name))

    def _snapshot(self, name: str) -> dict[str, Any]:
        """Return the map of an agent; empty while it does not answer."""
        with suppress(httpx.HTTPError):
            answer = ask_agent(self.cluster, name, "GET", "/topology")
            found: dict[str, Any] = answer.raise_for_status().json()
            return found
        return {}

    def _alive(self, name: str) -> set[str]:
        entries = self._snapshot(name).get("entries", ())
        return {each["wanted"] for each in entries if each["alive"]}

    def delete(self, *wanted: str) -> None:
        body = {"wanted": wanted, "alive": False}
        ask_agent(
            self.cluster, self.cluster.names[0], "POST", "/topology", json=body
        ).raise_for_status()

    def forget_own(self) -> None:
        names = sorted(set().union(*map(self._alive, self.cluster.names)))
        if own := [each for each in names if self.topic in each]:
            self.delete(*own)

    def wait(self, condition: Callable[[], object], what: str) -> None:
        wait_until(condition, within_s=WITHIN_S, what=f"after {self.name} at {self.target}, {what}")

    def all_come(self, source: str, wanted: Sequence[bytes]) -> None:
        """Wait until each of these bodies comes from the source. Raises BenchError."""
        topic, _, subscription = source.partition("/")
        left = set(wanted)
        with Consumer(self.bus, topic, subscription=subscription) as consumer:

            def is_done() -> bool:
                if left and (delivery := consumer.receive(timeout_s=1)):
                    left.discard(delivery.body)
                    consumer.ack(delivery)
                return not left

            self.wait(is_done, f"all of {len(wanted)} messages come to {source}")

    def all_confirmed(self, ends: Sequence[Published]) -> None:
        """Check that all publishes were confirmed. Raises BenchError."""
        if other := [each for each in ends if each.outcome.value != "confirmed"]:
            said = f"{len(other)} of {len(ends)} not confirmed: {other[0].reason}"
            raise BenchError(f"{self.name}: {said}")

    def a_new_subscription_works(self) -> None:
        """Check that a new subscription is registered completely and gets everything confirmed after that."""
        topic = f"{self.topic}-new"
        declare(self.bus, [Subscription(Topic(topic), "all")], timeout_s=WITHIN_S)
        bodies = [b"%d" % number for number in range(SENT)]
        with Publisher(self.bus) as publisher:
            self.all_confirmed(publisher.send_many(topic, bodies, timeout_s=WITHIN_S))
        self.all_come(f"{topic}/all", bodies)


Story = Callable[[Checked], Iterator[None]]
"""The beginning of a fault, a yield, and its end with the checks."""


def _clock(at: Checked, *, off_s: int, stays: bool = False) -> Iterator[None]:
    """Start the target's agent with another clock; without stays, correct it later without a restart."""
    folder = at.cluster.node(at.target).python_dir
    set_clock(folder, off_s)
    at.cluster.kill(at.target, agent=True)
    at.cluster.start(at.target, agent=True)
    yield
    if not stays:
        set_clock(folder, 0)
    at.nothing_is_forgotten()
    at.a_new_subscription_works()


def _maintenance(at: Checked) -> Iterator[None]:
    """``rabbitmq-upgrade drain`` and ``revive``; a subscription made in between gets everything.

    Its registration is complete only when the broker is back, because the broker keeps its old gate.
    """
    call(at.cluster, at.target, "rabbit_maintenance:drain()")
    with suppress(RegistrationIncomplete):
        declare(at.bus, [f"{at.topic}/all"], timeout_s=3.0)
        raise BenchError(f"complete although {at.target} serves again with the gate it has")
    yield
    call(at.cluster, at.target, "rabbit_maintenance:revive()")
    declare(at.bus, [f"{at.topic}/all"], timeout_s=WITHIN_S)
    bodies, ends = list[bytes](), list[Published]()
    with Publisher(at.bus) as publisher:

        def is_back() -> bool:
            bodies.append(b"%d" % len(bodies))
            ends.append(publisher.send_safe(at.topic, bodies[-1], timeout_s=WITHIN_S))
            publisher.refresh_connection()
            with suppress(LocalFault):
                at.cluster.wait_ready([at.target], within_s=0)
                return True
            return False

        at.wait(is_back, "it takes publishes")
    at.all_confirmed(ends)
    at.all_come(f"{at.topic}/all", bodies)
    at.nothing_is_forgotten()


def _deleted(at: Checked) -> Iterator[None]:
    """Delete a topic, a subscription and a queue under load; the publisher's other topic goes on."""
    stays, gone, queue = f"{at.topic}-stays", f"{at.topic}-gone", f"{at.topic}-queue"
    declare(at.bus, [f"{stays}/all", f"{gone}/all", Queue(queue)], timeout_s=WITHIN_S)
    is_over, bodies = threading.Event(), list[bytes]()
    config = PublisherConfig(connection_lifetime_s=1, deadline_s=WITHIN_S / 2)

    def publish() -> list[Published]:
        """Return the ends of publishes to the remaining topic, when those to the deleted have ended too."""
        ends, others = list[Future[Published]](), list[Future[Published]]()
        with Publisher(at.bus, config) as publisher:
            while not is_over.wait(0.02):
                bodies.append(b"%d" % len(bodies))
                ends.append(publisher.submit(stays, bodies[-1]))
                others += [publisher.submit(name, b"") for name in (gone, f"queue:{queue}")]
            for each in others:
                each.result(timeout=WITHIN_S)
            return [each.result(timeout=WITHIN_S) for each in ends]

    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(publish)
        try:
            at.wait(lambda: len(bodies) > 5 or load.done(), "messages flow")
            at.delete(f"{gone}/all", gone, f"queue:{queue}")
            yield
        finally:
            is_over.set()
        at.all_confirmed(load.result())
    at.all_come(f"{stays}/all", bodies)


def _liar(at: Checked) -> Iterator[None]:
    """A server at the address of the target's agent that forges maps and lists."""
    node = at.cluster.node(at.target)
    at.cluster.kill(at.target, agent=True)
    with lying(node.host, node.agent_port, node.broker, at.cluster.layout.cluster):
        yield
        at.nothing_is_forgotten([name for name in at.cluster.names if name != at.target])
    at.cluster.start(at.target, agent=True)
    at.nothing_is_forgotten()
    at.a_new_subscription_works()


@contextmanager
def lying(host: str, port: int, broker: str, cluster: str) -> Iterator[tuple[int, list[str]]]:
    """Run a server that forges maps and lists; yield its port, and the paths that it is asked for."""
    forged = {"broker": broker, "entries": [], "floor": 2**60, "dropped": 2**60}
    forged |= dict.fromkeys(("intact", "informed", "complete", "gate", "settled"), True)
    lists = itertools.cycle((("another", host), (cluster, "192.0.2.1")))
    asked = list[str]()

    class Liar(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            text = json.dumps(forged)
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

    with ThreadingHTTPServer((host, port), Liar) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_port, asked
        finally:
            server.shutdown()


def fault_of(
    name: str, lasts_s: float, cuts: str, story: Story, cluster: LocalCluster, target: str
) -> Fault:
    """Return the fault of a story. cuts: as of `Fault`."""
    running = ExitStack()

    def begin() -> None:
        at = Checked(name, cluster, target)
        running.callback(at.forget_own)
        running.enter_context(contextmanager(story)(at))

    return Fault(name, target, lasts_s, cuts, begin, running.close)


_STORIES: dict[str, tuple[float, str, Story]] = {
    # A clock ahead for a moment; and one that stays behind, until it is ahead for a moment.
    "clock-ahead": (3.0, "", partial(_clock, off_s=10 * YEAR_S)),
    "clock-behind": (3.0, "", partial(_clock, off_s=-10 * YEAR_S, stays=True)),
    "maintenance": (3.0, "cut", _maintenance),
    "deleted": (3.0, "", _deleted),
    "liar": (4.0, "", _liar),
}
OUTER_FAULTS = {name: partial(fault_of, name, *story) for name, story in _STORIES.items()}
