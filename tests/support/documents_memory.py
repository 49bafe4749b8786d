"""Runner of the Python blocks of a page as one program, on brokers in memory.

`Publisher(BusConfig.from_env(os.environ))` and all the others lead to one bus in memory, which the page's
hidden code finds as `memory`. A program that would wait for messages for ever ends instead: a receive
without a time limit, when no message is left, lets delays pass, and is stopped when none
comes then either.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import sys
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from messagebus import App, AsyncConsumer, Consumer, Delivery, aio, consumer, publisher, replay
from messagebus.admin import directory
from messagebus.destination import DELAY_STEPS_MS
from messagebus.testing import MemoryBus
from tests.support.documents import Block

__all__ = ["Program", "lead_into_memory"]

# Time for which a receiver looks for messages that another thread is about to publish; nothing else depends
# on it.
LOOK_S = 0.05


class Program:
    """One page: its blocks share their names, and those that are given."""

    def __init__(self, page: Path, **names: Any) -> None:
        self._module = types.ModuleType(f"page_{page.stem.replace('-', '_').lower()}")
        vars(self._module).update(names)

    def run(self, blocks: Iterable[Block]) -> None:
        """Run the page. Raises what the page raises."""
        sys.modules[self._module.__name__] = self._module
        try:
            with asyncio.Runner() as runner:
                for block in blocks:
                    self._run(runner, block)
        finally:
            del sys.modules[self._module.__name__]

    def _run(self, runner: asyncio.Runner, block: Block) -> None:
        for text, place in (
            (block.marks.get("first", ""), f"{block.name} first"),
            (block.padded, str(block.page)),
            (block.marks.get("then", ""), f"{block.name} then"),
        ):
            code = compile(text, place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            if code.co_flags & inspect.CO_COROUTINE:
                runner.run(eval(code, vars(self._module)))
            else:
                exec(code, vars(self._module))


def lead_into_memory(monkeypatch: pytest.MonkeyPatch, bus: MemoryBus) -> None:
    """Have every client and every tool of the directory use this bus, until the patch is undone."""
    wire = bus._wire
    for module in (publisher, consumer, aio, replay):
        monkeypatch.setattr(module, "amqp_wire", lambda _config: wire)
    monkeypatch.setattr(directory, "topology_for", lambda _config: wire.topology())
    monkeypatch.setattr(Consumer, "receive", _ending(Consumer.receive))
    running: set[App] = set()
    monkeypatch.setattr(App, "run", _noted(App.run, running))
    monkeypatch.setattr(AsyncConsumer, "receive", _ending_async(AsyncConsumer.receive, running))


def _noted(run: Any, running: set[App]) -> Any:
    async def run_noted(self: App, **how: Any) -> int:
        running.add(self)
        try:
            return await run(self, **how)  # type: ignore[no-any-return]
        finally:
            running.discard(self)

    return run_noted


def _ending(receive: Any) -> Any:
    def receive_or_end(self: Consumer, timeout_s: float | None = None) -> Delivery | None:
        if timeout_s is not None:
            return receive(self, timeout_s)  # type: ignore[no-any-return]
        while (found := receive(self, LOOK_S)) is None and _goes_on(self):
            pass
        if found is None:
            self.stop()
        return found  # type: ignore[no-any-return]

    return receive_or_end


def _ending_async(receive: Any, running: set[App]) -> Any:
    async def receive_or_end(
        self: AsyncConsumer, timeout_s: float | None = None
    ) -> Delivery | None:
        if timeout_s is not None:
            return await receive(self, timeout_s)  # type: ignore[no-any-return]
        while (found := await receive(self, LOOK_S)) is None and _goes_on(self):
            pass
        if found is None and running:  # an app ends its consumers itself
            for app in running:
                app.request_stop()
            return await receive(self)  # type: ignore[no-any-return]
        if found is None:
            await self.stop()
        return found  # type: ignore[no-any-return]

    return receive_or_end


def _goes_on(client: Consumer | AsyncConsumer) -> bool:
    """Return whether a message may still come; if all are only delayed, let time pass."""
    brokers = getattr(client._wire, "_brokers")  # noqa: B009 # of memory, not of the protocol
    if client.status.value != "running":
        return False
    if not brokers.is_idle():
        return True
    if not brokers.delayed():
        return False
    brokers.advance(DELAY_STEPS_MS[-1])
    return True
