from __future__ import annotations

import sys
from pathlib import Path

from ops.commands import balancer

FILE = Path("/c/inventory.toml")
BALANCER = (sys.executable, "-m", "lb", "--inventory", str(FILE))


def test_changes_of_the_balancer() -> None:
    assert balancer.apply(FILE).argv == (*BALANCER, "apply")
    assert balancer.drain(FILE, "mb2").argv == (*BALANCER, "drain", "mb2")
    assert balancer.ready(FILE, "mb2").argv == (*BALANCER, "ready", "mb2")
    without = ("--without", "lb2", "--without", "lb3")
    assert balancer.apply(FILE, {"lb3", "lb2"}).argv == (*BALANCER, "apply", *without)
    assert balancer.drain(FILE, "mb2", {"lb3", "lb2"}).argv == (*BALANCER, "drain", "mb2", *without)


def test_a_broker_that_haproxy_does_not_know_is_held_by_its_agent_alone() -> None:
    hold = (sys.executable, "-m", "ops", "hold", "mb4", "--inventory", str(FILE))
    assert balancer.hold(FILE, "mb4").argv == hold
