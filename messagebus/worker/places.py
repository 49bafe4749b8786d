"""Which lines of a stack are the application's own: neither ours nor the standard library's."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterable
from pathlib import Path

__all__ = ["of_application"]

_LIBRARY = f"{Path(__file__).resolve().parents[1]}/"
_STANDARD = f"{Path(asyncio.__file__).resolve().parents[1]}/"
_INSTALLED = f"{_STANDARD}site-packages/"


def of_application(stack: Iterable[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """In the same order."""
    return [frame for frame in stack if _is_of_application(frame.filename)]


def _is_of_application(file: str) -> bool:
    if file.startswith(("<frozen", _LIBRARY)):
        return False
    return file.startswith(_INSTALLED) or not file.startswith(_STANDARD)
