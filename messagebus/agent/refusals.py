"""Entries that the broker refused to declare: not asked for at every turn, so the others go on."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
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

    def keep(self, names: Mapping[str, Entry]) -> None:
        """Forget all others: those that live no more, or are wanted otherwise now."""
        for name, refused in list(self._refused.items()):
            if names.get(name) != refused.entry:
                del self._refused[name]

    def __len__(self) -> int:
        return len(self._refused)

    @property
    def is_due(self) -> bool:
        """Whether one of them is to be tried again."""
        return any(not self.rests(refused.entry) for refused in self._refused.values())

    def is_about_a_queue(self, name: str) -> bool:
        """By the words of `messagebus._io.admin.control.mismatch_text`."""
        return name in self and self._refused[name].reason.startswith("queue ")

    def rests(self, entry: Entry) -> bool:
        """Whether exactly this was refused, not long ago."""
        refused = self._refused.get(entry.wanted)
        if refused is None or refused.entry != entry:
            return False
        return time.monotonic() < refused.retry_at_s

    def reasons(self, names: Iterable[str]) -> list[str]:
        return [f"{name}: {self._refused[name].reason}" for name in names if name in self]
