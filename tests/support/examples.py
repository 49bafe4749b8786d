"""The number of examples that a property is tried with: all in CI and for mutants, a quarter at the desk."""

from __future__ import annotations

import os
from collections.abc import Iterable

# Set to 1 by `make test-all`, `make mutants`, and by whoever wants to know.
THOROUGH = "TESTS_THOROUGH"
QUICK_SHARE = 4


def examples(count: int) -> int:
    """Return how many of `count` examples to try."""
    return count if os.environ.get(THOROUGH) == "1" else count // QUICK_SHARE


def without_large(names: Iterable[str], *large: str) -> list[str]:
    """Return the names of the cases to try: all of them, or those that take seconds only."""
    return [name for name in names if name not in large or os.environ.get(THOROUGH) == "1"]
