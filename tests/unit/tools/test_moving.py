from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from messagebus import BusConfig
from messagebus.errors import LinkLost, TopologyError
from messagebus.tools import moving
from messagebus.tools.moving import MessagesMoved, move_messages


class Movers:
    """Movers with the end of each pass, in its turn: a fault, or None. asked: queue and targets of each."""

    def __init__(self, *ends: Exception | None) -> None:
        self._ends = list(ends)
        self.asked: list[tuple[str, list[str]]] = []

    def __call__(self, _bus: BusConfig, _source: str, targets: list[str]) -> Any:
        movers = self

        class Mover:
            async def move(
                self, queue: str, *, on_moved: Callable[[str, int], None], window: int
            ) -> None:
                movers.asked.append((queue, targets))
                if (end := movers._ends.pop(0)) is not None:
                    raise end
                on_moved(targets[-1], 1)

        return Mover()


def moved(patch: pytest.MonkeyPatch, movers: Movers, *targets: str) -> MessagesMoved:
    patch.setattr(moving, "Mover", movers)
    return move_messages(BusConfig(), ["a", "b"], source="mb1:1", targets=targets)


def test_a_target_that_confirms_nothing_is_left_out_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It came into alarm meanwhile, or died."""
    movers = Movers(LinkLost("mb2:1", "no confirm within 30 s"), None, None)
    done = moved(monkeypatch, movers, "mb2:1", "mb3:1")
    assert (done.total, done.faults) == (2, {})
    assert movers.asked == [("a", ["mb2:1", "mb3:1"]), ("a", ["mb3:1"]), ("b", ["mb3:1"])]


def test_the_last_target_and_the_old_broker_are_left_out_by_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    movers = Movers(LinkLost("mb2:1", "no confirm"), LinkLost("mb1:1", "gone"))
    assert moved(monkeypatch, movers, "mb2:1").faults == {
        "a": "mb2:1: no confirm",
        "b": "mb1:1: gone",
    }


def test_a_queue_that_a_target_does_not_have_is_told_and_the_next_one_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    movers = Movers(TopologyError("mb2:1 has no queue a"), None)
    done = moved(monkeypatch, movers, "mb2:1", "mb3:1")
    assert done.faults == {"a": "mb2:1 has no queue a"}
    assert len(movers.asked) == 2
