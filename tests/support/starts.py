"""The starts of clusters and brokers in a run of the suite, and how long tests waited for them."""

from __future__ import annotations

import functools
import os
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ops.local.cluster import LocalCluster

# Environment variable: where each start is noted, in a line of its own.
FILE = "TESTS_STARTS"
METHODS = {"up": "clusters brought up", "start": "brokers and agents started"}


def note_starts() -> None:
    """Note each start by `LocalCluster` in this process, if the environment names a file.

    Starts by the command `ops local` are not noted.
    """
    if file := os.environ.get(FILE):
        for name in METHODS:
            setattr(LocalCluster, name, _noted(name, getattr(LocalCluster, name), Path(file)))


def _noted(name: str, method: Callable[..., None], file: Path) -> Callable[..., None]:
    @functools.wraps(method)
    def noted(*args: Any, **options: Any) -> None:
        began = time.monotonic()
        try:
            method(*args, **options)
        finally:
            with file.open("a") as lines:
                lines.write(f"{name} {time.monotonic() - began:.3f}\n")

    return noted


def summed(file: Path) -> str:
    """Return the number of starts and the seconds waited for them, as one line."""
    waits: dict[str, list[float]] = defaultdict(list)
    for line in file.read_text().splitlines() if file.exists() else ():
        name, seconds = line.split()
        waits[name].append(float(seconds))
    return "; ".join(
        f"{words}: {len(waits[name])}, {sum(waits[name]):.0f} s" for name, words in METHODS.items()
    )
