"""How long to wait before the next try."""

from __future__ import annotations

__all__ = ["backoff_ms"]


def backoff_ms(failures: int, *, first_ms: int, max_ms: int, share: float) -> int:
    """Exponential with jitter: half of the full wait is certain, the rest is `share` of it.

    failures: 1 after the first failure; the full wait doubles with each, up to max_ms.
    share: a random number from 0 to 1, chosen by the caller.
    """
    full_ms = min(max_ms, first_ms << min(max(failures - 1, 0), 20))
    return full_ms // 2 + int(full_ms / 2 * share)
