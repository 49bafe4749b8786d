"""What a worker says at its end and how it hears of its parent's. See tests/integration/test_worker.py."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from messagebus import App
from messagebus.worker import process
from messagebus.worker.process import STOP, Parent, unfinished
from tests.support.eventually import eventually


def test_what_was_not_finished_is_told_by_name() -> None:
    told = unfinished({"orders/billing": 2, "queue:jobs": 0}, 2.5)
    assert told == ("stopped; not finished within 2.5 s, to be delivered again: orders/billing 2")


class Asked(App):
    """Counts how often it is asked to stop."""

    asked = 0

    def request_stop(self) -> None:
        self.asked += 1


ENDS: list[Callable[[socket.socket, Parent], object]] = [
    lambda line, _parent: line.send(STOP),
    lambda line, _parent: line.close(),
    lambda _line, parent: parent.stop(),
]


@pytest.mark.parametrize("end", ENDS, ids=["told", "the parent died", "a signal"])
def test_a_child_that_is_still_importing_is_left_at_once(
    end: Callable[[socket.socket, Parent], object],
) -> None:
    ours, theirs = socket.socketpair()
    left: list[int] = []
    with ours, theirs:
        parent = Parent(theirs, leave=left.append)
        end(ours, parent)
        eventually(lambda: left == [0], within_s=5)


@pytest.mark.parametrize("end", ENDS, ids=["told", "the parent died", "a signal"])
def test_an_app_is_asked_and_left_when_it_does_not_end_in_time(
    end: Callable[[socket.socket, Parent], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LEAVE_AFTER_S", 0.1)
    ours, theirs = socket.socketpair()
    left: list[int] = []
    app = Asked()
    with ours, theirs:
        parent = Parent(theirs, grace_s=0, leave=left.append)
        parent.watch(app)
        end(ours, parent)
        eventually(lambda: left == [1], within_s=5)
        parent.stop()
    assert app.asked == 1
