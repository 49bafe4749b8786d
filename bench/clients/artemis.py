"""ActiveMQ Artemis: nodes for a run, and a client over STOMP 1.2.

Publisher n is connected to node n modulo their count. A consumer is connected to every node, as our
consumers are. In a cluster it is connected to one node, and the nodes forward messages to each other.

The STOMP client is written here, as far as a load needs it, because no client of Artemis' own protocols is
in Python: its cost is a floor, not the cost of stomp.py. Every message has a receipt, every delivery an ack.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench.clients.in_flight import Arrived, Flight
from bench.clients.nodes import Node, Nodes, started_nodes, wait_up
from bench.clients.packages import ARTEMIS
from bench.errors import BenchError
from bench.harness.interface import Delivered, End, Where
from bench.harness.outcomes import CONFIRMED
from bench.load.profile import Profile, places
from inventory.files import Templates

# The environment variable that gives load processes the nodes' addresses.
NODES = "BENCH_ARTEMIS_NODES"
CLUSTERED = "artemis-cluster"
STOMP_PORT, CORE_PORT = 61613, 61616
# The options of its own `artemis create`.
JVM = (
    *("-Xms512m", "-Xmx2g", "-XX:+UseG1GC", "-XX:+UseStringDeduplication"),
    *("-XX:AutoBoxCacheMax=20000", "-Djava.net.preferIPv4Stack=true"),
)
MAIN = "org.apache.activemq.artemis.cli.Artemis"
# How long writes gather before they are synced. `artemis create` measures the disk and chooses a value; on
# one busy machine it chose 276 to 824 us, so nodes would differ by chance. All of ours have the same value.
JOURNAL_TIMEOUT_NS = 400_000
JOINED = b"AMQ221027"


def is_cluster(profile: Profile) -> bool:
    return profile.system.name == CLUSTERED


def durability(profile: Profile) -> str:
    return {
        "fsync": "fsynced by one broker before the receipt (journal-datasync, persistent)",
        "page-cache": "in the page cache of one broker, not fsynced: a power-off of it loses it "
        "(journal-datasync=false, persistent)",
    }[profile.system.durability]


def broker_xml(number: int, hosts: Sequence[str], folder: Path, profile: Profile) -> str:
    """Return the configuration of node `number`, counted from 1."""
    topics: dict[str, list[str]] = {}
    for topic, subscription in places(profile):
        topics.setdefault(topic, []).append(subscription)
    words = {
        **{"number": number, "host": hosts[number - 1], "hosts": hosts, "folder": folder},
        **{"core_port": CORE_PORT, "stomp_port": STOMP_PORT, "topics": topics},
        "is_cluster": is_cluster(profile),
        "is_synced": profile.system.durability == "fsync",
        "journal_timeout_ns": JOURNAL_TIMEOUT_NS,
    }
    return Templates("bench.clients").render("artemis.xml.j2", words)


@contextmanager
def started(profile: Profile, network: str, say: Callable[[str], None]) -> Iterator[Nodes]:
    """Run nodes with folders and addresses of their own; remove them afterwards."""
    with started_nodes(ARTEMIS, profile, network, say, _all_prepared) as (nodes, children):
        kind, reached = f"standalone Artemis {ARTEMIS.version}", "all"
        if is_cluster(profile):
            kind, reached = f"Artemis {ARTEMIS.version} in one cluster, ON_DEMAND", "one"
            logs = [children.child(node.name).log for node in nodes]
            wait_up(
                nodes,
                children,
                lambda: all(log.read_bytes().count(JOINED) >= len(nodes) - 1 for log in logs),
                "every node's log reports a bridge to each other node",
            )
        about = {
            "nodes": f"{len(nodes)} {kind}",
            "path": f"each publisher to one node, by turns; each consumer to {reached}",
            "protocol": "STOMP 1.2, a client of the bench",
            "journal": f"NIO, gathers for {JOURNAL_TIMEOUT_NS // 1000} us",
            "jvm": " ".join(JVM),
        }
        yield Nodes(nodes, children, NODES, about)


def _all_prepared(hosts: Sequence[str], folder: Path, profile: Profile) -> list[Node]:
    return [_prepared(number, hosts, folder, profile) for number in range(1, len(hosts) + 1)]


def _prepared(number: int, hosts: Sequence[str], folder: Path, profile: Profile) -> Node:
    """Write the files of `artemis create`, without those that are not used here."""
    own = folder / f"node-{number}"
    etc = own / "etc"
    etc.mkdir(parents=True)
    schema = 'xmlns="http://activemq.apache.org/schema"'
    (etc / "broker.xml").write_text(broker_xml(number, hosts, own, profile))
    (etc / "management.xml").write_text(f"<management-context {schema}/>\n")
    (etc / "bootstrap.xml").write_text(
        f'<broker {schema}><jaas-security domain="activemq"/>'
        f'<server configuration="{(etc / "broker.xml").as_uri()}"/></broker>\n'
    )
    folders = (f"-Dartemis.{name}={own}" for name in ("home", "instance"))
    argv = (
        "java",
        *JVM,
        *folders,
        f"-Dartemis.instance.etc={etc}",
        "-cp",
        ARTEMIS.classpath,
        MAIN,
        "run",
    )
    return Node(number, hosts[number - 1], (STOMP_PORT, CORE_PORT), argv)


OPEN_WITHIN_S = 60.0


class Frame(NamedTuple):
    """One STOMP frame, with names and values as received, escaped."""

    command: bytes
    headers: dict[bytes, bytes]
    body: bytes


def frame(command: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    lines = "".join(f"{name}:{_escaped(value)}\n" for name, value in headers.items())
    return f"{command}\n{lines}\n".encode() + body + b"\0"


def _escaped(value: str) -> str:
    """Escape a header's value. An unescaped colon ends it: an address::queue would name another address.

    Artemis reports no error then.
    """
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace(":", "\\c")


def parse(data: bytes) -> tuple[list[Frame], bytes]:
    """Split received bytes into whole frames and the beginning of the next."""
    frames, at = [], 0
    while (end := data.find(b"\n\n", at)) >= 0:
        # Line feeds separate frames: heartbeats, and one after every frame of Artemis.
        command, *lines = data[at:end].lstrip(b"\n").split(b"\n")
        # The first of repeated headers counts.
        headers = {name: value for name, _, value in (line.partition(b":") for line in lines[::-1])}
        start = end + 2
        length = headers.get(b"content-length")
        stop = data.find(b"\0", start) if length is None else start + int(length)
        if not 0 <= stop < len(data):
            break
        frames.append(Frame(command, headers, data[start:stop]))
        at = stop + 1
        while data[at : at + 1] == b"\n":
            at += 1
    return frames, data[at:]


class Link(asyncio.Protocol):
    """One connection. on_frames: is called with each received list of frames.

    At the end of the connection it is called with an empty list; see `fault`.
    """

    transport: asyncio.Transport

    def __init__(self, broker: str, on_frames: Callable[[list[Frame]], None]) -> None:
        self.broker = broker
        self.fault = ""
        self._on_frames = on_frames
        self._rest = b""

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        frames, self._rest = parse(self._rest + data if self._rest else data)
        for each in frames:
            if each.command == b"ERROR":
                said = each.headers.get(b"message", each.body)
                self.fault = said.decode(errors="replace").replace("\\c", ":")
        self._on_frames(frames)

    def connection_lost(self, exc: Exception | None) -> None:
        self.fault = self.fault or (str(exc) if exc else "it hung up")
        self._on_frames([])

    def check(self) -> None:
        """Check the connection. Raises BenchError when it is closed or failed."""
        if self.fault:
            raise BenchError(f"{self.broker}: {self.fault}")

    def close(self) -> None:
        self.transport.close()


async def opened(broker: str, on_frames: Callable[[list[Frame]], None]) -> Link:
    """Connect and wait for the broker's greeting. Raises BenchError."""
    greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_all(frames: list[Frame]) -> None:
        if greeted.done():
            on_frames(frames)
        elif frames and frames[0].command == b"CONNECTED":
            greeted.set_result(None)
            on_frames(frames[1:])
        else:
            greeted.set_exception(BenchError(f"{broker}: {link.fault or 'no greeting'}"))

    host, port = broker.rsplit(":", 1)
    link = Link(broker, on_all)
    hello = frame("CONNECT", {"accept-version": "1.2", "host": host, "heart-beat": "0,0"})
    try:
        async with asyncio.timeout(OPEN_WITHIN_S):
            loop = asyncio.get_running_loop()
            link.transport, _ = await loop.create_connection(lambda: link, host, int(port))
            link.write(hello)
            await greeted
    except (OSError, TimeoutError) as fault:
        raise BenchError(f"{broker}: cannot connect: {fault or 'no answer'}") from fault
    return link


# Bytes that Artemis adds to a message's body when it compares with a window in bytes.
ENVELOPE_BYTES = 512
ACK_MODES = {"each": "client-individual", "many": "client", "none": "auto"}


class Sender:
    def __init__(self, profile: Profile, where: Where) -> None:
        nodes = where.env[NODES].split(",")
        self._broker = nodes[where.number % len(nodes)]
        self._flight = Flight(profile.load.window, lambda: self._link.check())
        # Without `persistent` a message is kept in memory alone, even with a receipt.
        self._head = {
            "destination": where.topic,
            "destination-type": "MULTICAST",
            "persistent": "true",
        }

    async def open(self) -> None:
        self._link = await opened(self._broker, self._on_frames)

    async def room(self) -> None:
        await self._flight.room()

    async def send(self, sequence: int, body: bytes, key: str) -> None:
        self._link.check()
        await self._flight.room()
        headers = self._head | {"receipt": str(sequence), "content-length": str(len(body))}
        if key:
            headers["JMSXGroupID"] = key
        self._flight.begin(sequence, sequence)
        self._link.write(frame("SEND", headers, body))

    def ends(self) -> list[End]:
        return self._flight.ends()

    async def close(self, timeout_s: float) -> None:
        await self._flight.close(timeout_s, self._broker)
        self._link.close()

    def _on_frames(self, frames: list[Frame]) -> None:
        for each in frames:
            if each.command == b"RECEIPT":
                self._flight.end(int(each.headers[b"receipt-id"]), CONFIRMED, self._broker)
        self._flight.wake()


class Receiver:
    def __init__(self, profile: Profile, where: Where) -> None:
        self._where, load, messages = where, profile.load, profile.messages
        nodes = where.env[NODES].split(",")
        self._nodes = [nodes[where.number % len(nodes)]] if is_cluster(profile) else nodes
        self._ack = load.ack
        self._per_ack = max(1, load.prefetch // 4) if load.ack == "many" else 1
        largest = max([size for _, size in messages.sizes] or [messages.size])
        self._window_bytes = load.prefetch * (largest + ENVELOPE_BYTES)
        self._arrived = Arrived()
        # Node -> number of its deliveries without an ack, and the id of the last one.
        self._owed: dict[str, tuple[int, bytes]] = {}
        self._links: dict[str, Link] = {}

    async def open(self) -> None:
        queue = f"{self._where.topic}::{self._where.topic}.{self._where.subscription}"
        for node in self._nodes:
            link = self._links[node] = await opened(node, partial(self._on_frames, node))
            headers = {"id": "0", "destination": queue, "ack": ACK_MODES[self._ack]}
            headers["consumer-window-size"] = str(self._window_bytes)
            link.write(frame("SUBSCRIBE", headers))

    async def take(self, max_wait_s: float) -> list[Delivered]:
        had = await self._arrived.take(max_wait_s)
        for node, link in self._links.items():
            link.check()
            self._answer(node, 1)
        return had

    async def close(self) -> None:
        for link in self._links.values():
            link.close()

    def _on_frames(self, node: str, frames: list[Frame]) -> None:
        for each in frames:
            if each.command == b"MESSAGE":
                self._arrived.add(each.body, node)
                if self._ack != "none":
                    count, _ = self._owed.get(node, (0, b""))
                    self._owed[node] = (count + 1, each.headers[b"ack"])
                    self._answer(node, self._per_ack)
        self._arrived.wake()

    def _answer(self, node: str, least: int) -> None:
        """Ack a node's last delivery if `least` are open; with ack `many` this answers earlier ones too."""
        count, last = self._owed.get(node, (0, b""))
        if count >= least and count:
            del self._owed[node]
            self._links[node].write(b"ACK\nid:" + last + b"\n\n\0")
