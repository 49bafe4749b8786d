"""The kits: where they are, and how their own commands are called."""

from __future__ import annotations

import sys
from pathlib import Path

from ops.run.plan import Command

__all__ = ["CHECKOUT", "kit"]

CHECKOUT = Path(__file__).resolve().parents[2]


def kit(module: str, *words: str) -> Command:
    """``python -m module words...`` on the operator's machine."""
    return Command((sys.executable, "-m", module, *words))
