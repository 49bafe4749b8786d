"""`python -m ops`, killed by SIGKILL when its journal is about to keep a step.

    python -m tests.support.killed_ops COUNT WORD...

COUNT: of steps that are kept before. The commands of the next step have run, and the journal lacks it.
"""

from __future__ import annotations

import os
import signal
import sys

from ops.__main__ import main
from ops.run.journal import Journal


def killed(after: int, words: list[str]) -> int:
    record = Journal.record

    def recorded(self: Journal, step: str, took_s: float, proof: str = "") -> None:
        if len(self.done) == after:
            os.kill(os.getpid(), signal.SIGKILL)
        record(self, step, took_s, proof)

    Journal.record = recorded  # type: ignore[method-assign]
    return main(words)


if __name__ == "__main__":
    sys.exit(killed(int(sys.argv[1]), sys.argv[2:]))
