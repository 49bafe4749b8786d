"""`python -m ops`, killed by SIGKILL when its journal is about to keep a step."""

from __future__ import annotations

import os
import signal
import sys

from ops.__main__ import main
from ops.run.journal import Journal


def run(after: int, words: list[str]) -> None:
    """Run a command, silently, as the only thing that this process does; it ends here.

    after: number of steps that are kept before it is killed. The commands of the next step have run, and the
    journal lacks it.
    """
    record = Journal.record

    def recorded(self: Journal, step: str, took_s: float, proof: str = "") -> None:
        if len(self.done) == after:
            os.kill(os.getpid(), signal.SIGKILL)
        record(self, step, took_s, proof)

    Journal.record = recorded  # type: ignore[method-assign]
    nowhere = os.open(os.devnull, os.O_RDWR)
    for file in (0, 1, 2):
        os.dup2(nowhere, file)
    sys.exit(main(words))
