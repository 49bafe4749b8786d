"""The way out of the delay ladder: its order, an earlier version's, and its log."""

from __future__ import annotations

import logging

import pytest

from messagebus.errors import ChannelRefused
from messagebus.topology import Declarations
from messagebus_agent.broker import recovery as module
from messagebus_agent.broker.recovery import Ladder

ME = "a:5672"
IS_DECLARED = [
    f"declare {name}" for name in ("mb.undelivered", "mb.out", "mb.park/mb.due", "mb.due")
]
IS_BOUND = "bind mb.undelivered mb.park/mb.due"


class FakeControl:
    """Control that records requests; `refuses` is the code of the next declaration of mb.due."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.refuses = 0
        self.waiting: int | None = 0

    async def declare(self, wanted: Declarations, *, aside: bool = False) -> None:
        names = [each.name for each in wanted.exchanges] + [each.name for each in wanted.queues]
        for name in names:
            self.asked.append(f"declare {name}")
            if name == "mb.due" and self.refuses:
                code, self.refuses = self.refuses, 0
                assert aside  # or the link would end
                raise ChannelRefused(ME, code, "inequivalent arg")

    async def bind(self, wanted: Declarations) -> None:
        self.asked += [f"bind {each.exchange} {each.queue}" for each in wanted.bindings]

    async def delete_exchange(self, name: str) -> None:
        self.asked.append(f"delete {name}")

    async def counts(self, _queue: str) -> tuple[int, int] | None:
        return None if self.waiting is None else (self.waiting, 0)

    def taken(self) -> list[str]:
        asked, self.asked = self.asked, []
        return asked


@pytest.fixture
def control() -> FakeControl:
    return FakeControl()


async def test_all_is_declared_first_and_bound_last(control: FakeControl) -> None:
    ladder = Ladder(ME)
    await ladder.begin(control)  # type: ignore[arg-type]
    assert control.taken() == IS_DECLARED
    assert not ladder.leads_out
    await ladder.lead_out(control)  # type: ignore[arg-type]
    await ladder.lead_out(control)  # type: ignore[arg-type]
    assert control.taken() == [IS_BOUND]
    assert ladder.leads_out


async def test_an_earlier_versions_exchange_is_replaced_when_all_queues_are_bound(
    control: FakeControl,
) -> None:
    ladder, control.refuses = Ladder(ME), 406
    await ladder.begin(control)  # type: ignore[arg-type]
    assert control.taken() == IS_DECLARED
    await ladder.lead_out(control)  # type: ignore[arg-type]
    assert control.taken() == ["delete mb.due", "declare mb.due", IS_BOUND]


async def test_another_refusal_is_told(control: FakeControl) -> None:
    control.refuses = 403
    with pytest.raises(ChannelRefused):
        await Ladder(ME).begin(control)  # type: ignore[arg-type]


async def test_the_undelivered_are_told_once_and_again_when_they_double(
    control: FakeControl, caplog: pytest.LogCaptureFixture
) -> None:
    ladder = Ladder(ME)
    caplog.set_level(logging.WARNING, "messagebus.agent")
    for control.waiting in (0, 1, 1, 2, 3, 0, 1):
        await ladder.look(control)  # type: ignore[arg-type]
        assert ladder.undelivered == control.waiting
    assert [told.getMessage().split("messages=")[1][:1] for told in caplog.records] == [
        "1",
        "2",
        "1",
    ]


async def test_what_somebody_deleted_is_made_again(
    control: FakeControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REPAIR_EVERY", 1)
    ladder = Ladder(ME)
    await ladder.begin(control)  # type: ignore[arg-type]
    await ladder.lead_out(control)  # type: ignore[arg-type]
    control.taken()
    await ladder.look(control)  # type: ignore[arg-type]
    assert sorted(control.taken()) == sorted([*IS_DECLARED, IS_BOUND])
    control.waiting = None
    await ladder.look(control)  # type: ignore[arg-type]
    assert control.taken() == IS_DECLARED
    assert not ladder.leads_out
