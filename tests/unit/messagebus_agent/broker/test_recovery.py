"""agent.broker.recovery: the gate waits for queues that cannot confirm yet, but not for ever."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from messagebus_agent.broker.recovery import LEADERS_WAIT_S, LOOK_EVERY_S, Recovery
from messagebus_agent.broker.settle import Settler


class FakeSettler:
    leaderless: int | None = 0
    dead: int | None = 0
    looks = 0

    async def queues_without_leader(self) -> int | None:
        return self.leaderless

    async def queues_revived(self) -> int | None:
        return self.dead

    async def dead_lettering_revived(self) -> int | None:
        self.looks += 1
        return 2


@pytest.fixture
def settler() -> FakeSettler:
    return FakeSettler()


@pytest.fixture
def recovery(settler: FakeSettler) -> Recovery:
    return Recovery("mb1:5672", cast(Settler, cast(Any, settler)))


@pytest.mark.parametrize("known", [0, None])
async def test_where_all_have_leaders_or_nobody_knows_there_is_no_wait(
    recovery: Recovery, settler: FakeSettler, known: int | None
) -> None:
    settler.leaderless = known
    assert await recovery.has_leaders()


async def test_the_wait_has_a_bound_that_counts_anew_with_each_link(
    recovery: Recovery, settler: FakeSettler, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 50.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    settler.leaderless = 3
    assert not await recovery.has_leaders()
    now_s += LEADERS_WAIT_S - 1
    assert not await recovery.has_leaders()
    recovery.begin_anew()
    assert not await recovery.has_leaders()
    now_s += LEADERS_WAIT_S
    assert await recovery.has_leaders()


async def test_what_is_revived_is_counted(recovery: Recovery, settler: FakeSettler) -> None:
    for dead in (2, None, 1):
        settler.dead = dead
        await recovery.revive()
    assert recovery.revived == 3


async def test_dead_lettering_is_looked_at_now_and_then_and_not_all_the_time(
    recovery: Recovery, settler: FakeSettler, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 50.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    await recovery.revive()
    await recovery.look()
    assert settler.looks == 1
    now_s += LOOK_EVERY_S
    await recovery.look()
    await recovery.look()
    assert settler.looks == 2
    assert recovery.revived == 0
