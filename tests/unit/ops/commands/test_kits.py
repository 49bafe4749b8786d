from __future__ import annotations

import sys

from ops.commands.kits import CHECKOUT, kit
from ops.run.plan import Command


def test_the_kits_commands_run_here_under_the_same_python() -> None:
    assert kit("lb", "apply") == Command((sys.executable, "-m", "lb", "apply"))
    assert (CHECKOUT / "ops" / "commands" / "kits.py").is_file()
