"""Faults of strangers, operators, lines and callers. Each checks its promise at its end."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import pika
import pytest

from bench.errors import BenchError
from clients.conform.proxies import Proxy
from messagebus import AsyncPublisher, BusConfig, Consumer, Publisher, declare
from messagebus.admin import count_parked, redrive_parked
from messagebus.stats import Published
from tests.support.raw import Raw, publish_raw
from tests.support.resolver import resolve
from tests.support.trials.outer_faults import SENT, WITHIN_S, Checked, fault_of

BODIES = [b"%d" % number for number in range(SENT)]
# Headers by which RabbitMQ counts and routes, as nobody but it may write them.
STRANGE: list[Mapping[str, Any]] = [
    {"x-death": ["a"]},
    {"x-death": [{"queue": "q", "reason": "expired", "count": -1}]},
    {"x-delivery-count": 2**40},
    {"x-stream-offset": "last", "CC": ["mb.park/a/b"]},
]
POLICY = "/api/policies/%2F/trial"
BOUND = {
    "pattern": r"^mb\.park/",
    "apply-to": "queues",
    "definition": {"max-length": 1},
}
LARGE, LINE_BYTES_PER_S = b"l" * 4_000_000, 1_000_000
SILENT = "two-addresses.test"


def strangers(at: Checked) -> Iterator[None]:
    """Publish a stranger's messages: they can be parked, and the broker still delivers delayed ones."""
    source, broker = _subscribed(at), at.cluster.node(at.target).broker
    messages = [
        Raw(f"mb.topic/{at.topic}", "", pika.BasicProperties(headers=dict(headers)), b"strange")
        for headers in STRANGE
    ]
    publish_raw(broker, at.bus.user, at.cluster.password, messages)
    yield
    _park_all(at, at.bus, len(messages))
    with Publisher(replace(at.bus, broker=broker)) as publisher:
        end = publisher.send_safe(at.topic, b"later", deliver_after_s=1, timeout_s=WITHIN_S)
        at.all_confirmed([end])
    at.all_come(source, [b"later"])


def policies(at: Checked) -> Iterator[None]:
    """Bound parking queues by a policy, and remove it: what was parked meanwhile is all there."""
    source = _subscribed(at)
    there = replace(at.bus, broker=at.cluster.node(at.target).broker)
    with Publisher(there) as publisher:
        at.all_confirmed(publisher.send_many(at.topic, BODIES, timeout_s=WITHIN_S))
    with at.cluster.management(at.target) as management, ThreadPoolExecutor(1) as pool:
        management.put(POLICY, json=BOUND).raise_for_status()
        try:
            parking = pool.submit(_park_all, at, there, len(BODIES))
            yield
        finally:
            management.delete(POLICY).raise_for_status()
        parking.result()
    redrive_parked(at.bus, source)
    at.all_come(source, BODIES)


def slow_line(at: Checked) -> Iterator[None]:
    """Publish 4 MB over a line of 1 MB/s: they arrive, once."""
    source = _subscribed(at)
    broker = at.cluster.node(at.target).broker
    with (
        closing(Proxy(broker, bytes_per_s=LINE_BYTES_PER_S)) as line,
        Publisher(replace(at.bus, broker=line.address)) as publisher,
    ):
        sent = publisher.submit(at.topic, LARGE)
        yield
        at.all_confirmed([sent.result(WITHIN_S)])
    _come_once(at, source, [LARGE])


def silent_address(at: Checked) -> Iterator[None]:
    """Publish to a name whose first address takes connections and never says a word."""
    source = _subscribed(at)
    host, _, port = at.bus.broker.rpartition(":")
    silent = f"{host.rpartition('.')[0]}.250"
    with socket.create_server((silent, int(port))), pytest.MonkeyPatch.context() as patch:
        resolve(patch, {SILENT: [silent, host]})
        with Publisher(replace(at.bus, broker=f"{SILENT}:{port}")) as publisher:
            at.all_confirmed(publisher.send_many(at.topic, BODIES, timeout_s=WITHIN_S))
        yield
    _come_once(at, source, BODIES)


def cancelled_stops(at: Checked) -> Iterator[None]:
    """Cancel the stop of a publisher at each of its first awaits: the next one settles everything."""
    source = _subscribed(at)
    yield
    ends, bodies = list[Published](), list[bytes]()
    for awaits in range(5):
        mine = [b"%d/%s" % (awaits, body) for body in BODIES]
        ends += asyncio.run(_stopped_twice(at, mine, awaits))
        bodies += mine
    at.all_confirmed(ends)
    at.all_come(source, bodies)


async def _stopped_twice(at: Checked, bodies: list[bytes], awaits: int) -> list[Published]:
    publisher = AsyncPublisher(at.bus)
    await publisher.start()
    sending = [await publisher.submit(at.topic, body) for body in bodies]
    stopping = asyncio.ensure_future(publisher.stop(WITHIN_S))
    for _ in range(awaits):
        await asyncio.sleep(0)
    stopping.cancel()
    await asyncio.wait([stopping])
    await publisher.stop(WITHIN_S)
    return await asyncio.gather(*sending)


def _subscribed(at: Checked) -> str:
    """Declare the subscription of a fault's own topic; return its name."""
    source = f"{at.topic}/all"
    declare(at.bus, [source], timeout_s=WITHIN_S)
    return source


def _park_all(at: Checked, bus: BusConfig, count: int) -> None:
    """Park what comes until so many messages are parked. Raises BenchError."""
    source = f"{at.topic}/all"
    with Consumer(bus, at.topic, subscription="all") as consumer:

        def are_parked() -> bool:
            while delivery := consumer.receive(timeout_s=1):
                consumer.park(delivery, reason=at.name)
            return sum(each.count for each in count_parked(at.bus, source).counts) >= count

        at.wait(are_parked, f"{count} messages of {source} are parked")
    found = sum(each.count for each in count_parked(at.bus, source).counts)
    if found != count:
        raise BenchError(f"{at.name}: {found} of {count} messages are parked")


def _come_once(at: Checked, source: str, bodies: list[bytes]) -> None:
    """Check that each of these bodies comes, and none twice. Raises BenchError."""
    came = Counter[bytes]()
    with Consumer(at.bus, at.topic, subscription="all") as consumer:

        def all_came() -> bool:
            while delivery := consumer.receive(timeout_s=1):
                came[delivery.body] += 1
                consumer.ack(delivery)
            return came.keys() >= set(bodies)

        at.wait(all_came, f"all of {len(bodies)} messages come to {source}")
    if came != Counter(bodies):
        raise BenchError(f"{at.name}: {came.total()} deliveries of {len(bodies)} messages")


STRANGE_FAULTS = {
    name: partial(fault_of, name, 3.0, "", story)
    for name, story in {
        "strangers": strangers,
        "policies": policies,
        "slow-line": slow_line,
        "silent-address": silent_address,
        "cancelled-stops": cancelled_stops,
    }.items()
}
