"""Workers of a part that begin when nothing else runs beside it any more: see `tests.run`."""

from __future__ import annotations

import os
import time
from pathlib import Path

__all__ = ["BUSY_FILE", "FIRST_LATE", "wait_for_room"]

BUSY_FILE = "TESTS_BUSY_FILE"
"""Variable with the path of a file that is there while other parts run."""
FIRST_LATE = 2
"""Number of the first worker that waits for them."""
LOOK_S = 0.5


def wait_for_room() -> None:
    """Wait in a late worker of pytest-xdist until no other part runs."""
    path, worker = os.environ.get(BUSY_FILE), os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    if path and int(worker.removeprefix("gw")) >= FIRST_LATE:
        while Path(path).exists():
            time.sleep(LOOK_S)
