from __future__ import annotations

import dataclasses

from lb.lint import faults
from lb.timers import Timers
from tests.support.balancer import inventory


def test_the_defaults_go_together() -> None:
    assert faults(inventory()) == []


def test_every_timer_is_explained() -> None:
    told = Timers.__doc__ or ""
    assert all(field.name in told for field in dataclasses.fields(Timers))
