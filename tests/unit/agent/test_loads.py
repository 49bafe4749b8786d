from __future__ import annotations

from typing import cast

from messagebus.agent.loads import Loads
from messagebus.agent.management import Load, Management, ManagementUnavailable, Room


class FakeManagement:
    is_there = True

    def __init__(self) -> None:
        self.says: list[Load] | None = []

    async def loads(self) -> list[Load]:
        if self.says is None:
            raise ManagementUnavailable("away")
        return self.says

    async def room(self) -> Room:
        return Room(
            disk_free_bytes=9, disk_limit_bytes=2, memory_used_bytes=3, memory_limit_bytes=4
        )


def shown(loads: Loads) -> dict[tuple[str, str], float]:
    return {(figure.name, figure.queue): figure.value for figure in loads.figures()}


async def test_each_queue_is_shown_with_the_age_of_its_oldest_message() -> None:
    management = FakeManagement()
    loads = Loads(cast(Management, management))
    assert shown(loads) == {}
    management.says = [Load(queue="q", messages=5, consumers=1, departed=0)]
    await loads.look(10_000)
    management.says = [
        Load(queue="q", messages=7, consumers=0, departed=1),
        Load(queue="new", messages=0, consumers=2, departed=0),
    ]
    await loads.look(20_000)
    assert shown(loads) == {
        ("queue_messages", "q"): 7,
        ("queue_messages", "new"): 0,
        ("queue_consumers", "q"): 0,
        ("queue_consumers", "new"): 2,
        ("queue_oldest_age_seconds", "q"): 10,
        ("queue_oldest_age_seconds", "new"): 0,
        ("disk_free_bytes", ""): 9,
        ("disk_limit_bytes", ""): 2,
        ("memory_used_bytes", ""): 3,
        ("memory_limit_bytes", ""): 4,
    }


async def test_of_a_broker_that_is_away_nothing_is_shown() -> None:
    management = FakeManagement()
    loads = Loads(cast(Management, management))
    management.says = [Load(queue="q", messages=5, consumers=1, departed=0)]
    await loads.look(0)
    management.says = None
    await loads.look(10_000)
    assert shown(loads) == {}
    management.says = [Load(queue="q", messages=5, consumers=1, departed=0)]
    await loads.look(20_000)
    assert shown(loads)["queue_oldest_age_seconds", "q"] == 20
