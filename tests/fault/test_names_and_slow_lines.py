"""Promise: a client finds whoever answers behind a name, and a slow line carries each message once."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest

from clients.conform.proxies import Proxy
from messagebus import BusConfig, Consumer, Outcome, Publisher, declare
from ops.local.cluster import LocalCluster
from tests.support.eventually import FACTOR
from tests.support.faults import register
from tests.support.load import drain
from tests.support.resolver import resolve

NAME = "balancer"
SILENT = "127.0.0.99"
WITHIN_S = 120.0
LARGE = 8 << 20
BYTES_PER_S = 1 << 20


@contextmanager
def nobody_answers(*ports: int) -> Iterator[None]:
    """Accept connections at these ports of an address, and say nothing, as a balancer that hangs."""
    with ExitStack() as stack:
        for port in ports:
            stack.enter_context(socket.create_server((SILENT, port)))
        yield


@pytest.mark.guarantee("names-and-slow-lines")
def test_a_hung_balancer_whose_address_comes_first_stops_no_client_that_has_another(
    broken: LocalCluster, bus: BusConfig, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = bus.address.host
    (list_url,) = bus.list_urls
    list_port = int(list_url.rpartition(":")[2].partition("/")[0])
    resolve(monkeypatch, {NAME: [SILENT, host]})
    named = replace(
        bus,
        broker=f"{NAME}:{bus.address.port}",
        list_urls=(list_url.replace(host, NAME),),
    )
    with nobody_answers(bus.address.port, list_port):
        declare(named, [f"{topic}/a"], timeout_s=WITHIN_S * FACTOR)
        with Publisher(named) as publisher:
            end = publisher.send_safe(topic, b"x", timeout_s=WITHIN_S * FACTOR)
        assert end.outcome is Outcome.CONFIRMED
        with Consumer(named, topic, subscription="a") as consumer:
            delivery = consumer.receive(timeout_s=WITHIN_S * FACTOR)
            assert delivery is not None
            assert consumer.ack_safe(delivery, timeout_s=WITHIN_S * FACTOR)


@pytest.mark.guarantee("names-and-slow-lines")
def test_a_message_that_needs_many_seconds_for_its_line_is_stored_once(
    broken: LocalCluster, bus: BusConfig, topic: str
) -> None:
    register(broken, f"queue:{topic}")
    proxy = Proxy(bus.broker, bytes_per_s=BYTES_PER_S)
    try:
        with Publisher(replace(bus, broker=proxy.address)) as publisher:
            publisher.send_safe(f"queue:{topic}", b"small", timeout_s=WITHIN_S * FACTOR)
            end = publisher.send_safe(f"queue:{topic}", bytes(LARGE), timeout_s=WITHIN_S * FACTOR)
            moves = publisher.stats().moves
    finally:
        proxy.close()
    assert (end.outcome, end.attempts, moves) == (Outcome.CONFIRMED, 1, 0)
    got = drain(bus, f"queue:{topic}", expected={end.message_id})
    assert got[end.message_id] == 1
