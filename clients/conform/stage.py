"""The stage of one case: proxies before the brokers, a list server, a witness, programs under test.

`Bus` is what all cases share: real brokers with agents, of a local cluster or given ones.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clients.conform.lists import ListServer
from clients.conform.program import Program, must
from clients.conform.proxies import Proxy
from clients.conform.witness import Witness

REGISTER_WITHIN_S = 60.0
HTTP_TIMEOUT_S = 30.0
KNOWN_S = 0.3
REFUSED = (401, 403)
TEXT_CHARS_MAX = 300
DELAYS = ("delay:1000", "delay:2000")


@dataclass(kw_only=True)
class Bus:
    """The real brokers. local: the cluster (`ops.local`) if the kit started it, which may be broken.

    brokers, agents: ``host:port``, in one order; at least three. begin: begins all names of this run.
    """

    brokers: list[str]
    agents: list[str]
    cluster: str
    user: str
    password: str
    folder: Path
    begin: str
    patience: float = 1.0
    local: Any = None
    tls: dict[str, str] = field(default_factory=dict)
    """Environment of a client of a second bus that speaks TLS; empty for none."""

    def register(self, wanted: Sequence[str]) -> None:
        """Have names created on all brokers, by the agents. Raises OSError."""
        until_s = time.monotonic() + REGISTER_WITHIN_S * self.patience
        body = json.dumps({"wanted": list(wanted), "alive": True})
        told = ""
        while time.monotonic() < until_s:
            try:
                status, told = _post(self.agents[0], body, self.user, self.password)
            except (OSError, http.client.HTTPException) as fault:
                raise OSError(f"agent {self.agents[0]}: {fault}") from fault
            if status == 200 and json.loads(told)["complete"]:
                return
            if status in REFUSED:
                raise OSError(f"agent {self.agents[0]}: HTTP {status}: {told[:TEXT_CHARS_MAX]}")
            time.sleep(0.2)
        raise OSError(f"topology of the kit is not complete: {told[:TEXT_CHARS_MAX]}")


def _post(agent: str, body: str, user: str, password: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(agent, timeout=HTTP_TIMEOUT_S)
    login = b64encode(f"{user}:{password}".encode()).decode()
    headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
    try:
        connection.request("POST", "/topology", body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode("utf-8", "replace")
    finally:
        connection.close()


class Stage:
    """Everything around the client in one case. Brokers are numbered from 0.

    topic, subscription, queue: of this case alone. front: where the client publishes, a balancer that
    gives the broker in its `target`.
    """

    def __init__(self, bus: Bus, command: Sequence[str], topic: str) -> None:
        self.bus, self.command, self.topic = bus, command, topic
        self.subscription = f"{topic}/s"
        self.queue, self.park = f"mb.sub/{self.subscription}", f"mb.park/{self.subscription}"
        self.proxies = [Proxy(broker) for broker in bus.brokers]
        self.front = Proxy(bus.brokers[0])
        self.lists = ListServer(bus.agents[0], bus.cluster)
        self.witness = Witness(bus.brokers, bus.user, bus.password)
        self.user, self.password_file = bus.user, bus.folder / f"{topic}.password"
        self.password_file.write_text(bus.password)
        self.password_file.chmod(0o600)
        self._programs = 0
        self.list_brokers(*range(len(bus.brokers)))

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        for proxy in (*self.proxies, self.front):
            proxy.close()
        self.lists.close()

    def line(self, broker: int) -> str:
        """Return the line of a broker in the list: its proxy."""
        agent = self.bus.agents[broker].rpartition(":")[2]
        return f"{self.proxies[broker].address} agent={agent}"

    def list_brokers(self, *brokers: int, draining: Sequence[int] = ()) -> int:
        """Serve a list of these brokers, and return its generation."""
        return self.lists.serve(
            [f"{self.line(b)}{' draining' if b in draining else ''}" for b in brokers]
        )

    def ids(self, count: int, mark: str = "m") -> list[str]:
        """Return ids of messages, different in each case and mark."""
        return [f"{self.topic}-{mark}{number}" for number in range(count)]

    def environ(self) -> dict[str, str]:
        """Return the settings of a client, as of any application's."""
        self._programs += 1
        return {
            "MESSAGEBUS_BROKER": self.front.address,
            "MESSAGEBUS_LIST_URL": self.lists.url,
            "MESSAGEBUS_USER": self.user,
            "MESSAGEBUS_PASSWORD_FILE": str(self.password_file),
            "MESSAGEBUS_CLUSTER": self.bus.cluster,
            "MESSAGEBUS_CLIENT_ID": f"{self.topic}-{self._programs}",
        }

    @contextlib.contextmanager
    def program(self, **environ: str) -> Iterator[Program]:
        """Run the client under test, ready for orders. environ: settings that differ."""
        log = self.bus.folder / f"{self.topic}.log"
        settings = self.environ() | environ
        with Program(self.command, settings, log, self.bus.patience) as program:
            program.ready()
            yield program
            garbage = program.events_of("garbage")
            must(not garbage, f"printed a line that is not a JSON object: {garbage[:1]}")

    @contextlib.contextmanager
    def consuming(
        self, *, prefetch: int = 50, auto: str = "ack", brokers: Sequence[int] = (0, 1, 2)
    ) -> Iterator[Program]:
        """Run the client, consuming this case's subscription, attached to these brokers."""
        with self.program() as program:
            program.consume(self.subscription, prefetch=prefetch, auto=auto)
            self.attached(program, *brokers)
            yield program

    def attached(self, program: Program, *brokers: int, within_s: float = 10) -> None:
        """Wait until each of these brokers has a consumer of this case's subscription."""
        for broker in brokers:
            program.until(
                lambda broker=broker: self.witness.consumers(broker, self.queue),  # type: ignore[misc]
                within_s,
                f"a consumer on broker {broker + 1}",
            )

    def detached(self, program: Program, broker: int, within_s: float = 10) -> None:
        """Wait until a broker has no consumer of this case's subscription."""
        program.until(
            lambda: not self.witness.consumers(broker, self.queue),
            within_s,
            f"no consumer on broker {broker + 1}",
        )

    def known(self, program: Program, generation: int) -> None:
        """Wait until the client asks for a list newer than this one, and a moment more."""
        program.until(
            lambda: self.lists.requests[-1].generation >= generation,
            15,
            "the next fetch of the list",
        )
        time.sleep(KNOWN_S)

    def nothing_left(self, program: Program) -> None:
        """Stop the client; nothing may have come back, since all was answered."""
        must(program.stop() == 0, "did not end with code 0")
        left = [b + 1 for b in range(len(self.bus.brokers)) if self.witness.ready(b, self.queue)]
        must(not left, f"answered messages came back on brokers {left}: not acked")
