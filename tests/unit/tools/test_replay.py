"""`messagebus replay` while nothing comes for a while."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator

import pytest

import messagebus.tools.replay as command
from messagebus import Stream
from messagebus.commands.exits import Exit
from messagebus.errors import TopologyError
from messagebus.replay import Replayed
from messagebus.testing import MemoryBus
from tests.support.eventually import eventually_async

WITHIN_S = 60.0


@pytest.mark.guarantee("replay")
async def test_a_pause_between_two_messages_does_not_end_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "IDLE_S", 0.01)
    bus, sent = MemoryBus(), list[bytes]()
    bus.declare(Stream("orders"))

    @contextlib.asynccontextmanager
    async def target() -> AsyncIterator[command.Send]:
        async def send(message: Replayed) -> None:
            sent.append(message.body)

        yield send

    async with bus.async_publisher() as publisher:
        work = command._Work(bus.async_replay("orders", until=None), 3, None, None)
        running = asyncio.create_task(work.run(target()))
        for body in (b"0", b"1", b"2"):
            await publisher.send_safe("orders", body)
            # It is sent by the end of a pause.
            await eventually_async(lambda body=body: body in sent, within_s=WITHIN_S)  # type: ignore[misc]
        assert await running is Exit.DONE
    assert sent == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, Exit.INTERRUPTED), (signal.SIGTERM, Exit.TERMINATED)]
)
async def test_the_code_says_which_signal_ended_it(number: signal.Signals, code: Exit) -> None:
    bus = MemoryBus()
    bus.declare(Stream("orders"))

    @contextlib.asynccontextmanager
    async def target() -> AsyncIterator[command.Send]:
        yield lambda _message: asyncio.sleep(0)

    work = command._Work(bus.async_replay("orders", until=None), None, None, None)
    running = asyncio.create_task(work.run(target()))
    before = signal.getsignal(number)
    await eventually_async(lambda: signal.getsignal(number) != before, within_s=WITHIN_S)
    signal.raise_signal(number)
    assert await running is code
    ends = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    assert signal.getsignal(number) is ends, "a second one ends the process"


@pytest.mark.guarantee("replay")
async def test_what_is_on_its_way_beside_a_fault_has_ended_when_the_command_fails() -> None:
    bus, stored = MemoryBus(), list[bytes]()
    bus.declare(Stream("orders"))

    @contextlib.asynccontextmanager
    async def target() -> AsyncIterator[command.Send]:
        async def send(message: Replayed) -> None:
            if message.body == b"0":
                raise TopologyError("0 was not stored")
            await asyncio.sleep(0)  # to the broker
            stored.append(message.body)

        yield send

    async with bus.async_publisher() as publisher:
        for body in (b"0", b"1", b"2"):
            await publisher.send_safe("orders", body)
        work = command._Work(bus.async_replay("orders", until="now"), None, None, None)
        with pytest.raises(TopologyError):
            await work.run(target())
        assert (sorted(stored), work.done) == ([b"1", b"2"], 2)
