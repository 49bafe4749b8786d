"""Wait time before the next try."""

from __future__ import annotations

__all__ = ["REFUSED_FIRST_MS", "REFUSED_MAX_MS", "backoff_ms"]

# A refused login is tried again, because passwords rotate, but slowly: an account may be locked after
# some tries. The first wait is short, as a file may be written a moment after the broker's change.
REFUSED_FIRST_MS, REFUSED_MAX_MS = 1_000, 30_000


def backoff_ms(failures: int, *, first_ms: int, max_ms: int, share: float) -> int:
    """Return the wait in ms, exponential with jitter: half of it is fixed, the rest is scaled by `share`.

    failures: 1 after the first failure; the full wait doubles with each, up to max_ms.
    share: a random number from 0 to 1, chosen by the caller.
    """
    full_ms = min(max_ms, first_ms << min(max(failures - 1, 0), 20))
    return full_ms // 2 + int(full_ms / 2 * share)
