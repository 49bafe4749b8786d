"""The stage of a single active consumer with deduplication: what a link brought is handed out in its order.

    entered ─▶ ASKED ─▶ GRANTED ─▶ nothing before it on its link waits: to the stage behind
                 ▲  └─▶ DENIED, as somebody else runs its message: none behind it keeps its claim
                 └──── LET_GO ◀─┘

Unlike in `core.keyed`, deliveries of one link do not wait for the answers of others. Runs on one asyncio
loop.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from messagebus._io.consume.plain import Plain
from messagebus._io.consume.stage import Claiming
from messagebus.core.deliveries import Ledger
from messagebus.message import Delivery

ASKED, GRANTED, DENIED, LET_GO = range(4)


class LinkOrder:
    """The deliveries of one consumer that wait for their turns, by link."""

    has_lanes = True

    def __init__(self, behind: Plain, claims: Claiming) -> None:
        self._behind, self._claims = behind, claims
        self.put_back, self.never_answered = behind.put_back, behind.never_answered
        self._waiting: dict[Ledger, dict[Delivery, int]] = {}

    # Events.
    def entered(self, deliveries: Sequence[Delivery]) -> None:
        """Enter what one link brought, in that order, to be granted."""
        for delivery in deliveries:
            self._waiting.setdefault(delivery._ledger, {})[delivery] = ASKED

    def granted(self, deliveries: Sequence[Delivery]) -> None:
        """Note that the claims of these are stored; those that had been handed out before go at once."""
        again = [one for one in deliveries if one not in self._waiting.get(one._ledger, ())]
        if again:
            self._behind.granted(again)
        self._note(deliveries, GRANTED)
        self._advance_all(deliveries)

    def held(self, deliveries: Sequence[Delivery]) -> None:
        """Note that these wait for somebody else's run of their messages."""
        self._note(deliveries, DENIED)
        self._advance_all(deliveries)

    def answered(self, delivery: Delivery) -> None:
        """Note the end of a delivery: what stood behind it goes on."""
        waiting = self._waiting.get(delivery._ledger)
        if waiting and waiting.pop(delivery, None) is not None:
            self._advance(waiting)

    def park_unseen(self, delivery: Delivery, reason: str) -> bool:
        """Park a delivery that the application never gets: what stood behind it goes on."""
        is_parked = self._behind.park_unseen(delivery, reason)
        self.answered(delivery)
        return is_parked

    def withdrawn(
        self, ledger: Ledger, taken: Sequence[Delivery] = (), *, is_lost: bool = False
    ) -> list[Delivery]:
        """Take out what waits of a link, in its order."""
        waiting = self._waiting.pop(ledger, ())
        return [*self._behind.withdrawn(ledger, taken, is_lost=is_lost), *waiting]

    def _note(self, deliveries: Iterable[Delivery], claim: int) -> None:
        for delivery in deliveries:
            waiting = self._waiting.get(delivery._ledger)
            if waiting is not None and delivery in waiting:
                waiting[delivery] = claim

    def _advance_all(self, deliveries: Iterable[Delivery]) -> None:
        for ledger in dict.fromkeys(one._ledger for one in deliveries):
            if waiting := self._waiting.get(ledger):
                self._advance(waiting)

    def _advance(self, waiting: dict[Delivery, int]) -> None:
        """Hand out what has its claim and nothing before it on its link that still waits.

        Nothing behind a first that somebody else runs keeps its claim: as in `core.keyed`, both would wait.
        """
        ready = list(itertools.takewhile(lambda one: waiting[one] == GRANTED, waiting))
        for delivery in ready:
            del waiting[delivery]
        if ready:
            self._behind.granted(ready)
        is_denied = next(iter(waiting.values()), ASKED) == DENIED
        claim, becomes = (GRANTED, LET_GO) if is_denied else (LET_GO, ASKED)
        found = [one for one in waiting if waiting[one] == claim and self._claims.has_claim(one)]
        if found:
            self._note(found, becomes)
            (self._claims.let_go if is_denied else self._claims.ask)(found)

    # Questions.
    def is_next(self, delivery: Delivery) -> bool:
        waiting = self._waiting.get(delivery._ledger, ())
        return delivery not in waiting or next(iter(waiting)) is delivery

    def oldest(self, ledger: Ledger) -> Delivery | None:
        """Return it; what is handed out stood before what waits."""
        first = next(iter(self._waiting.get(ledger, ())), None)
        return self._behind.oldest(ledger) or first

    def holds(self, ledger: Ledger, unclaimed: bool = False) -> bool:
        return bool(self._waiting.get(ledger)) or self._behind.holds(ledger, unclaimed)

    def buffered(self, unclaimed: int = 0) -> int:
        """Return it; what waits for its claim waits here."""
        return self._behind.buffered(sum(map(len, self._waiting.values())))
