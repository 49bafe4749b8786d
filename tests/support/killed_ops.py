"""`python -m ops`, killed by SIGKILL when its journal is about to keep the next step, or has just kept it.

    python -m tests.support.killed_ops before|after WORD...

Before: the step's commands have run and nobody knows. After: the next step has not begun.
"""

from __future__ import annotations

import os
import signal
import sys

from ops.__main__ import main
from ops.journal import Journal


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed(moment: str, words: list[str]) -> int:
    record = Journal.record

    def recorded(self: Journal, step: str, took_s: float, proof: str = "") -> None:
        if moment == "before":
            die()
        record(self, step, took_s, proof)
        die()

    Journal.record = recorded  # type: ignore[method-assign]
    return main(words)


if __name__ == "__main__":
    sys.exit(killed(sys.argv[1], sys.argv[2:]))
