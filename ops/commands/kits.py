"""The kits: their folder, and calls of their commands."""

from __future__ import annotations

import sys
from pathlib import Path

from ops.run.plan import Command

__all__ = ["CHECKOUT", "kit"]

CHECKOUT = Path(__file__).resolve().parents[2]


def kit(module: str, *words: str) -> Command:
    """Run ``python -m module words...`` on the operator's machine."""
    return Command((sys.executable, "-m", module, *words))
