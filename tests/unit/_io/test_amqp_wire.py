"""_io.amqp_wire: the identity that a client gives."""

from __future__ import annotations

import os
import re
import socket

import pytest

from messagebus import BusConfig
from messagebus._io import amqp_wire as module
from messagebus._io.amqp.link import Credentials
from messagebus._io.amqp_wire import AmqpWire
from messagebus.broker import Broker


async def said_by(wire: AmqpWire, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the client's id, the same for a broker and for the agents."""
    told: list[str] = []

    async def dial(_address: Broker, credentials: Credentials, *, timeout_ms: int) -> None:
        told.append(credentials.client_id)

    monkeypatch.setattr(module, "dial", dial)
    await wire.dial(None, timeout_ms=1)
    follower = wire.follow(subscription="a/b", interval_s=1, on_list=lambda _: None)
    assert follower._bus.client_id == told[0]
    return told[0]


async def test_each_client_object_and_process_has_an_id_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "büro 1.example")
    bus = BusConfig(list_urls=("http://a:8081/consumer-list",))
    first, second = AmqpWire(bus), AmqpWire(bus)
    ids = [await said_by(wire, monkeypatch) for wire in (first, first, second)]
    assert ids[0] == ids[1] != ids[2]
    assert re.fullmatch(rf"b-ro-1\.example:{os.getpid()}:[0-9a-f]{{8}}", ids[0])
    monkeypatch.setattr(os, "getpid", lambda: 7)  # as in a child that was forked
    forked = await said_by(first, monkeypatch)
    assert forked.startswith("b-ro-1.example:7:")
    assert forked[-8:] != ids[0][-8:]


async def test_an_id_that_was_given_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await said_by(AmqpWire(BusConfig(client_id="billing")), monkeypatch) == "billing"
