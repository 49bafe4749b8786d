from __future__ import annotations

import sys
from pathlib import Path

from ops.commands import lists

FILE = Path("/c/inventory.toml")
LISTS = (sys.executable, "-m", "consumer_lists", "--inventory", str(FILE))


def test_changes_of_the_list() -> None:
    assert lists.add(FILE, "a:1", agent_port=9).argv == (*LISTS, "add", "a:1", "--agent-port", "9")
    assert lists.drain(FILE, "a:1").argv == (*LISTS, "drain", "a:1")
    assert lists.ready(FILE, "a:1").argv == (*LISTS, "ready", "a:1")
    assert lists.remove(FILE, "a:1").argv == (*LISTS, "remove", "a:1")
    assert lists.push(FILE).argv == (*LISTS, "push")
    assert lists.recover(FILE).argv == (*LISTS, "push", "--recover")
