"""_io.amqp.link: callers that wait for a link's end get it, cancelled or not."""

from __future__ import annotations

import asyncio

import pytest

from messagebus._io.amqp import link


async def test_whoever_is_cancelled_while_a_socket_is_closed_waits_all_the_same() -> None:
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(link._until(ended))
    for _ in range(3):
        await asyncio.sleep(0)
        waiting.cancel()
    await asyncio.sleep(0)
    assert not waiting.done()
    ended.set_result(None)
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_the_wait_for_a_socket_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "ABORT_TIMEOUT_MS", 1)
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    await link._until(ended)
    assert not ended.done()
