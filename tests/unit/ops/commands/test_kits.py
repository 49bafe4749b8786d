from __future__ import annotations

import sys
from pathlib import Path

from ops.commands import kits
from ops.commands.kits import CHECKOUT, kit
from ops.run.plan import Command

FILE = Path("/c/inventory.toml")
PYTHON = (sys.executable, "-m")


def test_the_checkout_holds_the_kits() -> None:
    assert (CHECKOUT / "lb" / "__main__.py").exists()


def test_a_kit_runs_with_this_python() -> None:
    assert kit("lb", "apply") == Command((sys.executable, "-m", "lb", "apply"))


def test_every_kit_is_told_its_inventory() -> None:
    there = ("--inventory", str(FILE))
    assert kits.lb(FILE, "drain", "mb2").argv == (*PYTHON, "lb", *there, "drain", "mb2")
    added = kits.lists(FILE, "add", "a:1", "--agent-port", "9").argv
    assert added == (*PYTHON, "consumer_lists", *there, "add", "a:1", "--agent-port", "9")
    assert kits.ops(FILE, "hold", "mb4").argv == (*PYTHON, "ops", "hold", "mb4", *there)


def test_who_is_dead_is_left_out_by_name_in_one_order() -> None:
    without = ("--without", "lb2", "--without", "lb3")
    assert kits.lb(FILE, "apply", without={"lb3", "lb2"}).argv[-5:] == ("apply", *without)
    assert kits.lists(FILE, "push", without={"lb3", "lb2"}).argv[-5:] == ("push", *without)
