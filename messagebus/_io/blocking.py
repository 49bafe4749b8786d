"""Runs a coroutine for a caller that waits for its end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["run_blocking"]

T = TypeVar("T")


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, which says neither what to do instead nor closes what it refuses."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    coroutine.close()
    raise RuntimeError(
        "this call waits, and an event loop runs in this thread: await asyncio.to_thread(it, ...)"
    )
