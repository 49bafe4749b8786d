"""stores.thread: blocking work of a store in its order, on one thread, and an end that does not hang."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest

from messagebus.stores import thread
from messagebus.stores.thread import StoreThread


async def test_work_is_done_in_its_order_on_one_thread_and_its_errors_are_the_callers() -> None:
    seen: list[tuple[int, int]] = []

    def work(number: int) -> int:
        seen.append((number, threading.get_ident()))
        return 100 // number

    made = StoreThread(lambda: None)
    results = [made.submit(partial(work, number)) for number in (1, 2, 4)]
    assert await asyncio.gather(*results) == [100, 50, 25]
    assert [number for number, _thread in seen] == [1, 2, 4]
    assert len({ident for _number, ident in seen}) == 1
    with pytest.raises(ZeroDivisionError):
        await made.submit(lambda: work(0))
    await made.close(lambda: None)


async def test_a_closed_thread_begins_again_and_one_that_never_began_has_no_end() -> None:
    ended: list[str] = []
    made = StoreThread(lambda: None)
    await made.close(lambda: ended.append("never begun"))
    for _ in range(2):
        assert await made.submit(lambda: 1) == 1
        await made.close(lambda: ended.append("once"))
    assert ended == ["once", "once"]


async def test_work_that_hangs_is_cut_off_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread, "STUCK_AT_CLOSE_S", 0.01)
    hangs, made, ended = threading.Event(), StoreThread(lambda: None), list[bool]()
    work = made.submit(hangs.wait)
    await made.close(lambda: ended.append(True), hangs.set)
    assert await work
    assert ended == [True]
