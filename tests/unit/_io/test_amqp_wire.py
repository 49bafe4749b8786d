from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from messagebus import BusConfig
from messagebus._io import amqp_wire
from messagebus._io.amqp_wire import AmqpWire
from messagebus.broker import Broker
from messagebus.errors import LinkLost
from messagebus.secret import Secret

BROKER = Broker("mb1", 5672)
BUS = BusConfig(
    broker="mb0:5672", list_urls=("http://mb0:8081/list",), user="bus", password=Secret("s")
)


class ShutLink:
    """A link to a broker that opens its gate after some looks."""

    def __init__(self, looks: int) -> None:
        self.looks, self.hung_up = looks, False

    async def try_call(self, _method: str, **_arguments: Any) -> SimpleNamespace:
        self.looks -= 1
        return SimpleNamespace(message_count=int(self.looks < 0))

    async def hang_up(self) -> None:
        self.hung_up = True


@pytest.mark.parametrize(
    ("looks", "waits", "opens"),
    [(0, False, True), (1, False, False), (3, True, True), (99, True, False)],
)
def test_only_who_has_no_other_broker_waits_for_a_gate_and_over_one_link(
    monkeypatch: pytest.MonkeyPatch, looks: int, waits: bool, opens: bool
) -> None:
    link = ShutLink(looks)

    async def dialled(*_: object, **_settings: object) -> ShutLink:
        return link

    monkeypatch.setattr(amqp_wire, "dial_named", dialled)
    dial = AmqpWire(BUS).dial_to_publish(BROKER, timeout_ms=500, waits=waits)
    if opens:
        opened: object = asyncio.run(dial)
        assert opened is link
    else:
        with pytest.raises(LinkLost, match="its gate is shut"):
            asyncio.run(dial)
    assert link.hung_up is not opens
    assert opens or (link.looks > 90) is waits, "it gives up in time"
