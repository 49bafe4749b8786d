"""When what statistics show is believed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["Steady", "some"]

NAMES_SHOWN = 5


class Steady:
    """What statistics show is believed when it was so in looks more than one interval apart.

    They show the past: what began a moment before a look is not in them yet.
    """

    def __init__(self, interval_s: float, clock: Callable[[], float]) -> None:
        """interval_s: the longest that the broker's statistics may lag."""
        self._interval_s, self._clock = interval_s, clock
        self._since: float | None = None

    def holds(self) -> bool:
        """It was so in this look. Returns whether it has been for long enough."""
        now = self._clock()
        self._since = now if self._since is None else self._since
        return now - self._since > self._interval_s

    def broken(self) -> None:
        """It was not so in this look, or proved wrong."""
        self._since = None


def some(names: Sequence[str]) -> str:
    """The first NAMES_SHOWN of them, and how many more there are."""
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
