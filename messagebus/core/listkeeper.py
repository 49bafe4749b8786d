"""Rules for accepting an answer to a request for the consumer list.

Decides; fetches nothing. The list in hand is only ever replaced by a newer one of the same cluster
with hosts that are allowed; every other answer changes nothing and is counted.
"""

from __future__ import annotations

import enum
import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Judgement", "ListKeeper"]


class Judgement(enum.Enum):
    NEWER = "newer"
    SAME = "same"
    REFUSED = "refused"


@dataclass(slots=True)
class ListKeeper:
    """The state of the list. Empty cluster and host patterns accept any."""

    cluster: str = ""
    hosts_allowed: tuple[str, ...] = ()
    generation: int = -1
    """Generation of the list in hand; -1 when there is none."""
    good_ms: int | None = None
    """Time of the last good answer, also of an unchanged one."""
    faults: int = 0
    """Requests without an answer, and answers that were no list or were not accepted."""
    faults_in_a_row: int = 0

    def judge(
        self, *, generation: int, cluster: str, hosts: Iterable[str], now_ms: int
    ) -> tuple[Judgement, str]:
        """Return the judgement on a list that parsed, and the reason of a refusal (then call `failed`).

        generation 0 says nothing about age: such a list replaces another one of generation 0 only.
        """
        if reason := self._objection(generation, cluster, hosts):
            return Judgement.REFUSED, reason
        newer = generation > self.generation or generation == 0
        self.generation = generation
        self.unchanged(now_ms)
        return (Judgement.NEWER if newer else Judgement.SAME), ""

    def _objection(self, generation: int, cluster: str, hosts: Iterable[str]) -> str:
        if generation < self.generation:
            return f"generation {generation} is older than {self.generation}"
        if self.cluster and cluster != self.cluster:
            return f"cluster {cluster!r} is not {self.cluster!r}"
        strange = [host for host in hosts if not self._allowed(host)]
        if strange:
            return f"host {strange[0]!r} is not allowed"
        return ""

    def _allowed(self, host: str) -> bool:
        patterns = self.hosts_allowed
        return not patterns or any(fnmatch.fnmatchcase(host, pattern) for pattern in patterns)

    def unchanged(self, now_ms: int) -> None:
        """Record a good answer that says nothing new."""
        self.good_ms = now_ms
        self.faults_in_a_row = 0

    def failed(self) -> None:
        """Record that there was no answer, or one that is no list."""
        self.faults += 1
        self.faults_in_a_row += 1

    def age_ms(self, now_ms: int) -> int | None:
        """Return the time since the last good answer; None when there never was one."""
        return None if self.good_ms is None else now_ms - self.good_ms
