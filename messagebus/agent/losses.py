"""What vanished from the broker: noticed once, told, and told again when it is there again.

Remembers; repairs nothing.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

__all__ = ["Loss", "Losses"]

log = logging.getLogger("messagebus.agent")

LOSSES_KEPT = 100
# Events of one deletion carry times a few milliseconds apart.
SAME_LOSS_MS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A queue, binding or exchange that was there and is not any more.

    how: `event`, `audit`, `expiry`, or `start` when it was missing as the link was opened.
    repaired_at_ms: wall clock, 0 while it is missing.
    """

    wanted: str
    what: str
    name: str
    how: str
    noticed_at_ms: int
    repaired_at_ms: int = 0


class Losses:
    """Of one broker, the newest LOSSES_KEPT. on_report: called when they are others than before."""

    def __init__(self, broker: str, on_report: Callable[[], None]) -> None:
        self._broker, self._on_report = broker, on_report
        self.kept: deque[Loss] = deque(maxlen=LOSSES_KEPT)
        self.total = 0

    def restore(self, losses: Iterable[Loss]) -> None:
        """Those of an earlier process."""
        self.kept.extend(losses)

    @property
    def missing(self) -> int:
        """How many are not there again."""
        return sum(not loss.repaired_at_ms for loss in self.kept)

    @property
    def mark(self) -> int:
        """Another number whenever `kept` is another list."""
        return 2 * self.total - self.missing

    def noticed(self, wanted: str, what: str, name: str, *, how: str, now_ms: int) -> None:
        """Remember it and tell it, unless it is known to be missing."""
        if any(loss.name == name and not loss.repaired_at_ms for loss in self.kept):
            return
        self.kept.append(Loss(wanted=wanted, what=what, name=name, how=how, noticed_at_ms=now_ms))
        self.total += 1
        log.warning(
            "%s vanished%s broker=%s name=%s noticed_by=%s",
            what,
            " with all that was in it" if what == "queue" else "",
            self._broker,
            name,
            how,
        )
        self._on_report()

    def was_a_queue(self, name: str, deleted_at_ms: int) -> None:
        """The broker tells of a deleted queue's binding first, perhaps before the repair."""
        for number, loss in enumerate(self.kept):
            same = loss.name == name and loss.noticed_at_ms > deleted_at_ms - SAME_LOSS_MS
            if same and loss.what == "binding":
                self.kept[number] = replace(loss, what="queue")
                self._on_report()

    def repaired(self, now_ms: int) -> None:
        """Everything is there again."""
        if not self.missing:
            return
        for number, loss in enumerate(self.kept):
            if not loss.repaired_at_ms:
                self.kept[number] = replace(loss, repaired_at_ms=now_ms)
                log.warning("%s made again broker=%s name=%s", loss.what, self._broker, loss.name)
        self._on_report()
