from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from bench.figures.reach.virtual_time import VirtualLoop
from messagebus import AsyncConsumer, AsyncPublisher, BusConfig
from messagebus._io import wire
from messagebus._io.amqp.link import Link
from messagebus._io.amqp_wire import AmqpWire
from messagebus._io.wire import DIALS_AT_ADDRESS, TURN_TIMES, DialTurns
from messagebus.errors import LinkLost

CLIENTS = 12
BUS = BusConfig(broker="127.0.0.1:1", dial_timeout_s=60, dial_timeout_max_s=60)


def in_virtual_time(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(work)


class Dials:
    """Dials that take a while. most: at the same time. ended: when each was over."""

    def __init__(self) -> None:
        self.under_way = self.most = 0
        self.ended: list[float] = []

    async def dial(self, address: str, took_s: float) -> None:
        async with DialTurns.here().turn(address):
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            await asyncio.sleep(took_s)
            self.under_way -= 1
            self.ended.append(asyncio.get_running_loop().time())


def test_dials_at_one_address_take_turns_and_those_at_others_go_beside_them() -> None:
    async def work() -> None:
        one, other = Dials(), Dials()
        await asyncio.gather(
            *(one.dial("mb1:5672", 0.1) for _ in range(20)),
            *(other.dial("mb2:5672", 0.1) for _ in range(2)),
        )
        assert (one.most, other.most) == (DIALS_AT_ADDRESS, 2)
        assert other.ended == pytest.approx([0.1, 0.1])
        assert max(one.ended) == pytest.approx(0.1 * 20 / DIALS_AT_ADDRESS)
        turns = DialTurns.here()
        assert not turns._places, "no address is remembered without a dial"

    in_virtual_time(work())


def test_slow_dials_of_a_busy_broker_take_turns_too() -> None:
    """RabbitMQ ends a handshake after 10 s: dials that all run at once would all come to that."""

    async def work() -> None:
        dials = Dials()
        for took_s in (0.2, 0.5, 1.0, 2.0):
            await asyncio.gather(*(dials.dial("mb1:5672", took_s) for _ in range(20)))
        assert dials.most == DIALS_AT_ADDRESS

    in_virtual_time(work())


def test_a_dial_without_an_answer_keeps_the_others_no_longer_than_a_few_of_theirs_take() -> None:
    async def work() -> None:
        dials = Dials()
        for _ in range(40):
            await dials.dial("mb1:5672", 0.05)
        silent = [asyncio.create_task(dials.dial("mb1:5672", 3_600)) for _ in range(8)]
        await asyncio.sleep(0)
        began_s = asyncio.get_running_loop().time()
        await dials.dial("mb1:5672", 0.05)
        assert dials.ended[-1] - began_s < 2 * TURN_TIMES * 0.05 + 0.1
        for each in silent:
            each.cancel()
        await asyncio.gather(*silent, return_exceptions=True)
        assert not DialTurns.here()._places

    in_virtual_time(work())


def test_a_dial_is_not_given_up_before_the_time_that_others_take_now() -> None:
    """Under load each of them would cost its broker a login, be given up, and be made again."""

    async def work() -> None:
        dials, turns, address = Dials(), DialTurns.here(), "mb1:5672"
        await asyncio.gather(*(dials.dial(address, 1.0) for _ in range(20)))
        assert turns.timeout_ms(address, 500, 8.0) == 500, "nobody else dials"
        others = asyncio.gather(*(dials.dial(address, 1.0) for _ in range(20)))
        await asyncio.sleep(0.5)
        assert turns.timeout_ms(address, 500, 8.0) == TURN_TIMES * 1_000
        assert turns.timeout_ms(address, 500, 2.0) == 2_000, "no longer than the setting allows"
        assert turns.timeout_ms(address, 6_000, 8.0) == 6_000
        await others
        others = asyncio.gather(*(dials.dial(address, 0.01) for _ in range(80)))
        await asyncio.sleep(0.15)
        assert turns.timeout_ms(address, 500, 8.0) == 500
        await others

    in_virtual_time(work())


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: AsyncConsumer(BUS, "orders", subscription="billing"), id="consumers"),
        pytest.param(lambda: AsyncPublisher(BUS), id="publishers"),
    ],
)
def test_clients_of_one_loop_that_start_together_dial_in_turns(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any]
) -> None:
    under_way, open_now = 0, asyncio.Event()
    monkeypatch.setattr(wire, "FIRST_TURN_S", 3_600.0)

    async def dial(*_: object, **_settings: object) -> Link:
        nonlocal under_way
        under_way += 1
        await open_now.wait()
        raise LinkLost("127.0.0.1:1", "it was closed")

    async def work() -> None:
        clients = [make() for _ in range(CLIENTS)]
        starts = [asyncio.create_task(each.start(timeout_s=60)) for each in clients]
        for _ in range(100):  # turns of the loop, until nothing is left to do but to wait
            await asyncio.sleep(0)
        assert under_way == DIALS_AT_ADDRESS
        for each in starts:
            each.cancel()
        await asyncio.gather(*starts, return_exceptions=True)
        await asyncio.gather(*(each.stop() for each in clients), return_exceptions=True)

    monkeypatch.setattr(AmqpWire, "dial", dial)
    asyncio.run(work())
