"""Entries that the broker refused to declare: not asked for at every turn, so the others go on."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from messagebus.core.register import Entry

__all__ = ["Refusals"]

# An entry that the broker refused is tried again after that; the others do not wait for it.
REFUSED_RETRY_S = 5.0


@dataclass(frozen=True, slots=True)
class _Refused:
    entry: Entry
    reason: str
    retry_at_s: float


class Refusals:
    """By name of the entry."""

    def __init__(self) -> None:
        self._refused: dict[str, _Refused] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._refused

    def refused(self, entry: Entry, reason: str) -> None:
        retry_at_s = time.monotonic() + REFUSED_RETRY_S
        self._refused[entry.wanted] = _Refused(entry, reason, retry_at_s)

    def taken(self, name: str) -> None:
        """The broker has it now."""
        self._refused.pop(name, None)

    def clear(self) -> None:
        self._refused.clear()

    def rests(self, entry: Entry) -> bool:
        """Whether exactly this was refused, not long ago."""
        refused = self._refused.get(entry.wanted)
        if refused is None or refused.entry != entry:
            return False
        return time.monotonic() < refused.retry_at_s

    def reasons(self, names: Iterable[str]) -> list[str]:
        return [f"{name}: {self._refused[name].reason}" for name in names if name in self]
