"""What a worker says at its end. The rest is tested in tests/integration/test_worker.py."""

from __future__ import annotations

from messagebus.worker.process import unfinished


def test_what_was_not_finished_is_told_by_name() -> None:
    told = unfinished({"orders/billing": 2, "queue:jobs": 0}, 2.5)
    assert told == ("stopped; not finished within 2.5 s, to be delivered again: orders/billing 2")
